"""int8 in the loop over compressed rows: x to integers, and sums of integers to y.

Every column has its own scale, as in `reference.quantised_input`. As bytes, four inputs lie side by
side with 128 added to each, because `vpdpbusd` takes unsigned bytes; sums therefore start at -128
times the sum of their weights. Without that instruction inputs lie in pairs of 16 bits, or the
integers are stored and multiplied as float32.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_shape import Arithmetic, CsrShape
from sparsejit.asm_templates.gather.int8_weights import int8_sums, output_scales
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    broadcast,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import SMALLEST_SCALE, MatVec
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, r8, r10, r12, rsp

_OFFSET = 128
_OFFSETS = int(np.uint32(0x80808080).astype(np.int32))
# Address of the next integers of x.
PANEL = r12


def first_sums(
    arithmetic: Arithmetic, matrix: SparseMatrix
) -> npt.NDArray[np.int32] | None:
    """Return the start values of rows' sums, (out_features,); None for zero."""
    return (-_OFFSET * int8_sums(matrix)[1]).astype(np.int32) if arithmetic.in_bytes else None


def int8_ends(spec: MatVec, matrix: SparseMatrix) -> npt.NDArray[np.float32]:
    """Return the scale and the bias of rows, (out_features, 2)."""
    ends = np.zeros((spec.out_features, 2), np.float32)
    ends[:, 0] = output_scales(spec, int8_sums(matrix)[0])
    ends[:, 1] = 0 if spec.bias is None else spec.bias
    return ends


def side_by_side(asm: Assembler, parts: list[Register]) -> None:
    """Pack up to four int32 registers into the first as bytes, each plus 128, from 1 to 255."""
    first, *others = parts
    for position, register in enumerate(others, 1):
        asm.emit("vpslld", register, register, 8 * position)
        asm.emit("vpaddd", first, first, register)
    asm.emit("vpaddd", first, first, asm.constant(_OFFSETS))


