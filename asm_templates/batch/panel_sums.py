"""Sums of panels, and their int8 arithmetic: x becomes integers, sums of integers become outputs.

Every column has its own scale, as in `reference.quantised_input`; scales lie behind the panel's
integers. As bytes, four inputs lie side by side as in `csr_int8`. Integers in float32 add up
exactly below 2^24, which `MOST_INTEGERS` inputs cannot exceed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_int8 import first_sums, int8_ends, side_by_side
from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.csr_stream import short_words
from sparsejit.asm_templates.batch.row_tiles import IntArray, Products, products
from sparsejit.asm_templates.batch.transpose import Masks, MatrixPlace
from sparsejit.asm_templates.gather.int8_weights import quantised_nonzeros
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import rounded_matrix
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, MatVec
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Literal, Memory, Register, dword, r8, r9, r10, rcx, rdi

MOST_INTEGERS = 2**24 // ((LARGEST_INT8 + 1) * LARGEST_INT8)
_AT_ONCE = 4  # inputs, each in a register


@dataclass(frozen=True, eq=False)
class PanelSums:
    """Start and end of rows' sums: they begin at `start` (out_features,), or at the first product.

    `columns`: words of inputs. `ends` (out_features, 2): each row's scale and bias, for int8.
    """

    arithmetic: Arithmetic
    columns: int
    start: npt.NDArray[np.generic] | None
    ends: npt.NDArray[np.float32] | None = None


def panel_tiles(
    arithmetic: Arithmetic, dtype: DType, matrix: SparseMatrix, accumulators: int
) -> list[Products]:
    """Return tiles of at most `accumulators` rows each."""
    if dtype is not DType.INT8:
        return products(rounded_matrix(matrix, dtype).nonzeros, accumulators)
    integers, _ = quantised_nonzeros(matrix)
    if arithmetic is Arithmetic.INTEGERS:
        return products(integers.with_values(integers.values.astype(np.float32)), accumulators)
    # Bytes of x must be in a register: no input is a memory operand of its product.
    return [
        replace(tile, alone=np.zeros(len(tile), bool))
        for tile in products(short_words(integers, np.int8), accumulators)
    ]


def panel_sums(arithmetic: Arithmetic, spec: MatVec, matrix: SparseMatrix) -> PanelSums:
    """Return the start values and the ends of a layer's sums."""
    columns = ceil_div(spec.in_features, arithmetic.together)
    if spec.dtype is not DType.INT8:
        return PanelSums(arithmetic, columns, spec.bias)
    return PanelSums(arithmetic, columns, first_sums(arithmetic, matrix), int8_ends(spec, matrix))


def emit_outputs(
    asm: Assembler,
    spec: MatVec,
    sums: PanelSums,
    values: Register,
    rows: IntArray,
) -> None:
    """Turn sums of integers into outputs, for the panel at rdi; clobbers rcx and vectors 0 to 2.

    Operations are in the order of `csr_int8`, so that results have the same bits.
    """
    assert sums.ends is not None
    wide = asm.target.isa == "avx512"
    dynamic, has_bias = spec.input_scale is None, spec.bias is not None
    bias, row_scale, scale = (vector(asm, number) for number in range(3))
    asm.emit("lea", rcx, Literal(asm.literal(sums.ends[rows])))
    if dynamic:
        asm.emit("vmovups", scale, Memory(rdi, sums.columns * asm.target.vector_bytes))
    places = [Memory(rcx, 8 * np.arange(len(rows)) + 4 * n, broadcast=16 * wide) for n in range(2)]
    factor, addend = places if wide else (row_scale, bias)
    lines = []
    if sums.arithmetic is Arithmetic.BYTES:
        lines.append(line("vcvtdq2ps", values, values))
    if not wide:
        lines.append(line("vbroadcastss", row_scale, places[0]))
        lines.append(line("vbroadcastss", bias, places[1]))
    if dynamic:
        lines.append(line("vmulps", values, values, factor))
    elif has_bias and wide:  # one of the two memory operands must be in a register
        lines.append(line("vbroadcastss", scale, places[0]._replace(broadcast=0)))
    last = scale if dynamic or (wide and has_bias) else factor
    end = ("vfmadd213ps", values, last, addend) if has_bias else ("vmulps", values, values, last)
    asm.stamp(len(rows), [*lines, line(*end)])


