"""Code buffer: stamps instructions, resolves labels and literals, and can list its code.

Straight-line kernels consist of the same few instructions thousands of times over with other
numbers in them. `Assembler.stamp` writes such a run in one go: it takes the lines of the loop
body that a person would write, with arrays where the numbers differ, and lays row after row into
the buffer by a native routine (`stamping`). `emit` writes a single instruction.

Literals (weights, indices, constants) form a pool that follows the code, 64-byte aligned, in the
same memory; they are addressed relative to the instruction pointer, or through a base register
that `lea` loads. The image is therefore position-independent.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.x86.forms import Form
from sparsejit.x86.image import (
    COMMON,
    CommonLiterals,
    Image,
    Line,
    LiteralPool,
    MakeRoom,
    StampedRun,
    address_of,
    in_bytes,
)
from sparsejit.x86.instructions import encoded, fields_of, form_for, form_of
from sparsejit.x86.operands import (
    Here,
    Literal,
    Operand,
    Register,
    Relative,
)
from sparsejit.x86.placement import JUMP_BYTES, Placement
from sparsejit.x86.stamping import StampedLine, row_lengths, stamped, with_gaps

POOL_ALIGNMENT = 64  # a cache line
_ASKING_BYTES = 7
_LEFT_OUT = 0xCC  # int3: bytes in gaps must never run
_IntArray = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_FIRST = np.zeros(1, np.int64)  # the row of a single instruction


def line(
    mnemonic: str, *operands: Operand, when: npt.NDArray[np.bool_] | None = None
) -> Line:
    """An instruction of a stamped body; `when` (a bool per row) leaves it out of some rows."""
    return Line(mnemonic, operands, when)


@dataclass(eq=False)
class Label:
    """A place in the code; `position` is unknown until it is bound."""

    name: str
    position: int | None = None


@dataclass(frozen=True, eq=False)
class _Fixup:
    """Four-byte fields that hold `target - end`, known only when the pool is placed."""

    fields: _IntArray
    ends: _IntArray
    target: _IntArray  # offsets in the pool


class _KnownCode(NamedTuple):
    """Bytes of instructions that work at any place, and the forms of these instructions."""

    code: bytes
    forms: frozenset[Form]


# Code of `append_known`, by the parameters that it depends on.
_KNOWN: dict[Hashable, _KnownCode] = {}
_MOST_KNOWN = 1 << 12


class Assembler:
    """Builds one `Image`. Templates append to it; a program may let several do so in turn.

    prefetch_distance: bytes from stamped code to the code that it prefetches, or 0. With it
        straight-line code from beyond L2 arrives several times as fast.
    listed: whether the image can list its code, for which it keeps several times the code's bytes.
    common: literals that the images of its neighbourhood share, its own among them.
    """

    def __init__(
        self,
        target: Target,
        prefetch_distance: int = 0,
        listed: bool = True,
        common: CommonLiterals | None = None,
    ) -> None:
        self.target = target
        self._code = bytearray()
        self.common, self._pool = common, LiteralPool(common)
        self._fixups: list[_Fixup] = []
        # Single instructions: their fields and ends, with offsets in the pool, or with labels.
        self._singles: list[tuple[int, int, int]] = []
        self._jumps: list[tuple[int, int, Label]] = []
        self._forms: set[Form] = set()
        self._trace: list[StampedRun] | None = [] if listed else None
        self._constants: dict[bytes, int] = {}
        self._counts: Counter[str] = Counter()
        self._placement: Placement | None = None
        self._held: list[Line] | None = None
        self.prefetch_distance = prefetch_distance
        self.routines: dict[Hashable, Label] = {}  # routines that `call_routine` appended
        self.for_others: dict[Hashable, Label] = {}  # code that `routines.share_routine` shares

    @property
    def position(self) -> int:
        """Bytes of code so far."""
        return len(self._code)

    def count(self, **numbers: int) -> None:
        """Add to the counts that the image keeps for reports, such as a template's steps."""
        self._counts.update(numbers)

    def count_frame(self, size: int) -> None:
        """Record stack that a kernel takes: the image's count `frame_bytes` is the most of all."""
        self._counts["frame_bytes"] = max(self._counts["frame_bytes"], size)

    def literal(self, values: npt.NDArray[Any], align: int = POOL_ALIGNMENT) -> int:
        """Append an array, which must not change any more, to the pool; return its offset in bytes.
        """
        return self._pool.append(values, align)

    def constant(self, value: float) -> Literal:
        """Return a vector operand with `value` in every lane, in the pool once per image.

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
        if self._held is not None:
            self._held.append(Line(mnemonic, operands))
            return
        form, code, reads_pool = encoded(mnemonic, operands)
        if self._placement is not None:
            self._make_room(len(code))
        self._forms.add(form)
        if self._trace is not None:
            here = (len(self._code),)
            self._trace.append(StampedRun(Line(mnemonic, operands), here, (0,)))
        if reads_pool:
            literal = _literal_of(operands)
            assert literal is not None
            self._singles.append((*form.field_at(len(self._code)), int(literal.offset)))
        self._code += code

    @contextmanager
    def held(self) -> Iterator[list[Line]]:
        """Hold back the single instructions of the block: collect them in the list that it gets.

        `emit_spread` appends them.
        """
        outer = self._held
        lines: list[Line] = []
        self._held = lines
        try:
            yield lines
        finally:
            self._held = outer

    def emit_spread(self, lines: Sequence[Line], among: Sequence[Line]) -> None:
        """Append `among`, with `lines` spread evenly over it; both keep their order."""
        done = 0
        for number, item in enumerate(among, 1):
            self.emit(item.mnemonic, *item.operands)
            due = len(lines) * number // len(among)
            for other in lines[done:due]:
                self.emit(other.mnemonic, *other.operands)
            done = due
        for other in lines[done:]:
            self.emit(other.mnemonic, *other.operands)

    def stamp(self, count: int, lines: Sequence[Line]) -> None:
        """Append `count` rows, each of the `lines` in order that are not masked out.

        A jump in a line goes to the instruction behind it; for other jumps there is `jump`.
        """
        lines = [item for item in lines if _is_anywhere(item, count)]
        forms = [form_of(item.mnemonic, item.operands) for item in lines]
        if self.prefetch_distance and lines:
            asking = _asking(count, forms, [item.when for item in lines], self.prefetch_distance)
            if _is_anywhere(asking, count):
                lines = [asking, *lines]
                forms = [form_of(asking.mnemonic, asking.operands), *forms]
        if not lines:
            return
        code, starts = stamped(count, [*map(self._stamped, lines, forms)])
        moved = None
        if self._placement is not None:
            lengths = row_lengths(count, [f.length for f in forms], [i.when for i in lines])
            gaps = self._gaps(lengths)
            code, moved = self._spread(code, gaps, lengths), np.cumsum(gaps)
        for item, form, own in zip(lines, forms, starts, strict=True):
            self._forms.add(form)
            if len(own):
                rows = np.arange(count) if item.when is None else np.flatnonzero(item.when)
                own += len(self._code) if moved is None else len(self._code) + moved[rows]
                self._record(item, form, rows, own)
        self._code.extend(code.data)

    def _stamped(self, item: Line, form: Form) -> StampedLine:
        """Return a line for `stamped`, with starts if its instructions read the pool or are listed.
        """
        has_starts = self._trace is not None or _literal_of(item.operands) is not None
        return StampedLine(form, item.when, *fields_of(item.operands), has_starts)

    def _spread(
        self, code: npt.NDArray[np.uint8], gaps: _IntArray, lengths: _IntArray
    ) -> npt.NDArray[np.uint8]:
        """Return the code of stamped rows with gaps before them, each with a jump over the gap.

        `gaps` and `lengths` are in bytes, one for each row.
        """
        starts = np.cumsum(gaps + lengths) - lengths - gaps
        spread = with_gaps(code, gaps, lengths, _LEFT_OUT)
        for row in np.flatnonzero(gaps):
            jump = self._jump_over(int(starts[row]), int(gaps[row]))
            spread[starts[row] :][:JUMP_BYTES] = np.frombuffer(jump, np.uint8)
        return spread

    @contextmanager
    def placed(self, placement: Placement | None) -> Iterator[None]:
        """Context in which appended code lies as `placement` says, with gaps in it.

        `gap_bytes` counts the bytes that are left out.
        """
        self._placement = placement
        yield
        self._placement = None

    def append_known(self, key: Hashable, emit_body: Callable[[], None]) -> None:
        """Append the code of `emit_body`, from a cache if it ran before for an equal key.

        The key has all parameters of the code except the level and its alignment. Code is cached if
        it reads no literals, and jumps to nothing but itself.
        """
        if self._trace is not None or self._placement is not None:
            emit_body()
            return
        start = len(self._code)
        key = key, self.target.isa, self.prefetch_distance, start % POOL_ALIGNMENT
        known = _KNOWN.get(key)
        if known is not None:
            self._code += known.code
            self._forms |= known.forms
            return
        read, jumps, forms = self._reads_of_pool, len(self._jumps), self._forms
        self._forms = set()
        emit_body()
        if self._reads_of_pool == read and self._jump_within(start, jumps):
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = _KnownCode(bytes(self._code[start:]), frozenset(self._forms))
        self._forms |= forms

    @property
    def _reads_of_pool(self) -> tuple[int, int, int]:
        return self._pool.size, len(self._fixups), len(self._singles)

    def _jump_within(self, start: int, first: int) -> bool:
        """Resolve the jumps from number `first` on, if all go to code from offset `start` on.

        Returns whether they do; else they stay unresolved.
        """
        jumps = self._jumps[first:]
        here = range(start, len(self._code) + 1)
        if any(label.position not in here for _, _, label in jumps):
            return False
        for field, end, label in jumps:
            distance = _position_of(label) - end
            self._code[field : field + 4] = distance.to_bytes(4, "little", signed=True)
        del self._jumps[first:]
        return True

    def label(self, name: str) -> Label:
        """Return a new label, to be bound later."""
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
        missing = -len(self._code) % boundary
        if self._placement is None and self._trace is None and missing:
            form, code, _ = encoded("nop", ())
            self._forms.add(form)
            self._code += missing * code
        while len(self._code) % boundary:
            self.emit("nop")

    def finish(self, make_room: MakeRoom = in_bytes) -> Image:
        """Place the pool, resolve every label and literal, and return the image.

        `make_room` returns its content, from its size and the function that fills it. The
        assembler is empty afterwards.
        """
        code, pool = self._code, self._pool
        code_bytes = len(code)
        code.extend(bytes(-code_bytes % POOL_ALIGNMENT))

        def fill(room: memoryview) -> None:
            here = address_of(room)
            common = 0 if self.common is None else self.common.origin - here
            self._resolve(len(code), common)
            room[: len(code)] = code
            if self.common is not None:
                places = {key: here + _position_of(at) for key, at in self.for_others.items()}
                self.common.new_routines = places
            pool.write(room[len(code) :])

        content = make_room(len(code) + pool.size, fill)
        self._code, self._pool = bytearray(), LiteralPool(self.common)
        forms = frozenset(form.key for form in self._forms)
        trace = None if self._trace is None else tuple(self._trace)
        return Image(content, code_bytes, pool.size, dict(self._counts), forms, trace)

    def _resolve(self, pool_start: int, common_start: int) -> None:
        """Fill in the distances to labels and literals; the arguments are offsets from the code."""
        if self._singles:
            self._fixups.append(_Fixup(*np.array(self._singles, np.int64).T))
        ends, fields, places = [], [], []
        for fix in self._fixups:
            ends.append(fix.ends)
            fields.append(fix.fields)
            starts = np.where(fix.target < COMMON, pool_start, common_start - COMMON)
            places.append(starts + fix.target)
        if self._jumps:
            jumps = [(field, end, _position_of(label)) for field, end, label in self._jumps]
            own_fields, own_ends, labels = np.array(jumps, np.int64).T
            fields.append(own_fields)
            ends.append(own_ends)
            places.append(np.where(labels < COMMON, labels, common_start - COMMON + labels))
        if not places:
            return
        where, distances = np.concatenate(fields), np.concatenate(places) - np.concatenate(ends)
        relative = distances.astype("<i4").view(np.uint8).reshape(-1, 4)
        data = np.frombuffer(self._code, np.uint8)
        for byte in range(4):
            data[where + byte] = relative[:, byte]

    def _gaps(self, lengths: _IntArray) -> _IntArray:
        if self._placement is None:
            return np.zeros(len(lengths), np.int64)
        gaps = self._placement.gaps(len(self._code), lengths)
        self.count(gap_bytes=int(gaps.sum()))
        return gaps

    def _make_room(self, length: int) -> None:
        """Append a jump to the next place for an instruction of `length` bytes, if not here."""
        gap = int(self._gaps(np.array([length]))[0])
        if gap:
            jump = self._jump_over(0, gap)
            self._code.extend(jump + bytes([_LEFT_OUT]) * (gap - JUMP_BYTES))

    def _jump_over(self, offset: int, gap: int) -> bytes:
        """Return the jump over a gap of `gap` bytes, itself included, `offset` bytes from here."""
        item = Line("jmp", (Relative("next"),))
        form = form_for("jmp", item.operands, 4)
        self._record(item, form, _FIRST, np.array([len(self._code) + offset]))
        return form.encode([], gap - form.length)

    def _refer(self, item: Line, form: Form, label: Label) -> None:
        if self._placement is not None:
            self._make_room(form.length)
        start = len(self._code)
        self._jumps.append((*form.field_at(start), label))
        self._code += form.code
        self._forms.add(form)
        if self._trace is not None:
            self._trace.append(StampedRun(item, (start,), (0,)))

    def _record(self, item: Line, form: Form, rows: _IntArray, starts: _IntArray) -> None:
        """Record the form and the positions of a line's instructions, and their literals."""
        self._forms.add(form)
        if self._trace is not None:
            self._trace.append(StampedRun(item, starts, rows))
        literal = _literal_of(item.operands)
        if literal is not None:
            offset = literal.offset
            offsets = np.asarray(offset[rows] if isinstance(offset, np.ndarray) else offset)
            target = np.broadcast_to(offsets.astype(np.int64), rows.shape)
            self._fixups.append(_Fixup(*form.field_at(starts), target))


def _asking(
    count: int, forms: Sequence[Form], present: Sequence[_Flags | None], distance: int
) -> Line:
    """Return the line that prefetches code `distance` bytes ahead, a cache line at a time."""
    lengths = row_lengths(count, [form.length for form in forms], present)
    asked = np.cumsum(lengths) // (POOL_ALIGNMENT - _ASKING_BYTES)
    return line("prefetcht1", Here(distance), when=np.diff(asked, prepend=0) > 0)


def _is_anywhere(item: Line, count: int) -> bool:
    """Whether any of the `count` rows has that line.

    Raises CompileError unless the line's `when` has a flag for each row.
    """
    if item.when is None:
        return count > 0
    if item.when.shape != (count,):
        raise CompileError(
            f"{item.mnemonic}: `when` has shape {item.when.shape}, expected ({count},)"
        )
    return bool(item.when.any())


def _literal_of(operands: Sequence[Operand]) -> Literal | None:
    return next((o for o in operands if isinstance(o, Literal)), None)


def _position_of(label: Label) -> int:
    if label.position is None:
        raise CompileError(f"label {label.name!r} is used but never bound")
    return label.position
