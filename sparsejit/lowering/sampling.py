"""Steps of a network that makes a signal sample by sample: draws, levels, rows, predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.pointwise.categorical import emit_categorical_draw, scratch_floats
from sparsejit.asm_templates.pointwise.gru_gates import GateInputs, emit_gru_update
from sparsejit.asm_templates.pointwise.random_uniform import emit_random_uniform
from sparsejit.asm_templates.pointwise.signal import (
    Quantiser,
    emit_prediction,
    emit_sum_of_rows,
)
from sparsejit.asm_templates.selection.table_rows import emit_row_address
from sparsejit.asm_templates.shared.location import InPool, Location
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.graph import Array, Node, Value
from sparsejit.ir.ops.sampling import Draw, GruStepOfRows, Reconstruct, SumOfRows
from sparsejit.ir.spec import DType, GruUpdate
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.storage import View
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
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)

_FLOAT = 4
# Addresses of rows; the last one used is that of the rest.
_ROWS = (rdi, rsi, rdx, rcx, r8, r9)
MOST_TABLES = len(_ROWS) - 1
# Beside recurrent gates, state and result.
MOST_TABLES_OF_GATES = 3


def lower_uniform(low: Lowering, node: Node) -> None:
    """One number of the counter-based generator."""

    def emit(asm: Assembler, at: Locations) -> None:
        _load(asm, at.reads[0], rdi)
        _load(asm, at.reads[1], rsi)
        emit_random_uniform(asm)
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), xmm(0))

    _add(low, node, "uniform", "a random number", emit)


def lower_draw(low: Lowering, node: Node) -> None:
    """Weights of all classes, their partial sums, and how many the number exceeds."""
    assert isinstance(node.op, Draw)
    spec = node.op.spec(node.inputs[0].shape[0])

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[1].point(asm, rax)
        asm.emit("vmovss", xmm(0), Memory(rax))
        at.reads[0].point(asm, rdi)
        at.writes[0].point(asm, rsi)
        at.scratch.point(asm, rdx)
        emit_categorical_draw(asm, spec)

    scratch = _FLOAT * scratch_floats(low.target, spec)
    _add(low, node, "draw", f"one of {spec.classes} classes", emit, scratch)


def lower_quantise(low: Lowering, node: Node) -> None:
    """Two comparisons with constant thresholds."""
    number, thresholds = node.inputs
    table = low.constant(thresholds)

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rax)
        asm.emit("vmovss", xmm(3), Memory(rax))
        Quantiser(asm, table).emit(rdx, xmm(3), rcx)
        at.writes[0].point(asm, rdi)
        asm.emit("mov", Memory(rdi), rdx)

    into = low.dense_result(node.output)
    facts = Facts(f"one of {len(table) + 1} levels")
    low.add(Step("level", node.output.origin, (low.view(number),), (into,), emit, facts))


def lower_sum_of_rows(low: Lowering, node: Node) -> None:
    """One pass over the rows. Raises CompileError for more tables than registers."""
    assert isinstance(node.op, SumOfRows)
    features = node.output.shape[0]
    table_rows = _TableRows.of(low, node.op, node.inputs, MOST_TABLES)

    def emit(asm: Assembler, at: Locations) -> None:
        rows = table_rows.point(asm, at)
        at.writes[0].point(asm, r11)
        emit_sum_of_rows(asm, r11, rows, features, r10 if table_rows.halves else None)

    into = low.dense_result(node.output)
    facts = table_rows.facts()
    low.add(Step("sum-of-rows", node.output.origin, table_rows.reads, (into,), emit, facts))


def lower_gru_step_of_rows(low: Lowering, node: Node) -> None:
    """Rows are added where gates load them: the look-up hides behind the arithmetic."""
    assert isinstance(node.op, GruStepOfRows)
    spec = GruUpdate(node.output.shape[0])
    table_rows = _TableRows.of(low, node.op.rows, node.inputs[:-2], MOST_TABLES_OF_GATES)

    def emit(asm: Assembler, at: Locations) -> None:
        rows = table_rows.point(asm, at)
        for register, place in zip((r8, r9), at.reads[-2:], strict=True):
            place.point(asm, register)
        at.writes[0].point(asm, r10)
        inputs = GateInputs(rows, r11 if table_rows.halves else None)
        emit_gru_update(asm, spec, (r10,), inputs, (r8, r9))

    into = low.dense_result(node.output)
    reads = (*table_rows.reads, *map(low.contiguous, node.inputs[-2:]))
    facts = table_rows.facts()
    low.add(Step("gru-step-of-rows", node.output.origin, reads, (into,), emit, facts))


@dataclass(frozen=True, eq=False)
class _TableRows:
    """The rows that a sum takes: `halves` are tables as float16, none where all are float32."""

    count: int
    heights: list[int]
    row_bytes: int
    halves: list[Array]
    reads: tuple[View, ...]

    @staticmethod
    def of(low: Lowering, op: SumOfRows, operands: Sequence[Value], most: int) -> "_TableRows":
        """Raises CompileError for more than `most` tables."""
        count, features = len(operands) // 2, operands[-1].shape[0]
        if count > most:
            raise CompileError(f"rows of {count} tables are added at once; add {most} at most")
        short = op.dtype is not DType.FLOAT32
        tables = operands[count:-1]
        halves = [_halves(low.constant(t), low.target.lanes) for t in tables] if short else []
        row_bytes = halves[0][0].nbytes if short else _FLOAT * features
        read = (*operands[:count], operands[-1]) if short else operands
        heights = [table.shape[0] for table in tables]
        return _TableRows(count, heights, row_bytes, halves, tuple(map(low.contiguous, read)))

    def point(self, asm: Assembler, at: Locations) -> tuple[Register, ...]:
        """Registers that hold the addresses of the rows, and of what is added last."""
        reads = at.reads[: len(self.reads)]
        places = [InPool(asm.literal(h)) for h in self.halves] or reads[self.count : -1]
        asm.emit("xor", dword(r11), dword(r11))
        for register, index, table, height in zip(
            _ROWS, reads, places, self.heights, strict=False
        ):
            _row(asm, register, (index, table), (height, self.row_bytes))
        at.status.report_where(asm, r11)
        reads[-1].point(asm, _ROWS[self.count])
        return _ROWS[: self.count + 1]

    def facts(self) -> Facts:
        reason = f"{self.count} rows by index"
        return Facts(reason, weight_bytes=self.count * self.row_bytes)


def _halves(table: Array, lanes: int) -> Array:
    """A table as float16, its rows whole vectors. Raises InvalidInput for greater numbers."""
    rows, features = table.shape
    stored = np.zeros((rows, -(-features // lanes) * lanes), np.float16)
    with np.errstate(over="ignore"):
        stored[:, :features] = table
    if not np.isfinite(stored).all():
        raise InvalidInput("a table exceeds the range of float16; store it as float32")
    return stored


def lower_gru_step(low: Lowering, node: Node) -> None:
    """The gates of all units."""
    spec = GruUpdate(node.output.shape[0])

    def emit(asm: Assembler, at: Locations) -> None:
        for register, place in zip((rdi, rsi, rdx), at.reads, strict=True):
            place.point(asm, register)
        at.writes[0].point(asm, rcx)
        emit_gru_update(asm, spec, (rcx,))

    _add(low, node, "gru-step", f"gates of {spec.hidden} units", emit)


def lower_predict(low: Lowering, node: Node) -> None:
    """Products and a tree of additions."""

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rcx)
        at.reads[1].point(asm, rdx)
        emit_prediction(asm, xmm(0), Memory(rcx), Memory(rdx))
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), xmm(0))

    _add(low, node, "predict", "from past samples", emit)


def lower_reconstruct(low: Lowering, node: Node) -> None:
    """Scalars from end to end."""
    op = node.op
    assert isinstance(op, Reconstruct)
    level, levels, *numbers = node.inputs
    count, shape = levels.shape[0], (levels.shape[0], _FLOAT)

    def emit(asm: Assembler, at: Locations) -> None:
        value = xmm(0)
        asm.emit("xor", dword(r11), dword(r11))
        _row(asm, rdi, (at.reads[0], at.reads[1]), shape)
        at.status.report_where(asm, r11)
        asm.emit("vmovss", value, Memory(rdi))
        for number, place in enumerate(at.reads[2:], 1):
            place.point(asm, rdi)
            asm.emit("vmovss", xmm(number), Memory(rdi))
        asm.emit("vmulss", value, value, xmm(1))
        asm.emit("vaddss", value, value, xmm(2))
        asm.emit("vminss", value, value, _constant(asm, op.limit))
        asm.emit("vmaxss", value, value, _constant(asm, -op.limit))
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), value)
        asm.emit("vmulss", xmm(3), xmm(3), _constant(asm, op.emphasis))
        asm.emit("vaddss", value, value, xmm(3))
        at.writes[1].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), value)

    writes = tuple(map(low.dense_result, node.outputs))
    reads = (*map(low.contiguous, (level, levels)), *map(low.view, numbers))
    facts = Facts(f"from one of {count} levels")
    low.add(Step("reconstruct", node.outputs[0].origin, reads, writes, emit, facts))


def _constant(asm: Assembler, value: float) -> Literal:
    """One float32 of the pool."""
    return Literal(asm.constant(value).offset)


def _load(asm: Assembler, place: Location, register: Register) -> None:
    """register = the 64 bits that lie there."""
    place.point(asm, register)
    asm.emit("mov", register, Memory(register))


def _row(
    asm: Assembler,
    register: Register,
    place: tuple[Location, Location],
    shape: tuple[int, int],
) -> None:
    """register = the address of a table's row by index; r11 = 1 where there is none, and row 0.

    Clobbers rax.
    """
    index, table = place
    _load(asm, index, register)
    table.point(asm, rax)
    emit_row_address(asm, register, *shape, table=rax, missing=r11)


def _add(
    low: Lowering,
    node: Node,
    kernel: str,
    reason: str,
    emit: Callable[[Assembler, Locations], None],
    scratch_bytes: int = 0,
) -> None:
    """Append a step from row-major operands to a row-major result."""
    into = low.dense_result(node.output)
    reads = tuple(map(low.contiguous, node.inputs))
    origin = node.output.origin
    low.add(Step(kernel, origin, reads, (into,), emit, Facts(reason), scratch_bytes))
