"""The ends of rows in the loop over compressed rows: their sums, in the workspace, become y.

Feature-major float32 goes from the sums to y in one loop. Sums that are int8, or transposed later,
first become outputs in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.batch.csr_int8 import CsrInt8
from sparsejit.asm_templates.batch.csr_shape import CsrShape
from sparsejit.asm_templates.batch.transpose import Masks, MatrixPlace
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, r8, r9, r10, rcx, rsp

_SUMS, _Y, _ADDED, _TURNS_LEFT = r8, r9, rcx, r10


@dataclass(frozen=True)
class RowEnds:
    """Sums and their y: `vectors` of each row, as pairs of byte offsets into both.

    `added` is added to the sums before the activation; it may be y itself. `columns`: existing
    columns of a single vector; None for all.
    """

    sums: MatrixPlace
    y: MatrixPlace
    added: MatrixPlace | None
    vectors: Sequence[tuple[int, int]]
    columns: int | None


def finish_rows(asm: Assembler, activation: Activation, ends: RowEnds, rows: int) -> None:
    """y = activation(sums + added) for `rows` rows. A row is read before it is written.

    `added.base` may be rcx. Clobbers rax, rcx, r8-r10 and all vectors.
    """
    places = ((_ADDED, ends.added), (_SUMS, ends.sums), (_Y, ends.y))
    moving = [(register, place) for register, place in places if place is not None]
    for register, place in moving:
        asm.emit("lea", register, Memory(place.base, place.offset))
    at_once = max(1, asm.target.vector_registers // 2 // len(ends.vectors))
    turns, rest = divmod(rows, at_once)
    masks = Masks(asm, ends.columns or 0, ends.columns or 0)

    def turn() -> None:
        _some_rows(asm, activation, ends, at_once, masks)
        for register, place in moving:
            asm.emit("add", register, at_once * place.pitch)

    repeat(asm, turns, _TURNS_LEFT, turn)
    if rest:
        _some_rows(asm, activation, ends, rest, masks)


def _some_rows(
    asm: Assembler, activation: Activation, ends: RowEnds, rows: int, masks: Masks
) -> None:
    whole = ends.columns is None
    moves = [(row, *pair) for row in range(rows) for pair in ends.vectors]
    values = [vector(asm, number) for number in range(len(moves))]
    free = [vector(asm, n) for n in range(len(values), asm.target.vector_registers)]
    for value, (row, start, place) in zip(values, moves, strict=True):
        asm.emit("vmovups", value, Memory(_SUMS, row * ends.sums.pitch + start))
        if ends.added is None:
            continue
        operand = Memory(_ADDED, row * ends.added.pitch + place)
        if not whole:
            masks.load(free[0], operand, whole)
        asm.emit("vaddps", value, value, operand if whole else free[0])
    apply_activation(asm, activation, values, free)
    for value, (row, _, place) in zip(values, moves, strict=True):
        masks.store(Memory(_Y, row * ends.y.pitch + place), value, whole)


def activate_rows(
    asm: Assembler, spec: MatVec, shape: CsrShape, vectors: int, rows: int, next_end: Memory | None
) -> None:
    """Turn rows of sums into outputs in place: for int8 scale and bias, then the activation.

    For int8, `next_end` holds the address of the first row's scale and bias; it advances.
    """
    values = [vector(asm, number) for number in range(vectors)]
    scratch = [vector(asm, n) for n in range(vectors, asm.target.vector_registers)]
    asm.emit("lea", r8, Memory(rsp, shape.panel_bytes))
    if next_end is not None:
        asm.emit("mov", r9, next_end)
    with counted_down(asm, dword(r10), rows):
        places = [Memory(r8, number * asm.target.vector_bytes) for number in range(vectors)]
        for value, place in zip(values, places, strict=True):
            asm.emit("vmovups", value, place)
        if next_end is not None:
            CsrInt8(asm, spec, shape, vectors).outputs(values, r9, scratch)
            asm.emit("add", r9, 8)
        apply_activation(asm, spec.activation, values, scratch)
        for value, place in zip(values, places, strict=True):
            asm.emit("vmovups", place, value)
        asm.emit("add", r8, shape.pitch)
    if next_end is not None:
        asm.emit("mov", next_end, r9)
