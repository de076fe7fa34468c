"""Sums, maxima and minima over a row: across its vectors, then across lanes.

    across lanes    v += v's halves swapped, v += quarters swapped, ... : the result in every lane

The order in which elements are combined depends on the length of the row only.
"""

from collections.abc import Sequence

import numpy as np

from sparsejit.asm_templates.pointwise.chain.lanes import extreme, is_wide, move
from sparsejit.asm_templates.pointwise.chain.memory import TAIL_MASK, lane_mask
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register

_EXTREMES = {"row_max": "vmaxps", "row_min": "vminps"}
_OF_NUMBERS = {"row_max_of_numbers": "vmaxps", "row_min_of_numbers": "vminps"}
_IDENTITIES = {"vmaxps": float("-inf"), "vminps": float("inf"), "vaddps": 0.0}


def _mnemonic(kind: str) -> str:
    return _EXTREMES.get(kind) or _OF_NUMBERS.get(kind) or "vaddps"


def combine(
    asm: Assembler, kind: str, d: Register, first: Register, second: Register, spare: Register
) -> None:
    """d = first and second combined; of numbers alone where second is NaN. May clobber spare."""
    if kind in _EXTREMES:
        extreme(asm, _EXTREMES[kind], d, [first, second], spare)
    else:  # The second source is the result where either is NaN.
        asm.emit(_mnemonic(kind), d, second, first)


def set_identity(asm: Assembler, kind: str, register: Register) -> None:
    """register = what changes no result."""
    move(asm, register, asm.constant(_IDENTITIES[_mnemonic(kind)]))


def without_tail(
    asm: Assembler, kind: str, d: Register, source: Register, tail: int
) -> None:
    """d = the first `tail` lanes of source, and in the others what changes no result."""
    if is_wide(asm):
        set_identity(asm, kind, d)
        asm.emit("vmovaps", d.masked(TAIL_MASK), source)
        return
    asm.emit("vandps", d, source, lane_mask(asm, tail))
    if _IDENTITIES[_mnemonic(kind)]:
        values = np.where(np.arange(8) < tail, 0.0, _IDENTITIES[_mnemonic(kind)])
        asm.emit("vorps", d, d, Literal(asm.literal(values.astype(np.float32))))


def take_in(
    asm: Assembler, kind: str, d: Register, source: Sequence[Register], spare: Register
) -> None:
    """d = d and source combined: one vector, or two whose product counts. May clobber spare."""
    if kind == "row_dot":
        asm.emit("vfmadd231ps", d, *source)
    else:
        combine(asm, kind, d, d, source[0], spare)


def start_row(
    asm: Assembler, kind: str, d: Register, source: Sequence[Register], tail: int, spare: Register
) -> None:
    """d = the first vector, or the product of two, less what lies behind a tail, if not 0."""
    whole = source[0]
    if kind == "row_dot":
        whole = spare if tail else d
        asm.emit("vmulps", whole, *source)
    if tail:
        without_tail(asm, kind, d, whole, tail)
    else:
        move(asm, d, whole)


def across_lanes(
    asm: Assembler, kind: str, registers: Sequence[Register], spares: Sequence[Register]
) -> None:
    """Each register's lanes = the combination of them all.

    With a spare for each register and one more all run in step; two spares are enough.
    """
    *swapped, spare = spares
    for start in range(0, len(registers), len(swapped)):
        group = registers[start : start + len(swapped)]
        for mnemonic, control in _rounds(asm):
            for register, other in zip(group, swapped, strict=False):
                sources = [register] * (1 if mnemonic == "vpermilps" else 2)
                asm.emit(mnemonic, other, *sources, control)
            for register, other in zip(group, swapped, strict=False):
                combine(asm, kind, register, register, other, spare)


def _rounds(asm: Assembler) -> list[tuple[str, int]]:
    within = [("vpermilps", 0x4E), ("vpermilps", 0xB1)]
    if is_wide(asm):
        return [("vshuff32x4", 0x4E), ("vshuff32x4", 0xB1), *within]
    return [("vperm2f128", 0x01), *within]