class CsrInt8:
    """Appends the int8 code of a pass of `vectors` vectors; clobbers rax, r8, r10 and vectors."""

    def __init__(self, asm: Assembler, spec: MatVec, shape: CsrShape, vectors: int) -> None:
        self.asm, self.spec, self.shape, self.vectors = asm, spec, shape, vectors
        self.fixed = spec.input_scale is not None

    def _place(self, base: Register, offset: int, number: int) -> Memory:
        return Memory(base, offset + number * self.asm.target.vector_bytes)

    def reciprocal(self, number: int) -> Memory:
        """The reciprocal scales of a vector of columns, as a memory operand."""
        return self._place(rsp, self.shape.scales, number)

    def scale(self, number: int) -> Memory:
        """The dynamic scales of a vector of columns, as a memory operand."""
        return self._place(rsp, self.shape.scales + self.shape.pitch, number)

    def start(self) -> None:
        """Store the reciprocal of a fixed scale, or the lower bound of the largest magnitude."""
        asm, value = self.asm, vector(self.asm, 0)
        if self.fixed:
            fixed_reciprocal(asm, self.spec, value)
        else:
            broadcast(asm, value, np.float32(SMALLEST_SCALE))
        for number in range(self.vectors):
            asm.emit("vmovups", self.reciprocal(number), value)

    def largest(self, base: Register, offset: int, inputs: int) -> None:
        """Update the largest magnitudes with `inputs` inputs, as integers: NaN is the largest."""
        asm = self.asm
        sinks = [vector(asm, number) for number in range(self.vectors)]
        bits, loaded = vector(asm, self.vectors), vector(asm, self.vectors + 1)
        begin_largest(asm, [], bits)
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", sink, self.reciprocal(number))
        asm.emit("lea", r8, Memory(base, offset))
        with counted_down(asm, dword(r10), inputs):
            for number, sink in enumerate(sinks):
                asm.emit("vandps", loaded, bits, self._place(r8, 0, number))
                asm.emit("vpmaxud", sink, sink, loaded)
            asm.emit("add", r8, self.shape.pitch)
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", self.reciprocal(number), sink)

    def scales(self) -> None:
        """Compute reciprocals and scales from the largest magnitudes."""
        asm, largest, value = self.asm, vector(self.asm, 0), vector(self.asm, 1)
        for number in range(self.vectors):
            asm.emit("vmovups", largest, self.reciprocal(number))
            emit_scale_of(asm, largest, value, largest)
            asm.emit("vmovups", self.reciprocal(number), value)
            asm.emit("vmovups", self.scale(number), largest)

    def integers(self, base: Register, offset: int, inputs: int) -> None:
        """Write `inputs` inputs, from base + offset on, to PANEL as integers."""
        asm, together = self.asm, self.shape.arithmetic.together
        asm.emit("lea", r8, Memory(base, offset))
        with counted_down(asm, dword(r10), ceil_div(inputs, together)):
            one = {
                Arithmetic.BYTES: self._bytes,
                Arithmetic.PAIRS: self._pair,
                Arithmetic.INTEGERS: self._floats,
            }.get(self.shape.arithmetic)
            if one is None:
                self._line()
            else:
                for number in range(self.vectors):
                    one(number)
            asm.emit("add", r8, together * self.shape.pitch)
            asm.emit("add", PANEL, self.shape.panel_pitch)

    def _quantise(self, register: Register, number: int, position: int) -> None:
        """register = a vector of one input, int32."""
        asm = self.asm
        asm.emit("vmovups", register, self._place(r8, position * self.shape.pitch, number))
        asm.emit("vmulps", register, register, self.reciprocal(number))
        to_int32(asm, self.spec, register)
        clip_negative(asm, self.spec, register)

    def _floats(self, number: int) -> None:
        value = vector(self.asm, number)
        self._quantise(value, number, 0)
        self.asm.emit("vcvtdq2ps", value, value)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), value)

    def _line(self) -> None:
        """Write a cache line of one input in the order of packing, which unpacking undoes."""
        asm, parts = self.asm, [vector(self.asm, number) for number in range(self.vectors)]
        for number, register in enumerate(parts):
            self._quantise(register, number, 0)
        parts += parts[-1:] * (4 - len(parts))
        low, high = vector(asm, 4), vector(asm, 5)
        asm.emit("vpackssdw", low, *parts[:2])
        asm.emit("vpackssdw", high, *parts[2:])
        asm.emit("vpacksswb", low, low, high)
        asm.emit("vpxord", low, low, asm.constant(_OFFSETS))
        asm.emit("vmovups", self._place(PANEL, 0, 0), low)

    def _bytes(self, number: int) -> None:
        parts = [vector(self.asm, 4 * number + position) for position in range(4)]
        for position, register in enumerate(parts):
            self._quantise(register, number, position)
        side_by_side(self.asm, parts)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), parts[0])

    def _pair(self, number: int) -> None:
        first, second = (vector(self.asm, 2 * (number % 4) + position) for position in range(2))
        self._quantise(first, number, 0)
        self._quantise(second, number, 1)
        self.asm.emit("vpslld", second, second, 16)
        self.asm.emit("vpblendw", first, first, second, 0b10101010)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), first)

    def outputs(self, values: list[Register], row: Register, scratch: list[Register]) -> None:
        """Turn the sums in `values` into outputs; `row` points at the row's scale and bias."""
        asm = self.asm
        row_scale, bias, scale = scratch[:3]
        asm.emit("vbroadcastss", row_scale, Memory(row))
        if self.spec.bias is not None:
            asm.emit("vbroadcastss", bias, Memory(row, 4))
        for number, value in enumerate(values):
            asm.emit("vcvtdq2ps", value, value)
            last = row_scale
            if not self.fixed:
                asm.emit("vmulps", value, value, row_scale)
                asm.emit("vmovups", scale, self.scale(number))
                last = scale
            if self.spec.bias is None:
                asm.emit("vmulps", value, value, last)
            else:
                asm.emit("vfmadd213ps", value, last, bias)
