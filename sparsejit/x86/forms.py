"""Instruction forms: fixed bytes with holes for register numbers, displacement and immediate."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError

Position = TypeVar("Position", int, npt.NDArray[np.int64])


class Hole(NamedTuple):
    """Bytes for a number: their position and size, the unit it is divided by, and signedness.

    An unsigned hole takes signed and unsigned numbers, for bit patterns such as a float's.
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
        least, most = self.bounds
        return value % self.unit == 0 and least <= value <= most

    @property
    def bounds(self) -> tuple[int, int]:
        """The least number that fits, and the most; 8 bytes take any number."""
        bound = 1 << (8 * self.size - 1)
        most = bound if self.signed or self.size == 8 else 2 * bound
        return -bound * self.unit, (most - 1) * self.unit


# Key of a form: mnemonic, one signature per operand, bytes of displacement (0: no memory).
Key = tuple[str, tuple[tuple[Any, ...], ...], int]


@dataclass(frozen=True, eq=False)
class Form:
    """The bytes of an instruction and the holes in them."""

    key: Key
    template: npt.NDArray[np.uint8]
    registers: tuple[npt.NDArray[np.uint8], ...]  # per vector register: (32, length) XOR table
    displacement: Hole | None
    immediate: Hole | None

    @cached_property
    def length(self) -> int:
        return len(self.template)

    @cached_property
    def code(self) -> bytes:
        """The bytes with zeros in all holes."""
        return self.template.tobytes()

    def field_at(self, start: Position) -> tuple[Position, Position]:
        """Return the offsets of the displacement, and of the end, of an instruction at `start`."""
        assert self.displacement is not None
        return start + self.displacement.at, start + self.length

    @cached_property
    def _as_integers(self) -> tuple[int, list[list[int]]]:
        """The template and, by register and number, the bytes to XOR, as little-endian integers."""
        tables = [[int.from_bytes(row.tobytes(), "little") for row in t] for t in self.registers]
        return int.from_bytes(self.template.tobytes(), "little"), tables

    def encode(self, registers: Sequence[int], displacement: int = 0, immediate: int = 0) -> bytes:
        """Return the bytes of one instruction."""
        word, tables = self._as_integers
        for table, number in zip(tables, registers, strict=True):
            word ^= table[number]
        code = bytearray(word.to_bytes(self.length, "little"))
        for hole, value in ((self.displacement, displacement), (self.immediate, immediate)):
            if hole is None:
                continue
            if hole.size < 8 and not hole.fits_one(value):
                raise too_wide(hole, value, value)
            field = (value // hole.unit) & ((1 << 8 * hole.size) - 1)
            code[hole.at : hole.at + hole.size] = field.to_bytes(hole.size, "little")
        return bytes(code)

    @cached_property
    def wide_tables(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """The tables of bytes to XOR by register number, filled up with zeros to (32, 16)."""
        return tuple(np.pad(table, ((0, 0), (0, 16 - self.length))) for table in self.registers)


def register_table(masks: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Return the bytes to XOR an instruction (length,) with, by register number: (32, length).

    `masks`: the bytes that each bit of the number flips; bits without a mask flip nothing.
    """
    table = np.zeros((32, len(masks[0])), np.uint8)
    for bit, mask in enumerate(masks):
        table[np.arange(32) >> bit & 1 == 1] ^= mask
    return table


def too_wide(hole: Hole, least: int, most: int) -> CompileError:
    """Return the error for numbers from `least` to `most` that do not fit."""
    return CompileError(
        f"a displacement or immediate in {least}..{most} does not fit {hole.size} bytes in units "
        f"of {hole.unit}; split the code or use a nearer base"
    )
