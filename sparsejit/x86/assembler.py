"""Code buffer: stamps instructions, resolves labels and literals, and can list what it wrote.

Straight-line kernels consist of the same few instructions thousands of times over with other
numbers in them. `Assembler.stamp` writes such a run in one go: it takes the lines of the loop
body that a person would write, with arrays where the numbers differ, and lays row after row into
the buffer with numpy (0.02 us an instruction). `emit` writes a single instruction.

Literals (weights, indices, constants) form a pool that follows the code, 64-byte aligned, in the
same memory; they are addressed relative to the instruction pointer, or through a base register
that `lea` loads. The image is therefore position-independent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.x86.encoder import form_for, instruction_sets, is_vector
from sparsejit.x86.forms import Form
from sparsejit.x86.operands import (
    Here,
    Literal,
    Memory,
    Operand,
    Register,
    Relative,
    operand_text,
    pick,
)
from sparsejit.x86.placement import JUMP_BYTES, Placement

POOL_ALIGNMENT = 64  # a cache line
_ASKING_BYTES = 7
_LEFT_OUT = 0xCC  # int3: what is jumped over must never run
_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Line:
    """One instruction of a stamped body; `when` (bool per row) leaves it out of some rows."""

    mnemonic: str
    operands: tuple[Operand, ...]
    when: npt.NDArray[np.bool_] | None = None


def line(
    mnemonic: str, *operands: Operand, when: npt.NDArray[np.bool_] | None = None
) -> Line:
    """A line of a stamped body."""
    return Line(mnemonic, operands, when)


@dataclass(eq=False)
class Label:
    """A place in the code; `position` is unknown until it is bound."""

    name: str
    position: int | None = None


@dataclass(frozen=True, eq=False)
class Image:
    """Finished machine code followed by its literal pool; position-independent.

    `code_bytes` counts the instructions, `pool_bytes` the literals, `data` holds both; `counts` is
    what templates counted.
    """

    data: bytes
    code_bytes: int
    pool_bytes: int
    counts: Mapping[str, int]
    trace: tuple["_StampedRun", ...] = field(repr=False)

    @property
    def pool_start(self) -> int:
        return len(self.data) - self.pool_bytes

    @property
    def instruction_sets(self) -> frozenset[str]:
        """Those that the code uses beyond what every x86-64 processor with AVX has."""
        lines = (run.line for run in self.trace)
        return frozenset().union(*(instruction_sets(i.mnemonic, i.operands) for i in lines))

    def uses(self, mnemonic: str) -> bool:
        """Whether the code has such an instruction."""
        return any(run.line.mnemonic == mnemonic for run in self.trace)

    def listing(self) -> Iterator[str]:
        """Lines `offset  mnemonic operands  ; literal values`, in order of address."""
        rows = [row for run in self.trace for row in run.rows()]
        for position, text, literal in sorted(rows, key=lambda row: row[0]):
            comment = "" if literal is None else f"  ; {self._values_at(literal)}"
            yield f"{position:6x}  {text}{comment}"

    def _values_at(self, offset: int) -> str:
        start = self.pool_start + offset
        values = np.frombuffer(self.data[start : start + 32], "<f4")
        return " ".join(f"{value:.6g}" for value in values) + " ..."


@dataclass(frozen=True, eq=False)
class _StampedRun:
    """Where the rows of one line went, for the listing."""

    line: Line
    positions: Sequence[int] | _IntArray
    rows_taken: Sequence[int] | _IntArray

    def rows(self) -> Iterator[tuple[int, str, int | None]]:
        for position, row in zip(self.positions, self.rows_taken, strict=True):
            operands = ", ".join(operand_text(o, int(row)) for o in self.line.operands)
            literal = next((o for o in self.line.operands if isinstance(o, Literal)), None)
            offset = None if literal is None else pick(literal.offset, int(row))
            yield int(position), f"{self.line.mnemonic:14s}{operands}", offset


@dataclass(frozen=True, eq=False)
class _Fixup:
    """Four-byte fields that hold `target - end`, known only when the pool or label is placed."""

    fields: _IntArray
    ends: _IntArray
    target: _IntArray | Label  # offsets in the pool, or a label


class Assembler:
    """Builds one `Image`. Templates append to it; a program may let several do so in turn.

    ask_ahead: bytes ahead of which stamped code asks for the code to come, or 0. Straight code
        from beyond L2 arrives several times as fast so.
    """

    def __init__(self, target: Target, ask_ahead: int = 0) -> None:
        self.target = target
        self._code = bytearray()
        self._pool = bytearray()
        self._fixups: list[_Fixup] = []
        self._trace: list[_StampedRun] = []
        self._constants: dict[bytes, int] = {}
        self._counts: Counter[str] = Counter()
        self._placement: Placement | None = None
        self._ask_ahead = ask_ahead

    @property
    def position(self) -> int:
        """Bytes of code so far."""
        return len(self._code)

    def count(self, **numbers: int) -> None:
        """Add to what the image says of itself, such as steps."""
        self._counts.update(numbers)

    def literal(self, values: npt.NDArray[Any], align: int = POOL_ALIGNMENT) -> int:
        """Append an array to the pool and return its offset in bytes."""
        self._pool.extend(bytes(-len(self._pool) % align))
        offset = len(self._pool)
        self._pool.extend(np.ascontiguousarray(values).tobytes())
        return offset

    def constant(self, value: float) -> Literal:
        """A vector operand holding `value` in every lane, in the pool once per image.

        A Python int becomes int32, anything else float32. AVX-512 repeats one element by
        embedded broadcast; AVX2 reads a full vector.
        """
        element = np.array(value, np.int32 if isinstance(value, int) else np.float32)
        broadcast = self.target.isa == "avx512"
        key = element.tobytes()
        if key not in self._constants:
            lanes = 1 if broadcast else self.target.lanes
            self._constants[key] = self.literal(np.repeat(element, lanes), 4 * lanes)
        return Literal(self._constants[key], self.target.lanes if broadcast else 0)

    def emit(self, mnemonic: str, *operands: Operand) -> None:
        """Append one instruction; its operands hold plain numbers, no arrays."""
        item = Line(mnemonic, operands)
        form = _form_of(item)
        self._make_room(form.length)
        start = len(self._code)
        self._code.extend(form.encode(*_numbers_of(item)))
        self._trace.append(_StampedRun(item, (start,), (0,)))
        literal = next((o for o in operands if isinstance(o, Literal)), None)
        if literal is not None:
            self._fix(form, np.array([start]), np.array([literal.offset]))

    def stamp(self, count: int, lines: Sequence[Line]) -> None:
        """Append `count` rows, each consisting of `lines` in order, less those masked out.

        A jump in a line goes to the instruction behind it; `jump` is for those that go elsewhere.
        """
        if count == 0:
            return
        if self._ask_ahead:
            lines = [_asking(count, lines, self._ask_ahead), *lines]
        forms = [_form_of(item) for item in lines]
        present = [_present(item, count) for item in lines]
        lengths = np.array([form.length for form in forms])[:, None] * np.array(present)
        ends_in_row = np.cumsum(lengths, axis=0)
        gaps = self._gaps(ends_in_row[-1])
        row_ends = np.cumsum(gaps + ends_in_row[-1])
        row_starts = row_ends - ends_in_row[-1]
        code = np.full(int(row_ends[-1]), _LEFT_OUT, np.uint8)
        for row in np.flatnonzero(gaps):
            jump = self._jump_over(int(row_starts[row] - gaps[row]), int(gaps[row]))
            code[row_starts[row] - gaps[row] :][:JUMP_BYTES] = np.frombuffer(jump, np.uint8)
        for item, form, keep, ends in zip(lines, forms, present, ends_in_row, strict=True):
            rows = np.flatnonzero(keep)
            starts = row_starts[rows] + ends[rows] - form.length
            code[starts[:, None] + np.arange(form.length)] = _bytes_of(item, form, rows)
            self._record(item, form, rows, starts + len(self._code))
        self._code.extend(code.tobytes())

    @contextmanager
    def placed(self, placement: Placement | None) -> Iterator[None]:
        """Leave out what `placement` does while code is appended; `gap_bytes` counts that."""
        self._placement = placement
        yield
        self._placement = None

    def label(self, name: str) -> Label:
        """A new label, to be bound later."""
        return Label(name)

    def bind(self, label: Label) -> None:
        """Place a label here."""
        if label.position is not None:
            raise CompileError(f"label {label.name!r} is bound twice; make a second label")
        label.position = len(self._code)

    def jump(self, mnemonic: str, label: Label) -> None:
        """Append a jump or call to a label (32-bit relative)."""
        item = Line(mnemonic, (Relative(label.name),))
        self._refer(item, form_for(mnemonic, item.operands, 4), label)

    def address(self, register: Register, label: Label) -> None:
        """Append the `lea` that loads the address of a label."""
        item = Line("lea", (register, Relative(label.name)))
        self._refer(item, form_for("lea", (register, Literal(0)), 4), label)

    def align(self, boundary: int) -> None:
        """Pad with no-operations to a multiple of `boundary` bytes."""
        while len(self._code) % boundary:
            self.emit("nop")

    def finish(self) -> Image:
        """Place the pool, resolve every label and literal, and return the image."""
        pool_start = len(self._code) + -len(self._code) % POOL_ALIGNMENT
        data = np.zeros(pool_start + len(self._pool), np.uint8)
        data[: len(self._code)] = np.frombuffer(self._code, np.uint8)
        data[pool_start:] = np.frombuffer(self._pool, np.uint8)
        for fixup in self._fixups:
            target = fixup.target
            place = _position_of(target) if isinstance(target, Label) else pool_start + target
            relative = np.asarray(place - fixup.ends, "<i4")
            field_bytes = relative.view(np.uint8).reshape(-1, 4)
            data[fixup.fields[:, None] + np.arange(4)] = field_bytes
        return Image(
            data.tobytes(),
            len(self._code),
            len(self._pool),
            dict(self._counts),
            tuple(self._trace),
        )

    def _gaps(self, lengths: _IntArray) -> _IntArray:
        if self._placement is None:
            return np.zeros(len(lengths), np.int64)
        gaps = self._placement.gaps(len(self._code), lengths)
        self.count(gap_bytes=int(gaps.sum()))
        return gaps

    def _make_room(self, length: int) -> None:
        """Jump to where an instruction may lie, if it may not lie here."""
        if self._placement is None:
            return
        gap = int(self._gaps(np.array([length]))[0])
        if gap:
            jump = self._jump_over(0, gap)
            self._code.extend(jump + bytes([_LEFT_OUT]) * (gap - JUMP_BYTES))

    def _jump_over(self, offset: int, gap: int) -> bytes:
        """The jump over a gap of so many bytes, itself included, that begins `offset` bytes on."""
        item = Line("jmp", (Relative("next"),))
        form = form_for("jmp", item.operands, 4)
        self._trace.append(_StampedRun(item, (len(self._code) + offset,), (0,)))
        return form.encode([], gap - form.length)

    def _refer(self, item: Line, form: Form, label: Label) -> None:
        self._make_room(form.length)
        start = len(self._code)
        self._code.extend(form.template.tobytes())
        self._fix(form, np.array([start]), label)
        self._trace.append(_StampedRun(item, (start,), (0,)))

    def _record(self, item: Line, form: Form, rows: _IntArray, starts: _IntArray) -> None:
        self._trace.append(_StampedRun(item, starts, rows))
        literal = next((o for o in item.operands if isinstance(o, Literal)), None)
        if literal is None:
            return
        offsets = np.broadcast_to(np.asarray(_column(literal.offset, rows), np.int64), rows.shape)
        self._fix(form, starts, offsets)

    def _fix(self, form: Form, starts: _IntArray, target: _IntArray | Label) -> None:
        hole = form.displacement
        assert hole is not None
        self._fixups.append(_Fixup(starts + hole.at, starts + form.length, target))


def _form_of(item: Line) -> Form:
    """The form of a line: the shortest displacement that fits every row."""
    memory = _memory_of(item)
    if memory is None:
        elsewhere = any(isinstance(o, Literal | Here | Relative) for o in item.operands)
        return form_for(item.mnemonic, item.operands, 4 if elsewhere else 0)
    short = form_for(item.mnemonic, item.operands, 1)
    hole = short.displacement
    assert hole is not None
    displacement = memory.displacement
    if isinstance(displacement, np.ndarray):
        fits = hole.fits(displacement)
    else:
        fits = hole.fits_one(displacement)
    return short if fits else form_for(item.mnemonic, item.operands, 4)


def _memory_of(item: Line) -> Memory | None:
    return next((o for o in item.operands if isinstance(o, Memory)), None)


def _distance(item: Line) -> int:
    """From the end of an instruction to what it asks for."""
    return next((o.distance for o in item.operands if isinstance(o, Here)), 0)


def _asking(count: int, lines: Sequence[Line], distance: int) -> Line:
    """What asks for code that lies so far ahead, a cache line at a time."""
    lengths = sum(_form_of(item).length * _present(item, count) for item in lines)
    asked = np.cumsum(lengths) // (POOL_ALIGNMENT - _ASKING_BYTES)
    return line("prefetcht1", Here(distance), when=np.diff(asked, prepend=0) > 0)


def _present(item: Line, count: int) -> npt.NDArray[np.bool_]:
    if item.when is None:
        return np.ones(count, bool)
    if item.when.shape != (count,):
        raise CompileError(
            f"{item.mnemonic}: `when` has shape {item.when.shape}, expected ({count},)"
        )
    return item.when


def _bytes_of(item: Line, form: Form, rows: _IntArray) -> npt.NDArray[np.uint8]:
    registers = [
        _column(o.number, rows)
        for o in item.operands
        if isinstance(o, Register) and is_vector(o)
    ]
    memory = _memory_of(item)
    displacement = _distance(item) if memory is None else _column(memory.displacement, rows)
    immediates = [o for o in item.operands if isinstance(o, int | np.ndarray | np.integer)]
    immediate = _column(immediates[0], rows) if immediates else 0
    return form.stamp(len(rows), registers, displacement, immediate)


def _numbers_of(item: Line) -> tuple[list[int], int, int]:
    """Vector register numbers, displacement and immediate of a line without arrays."""
    registers, displacement, immediate = [], 0, 0
    for operand in item.operands:
        if isinstance(operand, Register):
            if is_vector(operand):
                registers.append(int(operand.number))
        elif isinstance(operand, Memory):
            displacement = int(operand.displacement)
        elif isinstance(operand, int | np.integer):
            immediate = int(operand)
    return registers, displacement, immediate


def _column(number: Any, rows: _IntArray) -> _IntArray | int:
    return number[rows] if isinstance(number, np.ndarray) else int(number)


def _position_of(label: Label) -> int:
    if label.position is None:
        raise CompileError(f"label {label.name!r} is used but never bound")
    return label.position
