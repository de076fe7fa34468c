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

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparsejit.ir.compressed_rows import CompressedRows, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix

MOST = 64  # words in a segment: the code has a place for each
QUAD = np.dtype([("offset", "<u2", 4), ("word", "<u4", 4)])
OFFSET_UNIT = 8  # bytes
GROUP_BYTES = 12

_IntArray = npt.NDArray[np.int64]
_Block = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.void]]


@dataclass(frozen=True)
class CsrBlocks:
    """How a matrix of words is cut: `rows` by `width` a block, the last of each smaller."""

    out_features: int
    columns: int
    rows: int
    width: int

    @property
    def across(self) -> int:
        """Blocks of the same rows."""
        return -(-self.columns // self.width)

    @property
    def count(self) -> int:
        """All blocks."""
        return -(-self.out_features // self.rows) * self.across

    def number_of(self, words: CompressedRows) -> _IntArray:
        """The block of each word; blocks are numbered in the order in which they are multiplied."""
        return words.rows // self.rows * self.across + words.columns // self.width


@dataclass(frozen=True, eq=False)
class CsrStream:
    """`groups` (groups, 3) int32, those of a block end with zeros; `rows` (segments,) int32, the
    row of each segment within its block; `quads` (quads,) of QUAD, whose offsets are columns within
    the block.
    """

    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    quads: npt.NDArray[np.void]


def float_words(nonzeros: CompressedRows) -> CompressedRows:
    """A word a weight, float32."""
    return nonzeros.with_values(nonzeros.values.astype(np.float32).view(np.uint32))


def byte_words(integers: CompressedRows) -> CompressedRows:
    """A word for the weights of four inputs, int8."""
    shape = integers.shape[0], -(-integers.shape[1] // 4)
    numbers = integers.rows * shape[1] + integers.columns // 4
    found, word = distinct(numbers, shape[0] * shape[1])
    parts = np.zeros((len(found), 4), np.int8)
    parts[word, integers.columns % 4] = integers.values
    return CompressedRows.of_numbers(shape, found, parts.view(np.uint32)[:, 0])


def segment_counts(words_a_row: _IntArray) -> _IntArray:
    """Into how many segments rows with so many words in a block are cut."""
    return -(-words_a_row // MOST)


def words_by_block(matrix: SparseMatrix, blocks: CsrBlocks) -> tuple[_IntArray, _IntArray]:
    """The block of every row in a block that has words, and how many."""
    if not matrix.is_vast:
        counts = matrix.counts_by_inputs(blocks.width).astype(np.int64)
        row, across = np.nonzero(counts)
        return row // blocks.rows * blocks.across + across, counts[row, across]
    words = matrix.nonzeros
    in_row = words.rows * blocks.across + words.columns // blocks.width
    begin = np.flatnonzero(np.diff(in_row, prepend=-1))
    return blocks.number_of(words)[begin], np.diff(begin, append=len(words))


def csr_stream(words: CompressedRows, blocks: CsrBlocks) -> CsrStream:
    """The words in the order in which they are read."""
    block = blocks.number_of(words)
    order = np.argsort(block, kind="stable")
    edges = np.searchsorted(block[order], np.arange(blocks.count + 1))
    parts = []
    for first, end in pairwise(edges.tolist()):
        own = order[first:end]
        row, column = words.rows[own] % blocks.rows, words.columns[own] % blocks.width
        parts.append(_block(row, column, words.values[own]))
    return CsrStream(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _block(row: _IntArray, column: _IntArray, words: npt.NDArray[np.uint32]) -> _Block:
    """The words of a block, row after row."""
    if not len(words):
        return _EMPTY
    begin = np.flatnonzero(np.diff(row, prepend=-1))
    used, in_row = row[begin], np.diff(begin, append=len(row))
    number, lengths = _segments(in_row)
    rows = used[number]
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
    quads["word"][slot // 4, slot % 4] = words
    length, segments = np.unique(lengths, return_counts=True)
    groups = np.stack([length, segments, -(-length // 4) * QUAD.itemsize], axis=1)
    return (
        np.append(groups, np.zeros((1, 3)), axis=0).astype(np.int32),
        rows[order].astype(np.int32),
        quads,
    )


# Of a block without words: the zeros that end its groups.
_EMPTY = np.zeros((1, 3), np.int32), np.zeros(0, np.int32), np.zeros(0, QUAD)


def _segments(in_row: _IntArray) -> tuple[_IntArray, _IntArray]:
    """The row and the length of every segment: those of a row differ by one at most."""
    cut = segment_counts(in_row)
    rows = np.repeat(np.arange(len(in_row)), cut)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(cut) - cut, cut)
    whole, rest = np.divmod(in_row[rows], cut[rows])
    return rows, whole + (number < rest)
