"""The weights of a batch kernel that loops over data: compressed rows, cut into blocks.

A *block* is so many rows by so many inputs. Its nonzero weights lie row by row, and rows with
equally many follow each other (a *group*), so that a loop over them has no branch that is hard to
predict.
A row with more than `MOST` weights in a block is cut into several *segments*. A *word* is what is
multiplied at once: a float32 weight, or the int8 weights of four inputs side by side.

    quad    four offsets of inputs, 16 bits each, and four words, 32 bits        24 bytes
    segment its quads; the first one lacks what is missing to a whole number of quads
    group   int32: words of a segment, segments, bytes of a segment               12 bytes
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

MOST = 64  # words in a segment: the code has a place for each
QUAD = np.dtype([("offset", "<u2", 4), ("word", "<u4", 4)])
OFFSET_UNIT = 8  # bytes
GROUP_BYTES = 12

_IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class CsrBlocks:
    """How a matrix of words is cut: `rows` by `width` a block, the last of each smaller."""

    out_features: int
    columns: int
    rows: int
    width: int

    def places(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of every block, in the order in which they are multiplied."""
        for row in range(0, self.out_features, self.rows):
            for column in range(0, self.columns, self.width):
                yield slice(row, row + self.rows), slice(column, column + self.width)


@dataclass(frozen=True, eq=False)
class CsrStream:
    """`groups` (groups, 3) int32, those of a block end with zeros; `rows` (segments,) int32, the
    row of each segment within its block; `quads` (quads,) of QUAD, whose offsets are columns within
    the block.
    """

    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    quads: npt.NDArray[np.void]


def float_words(dense: npt.NDArray[np.float32]) -> Words:
    """A word a weight, 0 for both zeros."""
    return np.where(dense != 0, dense, np.float32(0)).view(np.uint32)


def byte_words(integers: npt.NDArray[np.int8]) -> Words:
    """A word for the weights of four inputs; zeros fill the last one."""
    rows, inputs = integers.shape
    padded = np.zeros((rows, -(-inputs // 4) * 4), np.int8)
    padded[:, :inputs] = integers
    return padded.view(np.uint32)


def segment_counts(words_a_row: _IntArray) -> _IntArray:
    """Into how many segments rows with so many words in a block are cut."""
    return -(-words_a_row // MOST)


def words_by_block(used: npt.NDArray[np.bool_], blocks: CsrBlocks) -> _IntArray:
    """The words that are not zero in each row and each block of columns, (out_features, blocks)."""
    edges = (*range(0, blocks.columns, blocks.width), blocks.columns)
    counts = [np.count_nonzero(used[:, a:b], axis=1) for a, b in pairwise(edges)]
    return np.stack(counts, axis=1)


def csr_stream(words: Words, blocks: CsrBlocks) -> CsrStream:
    """The words in the order in which they are read."""
    parts = [_block(words[place]) for place in blocks.places()]
    return CsrStream(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _block(
    words: Words,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.void]]:
    row, column = np.divmod(np.flatnonzero(words != 0), words.shape[1])  # `nonzero` is slow in 2-d
    in_row = np.bincount(row, minlength=len(words))
    rows, lengths = _segments(in_row)
    order = np.argsort(lengths, kind="stable")
    quads_of = -(-lengths // 4)
    # Where a segment's last word ends, in slots of quads, when segments are in that order.
    ends = np.empty(len(order), np.int64)
    ends[order] = 4 * np.cumsum(quads_of[order])
    segment = np.repeat(np.arange(len(lengths)), lengths)
    from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(row))
    slot = ends[segment] - from_end
    quads = np.zeros(int(quads_of.sum()), QUAD)
    quads["offset"][slot // 4, slot % 4] = column
    quads["word"][slot // 4, slot % 4] = words[row, column]
    length, segments = np.unique(lengths, return_counts=True)
    groups = np.stack([length, segments, -(-length // 4) * QUAD.itemsize], axis=1)
    return (
        np.append(groups, np.zeros((1, 3)), axis=0).astype(np.int32),
        rows[order].astype(np.int32),
        quads,
    )


def _segments(in_row: _IntArray) -> tuple[_IntArray, _IntArray]:
    """The row and the length of every segment: those of a row differ by one at most."""
    cut = segment_counts(in_row)
    rows = np.repeat(np.arange(len(in_row)), cut)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(cut) - cut, cut)
    whole, rest = np.divmod(in_row[rows], cut[rows])
    return rows, whole + (number < rest)
