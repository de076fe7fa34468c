"""The rank of x among the thresholds of each slot, by a search that divides by sixteen.

    x in all lanes > 16 pivots      count of lanes: number of the next block of pivots or thresholds
    ...
    x in all lanes > 16 thresholds  rank = 16 block + count

A missing value that goes left is above no threshold; one that goes right counts as infinity, or if
there is an infinite threshold, takes a rank above all others.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.block_layout import MISSING, BlockLayout
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, r8, r9, rax, xmm, zmm

_WORD, _BLOCK = 2, 16
_GREATER = 30  # ordered, quiet


def emit_ranks(asm: Assembler, layout: BlockLayout, x: Register, into: Register) -> None:
    """Append code that writes the uint16 rank of each slot, and 2 bytes beyond, to `into`.

    Clobbers rax, r8, r9, vectors 0 to 2, k1 and k2.
    """
    size = layout.trees.x_bytes
    form = _FORMS[size]
    levels = [_levels(thresholds) for thresholds in layout.thresholds]
    flat = [level for slot in levels for level in slot]
    if not flat:
        return
    starts = np.cumsum([0, *(level.nbytes for level in flat)])
    asm.emit("lea", r8, Literal(asm.literal(np.concatenate(flat))))
    infinity = Literal(asm.literal(np.full(64 // size, np.inf, layout.trees.thresholds.dtype)))
    asm.emit("vmovups", zmm(2), infinity)
    number = 0
    for slot, own in enumerate(levels):
        value, goes_left = zmm(slot % 2), bool(layout.slots.goes_left[slot])
        place = Memory(x, size * int(layout.slots.features[slot]))
        asm.emit(form.broadcast, value, place)
        if not goes_left:  # min returns the second source, infinity, if x is NaN
            asm.emit(form.least, value, value, zmm(2))
        _search(asm, form, value, [int(start) for start in starts[number : number + len(own)]])
        number += len(own)
        if not goes_left and np.isinf(layout.thresholds[slot][-1]):
            _mark_missing(asm, form, place)
        asm.emit("mov", Memory(into, _WORD * slot), dword(r9))


@dataclass(frozen=True)
class _Forms:
    """Instructions for an element of x; `block_shift` is log2 of the bytes of 16 of them."""

    broadcast: str
    least: str
    compare: str
    load: str
    compare_one: str
    block_shift: int


_FORMS = {
    4: _Forms("vbroadcastss", "vminps", "vcmpps", "vmovss", "vucomiss", 6),
    8: _Forms("vbroadcastsd", "vminpd", "vcmppd", "vmovsd", "vucomisd", 7),
}


def _search(asm: Assembler, form: _Forms, value: Register, starts: list[int]) -> None:
    """r9 = the rank of a value; tables of pivots, then of thresholds, lie at r8 + `starts`."""
    count, shift = dword(rax), form.block_shift
    for depth, start in enumerate(starts):
        index = (r9,) if depth else ()
        asm.emit(form.compare, k(1), value, Memory(r8, start, *index), _GREATER)
        if form.compare == "vcmppd":  # 16 doubles are two vectors
            asm.emit(form.compare, k(2), value, Memory(r8, start + 64, *index), _GREATER)
            asm.emit("kunpckbw", k(1), k(2), k(1))
        last = depth == len(starts) - 1
        if depth == 0:
            asm.emit("kmovw", dword(r9), k(1))
            asm.emit("popcnt", dword(r9), dword(r9))
        else:
            asm.emit("kmovw", count, k(1))
            asm.emit("popcnt", count, count)
            # r9 is the offset of the block, in bytes.
            asm.emit("shr" if last else "shl", dword(r9), shift - 4 if last else 4)
            if not last:
                asm.emit("shl", count, shift)
            asm.emit("add", dword(r9), count)
        if depth == 0 and not last:
            asm.emit("shl", dword(r9), shift)


def _mark_missing(asm: Assembler, form: _Forms, place: Memory) -> None:
    """r9 = MISSING if the value at `place` is NaN."""
    known = asm.label("not missing")
    asm.emit(form.load, xmm(0), place)
    asm.emit(form.compare_one, xmm(0), xmm(0))
    asm.jump("jnp", known)
    asm.emit("mov", dword(r9), MISSING)
    asm.bind(known)


def _levels(thresholds: Array) -> list[Array]:
    """Return the levels of a search, coarsest first, thresholds last.

    A pivot is the last number of a block of 16 in the next level; infinity pads each level.
    """
    level = np.full(_BLOCK * (len(thresholds) // _BLOCK + 1), np.inf, thresholds.dtype)
    level[: len(thresholds)] = thresholds
    levels = [level]
    while len(level) > _BLOCK:
        pivots = level[_BLOCK - 1 :: _BLOCK]
        level = np.full(round_up(len(pivots), _BLOCK), np.inf, thresholds.dtype)
        level[: len(pivots)] = pivots
        levels.insert(0, level)
    return levels
