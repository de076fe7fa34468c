"""Sums, maxima and minima over a row: across its vectors, then across lanes.

    across lanes    v += v's halves swapped, v += quarters swapped, ... : the result in every lane

The order in which elements are combined depends on the length of the row only. A row of int64
(`OF_LONGS`) or float64 (`OF_DOUBLES`) is walked by halves of vectors, a register each.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    doubles,
    extreme,
    extreme_of_longs,
    is_wide,
    longs,
    move,
)
from sparsejit.asm_templates.pointwise.row_chain.memory import HIGH_TAIL_MASK, LOW_TAIL_MASK
from sparsejit.asm_templates.pointwise.row_chain.typed import OF_DOUBLES, OF_LONGS
from sparsejit.asm_templates.shared.masks import TAIL_MASK, lane_mask
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register

_EXTREMES = {"row_max": "vmaxps", "row_min": "vminps"}
_OF_NUMBERS = {"row_max_of_numbers": "vmaxps", "row_min_of_numbers": "vminps"}
_LONGS = {
    OF_LONGS["row_sum"]: "vpaddq",
    OF_LONGS["row_max"]: "vpmaxsq",
    OF_LONGS["row_min"]: "vpminsq",
}
_DOUBLES = {
    OF_DOUBLES["row_sum"]: "vaddpd",
    OF_DOUBLES["row_max"]: "vmaxpd",
    OF_DOUBLES["row_min"]: "vminpd",
}
_IN_HALVES = _LONGS.keys() | _DOUBLES.keys()
_IDENTITIES = {
    "vmaxps": float("-inf"),
    "vminps": float("inf"),
    "vaddps": 0.0,
    "vmaxpd": float("-inf"),
    "vminpd": float("inf"),
    "vaddpd": 0.0,
    "vpmaxsq": -(2**63),
    "vpminsq": 2**63 - 1,
    "vpaddq": 0,
}


class RowPart(NamedTuple):
    """The part of a row in one register: `tail` elements, or with 0 all lanes.

    `register` is its number among the row's registers.
    """

    register: int
    tail: int = 0
    is_upper: bool = False


def parts_of(kind: str, vectors: int, tail: int, lanes: int) -> list[RowPart]:
    """Return the registers of a row in the order of their reduction.

    The row has `vectors` vectors, the last with `tail` elements if that is not 0. A part that is
    not whole comes first; registers without elements are left out.
    """
    halves = 2 if kind in _IN_HALVES else 1
    each, found = lanes // halves, []
    for vector in range(vectors):
        left = tail if tail and vector == vectors - 1 else lanes
        for half in range(halves):
            count = min(each, left - half * each)
            if count > 0:
                found.append(RowPart(vector * halves + half, count % each, half == 1))
    return sorted(found, key=lambda part: part.tail == 0)


def _mnemonic(kind: str) -> str:
    tables = (_EXTREMES, _OF_NUMBERS, _LONGS, _DOUBLES)
    return next((table[kind] for table in tables if kind in table), "vaddps")


def combine(
    asm: Assembler, kind: str, d: Register, first: Register, second: Register, spare: Register
) -> None:
    """d = first combined with second. Clobbers spare.

    A kind of reduction that ignores NaN ignores it in `second` alone.
    """
    mnemonic = _mnemonic(kind)
    if kind in _EXTREMES or mnemonic in ("vmaxpd", "vminpd"):
        extreme(asm, mnemonic, d, [first, second], spare)
    elif mnemonic in ("vpmaxsq", "vpminsq"):
        extreme_of_longs(asm, mnemonic, d, first, second, spare)
    else:  # The second source is the result where either is NaN.
        asm.emit(mnemonic, d, second, first)


def set_identity(asm: Assembler, kind: str, register: Register) -> None:
    """register = the identity of the reduction, in every lane."""
    number = _IDENTITIES[_mnemonic(kind)]
    if kind in _IN_HALVES:
        move(asm, register, (longs if kind in _LONGS else doubles)(asm, number))
    else:
        move(asm, register, asm.constant(number))


def without_tail(asm: Assembler, kind: str, d: Register, source: Register, part: RowPart) -> None:
    """d = the part's lanes of source, and the identity of the reduction in the others."""
    is_half = kind in _IN_HALVES
    if is_wide(asm):
        set_identity(asm, kind, d)
        if is_half:
            mask = HIGH_TAIL_MASK if part.is_upper else LOW_TAIL_MASK
            asm.emit("vmovdqa64", d.masked(mask), source)
        else:
            asm.emit("vmovaps", d.masked(TAIL_MASK), source)
        return
    asm.emit("vandps", d, source, lane_mask(asm, part.tail, *((4, 8) if is_half else (8, 4))))
    identity = _IDENTITIES[_mnemonic(kind)]
    if identity:
        values = np.full(4 if is_half else 8, identity, _dtype(kind))
        values[: part.tail] = 0
        asm.emit("vorps", d, d, Literal(asm.literal(values)))


def _dtype(kind: str) -> type[Any]:
    if kind in _IN_HALVES:
        return np.int64 if kind in _LONGS else np.float64
    return np.float32


def take_in(
    asm: Assembler, kind: str, d: Register, source: Sequence[Register], spare: Register
) -> None:
    """d = d combined with `source`, a vector or the product of two. Clobbers spare."""
    if kind == "row_dot":
        asm.emit("vfmadd231ps", d, *source)
    else:
        combine(asm, kind, d, d, source[0], spare)


def start_row(
    asm: Assembler,
    kind: str,
    d: Register,
    source: Sequence[Register],
    part: RowPart,
    spare: Register,
) -> None:
    """Append code: d = a row's first vector, or the product of two, by `source`.

    Lanes behind the part get the identity of the reduction.
    """
    whole = source[0]
    if kind == "row_dot":
        whole = spare if part.tail else d
        asm.emit("vmulps", whole, *source)
    if part.tail:
        without_tail(asm, kind, d, whole, part)
    else:
        move(asm, d, whole)


def across_lanes(
    asm: Assembler, kind: str, registers: Sequence[Register], spares: Sequence[Register]
) -> None:
    """Every lane of each register = the combination of all its lanes.

    With one spare for each register and one more, all run in step; two spares are enough.
    """
    *swapped, spare = spares
    for start in range(0, len(registers), len(swapped)):
        group = registers[start : start + len(swapped)]
        for mnemonic, control in _rounds(asm, kind):
            for register, other in zip(group, swapped, strict=False):
                sources = [register] * (1 if mnemonic == "vpermilps" else 2)
                asm.emit(mnemonic, other, *sources, control)
            for register, other in zip(group, swapped, strict=False):
                combine(asm, kind, register, register, other, spare)


def _rounds(asm: Assembler, kind: str) -> list[tuple[str, int]]:
    within = [("vpermilps", 0x4E), ("vpermilps", 0xB1)]
    if kind in _IN_HALVES:
        within = within[:1]
    if is_wide(asm):
        return [("vshuff32x4", 0x4E), ("vshuff32x4", 0xB1), *within]
    return [("vperm2f128", 0x01), *within]
