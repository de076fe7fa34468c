"""Conversion of int32 sums to bytes: scale, bias, addition of another image, rounding, gaps.

    ByteEpilogue    what becomes of sums: bytes; `SumEpilogue`: floats
    ByteResults     the code for bytes with AVX-512, `NarrowByteResults` with AVX2
    SumResults      the code for floats, at both levels

    y = clip(round(sum * scale + bias) + zero, least, most)             ties to even
    or, with the bytes a of another image added,
    t = clip(round(sum * scale + bias), ...);  y = clip(round(t * s1 + (a - za) * s2) + zero, ...)
    (or t = sum * scale + bias, if the product is not rounded before the addition, and s1 is 1)
    or, with the bias added after the first rounding,
    t = clip(round(sum * scale), ...);         y = clip(round(t * s1 + bias) + zero, ...)
    or, with a function of one byte as a table,
    t = clip(round(sum * scale + bias) + zt, ...);  y = table[t]

In each group of 16 bytes, four registers of sums hold positions 0 to 3, 4 to 7, 8 to 11 and 12 to
15; packing with saturation puts them in order. Or each register holds 16 consecutive positions, and
a permutation puts the packed bytes in order.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_tables import ANY_PARTS, TableParts, look_up
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.whole_numbers import ceil_div
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
_WORDS = range(10)
_LARGEST, _GAP, _ZERO, _LEAST, _MOST, _FLOOR, _CEILING, _OWN, _ADDED, _BASE = _WORDS
_FIRST = 20  # register of the first constant
_SCALE, _BIAS, _EMPTY, _OTHERS = zmm(13), zmm(14), zmm(15), zmm(16)
MASK = zmm(31)
_UPPER = k(1)
_TABLE_BASE = rcx
_BLEND = 0xCA  # vpternlogd: the second operand where the first has ones, else the third
_NEAREST = 0  # vrndscaleps: to integers, ties to even
_TOO_LARGE = 65536.0  # beyond any byte; a float beyond int32 would become the least int32
_ALIGNMENT = 64  # of the table


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
    table: y for each byte t, and the zero point of t; None if there is no function.
    """

    zero: int
    least: int = 0
    most: int = 255
    cuts: bool = False
    own: tuple[float, int] | None = None
    added: tuple[float, int] | None = None
    late: bool = False
    table: tuple[npt.NDArray[np.uint8], int] | None = None

    element_bytes: ClassVar[int] = 1  # of y

    @property
    def is_cut_first(self) -> bool:
        """Whether the product is rounded to a byte before something is added to it."""
        return self.late or (self.added is not None and self.own is not None)

    @property
    def packed_zero(self) -> int:
        """Zero point of the packed bytes: the table's input if there is a table, else y."""
        return self.zero if self.table is None else self.table[1]

    @property
    def code(self) -> tuple[bool, ...]:
        """The properties that the code depends on."""
        return (
            self.is_cut_first,
            self.added is not None,
            self.late,
            self.table is not None,
            self.cuts,
            self.packed_zero > 0,
            self.least > 0,
            self.most < 255,
        )

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
        return self.table[0][packed.astype(np.uint8)]

    def words(self, copies: int = 1) -> bytes:
        """Return the constants, each 4 bytes, `copies` times."""
        own_scale, own_zero = self.own or (1.0, 0)
        scale, added_zero = self.added or (0.0, 0)
        floats = [-own_zero, 255 - own_zero, own_scale, scale, -added_zero * np.float32(scale)]
        words = [
            np.float32(_TOO_LARGE).tobytes(),
            bytes([self.zero] * 4),
            np.array([self.packed_zero] * 2, np.int16).tobytes(),
            bytes([self.least] * 4),
            bytes([self.most] * 4),
            np.array(floats, np.float32).tobytes(),
        ]
        return b"".join(
            copies * word[at : at + 4] for word in words for at in range(0, len(word), 4)
        )

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that the code of AVX-512 reads: constants, and the table behind them."""
        return _before(b"" if self.table is None else self.table[0].tobytes(), self.words())


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


def _before(table: bytes, words: bytes) -> npt.NDArray[np.uint8]:
    """Return words and the table behind them, at the next multiple of `_ALIGNMENT`."""
    behind = bytes(-len(words) % _ALIGNMENT) if table else b""
    return np.frombuffer(words + behind + table, np.uint8)


@dataclass(frozen=True)
class SumEpilogue:
    """The end of an int8 product of bytes with a zero point of the call: its sums as float32.

    The bias of a row is the sum of its weights, negated; the zero point times it is added.
    """

    element_bytes: ClassVar[int] = 4  # of y
    code: ClassVar[tuple[str, ...]] = ("sums",)

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return four bytes, which no code reads."""
        return np.zeros(4, np.uint8)


