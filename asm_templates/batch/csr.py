"""A whole batch by a loop over compressed rows: `csr_shape` has the data, `csr_core` the loop.

Straight-line code is slow once it exceeds L2. Here the weights are data, six bytes each, and the
code stays small:

    for each pass (columns of the batch, some vectors at once):
        for each block of rows:
            sums = bias                                     in a workspace on the stack
            for each block of inputs:
                panel = x of these inputs and columns       feature-major, in L1
                sums += weights * panel                     csr_core
            y = activation(sums)

The workspace is on the stack, so that several threads may run the same kernel at once.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_core import (
    GROUPS,
    PANEL,
    QUADS,
    ROWS,
    WORKSPACE,
    CsrInt8,
    RowEnds,
    ScaledInputs,
    activate_rows,
    core_key,
    emit_core,
    finish_rows,
    first_sums,
    int8_ends,
)
from sparsejit.asm_templates.batch.csr_halves import CsrHalves, halves_ends, halves_words
from sparsejit.asm_templates.batch.csr_shape import (
    STAGED,
    Arithmetic,
    CsrBlocks,
    CsrCounts,
    CsrShape,
    CsrStream,
    Pass,
    counted,
    csr_shape,
    csr_stream,
    float_words,
    short_words,
)
from sparsejit.asm_templates.batch.transpose import MatrixPlace, copy, transpose
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.storage import rounded_matrix
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import call_routine, make_room, pop, push, slots

_X, _Y, _INPUT_BLOCKS_LEFT = r14, r15, r13
_SAVED = (rbx, rbp, r12, r13, r14, r15, rdi, rsi)


class CsrFrame(NamedTuple):
    """Slots on the stack of a compressed-rows kernel: its counters, pointers and arguments.

    `next_start`, `next_end`: addresses of the next row's start value, and of its scale and bias.
    Arguments are the addresses of the layer's groups, quads, rows, starts and ends, and the bytes
    from y to the added operand.
    """

    passes_left: Memory
    row_blocks_left: Memory
    stages_left: Memory
    next_start: Memory
    next_end: Memory
    groups: Memory
    quads: Memory
    rows: Memory
    starts: Memory
    ends: Memory
    distance: Memory


_FRAME, _FRAME_BYTES = CsrFrame(*slots(rbp, len(CsrFrame._fields), -8, -8)), 128
# Registers that pass the arguments.
_GIVEN, _GIVEN_DISTANCE = (rcx, rdx, r8, r9, r10), r11
_GIVEN_SLOTS = (_FRAME.groups, _FRAME.quads, _FRAME.rows, _FRAME.starts, _FRAME.ends)
_PAGE = 4096
_CODE: dict[Arithmetic, type[ScaledInputs]] = {Arithmetic.HALVES: CsrHalves}  # else CsrInt8
_INT8_WORDS: dict[Arithmetic, Callable[[CompressedRows], CompressedRows]] = {
    Arithmetic.BYTES: partial(short_words, kind=np.int8),
    Arithmetic.PAIRS: partial(short_words, kind=np.int16),
    Arithmetic.INTEGERS: float_words,
    Arithmetic.QUADS: lambda integers: integers,
}


@dataclass(frozen=True, eq=False)
class LoweredCsr:
    """The weight stream of a layer, and the shape of its kernel.

    The sums of rows begin with `start` (out_features,), or with 0; int8 has each row's scale and
    bias in `ends` (out_features, 2).
    """

    spec: MatMul
    shape: CsrShape
    stream: CsrStream
    start: npt.NDArray[np.generic] | None
    ends: npt.NDArray[np.float32] | None
    counts: CsrCounts


def expect(
    arithmetic: Arithmetic, spec: MatMul, matrix: SparseMatrix, target: Target
) -> CsrCounts:
    """Return the counts expected from the zero pattern, before int8 weights round to zero."""
    shape = csr_shape(arithmetic, spec, matrix, target)
    key = "counts", arithmetic, shape.blocks
    made = matrix.memoised(key, lambda: counted(matrix.words(arithmetic.together), shape.blocks))
    return CsrCounts(target, spec, shape, *made)


def lower(
    arithmetic: Arithmetic, spec: MatMul, matrix: SparseMatrix, target: Target
) -> LoweredCsr:
    """Lower the layer; bfloat16 and float16 weights are stored as float32 except for `HALVES`."""
    shape = csr_shape(arithmetic, spec, matrix, target)
    is_int8 = spec.dtype is DType.INT8
    start = first_sums(arithmetic, matrix) if arithmetic.converts else spec.bias
    ends = int8_ends(spec.each, matrix) if is_int8 else None
    if arithmetic is Arithmetic.HALVES:
        ends = halves_ends(spec.each, matrix)
    stored = arithmetic, spec.dtype, shape.blocks
    made = matrix.memoised(("csr", *stored), lambda: _data(matrix, *stored))
    counts = CsrCounts(target, spec, shape, *made.counts)
    return LoweredCsr(spec, shape, made.stream, start, ends, counts)


@dataclass(frozen=True, eq=False)
class _CsrData:
    """A layer's weight stream, and its numbers of weights, segments, quads and groups."""

    stream: CsrStream
    counts: tuple[int, int, int, int]


