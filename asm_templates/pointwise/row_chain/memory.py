"""Loads and stores of vectors: whole, partial, strided, and one element for a row."""

from __future__ import annotations

from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    FIRST_MASK,
    high_half,
    is_wide,
    low,
    move,
)
from sparsejit.asm_templates.shared.masks import (
    TAIL_MASK,
    lane_mask,
    load_masked,
    set_tail_mask,
    store_masked,
)
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.ir.values import Element
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, k, xmm

LOW_TAIL_MASK, HIGH_TAIL_MASK = k(6), k(5)
_WIDE = 8  # bytes of an int64 or float64, of which two registers make a vector


@dataclass(frozen=True)
class Strip:
    """The elements of an array in one vector: `count` from `place` on, `step` bytes apart.

    `lanes` is the number of lanes of a vector.
    """

    place: Memory
    step: int
    element: Element
    count: int
    lanes: int

    @property
    def is_whole(self) -> bool:
        return self.count == self.lanes

    @property
    def is_dense(self) -> bool:
        return self.step == self.element.bytes

    def at(self, lane: int) -> Memory:
        """Return the operand of the element for one lane."""
        place = self.place
        displacement = int(place.displacement) + lane * self.step
        return Memory(place.base, displacement, place.index, place.scale)


def set_tail_masks(asm: Assembler, tail: int) -> None:
    """Set the mask registers for partial vectors of `tail` elements. Clobbers rax."""
    if not is_wide(asm) or not tail:
        return
    low_count = min(tail, 8)
    for mask, count in (
        (TAIL_MASK, tail),
        (LOW_TAIL_MASK, low_count),
        (HIGH_TAIL_MASK, tail - low_count),
    ):
        set_tail_mask(asm, count, mask)


def load(asm: Assembler, registers: list[Register], strip: Strip, spare: Register) -> None:
    """registers (one, or two of 64-bit elements) = the elements, zeros behind."""
    if strip.element.bytes == _WIDE:
        _load_longs(asm, registers, strip, spare)
    elif strip.element is Element.BOOL:
        _load_bytes(asm, registers[0], strip, spare)
    elif not strip.is_dense:
        _gather(asm, registers[0], strip, spare)
    elif strip.is_whole:
        asm.emit("vmovups", registers[0], strip.place)
    else:
        load_masked(asm, registers[0], _tail_mask(asm, strip, spare), strip.place)


def _tail_mask(asm: Assembler, strip: Strip, spare: Register) -> Register:
    """Return the register with the mask of a partial strip; AVX2 loads it into `spare`."""
    if is_wide(asm):
        return TAIL_MASK
    asm.emit("vmovups", spare, lane_mask(asm, strip.count))
    return spare


def _gather(asm: Assembler, register: Register, strip: Strip, spare: Register) -> None:
    """Append the load of strided float32, four lanes at a time: one load and three insertions."""
    insert = "vinsertf32x4" if is_wide(asm) else "vinsertf128"
    if strip.count <= 4 or not strip.is_whole:
        zero(asm, register)
    for part in range(ceil_div(strip.count, 4)):
        part_register = low(register if part == 0 else spare, "xmm")
        asm.emit("vmovss", part_register, strip.at(4 * part))
        for lane in range(1, min(4, strip.count - 4 * part)):
            place = strip.at(4 * part + lane)
            asm.emit("vinsertps", part_register, part_register, place, lane << 4)
        if part:
            asm.emit(insert, register, register, part_register, part)


def _load_longs(
    asm: Assembler, registers: list[Register], strip: Strip, spare: Register
) -> None:
    half_lanes = strip.lanes // 2
    for half, register in enumerate(registers):
        count = max(0, min(half_lanes, strip.count - half * half_lanes))
        place = strip.at(half * half_lanes)
        if count == 0:
            zero(asm, register)
        elif not strip.is_dense:
            _gather_longs(asm, register, strip, half * half_lanes, count, spare)
        elif count == half_lanes:
            asm.emit("vmovups", register, place)
        elif is_wide(asm):
            mask = HIGH_TAIL_MASK if half else LOW_TAIL_MASK
            asm.emit("vmovdqu64", register.masked(mask, zeroing=True), place)
        else:
            asm.emit("vmovups", spare, lane_mask(asm, count, 4, 8))
            asm.emit("vpmaskmovq", register, spare, place)


def _gather_longs(
    asm: Assembler, register: Register, strip: Strip, first: int, count: int, spare: Register
) -> None:
    insert = "vinsertf32x4" if is_wide(asm) else "vinsertf128"
    zero(asm, register)
    for part in range(ceil_div(count, 2)):
        part_register = low(register if part == 0 else spare, "xmm")
        asm.emit("vmovq", part_register, strip.at(first + 2 * part))
        if count > 2 * part + 1:
            place = strip.at(first + 2 * part + 1)
            asm.emit("vmovhps", part_register, part_register, place)
        if part:
            asm.emit(insert, register, register, part_register, part)


def _load_bytes(asm: Assembler, register: Register, strip: Strip, spare: Register) -> None:
    """register = truth values: all ones for a byte that is not zero."""
    bytes_of = low(spare, "xmm")
    if strip.is_dense and strip.is_whole:
        asm.emit("vpmovzxbd", register, strip.place)
    elif strip.is_dense and is_wide(asm):
        asm.emit("vpmovzxbd", register.masked(TAIL_MASK, zeroing=True), strip.place)
    else:
        zero(asm, spare)
        for lane in range(strip.count):
            asm.emit("vpinsrb", bytes_of, bytes_of, strip.at(lane), lane)
        asm.emit("vpmovzxbd", register, bytes_of)
    _as_truth(asm, register, spare)


