"""Operands of attention rounded to bfloat16, in pairs that `vdpbf16ps` multiplies and adds.

    emit_pairs_of_row      32 features of a row of Q, side by side
    emit_paired_operands   K by pairs of features, V and its powers by pairs of keys
    PairedPowers           powers of two keys, and the sums of the rounded ones

    Q, K    q[2 d], q[2 d + 1]     a lane a query, after the transposition; of K in all lanes
    P       p[2 k], p[2 k + 1]     a lane a query where it is made; in all lanes where it is read
    V       v[2 k], v[2 k + 1]     a lane a feature

Sums of products are float32. A query's powers are divided by the sum of the rounded ones, so that
its shares add up to 1.
"""

from sparsejit.asm_templates.attention.frame import (
    FLOAT,
    FRAME,
    GROUPS_LEFT,
    KEY_SLOT,
    SCORES,
    TABLE,
    TILE_SLOT,
    VALUE_SLOT,
    AttentionCode,
    packed_pitch,
    paired_pitch,
)
from sparsejit.asm_templates.attention.tables import HEADER_BYTES, KEYS
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.interleave import load_order_of_pairs, pair_vectors
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import load_masked, set_tail_mask
from sparsejit.asm_templates.shared.rows import load, zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    k,
    r10,
    r11,
    r12,
    r13,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    zmm,
)

_LANES, _LINE = 16, 64
_MASK = k(6)
_TWO_ONES = 0x3F803F80  # as bfloat16


def emit_pairs_of_row(
    asm: Assembler,
    pairs: Register,
    spare: Register,
    base: Register,
    count: int,
    scale: Register | None = None,
    first: int = 0,
) -> None:
    """pairs = `count` floats, at most 32, from float `first` of base on, in pairs of bfloat16.

    They are multiplied by `scale` before. Zeros follow them. Clobbers rax, k6 and the spare.
    """
    low, high = Memory(base, FLOAT * first), Memory(base, FLOAT * first + _LINE)
    for register, place, lanes in ((pairs, low, count), (spare, high, count - _LANES)):
        if lanes <= 0:
            zero(asm, register)
        elif lanes < _LANES:
            set_tail_mask(asm, lanes, _MASK)
            load_masked(asm, register, _MASK, place)
        elif scale is None:
            asm.emit("vmovups", register, place)
        else:
            asm.emit("vmulps", register, scale, place)
        if scale is not None and 0 < lanes < _LANES:
            asm.emit("vmulps", register, register, scale)
    asm.emit("vcvtne2ps2bf16", pairs, spare, pairs)


def emit_paired_operands(code: AttentionCode) -> None:
    """Append code that copies the keys and values of a mask, and moves on to its tiles."""
    asm, order = code.asm, zmm(31)
    key_pitch = paired_pitch(code.stack.depth)
    value_pitch = packed_pitch(code.stack.values, asm.target)
    load_order_of_pairs(asm, order)
    asm.emit("mov", TABLE, Memory(FRAME, TILE_SLOT))
    asm.emit("lea", rcx, Memory(TABLE, HEADER_BYTES))
    asm.emit("mov", Memory(FRAME, TILE_SLOT), rcx)
    code.start_list(0)
    asm.emit("mov", rsi, Memory(FRAME, KEY_SLOT))
    asm.emit("mov", rdx, Memory(FRAME, VALUE_SLOT))
    asm.emit("lea", rdi, Memory(FRAME, code.places.keys))
    asm.emit("lea", rcx, Memory(FRAME, code.places.values))
    sources = (r10, rsi), (r11, rsi), (r12, rdx), (r13, rdx)
    with counted_down(asm, dword(GROUPS_LEFT)):
        for number, (source, base) in enumerate(sources):
            asm.emit("mov", dword(source), Memory(TABLE, FLOAT * number))
            asm.emit("add", source, base)
        for number, source in enumerate((r10, r11)):
            _copy_key(code, source, number * key_pitch)
        for first in range(0, code.stack.values, _LANES):
            low, high = zmm(first // _LANES % 8 * 2), zmm(first // _LANES % 8 * 2 + 1)
            for register, source in ((low, r12), (high, r13)):
                load(asm, register, source, first, code.stack.values, high)
            pair_vectors(asm, low, high, order)
            asm.emit("vmovups", Memory(rcx, FLOAT * first), low)
        asm.emit("add", TABLE, 4 * FLOAT)
        asm.emit("add", rdi, 2 * key_pitch)
        asm.emit("add", rcx, value_pitch)


def _copy_key(code: AttentionCode, source: Register, offset: int) -> None:
    """Append code that copies the key at `source` to `offset` bytes behind rdi."""
    for first in range(0, code.stack.depth, 2 * _LANES):
        number = first // (2 * _LANES) % 8 * 2
        count = min(2 * _LANES, code.stack.depth - first)
        emit_pairs_of_row(code.asm, zmm(number), zmm(number + 1), source, count, first=first)
        code.asm.emit("vmovups", Memory(rdi, offset + 2 * first), zmm(number))


class PairedPowers:
    """Writes powers in the place of scores, two keys in the room of one, and adds them up.

    rbx is where the next group's powers go. Takes two vector registers from number `free` on.
    """

    def __init__(self, code: AttentionCode, free: int) -> None:
        self.code, self.order, self.ones = code, zmm(free), zmm(free + 1)
        load_order_of_pairs(code.asm, self.order)
        load_constant(code.asm, self.ones, _TWO_ONES)
        code.asm.emit("mov", rbx, SCORES)

    def keep(self, first: int, powers: list[Register]) -> None:
        """Append code for some of a group's powers, the vectors from number `first` on."""
        code, asm, width = self.code, self.code.asm, self.code.tiles.width
        for number in range(0, len(powers), 2 * width):
            for vector in range(width):
                low, high = powers[number + vector], powers[number + width + vector]
                pair_vectors(asm, low, high, self.order)
                asm.emit("vdpbf16ps", code.total[vector], low, self.ones)
                place = (first + number) // 2 + vector
                asm.emit("vmovups", Memory(rbx, place * code.vector_bytes), low)

    def move(self) -> None:
        """Append code that moves on to the next group."""
        self.code.asm.emit("add", rbx, KEYS // 2 * self.code.row_bytes)