def _data(
    matrix: SparseMatrix, arithmetic: Arithmetic, dtype: DType, blocks: CsrBlocks
) -> _CsrData:
    if arithmetic is Arithmetic.HALVES:
        words = halves_words(matrix)
    elif dtype is DType.INT8:
        words = _INT8_WORDS[arithmetic](quantised_nonzeros(matrix)[0])
    else:
        words = float_words(rounded_matrix(matrix, dtype).nonzeros)
    return _CsrData(csr_stream(words, blocks), counted(SparseMatrix.of_rows(words), blocks))


def emit(asm: Assembler, lowered: LoweredCsr) -> None:
    """Append the compressed-rows kernel. x and y must not overlap; see `batch_families`.

    Layers that differ only in their weights share their code.
    """
    if lowered.spec.added_pitch is not None:
        asm.emit("mov", _GIVEN_DISTANCE, rdx)
        asm.emit("sub", _GIVEN_DISTANCE, rsi)
    _place_stream(asm, lowered)
    code = _CsrCode(asm, lowered)
    call_routine(asm, code.key, lambda asm: code.emit())


def _place_stream(asm: Assembler, lowered: LoweredCsr) -> None:
    """Put the layer's data into the pool, and the addresses into the registers of arguments."""
    stream = lowered.stream
    arrays = (stream.groups, stream.quads, stream.rows, lowered.start, lowered.ends)
    for register, array in zip(_GIVEN, arrays, strict=True):
        if array is not None:
            asm.emit("lea", register, Literal(asm.literal(array)))


