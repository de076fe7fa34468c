"""A whole batch by one matrix: in panels, one column at a time, or both.

*Panels* (`batch_panels`) are as wide as a vector and want x and y feature-major; a few follow
each other in a chunk. *Rows* runs a matrix-vector kernel for every column of the batch and wants
each column contiguous. *Mixed* is panels as long as they are full, then rows: where few columns
remain, a panel for them would cost as much as a full one. Where the layout is the other one, a
chunk is transposed to and from a workspace on the stack:

    for each chunk:   x -> workspace    transposed or copied
                      workspace -> workspace, or y itself
                      workspace -> y

A feature-major x of whole panels is used where it lies if that is aligned: otherwise each 64-byte
load would touch two cache lines, which costs 30 % (batch 16), so it is brought to the workspace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from sparsejit.asm_templates.batch_panels import (
    PANEL_MASK,
    PANEL_SOURCE,
    PANEL_X,
    PANEL_Y,
    PANELS,
    Entries,
    Panels,
    emit_panels,
)
from sparsejit.asm_templates.batch_transpose import Place, copy, transpose
from sparsejit.assembler import Assembler, Label
from sparsejit.errors import CompileError
from sparsejit.matrix import SparseMatrix
from sparsejit.operands import (
    Memory,
    dword,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rdi,
    rsi,
    rsp,
)
from sparsejit.spec import Layout, MatMul, MatVec

EmitMatVec = Callable[[Assembler, MatVec, SparseMatrix], None]

# Columns at once, by layout and lanes: 64 take 256 KiB for 1024 features, a share of L2. AVX-512
# transposes one panel at a time, while it is in L1: 5.5 us for 64 columns of 256x256, not 6.0. AVX2
# has more code to fetch: 11.4 us for four panels or more at a time, 13.4 for one.
CHUNK_COLUMNS = {
    (Layout.FEATURE_MAJOR, 16): 64,
    (Layout.BATCH_MAJOR, 16): 16,
    (Layout.FEATURE_MAJOR, 8): 64,
    (Layout.BATCH_MAJOR, 8): 64,
}
LARGEST_WORKSPACE = 1 << 20  # bytes of stack; threads have 8 MiB by default
_PAGE = 4096
_X, _Y, _TURNS, _COLUMNS_LEFT = r12, r13, rbx, r14
_SAVED = (rbx, rbp, r12, r13, r14, r15, rdi, rsi)


def panels(asm: Assembler, spec: MatMul, matrix: SparseMatrix) -> None:
    """Every column in a panel, the last perhaps partial. x and y must not overlap."""
    _Kernel(asm, spec, matrix, spec.batch, None).emit()


def rows(asm: Assembler, spec: MatMul, matrix: SparseMatrix, each: EmitMatVec) -> None:
    """Every column by the matrix-vector template `each`. x and y must not overlap."""
    _Kernel(asm, spec, matrix, 0, each).emit()


def mixed(asm: Assembler, spec: MatMul, matrix: SparseMatrix, each: EmitMatVec) -> None:
    """Full panels, then `each` for the columns that are left. x and y must not overlap."""
    in_panels = spec.batch - spec.batch % asm.target.lanes
    _Kernel(asm, spec, matrix, in_panels, each).emit()


def chunk_columns(spec: MatMul, lanes: int) -> int:
    """Columns that are computed together in panels; 0 where the workspace cannot hold one panel."""
    fitting = LARGEST_WORKSPACE // _bytes_a_column(spec)
    return min(CHUNK_COLUMNS[spec.layout, lanes], fitting // lanes * lanes)


def _bytes_a_column(spec: MatMul) -> int:
    """Workspace for one column of x and of y, each rounded up to vectors."""
    return 4 * (spec.each.in_features + spec.each.out_features + 2 * 16)


@dataclass(frozen=True)
class _Chunk:
    """So many columns at once, so many times."""

    columns: int
    times: int


def _chunks(columns: int, sizes: list[int]) -> list[_Chunk]:
    """`columns` cut into chunks of the sizes, from the largest, and what is left over."""
    chunks = []
    for size in filter(None, sizes):
        times, columns = divmod(columns, size)
        chunks.append(_Chunk(size, times))
    return [chunk for chunk in (*chunks, _Chunk(columns, 1)) if chunk.columns and chunk.times]


class _Kernel:
    """Appends the code; `in_panels` columns are computed in panels, the others by `each`."""

    def __init__(
        self,
        asm: Assembler,
        spec: MatMul,
        matrix: SparseMatrix,
        in_panels: int,
        each: EmitMatVec | None,
    ) -> None:
        self.asm, self.spec, self.matrix, self.each = asm, spec, matrix, each
        self.lanes = asm.target.lanes
        self.in_panels = in_panels
        self.feature_major = spec.layout is Layout.FEATURE_MAJOR
        self.panel_chunks = _chunks(in_panels, self._panel_chunk_sizes()) if in_panels else []
        step = self.lanes if self.feature_major else spec.batch - in_panels
        self.row_chunks = _chunks(spec.batch - in_panels, [step])

    def _panel_chunk_sizes(self) -> list[int]:
        """Full chunks, then what is left; AVX-512 has one mask for all columns of a chunk."""
        if self.asm.target.isa != "avx512":
            return [self._chunk_columns]
        full = self.in_panels - self.in_panels % self.lanes
        chunk = min(full or self.lanes, self._chunk_columns)
        return [chunk, full % chunk]

    @cached_property
    def _chunk_columns(self) -> int:
        columns = chunk_columns(self.spec, self.lanes)
        if columns == 0 and (self.feature_major or self.in_panels):
            each = self.spec.each
            raise CompileError(
                f"a {each.out_features}x{each.in_features} layer needs more than the "
                f"{LARGEST_WORKSPACE} bytes of stack that a batch kernel may take; "
                "use layout='batch-major' and strategy='rows', or split the layer"
            )
        return columns

    @property
    def panel_pitch(self) -> int:
        """Bytes from one feature to the next in a panel workspace."""
        return -(-self.panel_chunks[0].columns // self.lanes) * 4 * self.lanes

    @cached_property
    def y_lies(self) -> bool:
        """Whether panels are written to y itself."""
        masks = self.asm.target.isa == "avx512"
        return self.feature_major and (masks or self.in_panels % self.lanes == 0)

    @cached_property
    def entries(self) -> Entries:
        """AVX-512 brings a feature-major x to the workspace on the way; AVX2 copies it before.

        Where x has the workspace's rows, AVX-512 leaves it if it is aligned, AVX2 always: half of
        its loads stay within a cache line anyway.
        """
        brings = self.feature_major and self.asm.target.isa == "avx512"
        in_place = not brings or self._x_has_panel_rows
        return Entries(
            self.asm.label("in place") if in_place else None,
            self.asm.label("bringing") if brings else None,
        )

    def emit(self) -> None:
        self._enter()
        for chunk in self.panel_chunks:
            self._repeat(chunk, partial(self._panels, chunk.columns))
        for chunk in self.row_chunks:
            self._repeat(chunk, partial(self._rows, chunk.columns))
        self._leave()
        if self.panel_chunks:
            self._append_panels()

    def _append_panels(self) -> None:
        end = self.asm.label("end")
        self.asm.jump("jmp", end)
        panels = Panels(
            self.panel_pitch,
            self._feature_pitch if self.y_lies else self.panel_pitch,
            several=self.panel_chunks[0].columns > self.lanes,
            masked=self.y_lies and self.in_panels % self.lanes != 0,
            source_pitch=self._feature_pitch,
        )
        emit_panels(self.asm, self.spec.each, self.matrix, panels, self.entries)
        self.asm.bind(end)

    @property
    def _feature_pitch(self) -> int:
        return 4 * self.spec.batch

    @property
    def _x_has_panel_rows(self) -> bool:
        return self.feature_major and self._feature_pitch == self.panel_pitch

    def _enter(self) -> None:
        """Save registers, make room for the workspace, and point at x and y."""
        asm = self.asm
        for register in _SAVED:
            asm.emit("push", register)
        asm.emit("mov", rbp, rsp)
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)
        self._make_room()

    def _make_room(self) -> None:
        """Move the stack pointer page by page, touching each: the stack grows on demand only."""
        asm = self.asm
        if not (self.feature_major or self.panel_chunks):
            return
        columns = max([self.lanes, *(chunk.columns for chunk in self.panel_chunks)])
        room = _bytes_a_column(self.spec) * (-(-columns // self.lanes) * self.lanes) + 64
        again = asm.label("again")
        asm.emit("mov", dword(rax), -(-room // _PAGE))
        asm.bind(again)
        asm.emit("sub", rsp, _PAGE)
        asm.emit("mov", Memory(rsp), rax)
        asm.emit("sub", dword(rax), 1)
        asm.jump("jnz", again)
        asm.emit("and", rsp, -64)

    def _leave(self) -> None:
        self.asm.emit("mov", rsp, rbp)
        for register in reversed(_SAVED):
            self.asm.emit("pop", register)

    def _repeat(self, chunk: _Chunk, body: Callable[[], None]) -> None:
        """Run `body` for each chunk, with x and y moving on."""
        asm, each = self.asm, self.spec.each
        again = asm.label("again")
        if chunk.times > 1:
            asm.emit("mov", dword(_TURNS), chunk.times)
            asm.bind(again)
        body()
        x_step = 1 if self.feature_major else each.in_features
        y_step = 1 if self.feature_major else each.out_features
        asm.emit("add", _X, 4 * chunk.columns * x_step)
        asm.emit("add", _Y, 4 * chunk.columns * y_step)
        if chunk.times > 1:
            asm.emit("sub", dword(_TURNS), 1)
            asm.jump("jnz", again)

    def _panels(self, columns: int) -> None:
        if not self.feature_major:
            self._transposed_panels(columns)
        elif self.entries.bringing:
            self._brought_panels(columns)
        else:
            self._copied_panels(columns)

    def _transposed_panels(self, columns: int) -> None:
        asm, each = self.asm, self.spec.each
        x, y = Place(_X, 4 * each.in_features), Place(_Y, 4 * each.out_features)
        x_work, y_work = self._x_work, self._y_work
        for panel, width in self._panels_of(columns):
            transpose(asm, x.row(panel), x_work.column(panel), width, each.in_features)
        asm.emit("mov", PANEL_X, rsp)
        self._call(columns, self.entries.in_place)
        for panel, width in self._panels_of(columns):
            transpose(asm, y_work.column(panel), y.row(panel), each.out_features, width)

    def _panels_of(self, columns: int) -> list[tuple[int, int]]:
        """The first column of each panel, and how many there are."""
        return [(n, min(self.lanes, columns - n)) for n in range(0, columns, self.lanes)]

    def _brought_panels(self, columns: int) -> None:
        """Leave x where it lies if it can be used there, else let the subroutine bring it."""
        asm = self.asm
        lanes = columns % self.lanes or self.lanes
        asm.emit("mov", dword(rax), (1 << lanes) - 1)
        asm.emit("kmovw", PANEL_MASK, dword(rax))
        bring, done = asm.label("bring"), asm.label("done")
        if self.entries.in_place:
            asm.emit("mov", rax, _X)
            asm.emit("and", rax, asm.target.vector_bytes - 1)
            asm.jump("jnz", bring)
            asm.emit("mov", PANEL_X, _X)
            self._call(columns, self.entries.in_place)
            asm.jump("jmp", done)
        asm.bind(bring)
        asm.emit("mov", PANEL_X, rsp)
        asm.emit("mov", PANEL_SOURCE, _X)
        self._call(columns, self.entries.bringing)
        asm.bind(done)

    def _copied_panels(self, columns: int) -> None:
        asm, each = self.asm, self.spec.each
        if self._x_has_panel_rows:
            asm.emit("mov", PANEL_X, _X)
        else:
            copy(asm, Place(_X, self._feature_pitch), self._x_work, each.in_features, columns)
            asm.emit("mov", PANEL_X, rsp)
        self._call(columns, self.entries.in_place)
        if not self.y_lies:
            target = Place(_Y, self._feature_pitch)
            copy(asm, self._y_work, target, each.out_features, columns)

    def _call(self, columns: int, entry: Label | None) -> None:
        assert entry is not None
        y = Memory(_Y) if self.y_lies else Memory(rsp, self._y_work.offset)
        self.asm.emit("lea", PANEL_Y, y)
        self.asm.emit("mov", dword(PANELS), -(-columns // self.lanes))
        self.asm.jump("call", entry)

    @property
    def _x_work(self) -> Place:
        return Place(rsp, self.panel_pitch, padded=True)

    @property
    def _y_work(self) -> Place:
        return Place(rsp, self.panel_pitch, self.spec.each.in_features * self.panel_pitch)

    def _rows(self, columns: int) -> None:
        """The matrix-vector kernel for each column."""
        asm, each = self.asm, self.spec.each
        assert self.each is not None
        x_pitch, y_pitch = 4 * each.in_features, 4 * each.out_features
        if self.feature_major:
            x_pitch, y_pitch = (-(-pitch // 64) * 64 for pitch in (x_pitch, y_pitch))
            source = Place(_X, self._feature_pitch)
            transpose(asm, source, Place(rsp, x_pitch), each.in_features, columns)
            asm.emit("mov", rdi, rsp)
            asm.emit("lea", rsi, Memory(rsp, columns * x_pitch))
        else:
            asm.emit("mov", rdi, _X)
            asm.emit("mov", rsi, _Y)
        again = asm.label("again")
        asm.emit("mov", dword(_COLUMNS_LEFT), columns)
        asm.bind(again)
        self.each(asm, each, self.matrix)
        asm.emit("add", rdi, x_pitch)
        asm.emit("add", rsi, y_pitch)
        asm.emit("sub", dword(_COLUMNS_LEFT), 1)
        asm.jump("jnz", again)
        if self.feature_major:
            source = Place(rsp, y_pitch, columns * x_pitch)
            target = Place(_Y, self._feature_pitch)
            transpose(asm, source, target, columns, each.out_features)
