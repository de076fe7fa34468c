"""softmax(scale Q K^T) V of a tile of queries, only for keys that one of them may see.

    vmovups      zmm8, [rbx+64*d]              element d of 16 queries, a lane each
    vfmadd231ps  zmm0, zmm8, [rax+4*d]{1to16}  times element d of a key, anywhere in K
    vfmadd231ps  zmm1, zmm8, [rcx+4*d]{1to16}  ... of 8 keys

    vblendmps    zmm0{k1}, -infinity, zmm0     for queries that may not see the key
    2^(score - largest)                        lane by lane, nothing is added across lanes

    vmovups      zmm0, [rax]                   16 elements of a key's value, and 16, 16, 16
    vbroadcastss zmm4, [scores+4*q]            its power in query q
    vfmadd231ps  zmm31, zmm4, zmm0             ... of 6 queries by 4 vectors

For scores, lanes are queries, so that keys need not lie side by side: a table has the offset of
each (`tables`). Queries are transposed before; scores stay in L1. A tile that adds to the results
of others weights both by their sums.
"""

from sparsejit.asm_templates.attention.frame import (
    COUNTERS,
    FRAME,
    TILE_SLOT,
    AttentionCode,
    AttentionStack,
)
from sparsejit.asm_templates.attention.results import emit_packing, emit_results
from sparsejit.asm_templates.attention.scores import emit_powers, emit_queries, emit_scores
from sparsejit.asm_templates.attention.shares import emit_shares
from sparsejit.asm_templates.attention.tables import AttentionTiles
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    r8,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.stack import pop, push

_SAVED = (rbx, rbp, r12, r13, r14, r15)
_OPERANDS = (rdi, rsi, rdx, rcx)


def emit_attention(asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
    """Append the whole stack.

    rdi: Q, rsi: K, rdx: V, rcx: result, r8: scratch memory. Clobbers all but rbx, rbp, rsp and r12
    to r15.
    """
    push(asm, _SAVED)
    asm.emit("mov", FRAME, r8)
    for slot, register in enumerate(_OPERANDS):
        asm.emit("mov", Memory(FRAME, 8 * slot), register)
    _emit_axes(AttentionCode(asm, stack, tiles), 0)
    pop(asm, _SAVED)


def _emit_axes(code: AttentionCode, number: int) -> None:
    """Append loops over the stack's axes from `number` on, and all tiles in them."""
    asm, axes, tiles = code.asm, code.stack.axes, code.tiles
    if number == len(axes) - (tiles.masks > 1):
        asm.emit("lea", rax, Literal(code.numbers))
        asm.emit("mov", Memory(FRAME, TILE_SLOT), rax)
    if number == len(axes):
        counter = Memory(FRAME, COUNTERS)
        if code.stack.packed_from:
            emit_packing(code)
        repeat(asm, tiles.tiles, counter, lambda: _emit_tile(code, adds=False))
        repeat(asm, tiles.added, counter, lambda: _emit_tile(code, adds=True))
        return
    length, moves = axes[number]

    def turn() -> None:
        _emit_axes(code, number + 1)
        _emit_move(asm, moves, 1)

    repeat(asm, length, Memory(FRAME, COUNTERS + 8 * (number + 1)), turn)
    _emit_move(asm, moves, -length)


def _emit_move(asm: Assembler, moves: tuple[int, ...], times: int) -> None:
    for slot, move in enumerate(moves):
        if move:
            asm.emit("mov", rax, Memory(FRAME, 8 * slot))
            asm.emit("add", rax, times * move)
            asm.emit("mov", Memory(FRAME, 8 * slot), rax)


def _emit_tile(code: AttentionCode, adds: bool) -> None:
    """Append the results of one tile of queries, and move on to the next tile."""
    emit_queries(code)
    emit_scores(code)
    emit_powers(code)
    if code.tiles.added:
        emit_shares(code, adds)
    emit_results(code, adds)
    tile = Memory(FRAME, TILE_SLOT)
    code.asm.emit("mov", rax, tile)
    code.asm.emit("add", rax, code.tiles.header_bytes)
    code.asm.emit("mov", tile, rax)