class PanelIntegers:
    """Appends code that turns x of a panel, feature-major float32, into integers."""

    def __init__(self, asm: Assembler, spec: MatVec, arithmetic: Arithmetic) -> None:
        self.asm, self.spec, self.together = asm, spec, arithmetic.together
        self.fixed = spec.input_scale is not None

    def emit(self, source: MatrixPlace, panel: MatrixPlace, columns: int) -> None:
        """Write the panel, and its columns' scales behind it; clobbers rax, r8-r10 and vectors."""
        asm, lanes = self.asm, self.asm.target.lanes
        self.source, self.whole = source, columns == lanes
        self.masks = Masks(asm, columns % lanes, 0)
        self.reciprocal, self.bits = vector(asm, 8), vector(asm, 9)
        asm.emit("lea", r9, Memory(panel.base, panel.offset))
        if self.fixed:
            fixed_reciprocal(asm, self.spec, self.reciprocal)
        else:
            self._scales(panel)
        self._repeat(self._bytes if self.together > 1 else self._floats, _AT_ONCE)

    def _scales(self, panel: MatrixPlace) -> None:
        """Compute scales from the largest magnitudes, compared as integers: NaN is the largest."""
        asm, words = self.asm, ceil_div(self.spec.in_features, self.together)
        sinks = [vector(asm, number) for number in range(4, 8)]
        begin_largest(asm, sinks, self.bits)

        def largest(count: int) -> None:
            for number in range(count):
                loaded, sink = vector(asm, number), sinks[number]
                self.masks.load(loaded, Memory(r8, number * self.source.pitch), self.whole)
                asm.emit("vandps", loaded, loaded, self.bits)
                asm.emit("vpmaxud", sink, sink, loaded)

        self._repeat(largest, _AT_ONCE)
        for first, second in ((0, 1), (2, 3), (0, 2)):
            asm.emit("vpmaxud", sinks[first], sinks[first], sinks[second])
        emit_scale_of(asm, sinks[0], self.reciprocal, sinks[0])
        behind = panel.offset + words * asm.target.vector_bytes
        asm.emit("vmovups", Memory(panel.base, behind), sinks[0])

    def _repeat(self, body: Callable[[int], None], at_once: int) -> None:
        """Run `body` for `at_once` inputs at a time, from the first one at r8 on, then the rest."""
        asm = self.asm
        asm.emit("lea", r8, Memory(self.source.base, self.source.offset))
        whole, rest = divmod(self.spec.in_features, at_once)
        if whole:
            with counted_down(asm, dword(r10), whole):
                body(at_once)
                asm.emit("add", r8, at_once * self.source.pitch)
        if rest:
            body(rest)

    def _quantise(self, number: int) -> Register:
        """Return a vector of one input, int32."""
        asm, register = self.asm, vector(self.asm, number)
        self.masks.load(register, Memory(r8, number * self.source.pitch), self.whole)
        asm.emit("vmulps", register, register, self.reciprocal)
        to_int32(asm, self.spec, register)
        clip_negative(asm, self.spec, register)
        return register

    def _floats(self, count: int) -> None:
        asm, size = self.asm, self.asm.target.vector_bytes
        for number in range(count):
            register = self._quantise(number)
            asm.emit("vcvtdq2ps", register, register)
            asm.emit("vmovups", Memory(r9, number * size), register)
        asm.emit("add", r9, count * size)

    def _bytes(self, count: int) -> None:
        asm, parts = self.asm, [self._quantise(number) for number in range(count)]
        side_by_side(asm, parts)
        asm.emit("vmovups", Memory(r9), parts[0])
        asm.emit("add", r9, asm.target.vector_bytes)