class _CsrCode:
    """Appends the code of a batch kernel that loops over compressed rows."""

    def __init__(self, asm: Assembler, lowered: LoweredCsr) -> None:
        self.asm, self.spec, self.shape = asm, lowered.spec, lowered.shape
        self.feature_major = self.spec.layout is Layout.FEATURE_MAJOR
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        self.few = self.spec.batch if self.spec.batch < self.lanes else None
        self.has_starts, self.has_ends = lowered.start is not None, lowered.ends is not None
        self.converts = self.shape.arithmetic.converts
        # float16 inputs are converted from where they lie, if they are in order there.
        is_halves = self.shape.arithmetic is Arithmetic.HALVES
        self.as_it_lies = is_halves and self.feature_major and self.few is None
        self.staged = min(STAGED, self.shape.block_inputs)
        far_bytes = asm.target.core.layouts.csr_far * asm.target.l2_bytes
        self.is_far = lowered.stream.quads.nbytes > far_bytes
        # Labels of the core of each width; layers of other sizes may already have appended it.
        self.keys = {
            width: core_key(self.shape, width, self.is_far) for width in self.shape.widths
        }
        self.new = [width for width, key in self.keys.items() if key not in asm.routines]
        labels = {width: asm.label(f"{width} vectors") for width in self.new}
        self.cores = {w: labels.get(w) or asm.routines[key] for w, key in self.keys.items()}

    @property
    def key(self) -> Hashable:
        """The properties that the code depends on: layers with equal keys share one subroutine."""
        spec = self.spec
        sizes = spec.out_features, spec.in_features, spec.y_features, spec.pitch
        return "csr", spec.case, sizes, self.shape, self.has_starts, self.has_ends, self.is_far

    def emit(self) -> None:
        """Append the subroutine's body up to its return; registers hold x, y and the data."""
        self._enter()
        for part in self.shape.passes:
            repeat(self.asm, part.times, _FRAME.passes_left, partial(self._pass, part))
        self._leave()
        end = self.asm.label("end")
        self.asm.jump("jmp", end)
        for width in self.new:
            self.asm.routines[self.keys[width]] = self.cores[width]
            emit_core(self.asm, self.cores[width], self.shape, width, self.is_far)
        self.asm.bind(end)

    def _enter(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("mov", rbp, rsp)
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)
        make_room(asm, self.shape.workspace_bytes + _FRAME_BYTES, _PAGE)
        for register, slot in zip(_GIVEN, _GIVEN_SLOTS, strict=True):
            asm.emit("mov", slot, register)
        if self.spec.added_pitch is not None:
            asm.emit("mov", _FRAME.distance, _GIVEN_DISTANCE)

    def _leave(self) -> None:
        self.asm.emit("mov", rsp, rbp)
        pop(self.asm, _SAVED)

    def _pass(self, part: Pass) -> None:
        asm, spec, blocks = self.asm, self.spec, self.shape.blocks
        for register, slot in zip((GROUPS, QUADS, ROWS), _GIVEN_SLOTS, strict=False):
            asm.emit("mov", register, slot)
        for next_one, slot in (
            (_FRAME.next_start, _FRAME.starts),
            (_FRAME.next_end, _FRAME.ends),
        ):
            asm.emit("mov", rax, slot)
            asm.emit("mov", next_one, rax)
        if self.converts:
            self._scales(part)
        whole, rest = divmod(spec.out_features, blocks.rows)
        repeat(asm, whole, _FRAME.row_blocks_left, partial(self._rows, part, blocks.rows))
        if rest:
            self._rows(part, rest)
        columns = part.vectors * self.lanes
        x_step = 4 * columns * (1 if self.feature_major else spec.in_features)
        y_step = 4 * columns * (1 if self.feature_major else spec.y_features)
        asm.emit("add", _X, x_step)
        asm.emit("add", _Y, y_step - spec.out_features * self._step)
        self._move_added(-spec.out_features)

    @property
    def _step(self) -> int:
        """Bytes from one feature to the next, of x and y alike."""
        return 4 * self.spec.pitch if self.feature_major else 4

    def _rows(self, part: Pass, rows: int) -> None:
        """Compute a block of rows, from the bias to y."""
        asm, spec = self.asm, self.spec
        self._start(part, rows)
        width = self.shape.block_inputs
        whole, rest = divmod(spec.in_features, width)
        repeat(asm, whole, _INPUT_BLOCKS_LEFT, partial(self._inputs, part, width))
        if rest:
            self._inputs(part, rest)
        asm.emit("sub", _X, spec.in_features * self._step)
        self._finish(part, rows)
        asm.emit("add", _Y, rows * self._step)

    def _start(self, part: Pass, rows: int) -> None:
        """Set the sums of a block of rows to their start values."""
        asm, value = self.asm, vector(self.asm, 0)
        asm.emit("lea", r8, Memory(rsp, self.shape.panel_bytes))
        if not self.has_starts:
            zero(asm, value)
        else:
            asm.emit("mov", r9, _FRAME.next_start)
        with counted_down(asm, dword(r10), rows):
            if self.has_starts:
                asm.emit("vbroadcastss", value, Memory(r9))
                asm.emit("add", r9, 4)
            for number in range(part.vectors):
                asm.emit("vmovups", Memory(r8, number * self.vector_bytes), value)
            asm.emit("add", r8, self.shape.pitch)
        if self.has_starts:
            asm.emit("mov", _FRAME.next_start, r9)

    def _columns(self, part: Pass) -> list[int]:
        """The batch column at which each vector of a pass begins."""
        *before, last = range(0, part.vectors * self.lanes, self.lanes)
        return [*before, last - part.shift]

    def _inputs(self, part: Pass, inputs: int) -> None:
        """Bring a block of inputs into the panel, and multiply it."""
        asm = self.asm
        if self.converts:
            asm.emit("mov", PANEL, rsp)
            self._in_stages(inputs, lambda count: self._convert(part, count))
        else:
            self._load(part, inputs, rsp, 0)
        asm.emit("mov", WORKSPACE, rsp)
        asm.jump("call", self.cores[part.vectors])

    def _load(self, part: Pass, inputs: int, base: Register, offset: int) -> None:
        """Append code that copies the next inputs of a pass to base + offset, and advances X.

        The copy is feature-major float32, whatever the layout of x.
        """
        asm, spec, pitch = self.asm, self.spec, self.shape.pitch
        columns = self._columns(part)
        if self.feature_major:
            source, panel = MatrixPlace(_X, self._step), MatrixPlace(base, pitch, offset, True)
            vectors = [(4 * first, n * self.vector_bytes) for n, first in enumerate(columns)]
            copy(asm, source, panel, inputs, vectors, self.few)
        else:
            for number, first in enumerate(columns):
                source = MatrixPlace(_X, 4 * spec.in_features).row(first)
                panel = MatrixPlace(base, pitch, offset + number * self.vector_bytes, True)
                transpose(asm, source, panel, self.few or self.lanes, inputs)
        asm.emit("add", _X, inputs * self._step)

    def _in_stages(self, inputs: int, body: Callable[[int], None]) -> None:
        whole, rest = divmod(inputs, self.staged)
        repeat(self.asm, whole, _FRAME.stages_left, partial(body, self.staged))
        if rest:
            body(rest)

    def _staged(self, part: Pass, inputs: int) -> tuple[MatrixPlace, list[int]]:
        """Append code that brings the next inputs, float32, to where they are converted.

        Return that place, and the byte offset of each vector of columns in a row of it. It is the
        panel itself, or a buffer if the inputs then become shorter, or x.
        """
        if self.as_it_lies:
            self.asm.emit("add", _X, inputs * self._step)
            before = MatrixPlace(_X, self._step, -inputs * self._step)
            return before, [4 * first for first in self._columns(part)]
        is_short = self.shape.arithmetic.is_short
        base, offset = (rsp, self.shape.staging) if is_short else (PANEL, 0)
        self._load(part, inputs, base, offset)
        starts = [number * self.vector_bytes for number in range(part.vectors)]
        return MatrixPlace(base, self.shape.pitch, offset), starts

    def _scaled(self, part: Pass) -> ScaledInputs:
        code = _CODE.get(self.shape.arithmetic, CsrInt8)
        return code(self.asm, self.spec.each, self.shape, part.vectors)

    def _scales(self, part: Pass) -> None:
        """Compute the reciprocal scale, and a dynamic scale, of each column of a pass."""
        scaled = self._scaled(part)
        scaled.start()
        if scaled.fixed:
            return
        self.asm.emit("mov", PANEL, rsp)
        self._in_stages(
            self.spec.in_features,
            lambda inputs: scaled.largest(*self._staged(part, inputs), inputs),
        )
        self.asm.emit("sub", _X, self.spec.in_features * self._step)
        scaled.scales()

    def _convert(self, part: Pass, inputs: int) -> None:
        self._scaled(part).convert(*self._staged(part, inputs), inputs)

    def _finish(self, part: Pass, rows: int) -> None:
        """y = activation(sums + added)."""
        asm, spec, columns = self.asm, self.spec, self._columns(part)
        sums = MatrixPlace(rsp, self.shape.pitch, self.shape.panel_bytes)
        y = MatrixPlace(_Y, self._step)
        vectors = [(n * self.vector_bytes, 4 * first) for n, first in enumerate(columns)]
        if self.feature_major and not self.converts:
            ends = RowEnds(sums, y, self._added(rows), vectors, self.few)
            finish_rows(asm, spec.each.activation, ends, rows)
            return
        if self.converts or spec.each.activation is not Activation.NONE:
            scaled = (self._scaled(part), _FRAME.next_end) if self.has_ends else None
            activate_rows(asm, spec.each, self.shape, part.vectors, rows, scaled)
        if self.feature_major:
            copy(asm, sums, y, rows, vectors, self.few)
            return
        for number, first in enumerate(columns):
            target = MatrixPlace(_Y, 4 * spec.y_features).row(first)
            transpose(asm, sums.column(number * self.lanes), target, rows, self.few or self.lanes)

    def _added(self, rows: int) -> MatrixPlace | None:
        """Append code that points rcx at the added operand's rows for the next `rows` rows of y.

        Return that place, or None without an operand; the pointer advances for the rows after
        these.
        """
        pitch = self.spec.added_pitch
        if pitch is None:
            return None
        self.asm.emit("mov", rcx, _FRAME.distance)
        self._move_added(rows)
        self.asm.emit("add", rcx, _Y)
        return MatrixPlace(rcx, 4 * pitch)

    def _move_added(self, rows: int) -> None:
        """Append code that corrects the distance from y to the added operand after `rows` rows.

        The distance changes if their rows are not equally far apart. Clobbers rax.
        """
        further = 0 if self.spec.added_pitch is None else self.spec.added_pitch - self.spec.pitch
        if further:
            self.asm.emit("mov", rax, _FRAME.distance)
            self.asm.emit("add", rax, 4 * rows * further)
            self.asm.emit("mov", _FRAME.distance, rax)
