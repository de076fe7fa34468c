"""int8 in the loop over compressed rows: x to integers, and sums of integers to y.

Every column has a scale of its own, `reference.quantised_input` says which. As bytes, four inputs
lie side by side with 128 added to each, for `vpdpbusd` takes unsigned ones; sums therefore start at
-128 times the sum of their weights. Where float32 multiplies, the integers stay float32.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_shape import Arithmetic, CsrShape
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE, MatVec
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, r8, r10, r12, rsp

_MAGNITUDE_BITS = 0x7FFFFFFF
_OFFSET = 128
_OFFSETS = np.uint32(0x80808080).astype(np.int32)
# Where the integers of x go; it moves on with them.
PANEL = r12


def first_sums(
    arithmetic: Arithmetic, integers: npt.NDArray[np.int8]
) -> npt.NDArray[np.int32] | None:
    """What the sums of rows start at, (out_features,); None for zero."""
    if arithmetic is not Arithmetic.BYTES:
        return None
    return (-_OFFSET * integers.sum(axis=1, dtype=np.int64)).astype(np.int32)


def _element(asm: Assembler, value: np.generic) -> Literal:
    """One element of the pool, for a broadcast."""
    return Literal(asm.literal(np.array(value), 4))


class CsrInt8:
    """Appends what int8 needs in a pass of so many vectors; clobbers rax, r8, r10 and vectors."""

    def __init__(self, asm: Assembler, spec: MatVec, shape: CsrShape, vectors: int) -> None:
        self.asm, self.spec, self.shape, self.vectors = asm, spec, shape, vectors
        self.fixed = spec.input_scale is not None

    def _place(self, base: Register, offset: int, number: int) -> Memory:
        return Memory(base, offset + number * self.asm.target.vector_bytes)

    def reciprocal(self, number: int) -> Memory:
        """Of the scales of a vector of columns."""
        return self._place(rsp, self.shape.scales, number)

    def scale(self, number: int) -> Memory:
        """The scales of a vector of columns, where they are dynamic."""
        return self._place(rsp, self.shape.scales + self.shape.pitch, number)

    def start(self) -> None:
        """The reciprocal of a fixed scale, or the least largest magnitude."""
        asm, value = self.asm, vector(self.asm, 0)
        start = np.float32(SMALLEST_SCALE)
        if self.fixed:
            start = np.float32(1) / np.float32(self.spec.input_scale)
        asm.emit("vbroadcastss", value, _element(asm, start))
        for number in range(self.vectors):
            asm.emit("vmovups", self.reciprocal(number), value)

    def largest(self, base: Register, offset: int, inputs: int) -> None:
        """Take the magnitudes of so many inputs in; as integers, of which NaN is the largest."""
        asm, again = self.asm, self.asm.label("again")
        sinks = [vector(asm, number) for number in range(self.vectors)]
        bits, loaded = vector(asm, self.vectors), vector(asm, self.vectors + 1)
        asm.emit("vbroadcastss", bits, _element(asm, np.int32(_MAGNITUDE_BITS)))
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", sink, self.reciprocal(number))
        asm.emit("lea", r8, Memory(base, offset))
        asm.emit("mov", dword(r10), inputs)
        asm.bind(again)
        for number, sink in enumerate(sinks):
            asm.emit("vandps", loaded, bits, self._place(r8, 0, number))
            asm.emit("vpmaxud", sink, sink, loaded)
        asm.emit("add", r8, self.shape.pitch)
        asm.emit("sub", dword(r10), 1)
        asm.jump("jnz", again)
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", self.reciprocal(number), sink)

    def scales(self) -> None:
        """From the largest magnitudes: reciprocals and scales."""
        asm, largest, value = self.asm, vector(self.asm, 0), vector(self.asm, 1)
        for number in range(self.vectors):
            asm.emit("vmovups", largest, self.reciprocal(number))
            asm.emit("vbroadcastss", value, _element(asm, np.float32(LARGEST_INT8)))
            asm.emit("vdivps", value, value, largest)
            asm.emit("vmovups", self.reciprocal(number), value)
            asm.emit("vmulps", largest, largest, asm.constant(1 / LARGEST_INT8))
            asm.emit("vmovups", self.scale(number), largest)

    def integers(self, base: Register, offset: int, inputs: int) -> None:
        """PANEL = so many inputs from there, as integers."""
        asm, again, together = self.asm, self.asm.label("again"), self.shape.arithmetic.together
        asm.emit("lea", r8, Memory(base, offset))
        asm.emit("mov", dword(r10), -(-inputs // together))
        asm.bind(again)
        for number in range(self.vectors):
            self._bytes(number) if together > 1 else self._floats(number)
        asm.emit("add", r8, together * self.shape.pitch)
        asm.emit("add", PANEL, self.shape.pitch)
        asm.emit("sub", dword(r10), 1)
        asm.jump("jnz", again)

    def _quantise(self, register: Register, number: int, position: int) -> None:
        """register = a vector of one input, int32."""
        asm = self.asm
        asm.emit("vmovups", register, self._place(r8, position * self.shape.pitch, number))
        asm.emit("vmulps", register, register, self.reciprocal(number))
        if self.fixed:
            asm.emit("vminps", register, register, asm.constant(float(LARGEST_INT8)))
        asm.emit("vcvtps2dq", register, register)
        if self.fixed:
            asm.emit("vpmaxsd", register, register, asm.constant(-LARGEST_INT8))

    def _floats(self, number: int) -> None:
        value = vector(self.asm, number)
        self._quantise(value, number, 0)
        self.asm.emit("vcvtdq2ps", value, value)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), value)

    def _bytes(self, number: int) -> None:
        """Four side by side: shifted and added, as each is 1 to 255 with its 128."""
        asm = self.asm
        first, *others = (vector(asm, 4 * number + position) for position in range(4))
        for position, register in enumerate((first, *others)):
            self._quantise(register, number, position)
            if position:
                asm.emit("vpslld", register, register, 8 * position)
                asm.emit("vpaddd", first, first, register)
        asm.emit("vpaddd", first, first, asm.constant(int(_OFFSETS)))
        asm.emit("vmovups", self._place(PANEL, 0, number), first)

    def outputs(self, values: list[Register], row: Register, scratch: list[Register]) -> None:
        """values = the sums in them as outputs; the row's scale and bias lie at `row`."""
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
