"""Conversion of int32 sums to bytes: scale, bias, addition of another image, rounding, gaps.

    ByteEpilogue    parameters that turn sums into bytes; `SumEpilogue`: into floats
    ByteResults     the code for bytes with AVX-512, `NarrowByteResults` with AVX2
    SumResults      the code for floats, at both levels

    y = clip(round(sum * scale + bias) + zero, least, most)             ties to even
    or, with the bytes a of another image added,
    t = clip(round(sum * scale + bias), ...);  y = clip(round(t * s1 + (a - za) * s2) + zero, ...)
    (or t = sum * scale + bias, if the product is not rounded before the addition, and s1 is 1)
    or, with the bias added after the first rounding,
    t = clip(round(sum * scale), ...);         y = clip(round(t * s1 + bias) + zero, ...)
    or, with a function of one byte as a table, or as a slope where all bytes agree,
    t = clip(round(sum * scale + bias) + zt, ...);  y = table[t] = clip(round((t - zt) * r) + zero)

In each group of 16 bytes, four registers of sums hold positions 0 to 3, 4 to 7, 8 to 11 and 12 to
15; packing with saturation puts them in order. Or each register holds 16 consecutive positions, and
a permutation puts the packed bytes in order.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_tables import ANY_PARTS, TableParts, look_up
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    VECTOR_BYTES,
    Literal,
    Memory,
    Register,
    k,
    rcx,
    ymm,
    zmm,
)

# Indices of the 4-byte words that `ByteEpilogue.constants` returns; each fills a register.
_WORDS = range(11)
_LARGEST, _GAP, _ZERO, _LEAST, _MOST, _FACTOR, *_FLOATS = _WORDS
_FLOOR, _CEILING, _OWN, _ADDED, _BASE = _FLOATS
_KEPT = [zmm(number) for number in range(20, 30)]
_SCALE, _BIAS, _EMPTY, _OTHERS = zmm(13), zmm(14), zmm(15), zmm(16)
MASK = zmm(31)
_UPPER = k(1)
_TABLE_BASE = rcx
_HALF = 2**14  # of the divisor of `vpmulhrsw`
_MOST_DOUBLINGS = 2
_PART = 64  # entries of a table in a register
_PARTS = 4  # of a table of all bytes
_BLEND = 0xCA  # vpternlogd: the second operand where the first has ones, else the third
_NEAREST = 0  # vrndscaleps: to integers, ties to even
_TOO_LARGE = 65536.0  # beyond any byte; a float beyond int32 would become the least int32
_ALIGNMENT = 64  # of the table


class Slope(NamedTuple):
    """A factor of 16-bit integers w: `vpmulhrsw` of w doubled, and w doubled itself if `adds`.

    The factor is factor / 2**15, plus 1 if `adds`, times 2**doublings; products round half up.
    """

    factor: int
    adds: bool
    doublings: int

    def of(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the products, without saturation."""
        doubled = words << self.doublings
        return (doubled * self.factor + _HALF >> 15) + (doubled if self.adds else 0)


