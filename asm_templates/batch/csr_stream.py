"""The weights of a batch kernel that loops over data: compressed rows, cut into blocks.

A *block* is some rows by some inputs. Its nonzero weights lie row by row, and rows with the same
number of weights are consecutive (a *group*), so that a loop over them has no branch that is hard
to predict.
A row with more than `MOST` weights in a block is cut into several *segments*. A *word* is the unit
of multiplication: a float32 weight, the weights of four inputs side by side as int8, the weights of
two as int16, or one int8 weight.

    quad    four offsets of inputs, 16 bits each, and four words, 32 or 8 bits    24 or 12 bytes
    segment its quads; zeros fill up the first quad
    group   int32: words of a segment, segments, bytes of a segment               12 bytes
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.compressed_rows import CompressedRows, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div

MOST = 64  # words in a segment: the code has a place for each
QUAD = np.dtype([("offset", "<u2", 4), ("word", "<u4", 4)])
# Unit of the stored offsets of columns and rows in a block: the loop multiplies them by 1, 2, 4 or
# 8, to match the pitch of the panel.
OFFSET_UNIT = 32  # bytes
GROUP_BYTES = 12

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CsrBlocks:
    """Blocks of a matrix of words: `rows` by `width` each; the last ones may be smaller."""

    out_features: int
    columns: int
    rows: int
    width: int

    @property
    def across(self) -> int:
        """Blocks of the same rows."""
        return ceil_div(self.columns, self.width)

    @property
    def count(self) -> int:
        """All blocks."""
        return ceil_div(self.out_features, self.rows) * self.across

    def number_of(self, words: CompressedRows) -> _IntArray:
        """The block of each word; blocks are numbered in the order in which they are multiplied."""
        return words.rows // self.rows * self.across + words.columns // self.width


@dataclass(frozen=True, eq=False)
class CsrStream:
    """The data of a kernel.

    `groups` (groups, 3) int32: each block's groups end with zeros. `rows` (segments,) int32: the
    row of each segment within its block. `quads` (quads,) of QUAD, or with bytes for words: offsets
    are columns within the block. Rows and offsets are multiplied by `OFFSET_UNIT`, and once more by
    the code for a batch, so that all batches share the stream.
    """

    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    quads: npt.NDArray[np.void]


def float_words(nonzeros: CompressedRows) -> CompressedRows:
    """Return each weight as a word, float32."""
    return nonzeros.with_values(nonzeros.values.astype(np.float32).view(np.uint32))


def short_words(integers: CompressedRows, kind: npt.DTypeLike) -> CompressedRows:
    """Return words of the weights of four inputs, int8, or of two inputs, int16."""
    together = 4 // np.dtype(kind).itemsize
    shape = integers.shape[0], ceil_div(integers.shape[1], together)
    numbers = integers.rows * shape[1] + integers.columns // together
    found, word = distinct(numbers, shape[0] * shape[1])
    parts = np.zeros((len(found), together), kind)
    parts[word, integers.columns % together] = integers.values
    return CompressedRows.of_numbers(shape, found, parts.view(np.uint32)[:, 0])


def segment_counts(words_a_row: _IntArray) -> _IntArray:
    """Return the number of segments of rows that have `words_a_row` words in a block."""
    return ceil_div(words_a_row, MOST)


def words_by_block(matrix: SparseMatrix, blocks: CsrBlocks) -> tuple[_IntArray, _IntArray]:
    """Return the block and the number of words of every row in a block that has words."""
    if not matrix.is_vast:
        counts = matrix.counts_by_inputs(blocks.width).astype(np.int64)
        row, across = np.nonzero(counts)
        return row // blocks.rows * blocks.across + across, counts[row, across]
    words = matrix.nonzeros
    in_row = words.rows * blocks.across + words.columns // blocks.width
    begin = np.flatnonzero(np.diff(in_row, prepend=-1))
    return blocks.number_of(words)[begin], np.diff(begin, append=len(words))


def csr_stream(words: CompressedRows, blocks: CsrBlocks) -> CsrStream:
    """Return the words in the order in which the code reads them."""
    down, row = _divided(words.rows, blocks.rows)
    across, column = _divided(words.columns, blocks.width)
    block = down.astype(np.int64) * blocks.across + across
    # With few blocks, the small integer type lets the stable sort be a radix sort.
    order = np.argsort(block.astype(np.min_scalar_type(blocks.count)), kind="stable")
    block, row = block[order], row[order]
    begin = np.flatnonzero((np.diff(block, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))
    number, lengths = _segments(np.diff(begin, append=len(row)))
    # Segments by block, then by length, then by row.
    kind = block[begin][number] * (MOST + 1) + lengths
    by_kind = np.argsort(kind, kind="stable")
    groups = _groups(kind[by_kind], blocks.count, quad_of(words.dtype).itemsize)
    quads = _quads(lengths, by_kind, _offsets(column[order]), words.values[order])
    return CsrStream(groups, row[begin][number][by_kind] * np.int32(OFFSET_UNIT), quads)


def _offsets(columns: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
    """Return the offsets of a block's columns in its panel."""
    assert columns.max(initial=0) * OFFSET_UNIT <= np.iinfo(np.uint16).max  # which would wrap
    return (columns * OFFSET_UNIT).astype(np.uint16)


def _divided(numbers: _IntArray, by: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return quotients and remainders, in half the time that int64 takes."""
    short = numbers.astype(np.int32)
    quotients = short // np.int32(by)
    return quotients, short - quotients * np.int32(by)


def quad_of(word: npt.DTypeLike) -> np.dtype[np.void]:
    """Return the record of four offsets and four words of a dtype."""
    return np.dtype([("offset", "<u2", 4), ("word", word, 4)])


def _groups(kinds: _IntArray, blocks: int, quad_bytes: int) -> npt.NDArray[np.int32]:
    """Return the groups of segments whose kinds, in order, are block * (MOST + 1) + length."""
    kind, segments = np.unique(kinds, return_counts=True)
    block, length = np.divmod(kind, MOST + 1)
    groups = np.zeros((len(kind) + blocks, 3), np.int32)
    bytes_ = ceil_div(length, 4) * quad_bytes
    groups[np.arange(len(kind)) + block] = np.stack([length, segments, bytes_], axis=1)
    return groups


def _quads(
    lengths: _IntArray,
    order: _IntArray,
    offsets: npt.NDArray[np.uint16],
    words: npt.NDArray[np.integer],
) -> npt.NDArray[np.void]:
    """Return the quads of segments in `order`; offsets and words are given segment by segment."""
    quads_of = ceil_div(lengths, 4)
    # End of each segment's last word, in slots of quads, with the segments in `order`.
    ends = np.empty(len(order), np.int64)
    ends[order] = 4 * np.cumsum(quads_of[order])
    slot = np.repeat(ends - np.cumsum(lengths), lengths) + np.arange(len(words))
    quads = np.zeros(int(quads_of.sum()), quad_of(words.dtype))
    for name, values in (("offset", offsets), ("word", words)):
        slots = np.zeros((len(quads), 4), values.dtype)
        slots.reshape(-1)[slot] = values
        quads[name] = slots
    return quads


def _segments(in_row: _IntArray) -> tuple[_IntArray, _IntArray]:
    """Return the row and the length of every segment; lengths in a row differ by one at most."""
    cut = segment_counts(in_row)
    rows = np.repeat(np.arange(len(in_row)), cut)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(cut) - cut, cut)
    whole, rest = np.divmod(in_row[rows], cut[rows])
    return rows, whole + (number < rest)
