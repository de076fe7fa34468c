"""C = A B of few rows where B is stored transposed: lanes over the depth, nothing transposed.

    vmovups     zmm0, [rax]               16 of A's row, once for all rows of B in a strip
    vfmadd231ps zmm31, zmm0, [rcx]        16 of B's row 0
    vfmadd231ps zmm30, zmm0, [rcx+pitch]  row 1 ... a row for each lane

A row of a strip ends as one vector of C (`lane_sums`). Beyond a few rows of A that costs more than
to transpose B once.
"""

import numpy as np

from sparsejit.asm_templates.dense_product.lane_sums import InnerProducts
from sparsejit.asm_templates.dense_product.tiling import widest_strip
from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR, apply_activation
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import masked_load, tail_mask
from sparsejit.asm_templates.shared.rows import store, vector
from sparsejit.ir.spec import DenseProduct
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import (
    Memory,
    r8,
    r9,
    r10,
    r11,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)

_A, _B, _TURNS_LEFT = rax, rcx, r8  # along the depth
_ROW_A, _ROW_C, _ROWS_LEFT = r9, r10, rbx
_STRIP_B, _STRIPS_LEFT = r11, rbp
_MASK, _ROW_OF_B = 1, 2  # registers: AVX2's mask of a partial vector, and B's partial vector


def has_few_rows(spec: DenseProduct, target: Target) -> bool:
    """Whether C = A B, with B stored transposed, is better computed by inner products.

    It is if transposing B costs more time than adding lanes, or needs more stack than there is.
    """
    if not spec.transposed or spec.a_transposed:
        return False
    prices = target.core.layouts
    transposing = ceil_div(spec.depth, target.lanes) * prices.square[target.isa]
    is_dearer = transposing > spec.rows * prices.lane_sums[target.isa]
    return is_dearer or widest_strip(spec, target) == 0


def emit_few_rows(asm: Assembler, spec: DenseProduct) -> None:
    """Append the product of few rows; `tiled_product.emit_dense_product` has the contract."""
    _FewRows(asm, spec).emit()


class _FewRows:
    """Appends the code of a product of few rows."""

    def __init__(self, asm: Assembler, spec: DenseProduct) -> None:
        self.asm, self.spec = asm, spec
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes

    def emit(self) -> None:
        asm = self.asm
        for register in (rbx, rbp, rsi):
            asm.emit("push", register)
        asm.emit("mov", _STRIP_B, rdx)
        strips, rest = divmod(self.spec.columns, self.lanes)
        repeat(asm, strips, _STRIPS_LEFT, lambda: self._strip(self.lanes))
        if rest:
            self._strip(rest)
        for register in (rsi, rbp, rbx):
            asm.emit("pop", register)

    def _strip(self, columns: int) -> None:
        """Append the products of all rows of A by `columns` rows of B, a strip of C."""
        asm, spec = self.asm, self.spec
        asm.emit("mov", _ROW_A, rdi)
        asm.emit("mov", _ROW_C, rsi)

        def row() -> None:
            self._row(columns)
            asm.emit("add", _ROW_A, spec.a_pitch)
            asm.emit("add", _ROW_C, spec.c_pitch)

        repeat(asm, spec.rows, _ROWS_LEFT, row)
        asm.emit("add", _STRIP_B, columns * spec.b_pitch)
        asm.emit("add", rsi, self.vector_bytes)

    def _row(self, columns: int) -> None:
        asm, spec = self.asm, self.spec
        sums = InnerProducts(asm, columns, ceil_div(spec.depth, self.lanes))
        asm.emit("mov", _A, _ROW_A)
        asm.emit("mov", _B, _STRIP_B)
        sums.start()
        vectors, partial = divmod(spec.depth, self.lanes)
        turns, rest = divmod(vectors, sums.vectors)
        repeat(asm, turns, _TURNS_LEFT, lambda: self._steps(sums, sums.vectors))
        self._steps(sums, rest)
        if partial:
            self._partial_step(sums, partial)
        total = sums.finish()
        free = [vector(asm, number) for number in range(1 + SCRATCH_PER_VECTOR)]
        if spec.scale != 1.0:
            load_constant(asm, free[0], spec.scale)
            asm.emit("vmulps", total, total, free[0])
        apply_activation(asm, spec.activation, [total], free)
        store(asm, total, _ROW_C, 0, columns, free[0])

    def _steps(self, sums: InnerProducts, count: int) -> None:
        """Append products of `count` vectors along the depth; A and B advance past them."""
        if count == 0:
            return
        asm = self.asm
        step, row = np.divmod(np.arange(count * sums.rows), sums.rows)
        offset = step * self.vector_bytes
        a, place = vector(asm, 0), Memory(_B, row * self.spec.b_pitch + offset)
        load = line("vmovups", a, Memory(_A, offset), when=row == 0)
        product = line("vfmadd231ps", sums.register(row, step), a, place)
        asm.stamp(len(step), [load, product])
        asm.emit("add", _A, count * self.vector_bytes)
        asm.emit("add", _B, count * self.vector_bytes)

    def _partial_step(self, sums: InnerProducts, count: int) -> None:
        """Append products of the last `count` elements of the depth, less than a vector.

        Nothing beyond is read of A or B.
        """
        asm, row = self.asm, np.arange(sums.rows)
        a, b, spare = (vector(asm, number) for number in (0, _ROW_OF_B, _MASK))
        mask = tail_mask(asm, count, spare)  # clobbers rax
        asm.stamp(1, [masked_load(a, mask, Memory(_ROW_A, 4 * (self.spec.depth - count)))])
        product = line("vfmadd231ps", sums.register(row, 0), a, b)
        loads = masked_load(b, mask, Memory(_B, row * self.spec.b_pitch))
        asm.stamp(sums.rows, [loads, product])
