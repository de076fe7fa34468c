"""Rows of tables by index: copied, replaced by updates, or reduced with them.

    emit_row_copies    result[n] = table[index n]
    emit_row_updates   result = tables; for each table, for each of its indices i in turn:
                       result[i] = reduce(result[i], its update)
"""

from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain.lanes import extreme
from sparsejit.asm_templates.shared.loops import Span, counted_down, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.ops.selection import Reduction
from sparsejit.ir.values import Element
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Operand, Register, dword, r8, r9, r10, rcx, rdi, rdx, rsi

_FLOAT, _INDEX = 4, 8
_VECTORS_IN_STEP = 8


@dataclass(frozen=True)
class RowCopies:
    """Sizes of a lookup: `count` rows of a float32 table (rows, features), copied by index.

    `index_pitch` and `result_pitch` are bytes from one index, and one result, to the next.
    """

    count: int
    rows: int
    features: int
    index_pitch: int
    result_pitch: int


def emit_row_copies(asm: Assembler, spec: RowCopies) -> None:
    """Append code that copies rows of a table by index.

    rdi: indices, int64; rsi: table; rdx: result. Leaves r8 = 1 if an index is out of range, for
    which row 0 is taken, else 0. Clobbers rax, rcx, rdx, rdi, r9, the vector registers and k7.
    """
    asm.emit("xor", dword(r8), dword(r8))
    with counted_down(asm, rcx, spec.count):
        asm.emit("mov", r9, Memory(rdi))
        emit_row_address(asm, r9, spec.rows, _FLOAT * spec.features)
        emit_spans(asm, spec.features, _VECTORS_IN_STEP, _copy)
        asm.emit("add", rdi, spec.index_pitch)
        asm.emit("add", rdx, spec.result_pitch)


def emit_row_address(
    asm: Assembler,
    register: Register,
    rows: int,
    row_bytes: int,
    table: Register = rsi,
    missing: Register = r8,
) -> None:
    """Replace a row's number in a register by the address of the row, in the table at `table`.

    If there is no such row, the address is of row 0, and `missing` = 1.
    """
    known = asm.label("row exists")
    asm.emit("cmp", register, rows)
    asm.jump("jb", known)
    asm.emit("mov", dword(missing), 1)
    asm.emit("xor", dword(register), dword(register))
    asm.bind(known)
    asm.emit("imul", register, register, row_bytes)
    asm.emit("add", register, table)


def _copy(span: Span) -> None:
    spare, *held = (vector(span.asm, number) for number in range(_VECTORS_IN_STEP + 1))
    for position in range(len(span.firsts)):
        span.load(held[position], r9, position, spare)
    for position in range(len(span.firsts)):
        span.store(held[position], rdx, position, spare)


_VECTORS_IN_UPDATE = 4
# The instruction that reduces floats or int64.
_ARITHMETIC = {
    (Reduction.ADD, Element.FLOAT32): "vaddps",
    (Reduction.MUL, Element.FLOAT32): "vmulps",
    (Reduction.ADD, Element.INT64): "vpaddq",
}
_EXTREMES = {Reduction.MAX: "vmaxps", Reduction.MIN: "vminps"}


@dataclass(frozen=True)
class RowUpdates:
    """Sizes of a scatter: `count` updates of rows of `floats` floats, into each of `batch` tables.

    Tables have `rows` rows. An int64 counts as two floats.
    """

    batch: int
    count: int
    rows: int
    floats: int
    reduction: Reduction
    element: Element

    @property
    def has_code(self) -> bool:
        """Whether there are instructions for the reduction of these elements."""
        is_float = self.element is Element.FLOAT32
        arithmetic = (self.reduction, self.element) in _ARITHMETIC
        return self.reduction is Reduction.NONE or arithmetic or is_float


def emit_table_copy(asm: Assembler, spec: RowUpdates) -> None:
    """Append the copy of all tables from rsi to rdx. Clobbers rax, vector registers and k7."""

    def copy(span: Span) -> None:
        spare, *held = (vector(asm, number) for number in range(_VECTORS_IN_UPDATE + 1))
        for position in range(len(span.firsts)):
            span.load(held[position], rsi, position, spare)
        for position in range(len(span.firsts)):
            span.store(held[position], rdx, position, spare)

    emit_spans(asm, spec.batch * spec.rows * spec.floats, _VECTORS_IN_UPDATE, copy)


def emit_row_updates(asm: Assembler, spec: RowUpdates) -> None:
    """Append code that applies all updates, one after another, to the rows of the result.

    rdi: indices, int64; rsi: updates; rdx: result. Leaves r8 = 1 if an index is out of range, for
    which no row is updated, else 0. Clobbers rax, rcx, rdx, rsi, rdi, r9, r10, the vector
    registers, k1, k2 and k7.
    """
    asm.emit("xor", dword(r8), dword(r8))
    with counted_down(asm, r10, spec.batch):
        with counted_down(asm, rcx, spec.count):
            missing, done = asm.label("no such row"), asm.label("row updated")
            asm.emit("mov", r9, Memory(rdi))
            asm.emit("cmp", r9, spec.rows)
            asm.jump("jae", missing)
            asm.emit("imul", r9, r9, _FLOAT * spec.floats)
            asm.emit("add", r9, rdx)
            emit_spans(asm, spec.floats, _VECTORS_IN_UPDATE, lambda span: _update(span, spec))
            asm.jump("jmp", done)
            asm.bind(missing)
            asm.emit("mov", dword(r8), 1)
            asm.bind(done)
            asm.emit("add", rdi, _INDEX)
            asm.emit("add", rsi, _FLOAT * spec.floats)
        asm.emit("add", rdx, _FLOAT * spec.rows * spec.floats)


def _update(span: Span, spec: RowUpdates) -> None:
    """Update a few vectors of the row at r9 with the update at rsi."""
    asm, count = span.asm, len(span.firsts)
    spare, *registers = (vector(asm, number) for number in range(2 * _VECTORS_IN_UPDATE + 1))
    new, old = registers[:_VECTORS_IN_UPDATE], registers[_VECTORS_IN_UPDATE:]
    for position in range(count):
        span.load(new[position], rsi, position, spare)
        if spec.reduction is Reduction.NONE:
            continue
        span.load(old[position], r9, position, spare)
        if spec.reduction in _EXTREMES:
            operands: list[Operand] = [old[position], new[position]]
            extreme(asm, _EXTREMES[spec.reduction], old[position], operands, spare)
        else:
            mnemonic = _ARITHMETIC[spec.reduction, spec.element]
            asm.emit(mnemonic, old[position], old[position], new[position])
    for position in range(count):
        held = new if spec.reduction is Reduction.NONE else old
        span.store(held[position], r9, position, spare)
