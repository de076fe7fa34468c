"""Placement of long straight-line code, so that part of it stays decoded from call to call.

Code that is longer than the cache of decoded instructions and runs from start to end evicts itself
from it. But the sets of that cache that an instruction may go to depend on its place in a page. So
beyond its first 32 KB code lies at the ends of pages only; the rest is left out:

    page     0     1   ..   7  |  8     9     10
    start    ####  ####  ####  |  ....  ....  ....      stays decoded
    end      ####  ####  ####  |  ####  ####  ####      evicts itself

docs/kernels/memory.md has the gain, and the memory that it takes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
JUMP_BYTES = 5

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """Code fills its first `whole` bytes, full pages, then the last `part` bytes of each page."""

    whole: int
    part: int

    def gaps(self, position: int, lengths: _IntArray) -> _IntArray:
        """Return the bytes to leave out before each of several pieces of code.

        Pieces of these `lengths`, none longer than a line of cache or so, follow each other from
        `position` on. A gap begins with a jump over the rest of it.
        """
        gaps = np.zeros(len(lengths), np.int64)
        ends = np.cumsum(lengths)
        piece, placed = 0, 0
        while True:
            stop = self._stop(position) - JUMP_BYTES
            fitting = int(np.searchsorted(ends[piece:] - placed, stop - position, side="right"))
            piece += fitting
            if piece == len(lengths):
                return gaps
            end = position + int(ends[piece - 1] - placed) if fitting else position
            placed = int(ends[piece - 1]) if piece else 0
            position = self._next_start(end)
            gaps[piece] = position - end

    def _stop(self, position: int) -> int:
        """Return the end of the stretch for code that `position` lies in; `position` if in none."""
        if position < self.whole:
            return self.whole
        start_of_part = PAGE_BYTES - self.part
        in_page = position % PAGE_BYTES
        return position + (PAGE_BYTES - in_page if in_page >= start_of_part else 0)

    def _next_start(self, end: int) -> int:
        """Return the start of the next stretch for code, where code goes on that ends at `end`.

        A jump at `end` leads there.
        """
        start_of_part = PAGE_BYTES - self.part
        first = max(end + JUMP_BYTES, self.whole)
        page, in_page = divmod(first, PAGE_BYTES)
        return page * PAGE_BYTES + start_of_part + (PAGE_BYTES if in_page > start_of_part else 0)
