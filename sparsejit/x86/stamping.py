"""Rows of lines as bytes, all at once: which instruction comes when, and where it lies.

An instruction is made as words of eight bytes, line by line. The words of all lines are put in the
order of the code, and the bytes behind the end of each instruction are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.x86.forms import Words

_LONGEST = 15  # bytes of an instruction
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

# By length: which bytes of two words belong to an instruction.
_TAKEN = np.arange(16) < np.arange(_LONGEST + 1)[:, None]


@dataclass(frozen=True, eq=False)
class Order:
    """The instructions of stamped rows in order: of each its row, its line, where it begins.

    `lengths` are those of all instructions in bytes.
    """

    rows: _Numbers
    lines: _Numbers
    starts: _Numbers
    lengths: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, count: int, lengths: Sequence[int], present: Sequence[_Flags | None]) -> "Order":
        """`count` rows of as many lines as there are lengths, each where it is `present`."""
        taken = np.ones((count, len(lengths)), bool)
        for line, when in enumerate(present):
            if when is not None:
                taken[:, line] = when
        rows, lines = np.divmod(np.flatnonzero(taken), len(lengths))
        sizes = np.array(lengths, np.uint8)[lines]
        ends = np.cumsum(sizes, dtype=np.int64)
        return cls(rows, lines, ends - sizes, sizes)

    def __len__(self) -> int:
        return len(self.rows)

    def places(self, line: int) -> _Numbers:
        """Which of the instructions are of that line."""
        return np.flatnonzero(self.lines == line)

    def bytes_of(self, words: Words) -> npt.NDArray[np.uint8]:
        """Instructions as (words, len(self)) as the bytes of code."""
        wide = 8 * len(words)
        flat = np.ascontiguousarray(words.T).view(np.uint8).reshape(-1)
        taken = np.ascontiguousarray(_TAKEN[:, :wide]).view(np.uint64)[self.lengths]
        return flat[taken.view(np.bool_).reshape(-1)]

    def moved(self, gaps: _Numbers) -> "Order":
        """With so many bytes left out before each row."""
        return Order(self.rows, self.lines, self.starts + np.cumsum(gaps)[self.rows], self.lengths)


def row_lengths(count: int, lengths: Sequence[int], present: Sequence[_Flags | None]) -> _Numbers:
    """The bytes of each row."""
    total = np.zeros(count, np.int64)
    for length, when in zip(lengths, present, strict=True):
        total += length if when is None else np.multiply(when, length, dtype=np.int64)
    return total


def with_gaps(
    code: npt.NDArray[np.uint8], gaps: _Numbers, lengths: _Numbers, filling: int
) -> npt.NDArray[np.uint8]:
    """Code of rows of these lengths with so many bytes of `filling` before each."""
    starts = np.cumsum(gaps + lengths) - lengths
    is_code = np.ones(int(gaps.sum()) + len(code), bool)
    for row in np.flatnonzero(gaps):
        is_code[starts[row] - gaps[row] : starts[row]] = False
    spread = np.full(len(is_code), filling, np.uint8)
    spread[is_code] = code
    return spread
