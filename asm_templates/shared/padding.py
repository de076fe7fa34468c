"""Padding lines between the lines that a kernel reads from L2, in order, once a call.

    read     0 1 2 . 3 4 5 . 6 7 8 .        the n-th line lies at n + n // 3; no dot is ever read

In runs of three or fewer, lines arrive as fast as L2 can deliver them; in longer ones a prefetcher
seems to ask for lines that the kernel asks for as well. Within L1, beyond half of L2, and with
vectors of 32 bytes nothing is gained. More weights stay in L1 if they lie in every other line, all
in sets of even numbers, and lines fetched in vain in the others (`int8_permute`, `mixed`).
docs/kernels/memory.md has the measurements; whether a processor gains by it is one of them.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler

CACHE_LINE_BYTES = 64
Number = TypeVar("Number", int, npt.NDArray[Any])


@dataclass(frozen=True)
class StridePadding:
    """Unused cache lines in a stream of lines: `run` lines of every `period` hold data.

    `period` divides the 256 lines that a one-byte displacement reaches.
    """

    run: int
    period: int

    def place(self, number: Number) -> Number:
        """Return the place in the stream of the `number`-th line that is read."""
        return number + number // self.run * (self.period - self.run)

    def room(self, count: int) -> int:
        """Return the number of lines that `count` read lines and their padding take."""
        return ceil_div(count, self.run) * self.period

    def spread(self, lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the lines, along axis 1, with zeros as padding in between."""
        if self == DENSE:
            return lines
        count = lines.shape[1]
        spread = np.zeros((lines.shape[0], self.room(count), *lines.shape[2:]), lines.dtype)
        spread[:, self.place(np.arange(count))] = lines
        return spread


DENSE, ALTERNATE, PADDED = StridePadding(1, 1), StridePadding(1, 2), StridePadding(3, 4)


def literal(asm: Assembler, lines: npt.NDArray[Any], space: StridePadding) -> int:
    """Put lines, along axis 1, into the pool with their padding; return their offset there.

    Their alignment puts the padding lines in the same sets of L1 in every call.
    """
    spread = space.spread(lines)
    asm.count(padding_bytes=spread.nbytes - lines.nbytes)
    return asm.literal(spread, space.period * CACHE_LINE_BYTES)


def stride_padding(stream_bytes: int, target: Target) -> StridePadding:
    """Return the padding for a stream of whole lines, `stream_bytes` a call."""
    beyond_l1 = stream_bytes > target.l1d_bytes * 17 // 16
    fits = PADDED.room(stream_bytes) <= target.l2_bytes // 2
    whole_lines = target.vector_bytes == CACHE_LINE_BYTES
    gains = target.core.padding and whole_lines and beyond_l1 and fits
    return PADDED if gains else DENSE