def _as_truth(asm: Assembler, register: Register, spare: Register) -> None:
    if is_wide(asm):
        asm.emit("vptestmd", FIRST_MASK, register, register)
        asm.emit("vpmovm2d", register, FIRST_MASK)
    else:
        zero(asm, spare)
        asm.emit("vpcmpgtd", register, register, spare)


def load_one(
    asm: Assembler, registers: list[Register], place: Memory, element: Element, spare: Register
) -> None:
    """registers = one element in every lane."""
    if element is Element.FLOAT32:
        asm.emit("vbroadcastss", registers[0], place)
    elif element.bytes == _WIDE:
        for register in registers:
            asm.emit("vpbroadcastq", register, place)
    else:
        zero(asm, registers[0])
        one = low(registers[0], "xmm")
        asm.emit("vpinsrb", one, one, place, 0)
        asm.emit("vbroadcastss", registers[0], one)
        _as_truth(asm, registers[0], spare)


def store(
    asm: Assembler, registers: list[Register], strip: Strip, spares: list[Register]
) -> None:
    """Append a store of the first lanes of registers, which stay, to a strip's elements."""
    if strip.element.bytes == _WIDE:
        _store_longs(asm, registers, strip, spares[0])
    elif strip.element is Element.BOOL:
        _store_bytes(asm, registers[0], strip, spares)
    elif not strip.is_dense:
        _scatter(asm, registers[0], strip, spares[0])
    elif strip.is_whole:
        asm.emit("vmovups", strip.place, registers[0])
    else:
        store_masked(asm, strip.place, _tail_mask(asm, strip, spares[0]), registers[0])


def _quarters(
    asm: Assembler, register: Register, parts: int, spare: Register
) -> list[tuple[int, Register]]:
    """Return the number of each 128-bit part, and the xmm register that `_quarter` moves it to."""
    return [(part, low(register if part == 0 else spare, "xmm")) for part in range(parts)]


def _quarter(asm: Assembler, register: Register, part: int, place: Register) -> None:
    if part:
        asm.emit("vextractf32x4" if is_wide(asm) else "vextractf128", place, register, part)


def _scatter(asm: Assembler, register: Register, strip: Strip, spare: Register) -> None:
    for part, place in _quarters(asm, register, ceil_div(strip.count, 4), spare):
        _quarter(asm, register, part, place)
        asm.emit("vmovss", strip.at(4 * part), place)
        for lane in range(1, min(4, strip.count - 4 * part)):
            asm.emit("vextractps", strip.at(4 * part + lane), place, lane)


def _store_longs(
    asm: Assembler, registers: list[Register], strip: Strip, spare: Register
) -> None:
    half_lanes = strip.lanes // 2
    for half, register in enumerate(registers):
        count = max(0, min(half_lanes, strip.count - half * half_lanes))
        place = strip.at(half * half_lanes)
        if count == 0:
            continue
        if not strip.is_dense:
            _scatter_longs(asm, register, strip, half * half_lanes, count, spare)
        elif count == half_lanes:
            asm.emit("vmovups", place, register)
        elif is_wide(asm):
            asm.emit("vmovdqu64", place.masked(HIGH_TAIL_MASK if half else LOW_TAIL_MASK), register)
        else:
            asm.emit("vmovups", spare, lane_mask(asm, count, 4, 8))
            asm.emit("vpmaskmovq", place, spare, register)


def _scatter_longs(
    asm: Assembler, register: Register, strip: Strip, first: int, count: int, spare: Register
) -> None:
    for part, place in _quarters(asm, register, ceil_div(count, 2), spare):
        _quarter(asm, register, part, place)
        asm.emit("vmovlps", strip.at(first + 2 * part), place)
        if count > 2 * part + 1:
            asm.emit("vmovhps", strip.at(first + 2 * part + 1), place)


def _store_bytes(
    asm: Assembler, register: Register, strip: Strip, spares: list[Register]
) -> None:
    bytes_of, upper = spares[:2]
    asm.emit("vpsrld", bytes_of, register, 31)
    packed = xmm(bytes_of.number)
    if is_wide(asm):
        if strip.is_dense:
            masked = strip.place if strip.is_whole else strip.place.masked(TAIL_MASK)
            asm.emit("vpmovdb", masked, bytes_of)
            return
        asm.emit("vpmovdb", packed, bytes_of)
    else:
        high_half(asm, upper, bytes_of)
        asm.emit("vpackssdw", packed, packed, low(upper, "xmm"))
        asm.emit("vpacksswb", packed, packed, packed)
        if strip.is_dense and strip.is_whole:
            asm.emit("vmovlps", strip.place, packed)
            return
    for lane in range(strip.count):
        asm.emit("vpextrb", strip.at(lane), packed, lane)


def store_one(
    asm: Assembler, registers: list[Register], place: Memory, element: Element, spare: Register
) -> None:
    """Append a store of the first lane of registers to the one element at `place`."""
    if element is Element.FLOAT32:
        asm.emit("vmovss", place, low(registers[0], "xmm"))
    elif element.bytes == _WIDE:
        asm.emit("vmovlps", place, low(registers[0], "xmm"))
    else:
        move(asm, spare, registers[0])
        asm.emit("vpsrld", spare, spare, 31)
        asm.emit("vpextrb", place, low(spare, "xmm"), 0)
