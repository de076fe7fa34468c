"""The rank of x among the thresholds of each slot, by a search that divides by sixteen.

    x in all lanes > 16 pivots      count of lanes: which block of 16 pivots, or thresholds, is next
    ...
    x in all lanes > 16 thresholds  rank = 16 block + count

A missing value that goes left is above no threshold; one that goes right counts as infinity, or
where there is an infinite threshold takes a rank above all.
"""

import numpy as np

from sparsejit.asm_templates.forest.block_layout import MISSING, BlockLayout
from sparsejit.ir.graph import Array
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, r8, r9, rax, xmm, zmm

_WORD, _FLOAT, _BLOCK = 2, 4, 16
_GREATER = 30  # ordered, quiet


def emit_ranks(asm: Assembler, layout: BlockLayout, x: Register, into: Register) -> None:
    """Append what writes the uint16 rank of each slot, and 2 bytes beyond.

    Clobbers rax, r8, r9, vectors 0 to 2 and k1.
    """
    levels = [_levels(thresholds) for thresholds in layout.thresholds]
    flat = [level for slot in levels for level in slot]
    if not flat:
        return
    starts = np.cumsum([0, *(level.nbytes for level in flat)])
    asm.emit("lea", r8, Literal(asm.literal(np.concatenate(flat))))
    infinity = Literal(asm.literal(np.full(_BLOCK, np.inf, np.float32)))
    asm.emit("vmovups", zmm(2), infinity)
    number = 0
    for slot, own in enumerate(levels):
        value, goes_left = zmm(slot % 2), bool(layout.slots.goes_left[slot])
        place = Memory(x, _FLOAT * int(layout.slots.features[slot]))
        asm.emit("vbroadcastss", value, place)
        if not goes_left:  # the second operand, if one is NaN
            asm.emit("vminps", value, value, zmm(2))
        _search(asm, value, [int(start) for start in starts[number : number + len(own)]])
        number += len(own)
        if not goes_left and np.isinf(layout.thresholds[slot][-1]):
            _mark_missing(asm, place)
        asm.emit("mov", Memory(into, _WORD * slot), dword(r9))


def _search(asm: Assembler, value: Register, starts: list[int]) -> None:
    """r9 = the rank of a value, by tables at `starts` from r8, of pivots before thresholds."""
    count = dword(rax)
    for depth, start in enumerate(starts):
        table = Memory(r8, start, r9) if depth else Memory(r8, start)
        asm.emit("vcmpps", k(1), value, table, _GREATER)
        last = depth == len(starts) - 1
        if depth == 0:
            asm.emit("kmovw", dword(r9), k(1))
            asm.emit("popcnt", dword(r9), dword(r9))
        else:
            asm.emit("kmovw", count, k(1))
            asm.emit("popcnt", count, count)
            # r9 is 64 times the block, 16 numbers of 4 bytes.
            asm.emit("shr" if last else "shl", dword(r9), 2 if last else 4)
            if not last:
                asm.emit("shl", count, 6)
            asm.emit("add", dword(r9), count)
        if depth == 0 and not last:
            asm.emit("shl", dword(r9), 6)


def _mark_missing(asm: Assembler, place: Memory) -> None:
    """r9 = MISSING where the value there is NaN."""
    known = asm.label("not missing")
    asm.emit("vmovss", xmm(0), place)
    asm.emit("vucomiss", xmm(0), xmm(0))
    asm.jump("jnp", known)
    asm.emit("mov", dword(r9), MISSING)
    asm.bind(known)


def _levels(thresholds: Array) -> list[Array]:
    """Pivots of pivots first: the last number of each block of 16 below; infinity pads each."""
    level = np.full(_BLOCK * (len(thresholds) // _BLOCK + 1), np.inf, np.float32)
    level[: len(thresholds)] = thresholds
    levels = [level]
    while len(level) > _BLOCK:
        pivots = level[_BLOCK - 1 :: _BLOCK]
        level = np.full(-(-len(pivots) // _BLOCK) * _BLOCK, np.inf, np.float32)
        level[: len(pivots)] = pivots
        levels.insert(0, level)
    return levels
