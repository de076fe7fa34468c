"""Data and loop bounds of a batch kernel that loops over compressed rows.

    csr_stream              the weights: compressed rows, cut into blocks
    csr_shape               the cutting of the batch, the rows and the inputs
    CsrCounts, counted      the work, for the price

A *block* is some rows by some inputs. Its nonzero weights lie row by row, and rows with the same
number of weights are consecutive (a *group*), so that a loop over them has no branch that is hard
to predict.
A row with more than `MOST` weights in a block is cut into several *segments*. A *word* is the unit
of multiplication: a float32 weight, a float16 weight twice, the weights of four inputs side by side
as int8, the weights of two as int16, or one int8 weight.

    quad    four offsets of inputs, 16 bits each, and four words, 32 or 8 bits    24 or 12 bytes
    segment its quads; zeros fill up the first quad
    group   int32: words of a segment, segments, bytes of a segment               12 bytes

Columns of the batch are computed some vectors at a time, a *pass*; in a pass a block of inputs lies
in a panel of its own, and the sums of a block of rows in another, both in a workspace.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.routines import LARGEST_WORKSPACE

MOST = 64  # words in a segment: the code has a place for each
QUAD = np.dtype([("offset", "<u2", 4), ("word", "<u4", 4)])
# Unit of the stored offsets of columns and rows in a block: the loop multiplies them by 1, 2, 4 or
# 8, rows by 16 too, to match the pitch of the panel and of the sums.
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
        """Number of blocks side by side, which have the same rows."""
        return ceil_div(self.columns, self.width)

    @property
    def count(self) -> int:
        """Number of blocks of the whole matrix."""
        return ceil_div(self.out_features, self.rows) * self.across

    def number_of(self, words: CompressedRows) -> _IntArray:
        """The block of each word; blocks are numbered in the order in which they are multiplied."""
        return words.rows // self.rows * self.across + words.columns // self.width


@dataclass(frozen=True, eq=False)
class CsrStream:
    """A layer's weights as the compressed-rows kernel reads them, block by block.

    `groups` (groups, 3) int32: rows with equally many words; each block's groups end with zeros.
    `rows` (segments,) int32: the row of each segment within its block. `quads` (quads,) of QUAD, or
    with bytes for words: offsets are columns within the block. Rows and offsets are multiplied by
    `OFFSET_UNIT`, and once more by the code for a batch, so that all batches share the stream.
    """

    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    quads: npt.NDArray[np.void]


def float_words(nonzeros: CompressedRows) -> CompressedRows:
    """Return each weight as a word, float32."""
    return nonzeros.with_values(nonzeros.values.astype(np.float32).view(np.uint32))


def short_words(integers: CompressedRows, kind: npt.DTypeLike) -> CompressedRows:
    """Pack int8 weights of neighbouring inputs into 32-bit words: four as int8, or two as int16."""
    together = 4 // np.dtype(kind).itemsize
    shape = integers.shape[0], ceil_div(integers.shape[1], together)
    numbers = integers.rows * shape[1] + integers.columns // together
    found, word = distinct(numbers, shape[0] * shape[1])
    parts = np.zeros((len(found), together), kind)
    parts[word, integers.columns % together] = integers.values
    return CompressedRows.of_numbers(shape, found, parts.view(np.uint32)[:, 0])


def segment_counts(words_a_row: _IntArray) -> _IntArray:
    """Return the number of segments into which rows with `words_a_row` words in a block are cut."""
    return ceil_div(words_a_row, MOST)


def words_by_block(matrix: SparseMatrix, blocks: CsrBlocks) -> tuple[_IntArray, _IntArray]:
    """Return the block and the number of words of every row of a block that has words.

    Words, the units of multiplication (see the top of this file), are the nonzeros of `matrix`.
    """
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
    """Return the structured dtype of a quad: four offsets, and four words of a dtype."""
    return np.dtype([("offset", "<u2", 4), ("word", word, 4)])


def _groups(kinds: _IntArray, blocks: int, quad_bytes: int) -> npt.NDArray[np.int32]:
    """Return the stream's groups: (words of a segment, segments, bytes of a segment), by block.

    `kinds`, ascending, has block * (MOST + 1) + length for each segment. Zeros end each block.
    """
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


class Arithmetic(Enum):
    """Number formats in which a batch kernel multiplies: float32, float16, or one of int8.

    `together` is the number of inputs in a word of weights.

    `PAIRS`: int8 as int16, by `vpmaddwd`, whose sums of two are exact.
    `INTEGERS`: int8 as float32. The products of a segment, `MOST` of 127 * 127, add up exactly.
    `QUADS`: bytes of any four inputs at a time, which are interleaved as they are multiplied.
    `HALVES`: float16, sums too, 32 columns at a time.
    """

    FLOATS = "floats"
    BYTES = "bytes"
    PAIRS = "pairs"
    INTEGERS = "integers"
    QUADS = "quads"
    HALVES = "halves"

    @property
    def together(self) -> int:
        if self is Arithmetic.BYTES:
            return 4
        return 2 if self is Arithmetic.PAIRS else 1

    @property
    def in_bytes(self) -> bool:
        return self in (Arithmetic.BYTES, Arithmetic.QUADS)

    @property
    def is_short(self) -> bool:
        """Whether converted inputs take less room than float32."""
        return self.in_bytes or self in (Arithmetic.PAIRS, Arithmetic.HALVES)

    @property
    def converts(self) -> bool:
        """Whether x is converted, with a scale for each column or a fixed one."""
        return self is not Arithmetic.FLOATS


# Vectors of float32 columns in a pass: more would share a weight's and an offset's load, but fewer
# inputs fit L1. Two are one vector of `HALVES`.
_VECTORS = {"avx512": 4, "avx2": 8}
_HALVES_VECTORS = 8
# Chains of additions for a row, for 1, 2 and more vectors in a pass: together they hide the latency
# of an addition. Rows of words of bytes are longer, so that fewer of them are under way at once.
_CHAINS = {
    Arithmetic.FLOATS: (4, 2, 2),
    Arithmetic.INTEGERS: (4, 2, 2),
    Arithmetic.BYTES: (4, 4, 4, 2),
    Arithmetic.PAIRS: (1,),
    Arithmetic.QUADS: (1,),
    Arithmetic.HALVES: (4, 4, 4, 4, 2),
}
_OTHER_REGISTERS = 3  # a weight, four of them, and inputs
_LEAST_WEIGHTS = 8  # of a row in a block: loading and storing sums should cost little beside them
_MOST_PANEL_BYTES = 1 << 17  # where `_LEAST_WEIGHTS` takes more inputs than L1 holds
STAGED = 64  # inputs that become integers at once
_ROUND = 16  # inputs and rows come in multiples of this, as whole vectors


@dataclass(frozen=True)
class Pass:
    """Passes over the whole matrix, `times` of them, each for `vectors` vectors of batch columns.

    The last vector begins `shift` columns early: it ends where the batch ends, and computes some
    columns twice, to the same result.
    """

    vectors: int
    times: int
    shift: int = 0


@dataclass(frozen=True)
class CsrShape:
    """Loop bounds of a compressed-rows kernel: passes over columns, blocks, workspace layout.

    `pitch`: bytes from one row's sums to the next, and from one word's inputs to the next in the
    panel, unless those are shorter; `OFFSET_UNIT` times a power of two. `chains`: separate sums of
    a row, added at the end of a segment.
    """

    arithmetic: Arithmetic
    passes: tuple[Pass, ...]
    blocks: CsrBlocks
    pitch: int
    chains: int

    @property
    def panel_pitch(self) -> int:
        """Bytes from one word's inputs to the next in the panel."""
        return _panel_pitch(self.arithmetic, self.pitch)

    @property
    def panel_bytes(self) -> int:
        return self.blocks.width * self.panel_pitch

    @property
    def block_inputs(self) -> int:
        return self.blocks.width * self.arithmetic.together

    @property
    def staging(self) -> int:
        """Offset of float32 inputs that will become shorter, behind the sums."""
        return self.panel_bytes + self.blocks.rows * self.pitch

    @property
    def scales(self) -> int:
        """Offset of the reciprocal scales of x, for int8; the scales follow a `pitch` later."""
        return self.staging + (STAGED * self.pitch if self.arithmetic.is_short else 0)

    @cached_property
    def workspace_bytes(self) -> int:
        return self.scales + 2 * self.pitch

    @cached_property
    def pass_count(self) -> int:
        return sum(part.times for part in self.passes)

    @property
    def widths(self) -> list[int]:
        """Numbers of vectors of the passes, each once."""
        return list(dict.fromkeys(part.vectors for part in self.passes))