def _table_place(copies: int) -> int:
    """Return the bytes from the constants to the table."""
    return ceil_div(4 * copies * len(_WORDS), _ALIGNMENT) * _ALIGNMENT


def pack_results(
    asm: Assembler, sums: Sequence[Register], zero_point: Register | Memory | None
) -> Register:
    """Append code that packs one, two or four vectors of int32 to bytes, plus the zero point.

    Return the first register, which holds them all.
    """
    for first, next_one in zip(sums[::2], sums[1::2] or sums, strict=True):
        asm.emit("vpackssdw", first, first, next_one)
        if zero_point is not None:
            asm.emit("vpaddsw", first, first, zero_point)
    low, high = sums[0], sums[len(sums) // 4 * 2]
    asm.emit("vpackuswb", low, low, high)
    return low


class ByteResults:
    """Appends code of AVX-512 that turns int32 sums into bytes of y.

    It keeps the registers from `_FIRST` on.
    """

    def __init__(self, asm: Assembler, epilogue: ByteEpilogue) -> None:
        self.asm, self.epilogue = asm, epilogue
        self.kept = {name: zmm(_FIRST + name) for name in _WORDS}

    def load_constants(self, base: Register) -> None:
        """Load the constants at `base` into their registers."""
        for name, register in self.kept.items():
            self.asm.emit("vpbroadcastd", register, Memory(base, 4 * name))
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
        there is a table.
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
        low = pack_results(asm, sums, kept[_ZERO] if epilogue.packed_zero else None)
        if order is not None:
            asm.emit("vpermd", low, order, low)
        if epilogue.least:
            asm.emit("vpmaxub", low, low, kept[_LEAST])
        if epilogue.most < 255:
            asm.emit("vpminub", low, low, kept[_MOST])
        if epilogue.table is not None:
            self._look_up(low, constants)
        self.store(low, y)

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

    def _look_up(self, values: Register, constants: Memory) -> None:
        """Replace each byte by its entry in the table of 256 bytes."""
        asm, parts, other = self.asm, [zmm(number) for number in range(4, 8)], zmm(8)
        asm.emit("mov", _TABLE_BASE, constants)
        for number, part in enumerate(parts):
            asm.emit("vmovdqu64", part, Memory(_TABLE_BASE, _table_place(1) + 64 * number))
        asm.emit("vpmovb2m", _UPPER, values)
        asm.emit("vmovdqa64", other, values)
        asm.emit("vpermi2b", values, *parts[:2])
        asm.emit("vpermi2b", other, *parts[2:])
        asm.emit("vmovdqu8", values.masked(_UPPER), other)

    def _add_late(self, sums: list[Register], row: Register) -> None:
        asm, kept = self.asm, self.kept
        asm.emit("vbroadcastss", _BIAS, Memory(row, 12))
        for total in sums:
            self._cut_to_own(total)
            asm.emit("vfmadd213ps", total, kept[_OWN], _BIAS)

    def _cut_to_own(self, total: Register) -> None:
        asm, kept = self.asm, self.kept
        asm.emit("vrndscaleps", total, total, _NEAREST)
        asm.emit("vmaxps", total, total, kept[_FLOOR])
        asm.emit("vminps", total, total, kept[_CEILING])

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
        table, zero_point = epilogue.table, epilogue.zero
        self.parts = None if table is None else TableParts.of(table[0], zero_point)

    @property
    def code(self) -> Hashable:
        """The properties that the code depends on."""
        is_zero = None if self.parts is None else self.parts.is_zero
        return self.epilogue.code, self.epilogue.zero > 0, is_zero

    def constants(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that the code reads: constants, and the table behind them."""
        table = b"" if self.parts is None else self.parts.entries
        return _before(table, self.epilogue.words(self._COPIES))

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
        consecutive positions. The other sums are clobbered.
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
        zero_point = self._constant(_ZERO) if epilogue.packed_zero else None
        pack_results(asm, sums, zero_point)
        if epilogue.least:
            asm.emit("vpmaxub", low, low, self._constant(_LEAST))
        if epilogue.most < 255:
            asm.emit("vpminub", low, low, self._constant(_MOST))

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
        asm.emit("vmaxps", total, total, self._constant(_FLOOR))
        asm.emit("vminps", total, total, self._constant(_CEILING))

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
