"""Finished machine code with its literals, and its listing.

    LiteralPool   the literals of an image, kept apart until its size is known and written once
    Image         the code and its literals
    StampedRun    positions of repeated code, for the listing
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.whole_numbers import round_up
from sparsejit.x86.forms import Key
from sparsejit.x86.instructions import instruction_sets
from sparsejit.x86.operands import Literal, Operand, operand_text, pick

# An offset from here on lies in the literals that images share.
COMMON = 1 << 30


class CommonLiterals:
    """Literals and routines that the images of a neighbourhood share.

    Offsets count from `origin`, an address before all images. The literals of the first image are
    shared; the literals of a later image are known from `written` on, and shared from `keep` on.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self._ranges: list[_Span] = []
        self._offsets: dict[_Span, int] = {}
        self._newest: tuple[_Span, dict[_Span, int]] | None = None
        self._routines: dict[Hashable, int] = {}
        self.new_routines: dict[Hashable, int] = {}  # addresses in the newest image
        self._known: dict[int, tuple[npt.NDArray[Any], int]] = {}  # by id; holds the array alive

    @property
    def is_there(self) -> bool:
        """Whether an image was written whose literals are shared."""
        return bool(self._ranges)

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Return the offset of an array that is one of these literals; None for any other."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        first, size = _span(array)
        if not any(at <= first and first + size <= at + room for at, room in self._ranges):
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(array)] = array, first - self.origin
        return first - self.origin

    def address_of(self, array: npt.NDArray[Any]) -> int | None:
        """Return the address of an array's copy in an image; None where no copy is known.

        Another array may have been in the same memory before, so the reader must compare.
        """
        span = _span(array)
        if span in self._offsets:
            return self.origin + self._offsets[span]
        if self._newest is None or span not in self._newest[1]:
            return None
        return self._newest[0][0] + self._newest[1][span]

    def routine(self, key: Hashable) -> int | None:
        """Return the offset of a routine that all images may call; None where there is none yet."""
        return self._routines.get(key)

    def written(self, address: int, size: int, offsets: dict[_Span, int]) -> None:
        """Record an image's address, size in bytes, and the offsets of its literals.

        Images of COMMON bytes and more are too large to share literals.
        """
        self._newest = ((address, size), offsets) if size < COMMON else None
        if not self.is_there:
            self.keep()

    def keep(self) -> None:
        """Share the literals and routines of the newest image, which must stay in memory."""
        if self._newest is not None:
            (address, size), offsets = self._newest
            self._ranges.append((address, size))
            self._offsets |= {span: address + at - self.origin for span, at in offsets.items()}
            self._newest = None
        self._routines |= {key: at - self.origin for key, at in self.new_routines.items()}
        self.new_routines = {}


class LiteralPool:
    """Arrays in order, each aligned; `size` is in bytes.

    Large arrays are not copied: they must not change until `write`, and lie in the pool once
    however often they are appended. Literals in `common` are not appended again; `write` records
    the literals of this image there.
    """

    def __init__(self, common: CommonLiterals | None = None) -> None:
        self.size = 0
        self._common = common
        self._places: list[tuple[int, memoryview]] = []
        self._large: dict[tuple[_Span, int], int] = {}
        self._offsets: dict[_Span, int] = {}

    def append(self, values: npt.NDArray[Any], align: int) -> int:
        """Append an array, unless it is known, and return its offset, a multiple of `align` bytes.
        """
        whole = values if values.flags.c_contiguous else np.ascontiguousarray(values)
        common = self._common
        if common is not None and (there := common.offset_of(whole)) is not None:
            return COMMON + there
        span = _span(whole)
        if (known := self._large.get((span, align))) is not None:
            return known
        whole = whole.reshape(-1)
        offset = round_up(self.size, align)
        if common is not None:
            self._offsets[span] = offset
        if whole.nbytes < _LARGE:
            whole = whole.copy()
        else:
            self._large[span, align] = offset
        self._places.append((offset, whole.view(np.uint8).data))
        self.size = offset + whole.nbytes
        return offset

    def write(self, room: memoryview) -> None:
        """Write all arrays into `room`, of `size` bytes, where they stay."""
        end = 0
        for offset, part in self._places:
            room[end:offset] = bytes(offset - end)
            end = offset + len(part)
            room[offset:end] = part
        if self._common is not None and self.size:
            self._common.written(address_of(room), self.size, self._offsets)