@dataclass(frozen=True)
class CsrCounts:
    """Work of one pass of a compressed-rows kernel, for its price; `shape` tells how many passes.

    `weights` (nonzeros, or words of them) lie in `segments` segments of `groups` groups, and in
    `quads` quads.
    """

    target: Target
    spec: MatMul
    shape: CsrShape
    weights: int
    segments: int
    quads: int
    groups: int


def csr_shape(
    arithmetic: Arithmetic, spec: MatMul, matrix: SparseMatrix, target: Target
) -> CsrShape:
    """Return the shape with the fewest passes, nearly equally wide.

    A part of a batch adds in the order of the whole, so that a column has the same bits for any
    number of threads: it has the same number of chains, and its passes are no wider. Blocks are the
    same for any batch, so that all batches share the stream.
    """
    whole, alone = spec if spec.part_of is None else spec.part_of, target.alone
    key = "csr blocks", arithmetic, alone
    blocks = matrix.memoised(key, lambda: _blocks(arithmetic, matrix, alone))
    return _shape(arithmetic, blocks, spec.batch, whole.batch, alone)


def _blocks(arithmetic: Arithmetic, matrix: SparseMatrix, target: Target) -> CsrBlocks:
    columns = ceil_div(matrix.in_features, arithmetic.together)
    widest_pitch = _pitch(_most_vectors(arithmetic, target), target)
    in_panel = _panel_pitch(arithmetic, widest_pitch)
    width = _even(columns, _width(arithmetic, matrix, in_panel, target))
    # Pitches of the workspace besides the sums of rows, with a margin for rounding rows up.
    others = width + STAGED + 2 + _ROUND
    rows = _even(matrix.out_features, LARGEST_WORKSPACE // widest_pitch - others)
    return CsrBlocks(matrix.out_features, columns, rows, width)


@lru_cache(maxsize=256)  # layers are alike
def _shape(
    arithmetic: Arithmetic, blocks: CsrBlocks, batch: int, whole_batch: int, target: Target
) -> CsrShape:
    most = _widest(whole_batch, _most_vectors(arithmetic, target), target)
    chains = _CHAINS[arithmetic][min(most, len(_CHAINS[arithmetic])) - 1]
    if most * chains > target.vector_registers - _OTHER_REGISTERS:
        chains = 1
    pitch = _pitch(_widest(batch, most, target), target)
    return CsrShape(arithmetic, _passes(batch, most, target), blocks, pitch, chains)


def _most_vectors(arithmetic: Arithmetic, target: Target) -> int:
    return _HALVES_VECTORS if arithmetic is Arithmetic.HALVES else _VECTORS[target.isa]


def _panel_pitch(arithmetic: Arithmetic, pitch: int) -> int:
    """Return the bytes from one word's inputs to the next in the panel; `pitch` is the sums'."""
    if arithmetic is Arithmetic.QUADS:
        return CACHE_LINE_BYTES
    return max(CACHE_LINE_BYTES, pitch // 2) if arithmetic is Arithmetic.HALVES else pitch


def _pitch(vectors: int, target: Target) -> int:
    """Return the bytes of `vectors` vectors, as a power of two, which addresses multiply by."""
    return target.vector_bytes << (vectors - 1).bit_length()


def counted(words: SparseMatrix, blocks: CsrBlocks) -> tuple[int, int, int, int]:
    """Return a matrix's numbers of nonzero words, segments, quads and groups.

    The matrix of words is (out_features, columns).
    """
    block, in_row = words_by_block(words, blocks)
    segments = int(segment_counts(in_row).sum())
    quads = int(ceil_div(in_row, 4).sum())
    # A block has a group for each number of words of its rows, and one if it has rows without any.
    alike = count_distinct(block * (blocks.width + 1) + in_row, blocks.count * (blocks.width + 1))
    used, used_rows = np.unique(block, return_counts=True)
    rows_of = np.minimum(blocks.rows, blocks.out_features - used // blocks.across * blocks.rows)
    groups = alike + blocks.count - int(np.count_nonzero(used_rows == rows_of))
    return words.nnz, segments, quads, groups


def _width(arithmetic: Arithmetic, matrix: SparseMatrix, pitch: int, target: Target) -> int:
    """Return the columns of a block: as many inputs as fit a share of L1.

    There are more if a row would have few weights among these.
    """
    layouts = target.core.layouts
    share = layouts.quads_block if arithmetic is Arithmetic.QUADS else layouts.csr_block
    fitting = int(share * target.l1d_bytes) // pitch
    density = max(matrix.nnz, 1) / (matrix.in_features * matrix.out_features)
    used = 1 - (1 - density) ** arithmetic.together
    wanted = min(int(_LEAST_WEIGHTS / used), _MOST_PANEL_BYTES // pitch)
    return max(fitting, wanted)


def _even(length: int, most: int) -> int:
    """Return the size of the equal parts, of at most `most`, into which a length is cut.

    It is a multiple of `_ROUND`, as is `most`.
    """
    parts = ceil_div(length, max(most, _ROUND))
    return round_up(ceil_div(length, parts), _ROUND)


def _widest(batch: int, most: int, target: Target) -> int:
    """Return the vectors of the widest pass, for the fewest passes of at most `most` vectors."""
    vectors = ceil_div(batch, target.lanes)
    return ceil_div(vectors, ceil_div(vectors, most))


def _passes(batch: int, most: int, target: Target) -> tuple[Pass, ...]:
    """Cut a batch into passes of at most `most` vectors; the last one may shift its last vector."""
    vectors = ceil_div(batch, target.lanes)
    count, missing = ceil_div(vectors, most), vectors * target.lanes - batch
    narrow, wider = divmod(vectors, count)
    widths = np.array([narrow + 1] * wider + [narrow] * (count - wider))
    shift = missing if vectors > 1 else 0
    *before, last = widths
    parts = [Pass(int(width), before.count(width)) for width in dict.fromkeys(before)]
    if not shift and parts and parts[-1].vectors == last:
        return (*parts[:-1], Pass(int(last), parts[-1].times + 1))
    return (*parts, Pass(int(last), 1, shift))
