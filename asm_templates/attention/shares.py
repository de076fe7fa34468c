"""Factors of the results of two tiles where one adds to the other."""

from sparsejit.asm_templates.attention.frame import FLOAT, FRAME, RESULT_SLOT, AttentionCode
from sparsejit.asm_templates.attention.scores import LEAST_TOTAL
from sparsejit.asm_templates.pointwise.exponential import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.x86.operands import Memory, dword, rax, rcx


def emit_shares(code: AttentionCode, adds: bool) -> None:
    """Save each row's largest score and sum; if the tile adds, compute the factors of both results.
    """
    _exchange_sums(code, adds)
    if adds:
        _weigh_both(code)


def _exchange_sums(code: AttentionCode, adds: bool) -> None:
    """Save each row's largest score and sum, or reload them from the previous tile if it adds."""
    asm, places = code.asm, code.places
    code.start(RESULT_SLOT)
    pairs = (places.old_largest, places.old_total) if adds else (places.largest, places.total)
    for row in range(code.tiles.rows):
        code.point_row(rcx, row, 2)
        asm.emit("add", rcx, FRAME)
        for number, place in enumerate(pairs):
            kept = Memory(rcx, places.sums + FLOAT * number)
            own = Memory(FRAME, place + FLOAT * row)
            asm.emit("mov", dword(rax), kept if adds else own)
            asm.emit("mov", own if adds else kept, dword(rax))


def _weigh_both(code: AttentionCode) -> None:
    """share = the factor of this tile's sums of values; old_total = the factor of old results."""
    asm, places = code.asm, code.places
    for at in range(0, code.row_bytes, code.vector_bytes):
        new, old, common, total = (vector(asm, number) for number in range(4))
        scratch = [vector(asm, number) for number in range(4, 9)]
        asm.emit("vmovups", new, Memory(FRAME, places.largest + at))
        asm.emit("vmovups", old, Memory(FRAME, places.old_largest + at))
        asm.emit("vmaxps", common, new, old)
        asm.emit("vsubps", new, new, common)
        asm.emit("vsubps", old, old, common)
        emit_exp2(asm, [new, old], scratch)
        asm.emit("vmulps", old, old, Memory(FRAME, places.old_total + at))
        asm.emit("vmovups", total, Memory(FRAME, places.total + at))
        asm.emit("vfmadd213ps", total, new, old)
        load_constant(asm, scratch[0], LEAST_TOTAL)
        asm.emit("vmaxps", total, total, scratch[0])
        for register, place in ((new, places.share), (old, places.old_total)):
            asm.emit("vdivps", register, register, total)
            asm.emit("vmovups", Memory(FRAME, place + at), register)