def slope_of(
    words: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64], least: int, most: int
) -> Slope | None:
    """Return the slope with which all products, cut to `least` and `most`, are `wanted`.

    None if there is none. A slope is positive, so that larger words have larger products.
    """
    above, below = wanted > least, wanted < most
    for doublings in range(_MOST_DOUBLINGS + 1):
        doubled = words << doublings
        size = np.maximum(np.abs(doubled), 1)
        floors = (wanted << 15) - _HALF, (wanted << 15) + _HALF - 1
        # w * c reaches the first where the result is to be above the least, and not the second.
        lowest, highest = 1, 2**16 - 1
        for sign in (1, -1):
            of_sign = np.sign(doubled) == sign
            first, last = floors if sign > 0 else (-floors[1], -floors[0])
            starts, ends = (above, below) if sign > 0 else (below, above)
            lowest = max([lowest, *-(-first[of_sign & starts] // size[of_sign & starts])])
            highest = min([highest, *last[of_sign & ends] // size[of_sign & ends]])
        if lowest <= highest:
            adds = bool(lowest >= 2**15)
            middle = int(lowest + (highest if adds else min(highest, 2**15 - 1))) // 2
            return Slope(middle - 2**15 * adds, adds, doublings)
    return None


@dataclass(frozen=True)
class ByteEpilogue:
    """The end of an int8 product: parameters that turn int32 sums into bytes of y.

    Zero points are 0 .. 255.

    zero: zero point of y; gaps hold it too.
    least, most: bounds of y, from the activation.
    cuts: whether scaled sums may exceed an int32.
    own: (scale / scale of y, zero point) of t, the value that is rounded first; None if none is.
    added: the same for the bytes of the added image; None if there is none.
    late: whether the bias is added after the first rounding.
    start: number that packing to bytes adds to rounded sums, if it is not `zero`.
    slope: factor of rounded sums; None if there is none.
    table: y for each packed byte, up to the last that differs; None if there is none.
    """

    zero: int
    least: int = 0
    most: int = 255
    cuts: bool = False
    own: tuple[float, int] | None = None
    added: tuple[float, int] | None = None
    late: bool = False
    start: int | None = None
    slope: Slope | None = None
    table: npt.NDArray[np.uint8] | None = None

    def with_function(
        self, table: npt.NDArray[np.uint8], zero_point: int, parts: int = 0
    ) -> "ByteEpilogue":
        """Return the epilogue with `table`: y for each byte t, whose zero point is given.

        `least` and `most` are bounds of t here. The epilogue has a slope with bounds of y if there
        is one that gives the same bytes, unless a table has at most `parts` parts.
        """
        entries = table[np.arange(table.size).clip(self.least, self.most)].astype(np.int64)
        shorter = self._with_table(entries, zero_point)
        if shorter.parts <= parts:
            return shorter
        start, least, most = (int(n) for n in (entries[zero_point], entries.min(), entries.max()))
        words = np.arange(table.size) - zero_point
        slope = slope_of(words, entries - start, least - start, most - start)
        if slope is None:
            return shorter
        return replace(self, start=start, least=least, most=most, slope=slope)

    def _with_table(
        self, entries: npt.NDArray[np.int64], zero_point: int
    ) -> "ByteEpilogue":
        """Return the epilogue with the entries that differ.

        Packing saturates, so bytes are packed with the last entry that is like the first one as 0.
        A table whose other entries are consecutive numbers is a zero point and bounds.
        """
        changes = np.flatnonzero(np.diff(entries))
        first, last = (int(changes[0]), changes[-1] + 1) if len(changes) else (0, 0)
        entries = entries[first : last + 1]
        least, most = int(entries[0]), int(entries[-1])
        if (np.diff(entries) == 1).all():
            return replace(self, start=zero_point - first + least, least=least, most=most)
        shorter = entries.astype(np.uint8)
        return replace(self, start=zero_point - first, least=0, most=255, table=shorter)

    element_bytes: ClassVar[int] = 1  # of y

    @property
    def is_cut_first(self) -> bool:
        """Whether the product is rounded to a byte before something is added to it."""
        return self.late or (self.added is not None and self.own is not None)

    @property
    def packed_zero(self) -> int:
        """The number that packing to bytes adds to rounded sums."""
        return self.zero if self.start is None else self.start

    @property
    def is_lifted(self) -> bool:
        """Whether packing cuts sums at 0, and bytes get the zero point, which is their bound."""
        return 0 < self.least == self.packed_zero

    @property
    def parts(self) -> int:
        """Registers of AVX-512 that the table fills."""
        return 0 if self.table is None else ceil_div(self.table.size, _PART)

    @property
    def has_bound(self) -> bool:
        """Whether packed bytes have an upper bound: `most`, or the table's last place."""
        return self.most < 255 or 0 < self.parts < _PARTS

    @property
    def used(self) -> list[int]:
        """The constants that the code reads."""
        needs = {
            _LARGEST: self.cuts and not self.is_cut_first,
            _GAP: True,
            _ZERO: self.packed_zero != 0 and not self.is_lifted,
            _LEAST: self.least > 0,
            _MOST: self.has_bound,
            _FACTOR: self.slope is not None,
            **dict.fromkeys((_FLOOR, _CEILING, _OWN), self.is_cut_first),
            **dict.fromkeys((_ADDED, _BASE), self.added is not None),
        }
        return [name for name, is_needed in needs.items() if is_needed]

    @property
    def code(self) -> tuple[int, ...]:
        """The properties that the code depends on."""
        return (
            *(self.slope or ())[1:],
            self.is_cut_first,
            self.added is not None,
            self.late,
            self.parts,
            self.cuts,
            self.packed_zero != 0,
            self.is_lifted,
            self.least > 0,
            self.most < 255,
        )

    @property
    def whole_table(self) -> npt.NDArray[np.uint8]:
        """The table for any byte.

        The last entry repeats up to the bound of packed bytes. The zero point, which no byte reads,
        follows.
        """
        assert self.table is not None
        read = np.pad(self.table, (0, _PART * self.parts - self.table.size), mode="edge")
        return np.pad(read, (0, _PARTS * _PART - read.size), constant_values=self.zero)

    @cached_property
    def table_parts(self) -> TableParts | None:
        """The table as the code of AVX2 reads it; None if there is none."""
        return None if self.table is None else TableParts.of(self.whole_table, self.zero)

    @property
    def looked_up(self) -> float:
        """The instructions of the table's code, as a share of the most of any; 0 without one."""
        return 0.0 if self.table_parts is None else self.table_parts.looked_up

    @property
    def is_of_sums(self) -> bool:
        """Whether y depends on sums alone, by one rounding and a table: see `bytes_of`."""
        return self.table is not None and self.added is None and not self.late

    def bytes_of(
        self, sums: npt.NDArray[np.integer], ends: npt.NDArray[np.floating]
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of y, as the code computes them; `is_of_sums`.

        sums: (rows, any), at most 24 bits. ends: the scale and the bias of each row, (rows, 2).
        """
        assert self.is_of_sums and self.table is not None
        scale, bias = (column.astype(np.float32)[:, None] for column in ends.T)
        scaled = fused(sums.astype(np.float32), scale, bias)
        rounded = np.rint(np.minimum(scaled, np.float32(_TOO_LARGE)))
        packed = (rounded + np.float32(self.packed_zero)).clip(self.least, self.most)
        return self.whole_table[packed.astype(np.uint8).clip(0, self.table.size - 1)]

    def words(self, copies: int = 1) -> bytes:
        """Return the constants, each 4 bytes, `copies` times."""
        own_scale, own_zero = self.own or (1.0, 0)
        scale, added_zero = self.added or (0.0, 0)
        floats = [-float(own_zero), 255 - own_zero, own_scale]
        floats += [scale, -added_zero * float(np.float32(scale))]
        words = [
            np.float32(_TOO_LARGE).tobytes(),
            bytes([self.zero] * 4),
            np.array([self.packed_zero] * 2, np.int16).tobytes(),
            bytes([self.least] * 4),
            bytes([min(self.most, _PART * self.parts - 1) if self.parts else self.most] * 4),
            np.array([self.slope.factor if self.slope else 0] * 2, np.int16).tobytes(),
            np.array(floats, np.float32).tobytes(),
        ]
        return b"".join(
            copies * word[at : at + 4] for word in words for at in range(0, len(word), 4)
        )

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that the code of AVX-512 reads: constants, and the table behind them."""
        if self.table is None:
            return np.frombuffer(self.words(), np.uint8)
        return _before_table(self.words(), self.whole_table.tobytes())


_Floats = npt.NDArray[np.float32]


def fused(x: _Floats, factor: _Floats, addend: _Floats) -> _Floats:
    """x * factor + addend, rounded once, as `vfmadd213ps` does.

    The product is exact in float64. The sum is rounded to the odd one of its two neighbours there,
    so that a tie of float32 is one of the exact sum.
    """
    product, addend64 = x.astype(np.float64) * factor.astype(np.float64), addend.astype(np.float64)
    total = product + addend64
    part = total - product
    error = (product - (total - part)) + (addend64 - part)
    other = np.nextafter(total, np.copysign(np.inf, error))
    is_even = (total.view(np.int64) & 1) == 0
    return np.where((error != 0) & is_even, other, total).astype(np.float32)


def _before_table(words: bytes, table: bytes) -> npt.NDArray[np.uint8]:
    """Return words, and the table at its place behind them."""
    return np.frombuffer(words.ljust(round_up(len(words), _ALIGNMENT), b"\0") + table, np.uint8)


@dataclass(frozen=True)
class SumEpilogue:
    """The end of an int8 product of bytes with a zero point of the call: its sums as float32.

    The bias of a row is the sum of its weights, negated; the zero point times it is added.
    """

    element_bytes: ClassVar[int] = 4  # of y
    code: ClassVar[tuple[str, ...]] = ("sums",)
    looked_up: ClassVar[float] = 0.0  # it has no table

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return four bytes, which no code reads."""
        return np.zeros(4, np.uint8)


def _table_place(copies: int) -> int:
    """Return the bytes from the constants to the table."""
    return round_up(4 * copies * len(_WORDS), _ALIGNMENT)


def pack_results(
    asm: Assembler,
    sums: Sequence[Register],
    zero_point: Register | Memory | None,
    multiply: Callable[[Register, Register], None] | None = None,
) -> Register:
    """Append code that packs one, two or four vectors of int32 to bytes, plus the zero point.

    Return the first register, which holds them all. `multiply` appends code for a register of
    16-bit integers; its other register is a sum that is no longer needed, if there are several.
    """
    for first, next_one in zip(sums[::2], sums[1::2] or sums, strict=True):
        asm.emit("vpackssdw", first, first, next_one)
        if multiply is not None:
            multiply(first, next_one)
        if zero_point is not None:
            asm.emit("vpaddsw", first, first, zero_point)
    low, high = sums[0], sums[len(sums) // 4 * 2]
    asm.emit("vpackuswb", low, low, high)
    return low


def _multiply(
    asm: Assembler, slope: Slope, factor: Register | Memory, words: Register, spare: Register
) -> None:
    """Append the multiplication of a register of 16-bit integers by a slope."""
    for _ in range(slope.doublings):
        asm.emit("vpaddsw", words, words, words)
    asm.emit("vpmulhrsw", spare if slope.adds else words, words, factor)
    if slope.adds:
        asm.emit("vpaddsw", words, words, spare)


class ByteResults:
    """Appends code of AVX-512 that turns int32 sums into bytes of y.

    It keeps the registers `_KEPT`: constants, then the parts of the table that have room.
    """

    def __init__(self, asm: Assembler, epilogue: ByteEpilogue) -> None:
        self.asm, self.epilogue = asm, epilogue
        free = iter(_KEPT)
        self.kept = {name: next(free) for name in epilogue.used}
        self.parts = [*free][: epilogue.parts]

    def load_constants(self, base: Register) -> None:
        """Load the constants at `base` into their registers."""
        for name, register in self.kept.items():
            self.asm.emit("vpbroadcastd", register, Memory(base, 4 * name))
        for number, part in enumerate(self.parts):
            self.asm.emit("vmovdqu64", part, Memory(base, _table_place(1) + _PART * number))
        zero(self.asm, _EMPTY)

    @property
    def gap(self) -> Register:
        """The register of the zero point in all bytes."""
        return self.kept[_GAP]

    def finish(
        self,
        sums: list[Register],
        row: Register,
        y: Memory,
        added: Memory,
        constants: Memory,
        order: Register | None = None,
    ) -> None:
        """Append code that turns one, two or four registers of int32 sums into bytes at y.

        `row` points at the scale and biases of their output channel, `added` is the place in the
        added image. `order`: permutation of the packed dwords, if registers hold consecutive
        positions. `constants`: memory that holds the address of the constants. Clobbers rcx if
        registers have no room for the table.
        """
        asm, kept, epilogue = self.asm, self.kept, self.epilogue
        asm.emit("vbroadcastss", _SCALE, Memory(row, 4))
        asm.emit("vbroadcastss", _BIAS, Memory(row, 8))
        for total in sums:
            asm.emit("vcvtdq2ps", total, total)
            asm.emit("vfmadd213ps", total, _SCALE, _BIAS)
        if epilogue.added is not None:
            self._add(sums, added, order)
        elif epilogue.late:
            self._add_late(sums, row)
        if epilogue.cuts and not epilogue.is_cut_first:
            for total in sums:
                asm.emit("vminps", total, total, kept[_LARGEST])
        for total in sums:
            asm.emit("vcvtps2dq", total, total)
        low = pack_results(asm, sums, kept.get(_ZERO), self._multiplied())
        if order is not None:
            asm.emit("vpermd", low, order, low)
        if epilogue.least:
            asm.emit("vpaddusb" if epilogue.is_lifted else "vpmaxub", low, low, kept[_LEAST])
        if epilogue.has_bound:
            asm.emit("vpminub", low, low, kept[_MOST])
        self.store(self._looked_up(low, constants) if epilogue.parts else low, y)

    def store(self, values: Register, y: Memory) -> None:
        """Store a vector of bytes: values at the positions in MASK, the zero point in gaps.

        If `y` has a mask of its own, store the values under that mask alone.
        """
        if y.mask:
            self.asm.emit("vmovdqu8", y, values)
            return
        self.asm.emit("vmovdqa64", _OTHERS, MASK)
        self.asm.emit("vpternlogd", _OTHERS, values, self.gap, _BLEND)
        self.asm.emit("vmovdqu64", y, _OTHERS)

    def _multiplied(self) -> Callable[[Register, Register], None] | None:
        slope = self.epilogue.slope
        if slope is None:
            return None
        return lambda words, _: _multiply(self.asm, slope, self.kept[_FACTOR], words, _OTHERS)

    def _looked_up(self, values: Register, constants: Memory) -> Register:
        """Return the register of the table's entry for each byte, which is below its end.

        Clobbers `values`.
        """
        asm, other, parts = self.asm, zmm(8), list[Register | Memory](self.parts)
        if len(parts) < self.epilogue.parts:
            asm.emit("mov", _TABLE_BASE, constants)
            for number in range(len(parts), self.epilogue.parts):
                parts.append(Memory(_TABLE_BASE, _table_place(1) + _PART * number))
        lower, upper = parts[:2], parts[2:]
        if not upper:
            self._permute(values, values, lower)
            return values
        asm.emit("vpmovb2m", _UPPER, values)
        asm.emit("vmovdqa64", other, values)
        self._permute(other, other, lower)
        if len(upper) == 1:
            self._permute(other.masked(_UPPER), values, upper)
        else:
            self._permute(values, values, upper)
            asm.emit("vmovdqu8", other.masked(_UPPER), values)
        return other

    def _permute(
        self, into: Register, places: Register, parts: Sequence[Register | Memory]
    ) -> None:
        """into = the bytes at `places` of one part, or of two; of two, `into` holds the places."""
        if len(parts) == 1:
            self.asm.emit("vpermb", into, places, *parts)
        else:
            self.asm.emit("vpermi2b", into, *parts)

    def _add_late(self, sums: list[Register], row: Register) -> None:
        asm, kept = self.asm, self.kept
        asm.emit("vbroadcastss", _BIAS, Memory(row, 12))
        for total in sums:
            self._cut_to_own(total)
            asm.emit("vfmadd213ps", total, kept[_OWN], _BIAS)

    def _cut_to_own(self, total: Register) -> None:
        """Round a float, and cut it to the floor, at most -0.0, and the ceiling, at least 0.0.

        Both bounds hold as integers too, which more ports compare: the smallest negative floats are
        the largest unsigned integers.
        """
        asm, kept = self.asm, self.kept
        asm.emit("vrndscaleps", total, total, _NEAREST)
        asm.emit("vpminud", total, total, kept[_FLOOR])
        asm.emit("vpminsd", total, total, kept[_CEILING])

    def _add(self, sums: list[Register], added: Memory, order: Register | None) -> None:
        asm, kept, parts = self.asm, self.kept, [zmm(number) for number in range(4, 8)]
        asm.emit("vmovdqu64", _OTHERS, added)
        if order is not None:
            asm.emit("vpermd", _OTHERS, order, _OTHERS)
        halves = zmm(8), zmm(9)
        asm.emit("vpunpcklbw", halves[0], _OTHERS, _EMPTY)
        asm.emit("vpunpckhbw", halves[1], _OTHERS, _EMPTY)
        for number, part in enumerate(parts):
            which = "vpunpckhwd" if number % 2 else "vpunpcklwd"
            asm.emit(which, part, halves[number // 2], _EMPTY)
        for total, part in zip(sums, parts, strict=False):
            asm.emit("vcvtdq2ps", part, part)
            asm.emit("vfmadd213ps", part, kept[_ADDED], kept[_BASE])
            if self.epilogue.is_cut_first:
                self._cut_to_own(total)
                asm.emit("vfmadd213ps", total, kept[_OWN], part)
            else:
                asm.emit("vaddps", total, total, part)


def _number(row: Memory, number: int) -> Memory:
    """Return a number of a row: 1 is the scale, then its biases."""
    return row._replace(displacement=int(row.displacement) + 4 * number)


class NarrowByteResults:
    """Appends code of AVX2 that turns int32 sums at 32 positions into bytes of y.

    Constants are operands in memory, each in all lanes. It clobbers the registers `SPARE`, the
    registers of the sums, and rcx.
    """

    SPARE = tuple(ymm(number) for number in range(8, 14))
    _COPIES = 8  # of a constant

    def __init__(self, asm: Assembler, epilogue: ByteEpilogue) -> None:
        self.asm, self.epilogue = asm, epilogue
        self.parts = epilogue.table_parts

    @property
    def code(self) -> Hashable:
        """The properties that the code depends on."""
        is_zero = None if self.parts is None else self.parts.is_zero
        return self.epilogue.code, self.epilogue.zero > 0, is_zero

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that the code reads: constants, and the table behind them."""
        words = self.epilogue.words(self._COPIES)
        if self.parts is None:
            return np.frombuffer(words, np.uint8)
        return _before_table(words, self.parts.entries)

    @classmethod
    def _constant(cls, name: int) -> Memory:
        return Memory(_TABLE_BASE, 4 * cls._COPIES * name)

    def load_gap(self, gap: Register, base: Register) -> None:
        """gap = the zero point in all bytes; `base` points at the constants."""
        self.asm.emit("vmovdqu", gap, self._constant(_GAP)._replace(base=base))

    @property
    def keeps_scale(self) -> bool:
        """Whether `pack` leaves the scale and the bias of a row in the first two of `SPARE`."""
        return self.epilogue.added is None and not self.epilogue.late

    def load_row(self, row: Memory) -> None:
        """Load the scale and the bias of the row at `row`."""
        for register, number in zip(self.SPARE, (1, 2), strict=False):
            self.asm.emit("vbroadcastss", register, _number(row, number))

    def finish(
        self,
        sums: Sequence[Register],
        row: Register,
        y: Memory,
        added: Memory,
        constants: Memory,
        mask: Memory,
        order: Literal | None = None,
    ) -> None:
        """Append code that turns four registers of int32 sums into bytes at y.

        The operands are as in `ByteResults.finish`. `order`: `narrow_order`, if registers hold
        consecutive positions. `mask`: 255 for each byte of y that is a position; the others become
        the zero point.
        """
        self.pack_row(sums, row, added, constants, order is not None)
        self.store(sums, y, mask, order)

    def pack_row(
        self,
        sums: Sequence[Register],
        row: Register,
        added: Memory,
        constants: Memory,
        consecutive: bool,
    ) -> None:
        """Load the row and the address of the constants, and `pack` the sums."""
        self.load_row(Memory(row))
        self.asm.emit("mov", _TABLE_BASE, constants)
        self.pack(sums, Memory(row), added, consecutive)

    def store(
        self, sums: Sequence[Register], y: Memory, mask: Memory, order: Literal | None
    ) -> None:
        """Append code that stores the packed bytes of `sums`; the operands are as in `finish`."""
        asm, low = self.asm, sums[0]
        if self.parts is not None:
            self.look_up(sums)
        if order is not None:
            asm.emit("vmovdqu", sums[1], order)
            asm.emit("vpermd", low, sums[1], low)
        if self.parts is not None or not self.epilogue.zero:
            self.add_zero_point(low, mask)
        else:
            self._fill(low, mask, sums[1:])
        asm.emit("vmovdqu", y, low)

    def pack(
        self, sums: Sequence[Register], row: Memory, added: Memory, consecutive: bool = False
    ) -> None:
        """Append code that packs registers of int32 sums to bytes of y in the first, or to t.

        The row is loaded; rcx points at the constants. `consecutive`: whether registers hold
        consecutive positions. The other sums are clobbered, and all of `SPARE` if there is an
        addition, else the first two.
        """
        asm, epilogue, low = self.asm, self.epilogue, sums[0]
        scale, bias, *_ = self.SPARE
        for total in sums:
            asm.emit("vcvtdq2ps", total, total)
            asm.emit("vfmadd213ps", total, scale, bias)
        if epilogue.added is not None:
            self._add(sums, added, consecutive)
        elif epilogue.late:
            self._add_late(sums, row)
        if epilogue.cuts and not epilogue.is_cut_first:
            for total in sums:
                asm.emit("vminps", total, total, self._constant(_LARGEST))
        for total in sums:
            asm.emit("vcvtps2dq", total, total)
        zero_point = self._constant(_ZERO) if _ZERO in epilogue.used else None
        pack_results(asm, sums, zero_point, self._multiplied())
        if epilogue.least:
            least = self._constant(_LEAST)
            asm.emit("vpaddusb" if epilogue.is_lifted else "vpmaxub", low, low, least)
        if epilogue.has_bound:
            asm.emit("vpminub", low, low, self._constant(_MOST))

    def _multiplied(self) -> Callable[[Register, Register], None] | None:
        slope, factor = self.epilogue.slope, self._constant(_FACTOR)
        if slope is None:
            return None
        return lambda words, spare: _multiply(self.asm, slope, factor, words, spare)

    def look_up(self, sums: Sequence[Register], own: Memory | None = None) -> None:
        """Replace the bytes in the first of `sums` by their entries less the zero point.

        own: the table of the row, if it has one of its own. The other sums are clobbered.
        """
        assert self.parts is not None
        free, data = (*self.SPARE, *sums[1:]), Memory(_TABLE_BASE, _table_place(self._COPIES))
        if own is None:
            look_up(self.asm, self.parts.is_zero, data, sums[0], free)
        else:
            look_up(self.asm, ANY_PARTS, own, sums[0], free)

    def take_zero_point(self, values: Register) -> None:
        """values -= the zero point of y, as `look_up` leaves bytes."""
        if self.epilogue.zero:
            self.asm.emit("vpsubb", values, values, self._constant(_GAP))

    def add_zero_point(self, values: Register, mask: Memory) -> None:
        """values += the zero point of y; where `mask` is 0 they become the zero point."""
        self.asm.emit("vpand", values, values, mask)
        if self.epilogue.zero:
            self.asm.emit("vpaddb", values, values, self._constant(_GAP))

    def _fill(self, values: Register, mask: Memory, free: Sequence[Register]) -> None:
        """values = the zero point where `mask` is 0. Clobbers two registers of `free`."""
        asm, (gap, inside, *_) = self.asm, free
        asm.emit("vmovdqu", inside, mask)
        asm.emit("vmovdqu", gap, self._constant(_GAP))
        asm.emit("vpblendvb", values, gap, values, inside)

    def _add_late(self, sums: Sequence[Register], row: Memory) -> None:
        asm, (own, late, *_) = self.asm, self.SPARE
        asm.emit("vbroadcastss", late, _number(row, 3))
        asm.emit("vmovups", own, self._constant(_OWN))
        for total in sums:
            self._cut_to_own(total)
            asm.emit("vfmadd213ps", total, own, late)

    def _cut_to_own(self, total: Register) -> None:
        asm = self.asm
        asm.emit("vroundps", total, total, _NEAREST)
        asm.emit("vpminud", total, total, self._constant(_FLOOR))
        asm.emit("vpminsd", total, total, self._constant(_CEILING))

    def _add(self, sums: Sequence[Register], added: Memory, consecutive: bool) -> None:
        """Add the bytes at `added`; `consecutive`: whether registers hold consecutive positions."""
        asm, (own, scale, low, high, part, empty) = self.asm, self.SPARE
        asm.emit("vmovups", own, self._constant(_OWN))
        asm.emit("vmovups", scale, self._constant(_ADDED))
        if not consecutive:
            zero(asm, empty)
            asm.emit("vmovdqu", low, added)
            asm.emit("vpunpckhbw", high, low, empty)
            asm.emit("vpunpcklbw", low, low, empty)
        for number, total in enumerate(sums):
            which = "vpunpckhwd" if number % 2 else "vpunpcklwd"
            if consecutive:
                place = added._replace(displacement=added.displacement + 8 * number)
                asm.emit("vpmovzxbd", part, place)
            else:
                asm.emit(which, part, (low, high)[number // 2], empty)
            asm.emit("vcvtdq2ps", part, part)
            asm.emit("vfmadd213ps", part, scale, self._constant(_BASE))
            if self.epilogue.is_cut_first:
                self._cut_to_own(total)
                asm.emit("vfmadd213ps", total, own, part)
            else:
                asm.emit("vaddps", total, total, part)


class SumResults:
    """Appends code that turns int32 sums into float32, minus the zero point times a row's weights.

    `zero_point`: memory with the zero point as an int32. The code clobbers `START` and four
    registers behind it.
    """

    START = 8  # number of a register

    def __init__(self, asm: Assembler, zero_point: Memory) -> None:
        self.asm, self.zero_point = asm, zero_point

    def finish(
        self, sums: Sequence[Register], row: Register, y: Memory, consecutive: bool
    ) -> None:
        """Append code that stores registers of int32 sums as floats at y.

        The operands are as in `ByteResults.finish`. `consecutive`: whether each register holds
        consecutive positions; else there are four, which hold four of each 16 positions.
        """
        asm, kind = self.asm, sums[0].kind
        start, other = (Register(kind, self.START + number) for number in range(2))
        asm.emit("vbroadcastss", start, Memory(row, 8))
        asm.emit("vcvtps2dq", start, start)
        asm.emit("vpbroadcastd", other, self.zero_point)
        asm.emit("vpmulld", start, start, other)
        for total in sums:
            asm.emit("vpaddd", total, total, start)
            asm.emit("vcvtdq2ps", total, total)
        if not consecutive:
            sums = (self._in_order if kind == "zmm" else self._in_narrow_order)(sums)
        size = VECTOR_BYTES[kind]
        for number, total in enumerate(sums):
            place = y.displacement + size * number
            asm.emit("vmovups", y._replace(displacement=place), total)

    def _in_order(self, sums: Sequence[Register]) -> list[Register]:
        """Transpose the parts of 16 bytes of four registers of AVX-512."""
        asm, halves = self.asm, [zmm(self.START + number) for number in range(4)]
        for number, half in enumerate(halves):
            first, which = sums[number // 2 * 2 : number // 2 * 2 + 2], (0x44, 0xEE)[number % 2]
            asm.emit("vshuff32x4", half, *first, which)
        low, high, next_low, next_high = halves
        pairs = (low, next_low), (low, next_low), (high, next_high), (high, next_high)
        for total, pair, which in zip(sums, pairs, (0x88, 0xDD) * 2, strict=True):
            asm.emit("vshuff32x4", total, *pair, which)
        return list(sums)

    def _in_narrow_order(self, sums: Sequence[Register]) -> list[Register]:
        """Pair the halves of four registers of AVX2: all lower ones, then the upper ones."""
        asm, (first, second, third, fourth) = self.asm, sums
        lower = [ymm(self.START + number) for number in range(2)]
        for low, pair in zip(lower, ((first, second), (third, fourth)), strict=True):
            asm.emit("vperm2f128", low, *pair, 0x20)
        asm.emit("vperm2f128", first, first, second, 0x31)
        asm.emit("vperm2f128", third, third, fourth, 0x31)
        return [*lower, first, third]
