"""Operands of a dense product, rounded to bfloat16 and stored as pairs along the depth.

    paired              converts a constant operand: neighbours on its last axis form a pair
    emit_paired_rows    converts A (rows, depth) in a call: neighbours in a row form a pair; and a
                        strip of B that is stored transposed
    emit_paired_strip   converts a strip of B (depth, columns) in a call: two rows interleave

`vdpbf16ps sum, a, b` adds both products of each pair to the sum of its lane, in float32.
"""

from typing import NamedTuple

import numpy as np

from sparsejit.asm_templates.batch.transpose import MatrixPlace
from sparsejit.asm_templates.dense_product.tiling import (
    LARGEST_STRIP,
    FloatArray,
    copied_pitch,
    tiling,
)
from sparsejit.asm_templates.shared.interleave import load_order_of_pairs, pair_vectors
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import TAIL_MASK, load_masked, set_tail_mask
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.asm_templates.shared.storage import bfloat16_bits
from sparsejit.ir.spec import DenseProduct
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    k,
    r8,
    r9,
    r10,
    rax,
    rbx,
    rcx,
    rsp,
    zmm,
)

_LANES, _LINE = 16, 64
_FROM, _TO = rax, rcx
_LOW_MASK, _HIGH_MASK = k(5), k(6)
_LOW, _HIGH, _ORDER = zmm(29), zmm(30), zmm(31)


class StripColumns(NamedTuple):
    """The columns of a strip of B: vectors; the last has `lanes_of_last` lanes, 0 for all."""

    vectors: int
    lanes_of_last: int

    def load(self, asm: Assembler, register: Register, number: int, offset: int) -> None:
        """register = a vector of the row `offset` bytes behind rax; zeros past the last column."""
        place = Memory(_FROM, offset + _LINE * number)
        if self.lanes_of_last and number == self.vectors - 1:
            load_masked(asm, register, TAIL_MASK, place)
        else:
            asm.emit("vmovups", register, place)


def pair_pitch(depth: int) -> int:
    """Return the bytes from one row of pairs to the next, as `copied_pitch` spreads them."""
    return copied_pitch(4 * ceil_div(depth, 2))


def fits_stack(spec: DenseProduct) -> bool:
    """Whether the pairs of A have room on the stack."""
    return spec.rows * pair_pitch(spec.depth) <= LARGEST_STRIP


def both_fit_stack(spec: DenseProduct, target: Target) -> bool:
    """Whether the pairs of A and of a strip of B have room on the stack beside each other."""
    vectors, pitch = tiling(spec, target).vectors, pair_pitch(spec.depth)
    strip = vectors * (_LINE * spec.steps + spec.transposed * _LANES * pitch)
    return spec.rows * pitch + strip <= LARGEST_STRIP


def paired_lines(spec: DenseProduct) -> int:
    """Return the vectors of pairs to which A and B are rounded where neither is a constant."""
    vectors = ceil_div(spec.columns, _LANES)
    rows = spec.rows + (vectors * _LANES if spec.transposed else 0)
    return vectors * spec.steps + rows * pair_pitch(spec.depth) // _LINE


def paired(weights: FloatArray) -> FloatArray:
    """Return weights (rows, depth) as pairs of bfloat16 (rows, pairs).

    A float32 has the bits of each pair. For an odd depth the last pair ends with a zero.
    """
    rows, depth = weights.shape
    padded = np.zeros((rows, 2 * ceil_div(depth, 2)), np.float32)
    padded[:, :depth] = weights
    return np.ascontiguousarray(bfloat16_bits(padded)).view(np.float32)


def emit_paired_rows(
    asm: Assembler, rows: int, depth: int, source: MatrixPlace, into: MatrixPlace
) -> None:
    """Append code that rounds a matrix (rows, depth) to pairs at `into`.

    The last line of a row is filled with zeros. Clobbers rax, rbx, r8 to r10, k5, k6 and vectors.
    """
    if depth % (2 * _LANES) == 0 and source.pitch == 2 * into.pitch == 4 * depth:
        rows, depth = 1, rows * depth
    lines, rest = divmod(depth, 2 * _LANES)
    if rest:
        set_tail_mask(asm, min(rest, _LANES), _LOW_MASK)
        set_tail_mask(asm, max(rest - _LANES, 0), _HIGH_MASK)
    for register, place in ((r9, source), (r10, into)):
        asm.emit("mov", register, place.base)
        if place.offset:
            asm.emit("add", register, place.offset)

    def line_of_pairs() -> None:
        asm.emit("vmovups", _HIGH, Memory(r9, _LINE))
        asm.emit("vcvtne2ps2bf16", _HIGH, _HIGH, Memory(r9))
        asm.emit("vmovups", Memory(r10), _HIGH)
        asm.emit("add", r9, 2 * _LINE)
        asm.emit("add", r10, _LINE)

    def row() -> None:
        repeat(asm, lines, r8, line_of_pairs)
        if rest:
            load_masked(asm, _LOW, _LOW_MASK, Memory(r9))
            load_masked(asm, _HIGH, _HIGH_MASK, Memory(r9, _LINE))
            asm.emit("vcvtne2ps2bf16", _HIGH, _HIGH, _LOW)
            asm.emit("vmovups", Memory(r10), _HIGH)
        asm.emit("add", r9, source.pitch - 2 * _LINE * lines)
        asm.emit("add", r10, into.pitch - _LINE * lines)

    repeat(asm, rows, rbx, row)


def emit_paired_strip(
    asm: Assembler, spec: DenseProduct, strip: MatrixPlace, columns: StripColumns
) -> None:
    """Append code that rounds a strip of B to pairs at rsp; two rows become a vector for each
    vector of columns. An odd depth ends with zeros.

    Clobbers rax, rcx, r8, k7 and vectors.
    """
    load_order_of_pairs(asm, _ORDER)
    if columns.lanes_of_last:
        set_tail_mask(asm, columns.lanes_of_last)
    asm.emit("mov", _FROM, strip.base)
    asm.emit("mov", _TO, rsp)

    def pair(has_second: bool) -> None:
        for number in range(columns.vectors):
            columns.load(asm, _LOW, number, 0)
            if has_second:
                columns.load(asm, _HIGH, number, strip.pitch)
            else:
                zero(asm, _HIGH)
            pair_vectors(asm, _LOW, _HIGH, _ORDER)
            asm.emit("vmovups", Memory(_TO, _LINE * number), _LOW)
        asm.emit("add", _FROM, 2 * strip.pitch)
        asm.emit("add", _TO, _LINE * columns.vectors)

    repeat(asm, spec.depth // 2, r8, lambda: pair(True))
    if spec.depth % 2:
        pair(False)
