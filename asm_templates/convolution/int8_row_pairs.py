"""Sparse int8 convolutions with AVX2, row after row: two inputs of a row at a time.

    bins_of_rows     the weights of all rows, in pairs
    pair_rows        the same as the code reads them
    emit_row_pairs   the kernel

`int8_pair_code` is the code. The bytes of any two inputs are interleaved as they are
multiplied; packing the sums restores the order of positions:

    x0, x1   = 32 positions of two inputs, side by side     vpunpcklbw, vpunpckhbw

Where rows have few weights, this is faster than `int8_convolution`, which computes all rows for 64
positions before the next 64.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_convolution import LARGEST_PAIR
from sparsejit.asm_templates.convolution.int8_pair_code import (
    LOADED,
    Binned,
    LoweredPairs,
    PairCode,
    RowNumbers,
    WeightPairs,
    X,
    emit_pairs,
    first_bins,
    in_even_bins,
    lowered_rows,
    rows_of_inputs,
    turns_of_positions,
)
from sparsejit.asm_templates.convolution.int8_planes import BytePlanes
from sparsejit.asm_templates.convolution.int8_results import ByteEpilogue
from sparsejit.asm_templates.convolution.int8_tables import BYTES
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register

_Integers = npt.NDArray[np.integer]

MOST_SHAPES = 6


def bins_of_rows(weights: CompressedRows) -> Binned:
    """Return the weights (out, inputs) in pairs, in as few bins as the largest weights allow.

    Positive and negative weights have bins of their own, which come together by their numbers: any
    two weights of a bin may be a pair.
    """
    rows, values = weights.shape[0], weights.values.astype(np.int64)
    signed = 2 * weights.rows + (values < 0)
    sizes = np.abs(values)[:, None]
    bins = first_bins(signed, sizes, 2 * rows, LARGEST_PAIR)
    most = int(bins.max(initial=0)) + 1
    order = np.lexsort((bins, weights.rows))
    key = weights.rows[order] * most + bins[order]
    within = np.arange(len(key)) - np.searchsorted(key, key)
    counts = np.bincount(key, minlength=rows * most)
    pairs_of = ceil_div(counts, 2)
    first = (np.cumsum(pairs_of) - pairs_of)[key] + within // 2
    places = np.repeat(np.full((1, 2), -1), pairs_of.sum(), axis=0)
    both = np.zeros_like(places)
    places[first, within % 2] = weights.columns[order]
    both[first, within % 2] = values[order]
    places[:, 1] = np.where(places[:, 1] < 0, places[:, 0], places[:, 1])
    row, of_bin = np.divmod(np.repeat(np.arange(len(pairs_of)), pairs_of), most)
    return in_even_bins(WeightPairs(row, places, both), of_bin, rows)


def pair_rows(
    weights: CompressedRows,
    places: _Integers,
    planes: tuple[BytePlanes, BytePlanes],
    ends: npt.NDArray[np.floating],
    epilogue: ByteEpilogue,
    *,
    is_first: bool = True,
) -> LoweredPairs:
    """Return int8 weights (out, inputs) as the code reads them.

    places: byte offset of each input. planes: of x and of these rows of y. ends: scale and biases
    of each row.
    """
    x, y = planes
    before = -min(0, int(places.min(initial=0)))
    offsets_of_y = np.arange(weights.shape[0]) * y.channel
    numbers = RowNumbers(np.zeros_like(offsets_of_y), offsets_of_y, ends)

    binned = bins_of_rows(weights)
    offsets = places[binned.pairs.places] + before
    alone = rows_of_one_input(weights) if epilogue.is_of_sums else np.empty(0, np.int64)
    more = epilogue.added is not None, alone
    rows = lowered_rows(binned, numbers, offsets, MOST_SHAPES, *more)
    if len(alone):
        weight = weights.starts[alone]
        sums = weights.values[weight].astype(np.int64)[:, None] * np.arange(BYTES)
        tables = epilogue.bytes_of(sums, ends[alone, :2])
        inputs = places[weights.columns[weight]] + before
        rows.insert(0, rows_of_inputs(inputs, offsets_of_y[alone], tables, epilogue.zero))
    return LoweredPairs(rows, epilogue, x, y, -before, is_first)


def rows_of_one_input(weights: CompressedRows) -> _Integers:
    """Return the rows with a single weight."""
    return np.flatnonzero(np.diff(weights.starts) == 1)


def emit_row_pairs(asm: Assembler, lowered: LoweredPairs) -> None:
    """Append the sparse int8 convolution: x at rdi, y at rsi, the added image at rdx."""
    emit_pairs(asm, lowered, _RowPairCode(asm, lowered, turns_of_positions(lowered.y)))


class _RowPairCode(PairCode):
    """Appends the code of a sparse int8 convolution by pairs."""

    offsets = 2

    def load(self, pair: int, place: int, count: int) -> None:
        asm, (low, high) = self.asm, LOADED
        first, second = (self.offset(pair, which, count) for which in range(2))
        asm.emit("vmovdqu", high, Memory(X, place, first))
        asm.emit("vpunpcklbw", low, high, Memory(X, place, second))
        asm.emit("vpunpckhbw", high, high, Memory(X, place, second))

    def order(self, made: Register) -> None:
        """Nothing: packing has undone the interleaving."""
