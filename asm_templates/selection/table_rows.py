"""Rows of a table, copied by index."""

from dataclasses import dataclass

from sparsejit.asm_templates.shared.loops import Span, counted_down, emit_spans
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, r8, r9, rcx, rdi, rdx, rsi

_FLOAT = 4
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
