"""An instruction form: fixed bytes with holes for register numbers, displacement and immediate."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError

Words = npt.NDArray[np.uint64]

Position = TypeVar("Position", int, npt.NDArray[np.int64])


class Hole(NamedTuple):
    """Where a number goes: byte position, size in bytes, unit it is divided by, signedness.

    An unsigned hole takes a number of either reading: a bit pattern such as a float's.
    """

    at: int
    size: int
    unit: int = 1
    signed: bool = True

    def fits(self, values: npt.NDArray[np.integer[Any]]) -> bool:
        if self.size == 8:
            return True
        if not len(values):
            return True
        whole = self.unit == 1 or not (values & (self.unit - 1)).any()  # a power of two
        return whole and all(self.fits_one(int(end)) for end in (values.min(), values.max()))

    def fits_one(self, value: int) -> bool:
        """Whether a single number fits."""
        scaled, rest = divmod(value, self.unit)
        bound = 1 << (8 * self.size - 1)
        return not rest and -bound <= scaled < (bound if self.signed else 2 * bound)


# What makes a form: mnemonic, one signature per operand, bytes of displacement (0: no memory).
Key = tuple[str, tuple[tuple[Any, ...], ...], int]


@dataclass(frozen=True, eq=False)
class Form:
    """The bytes of an instruction and the holes in them."""

    key: Key
    template: npt.NDArray[np.uint8]
    registers: tuple[npt.NDArray[np.uint8], ...]  # per vector register: (32, length) XOR table
    displacement: Hole | None
    immediate: Hole | None

    @property
    def length(self) -> int:
        return len(self.template)

    def field_at(self, start: Position) -> tuple[Position, Position]:
        """Where the displacement lies, and where the instruction ends, if it begins there."""
        assert self.displacement is not None
        return start + self.displacement.at, start + self.length

    @cached_property
    def _as_integers(self) -> tuple[int, list[list[int]]]:
        """Template and XOR tables as little-endian integers."""
        tables = [[int.from_bytes(row.tobytes(), "little") for row in t] for t in self.registers]
        return int.from_bytes(self.template.tobytes(), "little"), tables

    def encode(self, registers: Sequence[int], displacement: int = 0, immediate: int = 0) -> bytes:
        """One instruction: what `stamp` gives for a count of one, in a tenth of the time."""
        word, tables = self._as_integers
        for table, number in zip(tables, registers, strict=True):
            word ^= table[number]
        code = bytearray(word.to_bytes(self.length, "little"))
        for hole, value in ((self.displacement, displacement), (self.immediate, immediate)):
            if hole is None:
                continue
            if hole.size < 8 and not hole.fits_one(value):
                raise _too_wide(hole, value, value)
            field = (value // hole.unit) & ((1 << 8 * hole.size) - 1)
            code[hole.at : hole.at + hole.size] = field.to_bytes(hole.size, "little")
        return bytes(code)

    @cached_property
    def _as_words(self) -> tuple[Words, list[Words]]:
        """Template, zeros in its holes, and XOR tables (words, 32), as words of eight bytes."""
        whole, tables = self._as_integers
        for hole in (self.displacement, self.immediate):
            if hole is not None:
                whole &= ~(((1 << 8 * hole.size) - 1) << 8 * hole.at)
        return self._cut([whole]), [self._cut(table) for table in tables]

    def _cut(self, integers: Sequence[int]) -> Words:
        """As (words, len(integers))."""
        shifts = range(0, 64 * self.words, 64)
        return np.array([[whole >> s & 2**64 - 1 for whole in integers] for s in shifts], np.uint64)

    @property
    def words(self) -> int:
        """How many words of eight bytes hold an instruction."""
        return -(-self.length // 8)

    def stamp(
        self,
        count: int,
        registers: Sequence[npt.NDArray[np.int64] | int],
        displacement: npt.NDArray[np.int64] | int = 0,
        immediate: npt.NDArray[np.int64] | int = 0,
    ) -> Words:
        """`count` instructions as (words, count) little-endian words, zeros behind each."""
        template, tables = self._as_words
        code = np.repeat(template, count, axis=1)
        for table, numbers in zip(tables, registers, strict=True):
            for word, masks in zip(code, table, strict=True):
                word ^= masks[numbers]
        for hole, values in ((self.displacement, displacement), (self.immediate, immediate)):
            if hole is not None:
                _fill(code, hole, values)
        return code


def _fill(code: Words, hole: Hole, values: npt.NDArray[np.int64] | int) -> None:
    column = np.asarray(values, np.int64)
    if not hole.fits(column.reshape(-1)):
        raise _too_wide(hole, int(column.min()), int(column.max()))
    field = (column // hole.unit).view(np.uint64) & np.uint64((1 << 8 * hole.size) - 1)
    number, at = divmod(hole.at, 8)
    code[number] |= field << np.uint64(8 * at)
    if at + hole.size > 8:
        code[number + 1] |= field >> np.uint64(8 * (8 - at))


def _too_wide(hole: Hole, least: int, most: int) -> CompileError:
    return CompileError(
        f"a displacement or immediate in {least}..{most} does not fit {hole.size} bytes in units "
        f"of {hole.unit}; split the code or use a nearer base"
    )