def address_of(room: memoryview) -> int:
    """Return the address of the first byte."""
    return int(np.frombuffer(room, np.uint8).__array_interface__["data"][0])


_Span = tuple[int, int]  # address and bytes


def _span(array: npt.NDArray[Any]) -> _Span:
    return int(array.__array_interface__["data"][0]), array.nbytes


_LARGE = 1 << 16  # bytes
_MOST_KNOWN = 1 << 14


# Allocates an image's content: takes its size in bytes and a function that fills that memory.
MakeRoom = Callable[[int, Callable[[memoryview], None]], bytes | memoryview]


def in_bytes(size: int, fill: Callable[[memoryview], None]) -> memoryview:
    """Return `size` bytes of ordinary memory that `fill` has filled: an image's content."""
    content = bytearray(size)
    fill(memoryview(content))
    return memoryview(content).toreadonly()


class Line(NamedTuple):
    """One instruction of a stamped body; `when` (bool per row) leaves it out of some rows."""

    mnemonic: str
    operands: tuple[Operand, ...]
    when: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Image:
    """Finished machine code followed by its literal pool; position-independent.

    `code_bytes` counts the instructions, `pool_bytes` the literals, `content` holds both. `counts`
    are the templates' counts, `forms` the forms of all instructions, `trace` their places, if they
    were kept.
    """

    content: bytes | memoryview = field(repr=False)
    code_bytes: int
    pool_bytes: int
    counts: Mapping[str, int]
    forms: frozenset[Key] = field(repr=False)
    trace: tuple[StampedRun, ...] | None = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of code and literals."""
        return len(self.content)

    @property
    def data(self) -> bytes:
        """Code and literals."""
        return bytes(self.content)

    @property
    def pool_start(self) -> int:
        return self.size - self.pool_bytes

    @property
    def instruction_sets(self) -> frozenset[str]:
        """Instruction sets of the code that not every x86-64 processor with AVX has."""
        return frozenset().union(*map(instruction_sets, self.forms))

    def uses(self, mnemonic: str) -> bool:
        """Whether the code has such an instruction."""
        return any(form[0] == mnemonic for form in self.forms)

    def listing(self) -> Iterator[str]:
        """Lines `offset  mnemonic operands  ; literal values`, in order of address.

        Raises CompileError where no trace was kept.
        """
        if self.trace is None:
            raise CompileError("this code has no listing; compile it again with one")
        rows = [row for run in self.trace for row in run.rows()]
        for position, text, literal in sorted(rows, key=lambda row: row[0]):
            comment = "" if literal is None else f"  ; {self._values_at(literal)}"
            yield f"{position:6x}  {text}{comment}"

    def _values_at(self, offset: int) -> str:
        if offset >= COMMON:
            return f"at {offset - COMMON:#x} of the literals in common"
        start = self.pool_start + offset
        values = np.frombuffer(self.content[start : start + 32], "<f4")
        return " ".join(f"{value:.6g}" for value in values) + " ..."


class StampedRun(NamedTuple):
    """Positions of the rows of one line, for the listing."""

    line: Line
    positions: Sequence[int] | npt.NDArray[np.int64]
    rows_taken: Sequence[int] | npt.NDArray[np.int64]

    def rows(self) -> Iterator[tuple[int, str, int | None]]:
        for position, row in zip(self.positions, self.rows_taken, strict=True):
            operands = ", ".join(operand_text(o, int(row)) for o in self.line.operands)
            literal = next((o for o in self.line.operands if isinstance(o, Literal)), None)
            offset = None if literal is None else pick(literal.offset, int(row))
            yield int(position), f"{self.line.mnemonic:14s}{operands}", offset
