"""A whole batch by one matrix: in panels, one column at a time, or both.

*Panels* (`panels`) are as wide as a vector and need x and y feature-major; a chunk has several
panels. *Rows* runs a matrix-vector kernel for every column and needs each column contiguous.
*Mixed* is panels as long as they are full, then rows. If the layout is the other one, a chunk is
transposed to and from a workspace on the stack:

    for each chunk:   x -> workspace    transposed or copied
                      workspace -> workspace, or y itself
                      workspace -> y

A feature-major x whose rows are whole vectors, padding included, is read without a copy if it is
aligned; any other is copied first, because a load that touches two cache lines takes two
(docs/kernels/batch.md). No column needs a mask: the last panel includes padding, or ends where the
batch ends and computes some columns a second time, to the same result. Only a batch of less than a
panel without padding has a mask.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from sparsejit.asm_templates.batch.lowered_batch import LoweredBatch, chunk_columns, writes_to_y
from sparsejit.asm_templates.batch.panels import (
    LAST_Y,
    PANEL_MASK,
    PANEL_X,
    PANEL_Y,
    PANELS,
    AddedRows,
    PanelIntegers,
    Panels,
    emit_panels,
)
from sparsejit.asm_templates.batch.transpose import MatrixPlace, copy, transpose
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.masks import set_tail_mask
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding, stride_padding
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Layout
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import (
    LARGEST_WORKSPACE,
    far_routine,
    make_room,
    pop,
    push,
    share_routine,
)

# Columns of a chunk without copies. With more, the copy of an unaligned x ran out of registers.
_CHUNK_THAT_STAYS = 256
_X, _Y, _CHUNKS_LEFT, _COLUMNS_LEFT = r12, r13, rbx, r14
_SAVED = (rbx, rbp, r12, r13, r14, r15, rdi, rsi)


def emit(asm: Assembler, lowered: LoweredBatch) -> None:
    """Append the kernel of a whole batch. x and y must not overlap; see `batch_families`."""
    _BatchCode(asm, lowered).emit()


@dataclass(frozen=True)
class _Chunk:
    """Equal chunks of the batch, one after another: `columns` columns each, `times` of them."""

    columns: int
    times: int


def _chunks(columns: int, size: int) -> list[_Chunk]:
    """Cut `columns` into chunks of `size`, and a smaller one for the rest."""
    chunks = [_Chunk(size, columns // size), _Chunk(columns % size, 1)] if size else []
    return [chunk for chunk in chunks if chunk.columns and chunk.times]


class _BatchCode:
    """Appends the kernel of a whole batch, in panels, column by column, or both."""

    def __init__(self, asm: Assembler, lowered: LoweredBatch) -> None:
        self.asm, self.lowered, self.spec = asm, lowered, lowered.spec
        self.sums = lowered.sums
        self.is_int8 = self.sums is not None and self.sums.ends is not None
        counts, self.lanes = lowered.counts, asm.target.lanes
        self.in_panels, self.x_stays = counts.in_panels, counts.x_stays
        self.x_lanes = self.spec.layout is Layout.FEATURE_MAJOR  # lanes are columns already
        self.y_lanes = self.spec.y_layout is Layout.FEATURE_MAJOR
        paneled = min(self.in_panels, self.spec.batch)
        self.panel_chunks = _chunks(paneled, self._chunk_columns) if paneled else []
        step = self.lanes if self.x_lanes else counts.repeats
        self.row_chunks = _chunks(counts.repeats, step)
        self.far = far_routine(asm, self._key) if self.panel_chunks else None
        self.entry = self.far or asm.label("panels")

    @cached_property
    def _key(self) -> Hashable:
        """The properties that the panels' code depends on."""
        return "panels", self.lowered.weights, self.panels, self.asm.prefetch_distance

    @cached_property
    def _chunk_columns(self) -> int:
        columns = chunk_columns(self.spec, self.lanes)
        if columns == 0 and (self.x_lanes or self.in_panels):
            each = self.spec.each
            raise CompileError(
                f"a {each.out_features}x{each.in_features} layer needs more than the "
                f"{LARGEST_WORKSPACE} bytes of stack that a batch kernel may take; "
                "use layout='batch-major' and strategy='rows', or split the layer"
            )
        stays = self.x_stays and self.y_lies
        return max(columns, _CHUNK_THAT_STAYS) if stays else columns

    @property
    def _at_once(self) -> int:
        return ceil_div(self.panel_chunks[0].columns, self.lanes)

    @cached_property
    def panels(self) -> Panels:
        """The layout of panels: consecutive in the workspace, unless x or y is used in place."""
        each, vector = self.spec.each, self.asm.target.vector_bytes
        as_it_lies = self._feature_pitch, vector
        room = vector * self._padding.room(each.in_features)
        if self.sums is not None and self.is_int8:
            room = vector * (self.sums.columns + 1)
        x = as_it_lies if self.x_stays else (vector, room)
        y = as_it_lies if self.y_lies else (vector, vector * each.out_features)
        count, masked = self._at_once, self.y_lies and self.in_panels < self.lanes
        if self.lowered.weights is not None:  # a power of two, so that more lengths share the code
            count = 1 << (count.bit_length() - 1)
        return Panels(count, *x, *y, masked, self._padding, self._added)

    @property
    def _added(self) -> AddedRows | None:
        """The added operand; `_enter` leaves its distance from y where rbp points."""
        if self.spec.added_pitch is None:
            return None
        y_bytes = self._feature_pitch * self.spec.out_features
        is_far = y_bytes > self.asm.target.l2_bytes
        return AddedRows(Memory(rbp), 4 * self.spec.added_pitch, is_far)

    @cached_property
    def _padding(self) -> StridePadding:
        """The padding of the vectors of a feature-major x that is copied."""
        if not self.x_lanes or self.x_stays or self.is_int8:
            return DENSE
        copied = 4 * self.spec.each.in_features * self.panel_chunks[0].columns
        return stride_padding(copied, self.asm.target)

    @cached_property
    def y_lies(self) -> bool:
        """Whether panels are written to y itself."""
        return writes_to_y(self.spec, self.asm.target)

    def emit(self) -> None:
        self._enter()
        for run, chunks in ((self._panels, self.panel_chunks), (self._rows, self.row_chunks)):
            for chunk in chunks:
                self._repeat(chunk, partial(run, chunk.columns))
        self._leave()
        if self.panel_chunks and not self.far:
            self._append_panels()

    def _append_panels(self) -> None:
        end = self.asm.label("end")
        self.asm.jump("jmp", end)
        self.asm.bind(self.entry)
        assert self.sums is not None
        emit_panels(self.asm, self.spec.each, self.lowered.tiles(), self.sums, self.panels)
        self.asm.bind(end)
        if self.lowered.weights is not None:
            share_routine(self.asm, self._key, self.entry)

    @property
    def _feature_pitch(self) -> int:
        return 4 * self.spec.pitch

    def _enter(self) -> None:
        """Save registers, make room for the workspace, and point at x and y."""
        asm = self.asm
        if self.spec.added_pitch is not None:
            asm.emit("sub", rdx, rsi)
        push(asm, self._saved)
        asm.emit("mov", rbp, rsp)
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)
        self._make_room(max(self._y_room, self._row_room) if self.x_stays else self._room)

    @property
    def _saved(self) -> tuple[Register, ...]:
        """Saved registers; the last one holds the distance from y to the added operand, if any."""
        return _SAVED if self.spec.added_pitch is None else (*_SAVED, rdx)

    def _make_room(self, room: int) -> None:
        if room:
            self.asm.emit("mov", rsp, rbp)  # an earlier chunk may have made room
            make_room(self.asm, room)

    @property
    def _room(self) -> int:
        """Bytes of workspace for the panels of a chunk, or for its rows, whichever is more."""
        staging = self.is_int8 and not self.x_lanes
        staged = self.asm.target.vector_bytes * self.spec.in_features if staging else 0
        return max(self._x_room + self._y_room + staged, self._row_room)

    @property
    def _x_room(self) -> int:
        """Bytes of workspace for the panels of x in a chunk."""
        if self.x_stays:
            return self._feature_pitch * self.spec.in_features
        return self._at_once * self.panels.x_step if self.panel_chunks else 0

    @property
    def _y_room(self) -> int:
        if not self.panel_chunks or self.y_lies:
            return 0
        return self._at_once * self.asm.target.vector_bytes * self.spec.out_features

    @property
    def _row_room(self) -> int:
        """Bytes of workspace for the rows of a chunk."""
        copied = self.row_chunks and self.x_lanes
        return self.lanes * sum(self._row_pitches) if copied else 0

    def _leave(self) -> None:
        self.asm.emit("mov", rsp, rbp)
        pop(self.asm, self._saved)

    def _repeat(self, chunk: _Chunk, body: Callable[[], None]) -> None:
        """Run `body` for each chunk; x and y advance."""
        asm, each = self.asm, self.spec.each

        def turn() -> None:
            body()
            x_step = 1 if self.x_lanes else each.in_features
            y_step = 1 if self.y_lanes else self.spec.y_features
            asm.emit("add", _X, 4 * chunk.columns * x_step)
            asm.emit("add", _Y, 4 * chunk.columns * y_step)

        repeat(asm, chunk.times, _CHUNKS_LEFT, turn)

    def _panels(self, columns: int) -> None:
        asm, spec, starts = self.asm, self.spec, self._starts(columns)
        if self.is_int8:
            self._point_at_integers(columns, starts)
        elif self.x_lanes:
            self._point_at_x(starts)
        else:
            x = MatrixPlace(_X, 4 * spec.in_features)
            for number, (first, width) in enumerate(self._widths(columns)):
                transpose(asm, x.row(first), self._x_work(number), width, spec.in_features)
            asm.emit("mov", PANEL_X, rsp)
        if self.y_lies:
            self._call(Memory(_Y, starts[0]), Memory(_Y, starts[-1]), len(starts))
            return
        first_y, last_y = self._y_work(0), self._y_work(len(starts) - 1)
        self._call(Memory(rsp, first_y.offset), Memory(rsp, last_y.offset), len(starts))
        if self.y_lanes:
            target = MatrixPlace(_Y, self._feature_pitch)
            copy(asm, first_y, target, spec.out_features, [(0, 0)], columns)
            return
        y = MatrixPlace(_Y, 4 * spec.y_features)
        for number, (first, width) in enumerate(self._widths(columns)):
            transpose(asm, self._y_work(number), y.row(first), spec.out_features, width)

    def _point_at_integers(self, columns: int, starts: list[int]) -> None:
        """int8: quantise panel by panel; a batch-major panel is transposed first, behind y."""
        asm, spec, lanes = self.asm, self.spec, self.lanes
        assert self.sums is not None
        integers = PanelIntegers(asm, spec.each, self.sums.arithmetic)
        staging = MatrixPlace(rsp, asm.target.vector_bytes, self._x_room + self._y_room, True)
        for number, (first, width) in enumerate(self._widths(columns)):
            if self.x_lanes:
                source = replace(MatrixPlace(_X, self._feature_pitch), offset=starts[number])
                width = min(lanes, self.in_panels)
            else:
                x = MatrixPlace(_X, 4 * spec.in_features).row(first)
                transpose(asm, x, staging, width, spec.in_features)
                source, width = staging, lanes
            integers.emit(source, self._x_work(number), width)
        asm.emit("mov", PANEL_X, rsp)

    def _widths(self, columns: int) -> list[tuple[int, int]]:
        """Return the first column and the width of each panel in a chunk."""
        return [(n, min(self.lanes, columns - n)) for n in range(0, columns, self.lanes)]

    def _starts(self, columns: int) -> list[int]:
        """Return the byte offset of each panel's first column from the chunk's first column.

        Without room for whole vectors the last panel ends with the chunk, and may begin before it.
        """
        both = self.x_lanes and self.y_lanes
        if not both or self.in_panels % self.lanes == 0 or self.in_panels < self.lanes:
            return [4 * first for first in range(0, columns, self.lanes)]
        whole = range(0, columns - self.lanes, self.lanes)
        return [4 * first for first in (*whole, columns - self.lanes)]

    def _point_at_x(self, starts: list[int]) -> None:
        """Point PANEL_X at x itself if it can be used there, else at a copy."""
        asm, each = self.asm, self.spec.each
        done = asm.label("done")
        if self.x_stays:
            asm.emit("mov", PANEL_X, _X)
            if not self.lowered.counts.copies_unaligned:
                return
            asm.emit("mov", rax, _X)
            asm.emit("and", rax, asm.target.vector_bytes - 1)
            asm.jump("jz", done)
            self._make_room(self._room)
        source = MatrixPlace(_X, self._feature_pitch)
        vectors = [(start, n * self.panels.x_step) for n, start in enumerate(starts)]
        columns = self.in_panels if self.in_panels < self.lanes else None
        copy(asm, source, self._x_work(0), each.in_features, vectors, columns)
        asm.emit("lea", PANEL_X, Memory(rsp, self._x_offset))
        asm.bind(done)

    def _call(self, first_y: Memory, last_y: Memory, count: int) -> None:
        asm = self.asm
        asm.emit("lea", PANEL_Y, first_y)
        asm.emit("lea", LAST_Y, last_y)
        if self.panels.masked:
            set_tail_mask(asm, self.in_panels, PANEL_MASK)
        asm.emit("mov", dword(PANELS), count)
        asm.jump("call", self.entry)

    def _x_work(self, panel: int) -> MatrixPlace:
        offset = panel * self.panels.x_step + self._x_offset
        return MatrixPlace(rsp, self.panels.x_pitch, offset, padded=True, padding=self._padding)

    @property
    def _x_offset(self) -> int:
        return self._y_room if self.x_stays else 0

    def _y_work(self, panel: int) -> MatrixPlace:
        # The copy of an x that should stay in place, but is not aligned, lies behind y.
        before = 0 if self.x_stays else self._x_room
        return MatrixPlace(rsp, self.panels.y_pitch, before + panel * self.panels.y_step)

    @property
    def _row_pitches(self) -> tuple[int, int]:
        """Bytes from one column of x, and of y, to the next: whole cache lines in the workspace."""
        spec = self.spec
        if not self.x_lanes:
            return 4 * spec.in_features, 4 * spec.y_features
        x_bytes, y_bytes = 4 * spec.in_features, 4 * spec.out_features
        return round_up(x_bytes, 64), round_up(y_bytes, 64)

    def _rows(self, columns: int) -> None:
        """Run the matrix-vector kernel for each column."""
        asm, each = self.asm, self.spec.each
        assert self.lowered.each is not None
        x_pitch, y_pitch = self._row_pitches
        if self.x_lanes:
            source = MatrixPlace(_X, self._feature_pitch)
            transpose(asm, source, MatrixPlace(rsp, x_pitch), each.in_features, columns)
            asm.emit("mov", rdi, rsp)
            asm.emit("lea", rsi, Memory(rsp, columns * x_pitch))
        else:
            asm.emit("mov", rdi, _X)
            asm.emit("mov", rsi, _Y)
        with counted_down(asm, dword(_COLUMNS_LEFT), columns):
            self.lowered.each(asm)
            asm.emit("add", rdi, x_pitch)
            asm.emit("add", rsi, y_pitch)
        if self.y_lanes:
            source = MatrixPlace(rsp, y_pitch, columns * x_pitch)
            target = MatrixPlace(_Y, self._feature_pitch)
            transpose(asm, source, target, columns, each.out_features)
