"""Rows of tables and a vector, added up as far as the reader needs them.

float32 and float16 rows are added one after the other, each sum rounded, then the vector. Rows of
int8 have one scale for a feature in all tables: their sum is exact, one multiply-add ends it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.spans import Span, emit_spans
from sparsejit.ir.spec import DType
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, r11, rbx

_BYTES = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.INT8: 1}
_WIDENING = {DType.FLOAT16: "vcvtph2ps", DType.INT8: "vpmovsxbd"}
SCRATCH = 3  # vector registers that a load needs besides
_VECTORS_IN_STEP = 8


@dataclass(frozen=True)
class RowSum:
    """Where they lie: addresses of rows, if any, stored as `stored`, and of the vector, float32.

    Short rows have as many elements as a whole vector may read. `index` is a register of the
    reader's for them; `scales` the address of those of int8.
    """

    stored: DType
    rows: Sequence[Register]
    rest: Register
    index: Register = r11
    scales: Register = rbx

    def begin(self, asm: Assembler, span: Span) -> None:
        """Before the loads of a span. Clobbers `index`."""
        shift = 2 - (_BYTES[self.stored] // 2)
        if span.index is not None and shift:
            asm.emit("mov", self.index, span.index)
            asm.emit("shr", self.index, shift)

    def load(
        self,
        span: Span,
        register: Register,
        position: int,
        scratch: Sequence[Register],
        skip: int = 0,
    ) -> None:
        """register = the sum for vector `position`, `skip` features on."""
        asm, (other, scale, spare) = span.asm, scratch[:SCRATCH]
        add = "vpaddd" if self.stored is DType.INT8 else "vaddps"
        for number, row in enumerate(self.rows):
            loaded = other if number else register
            if self.stored is DType.FLOAT32:
                span.load(loaded, row, position, spare, skip)
            else:
                asm.emit(_WIDENING[self.stored], loaded, self._short(span, row, position, skip))
            if number:
                asm.emit(add, register, register, other)
        if not self.rows:
            span.load(register, self.rest, position, spare, skip)
            return
        span.load(other, self.rest, position, spare, skip)
        if self.stored is DType.INT8:
            asm.emit("vcvtdq2ps", register, register)
            span.load(scale, self.scales, position, spare, skip)
            asm.emit("vfmadd213ps", register, scale, other)
        else:
            asm.emit("vaddps", register, register, other)

    def _short(self, span: Span, row: Register, position: int, skip: int) -> Memory:
        index = None if span.index is None else self.index
        return Memory(row, _BYTES[self.stored] * (skip + span.firsts[position]), index)


def emit_sum_of_rows(asm: Assembler, destination: Register, rows: RowSum, length: int) -> None:
    """destination = the sum, `length` floats. Clobbers rax, the vector registers and k7."""
    totals = [vector(asm, number) for number in range(_VECTORS_IN_STEP)]
    scratch = [vector(asm, _VECTORS_IN_STEP + number) for number in range(SCRATCH)]

    def body(span: Span) -> None:
        rows.begin(asm, span)
        for position, total in enumerate(totals[: len(span.firsts)]):
            rows.load(span, total, position, scratch)
            span.store(total, destination, position, scratch[-1])

    emit_spans(asm, length, _VECTORS_IN_STEP, body)
