"""Sums of table rows and a vector, or a column times a number plus a vector, computed when read.

float32 and float16 rows are added one after the other, each sum rounded, then the vector. int8 rows
of all tables share one scale per feature: their integer sum is exact, and one multiply-add applies
the scale and adds the vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.shared.loops import Span, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import DType
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, r11, rbx

_BYTES = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.INT8: 1}
_WIDENING = {DType.FLOAT16: "vcvtph2ps", DType.INT8: "vpmovsxbd"}
SCRATCH = 3  # scratch vector registers of a load
_VECTORS_IN_STEP = 8


@dataclass(frozen=True)
class RowSum:
    """Operands of a sum of table rows and a vector: registers with their addresses.

    There may be no `rows`; they are stored as `stored`. `rest` is the address of the float32
    vector. float16 and int8 rows are read without masks, so whole vectors of them must be readable.
    `index` is a free register for their index; `scales` is the address of the int8 scales.
    """

    stored: DType
    rows: Sequence[Register]
    rest: Register
    index: Register = r11
    scales: Register = rbx

    def begin(self, asm: Assembler, span: Span) -> None:
        """Append code that sets `index` for a span's loads, if rows are not float32."""
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


@dataclass(frozen=True)
class ScaledColumn:
    """Operands of vector * number + other vector, rounded once: registers with their addresses."""

    column: Register
    number: Register
    rest: Register

    def begin(self, asm: Assembler, span: Span) -> None:
        """Do nothing: all arrays are float32, so the span's own index fits."""

    def load(
        self,
        span: Span,
        register: Register,
        position: int,
        scratch: Sequence[Register],
        skip: int = 0,
    ) -> None:
        """register = the result for vector `position`, `skip` features on."""
        column, number, spare = scratch[:SCRATCH]
        span.load(register, self.rest, position, spare, skip)
        span.load(column, self.column, position, spare, skip)
        span.asm.emit("vbroadcastss", number, Memory(self.number))
        span.asm.emit("vfmadd231ps", register, column, number)


def emit_sum_of_rows(asm: Assembler, destination: Register, rows: RowSum, length: int) -> None:
    """Append destination = the sum, `length` floats. Clobbers rax, the vector registers and k7."""
    totals = [vector(asm, number) for number in range(_VECTORS_IN_STEP)]
    scratch = [vector(asm, _VECTORS_IN_STEP + number) for number in range(SCRATCH)]

    def body(span: Span) -> None:
        rows.begin(asm, span)
        for position, total in enumerate(totals[: len(span.firsts)]):
            rows.load(span, total, position, scratch)
            span.store(total, destination, position, scratch[-1])

    emit_spans(asm, length, _VECTORS_IN_STEP, body)
