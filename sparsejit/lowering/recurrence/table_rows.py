"""Sums of table rows by index: stored tables, and code that loads the rows' addresses.

    GateSum             a sum that a GRU's gates compute themselves
    lower_sum_of_rows   a step that computes a sum
    emit_row_of         the address of a table's row

A sum that only a GRU's gates read needs no step of its own:

    g = sum of rows        |        h' = gru_step(g, recurrent, h)   ->   one kernel
    g = column * x + rest  |

The operations and their order stay the same; their time hides behind the gates' arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.pointwise.table_row_sums import RowSum, ScaledColumn, emit_sum_of_rows
from sparsejit.asm_templates.selection.table_rows import emit_row_address
from sparsejit.asm_templates.shared.location import InPool, Location
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.sampling import GruStep, SumOfRows
from sparsejit.ir.spec import LARGEST_INT8, DType
from sparsejit.ir.values import Array, Element
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.routines import pop, push


@dataclass(frozen=True, eq=False)
class GateSum:
    """A sum that a GRU's gates compute themselves: its operands, which their step reads first.

    `emit` loads the operands' addresses. `words` describes the sum in reports; `bytes_of_tables`:
    bytes that it reads of tables.
    """

    reads: tuple[View, ...]
    emit: Callable[[Assembler, Locations], RowSum | ScaledColumn]
    words: str
    bytes_of_tables: int = 0


def only_gates_read(low: Lowering, node: Node) -> bool:
    """Whether only one GRU's gates read a node's result, and only as their first input."""
    value, readers = node.output, low.readers[node.output]
    return (
        value not in low.graph.outputs
        and [type(reader.op) for reader in readers] == [GruStep]
        and readers[0].inputs[0] is value
        and value not in readers[0].inputs[1:]
    )


def is_scaled_column(node: Node) -> bool:
    """Whether a chain is a vector times a number, plus a vector; all float32."""
    chain = node.op
    if not isinstance(chain, Chain) or [step.kind for step in chain.steps] != ["fma"]:
        return False
    shapes = [node.inputs[number].shape for number in _operands(chain) if number < 3]
    whole = node.outputs[0].shape
    return (
        len(node.outputs) == 1
        and len(whole) == 1
        and sorted(shapes[:2]) == [(), whole]
        and shapes[2:] == [whole]
        and all(value.type.element is Element.FLOAT32 for value in node.inputs)
    )


def scaled_column(low: Lowering, node: Node) -> GateSum:
    """The `GateSum` of a node for which `is_scaled_column` is true: column * number + rest."""
    assert isinstance(node.op, Chain)
    *factors, rest = (node.inputs[number] for number in _operands(node.op))
    column, number = sorted(factors, key=lambda value: not value.shape)
    reads = tuple(low.contiguous(value) for value in (column, number, rest))

    def emit(asm: Assembler, at: Locations) -> ScaledColumn:
        registers = (r8, r9, rdi)
        for register, place in zip(registers, at.reads[:3], strict=True):
            place.point(asm, register)
        return ScaledColumn(*registers)

    return GateSum(reads, emit, "a column added")


def _operands(chain: Chain) -> tuple[int, ...]:
    return chain.steps[0].arguments


_FLOAT = 4
# Registers for addresses of rows; the register after the last row has the address of the rest.
_ROWS = (rdi, rsi, rdx, rcx, r8, r9)
MOST_TABLES = len(_ROWS) - 1
# Registers that a GRU's gates leave free.
GATE_ROWS = (r8, r9, r10)


@dataclass(frozen=True, eq=False)
class StoredTables:
    """Tables of a sum as the kernel reads them: float32 in place, or arrays of a shorter dtype.

    `scales` (features,) belong to int8.
    """

    stored: DType
    heights: Sequence[int]
    row_bytes: int
    shorts: Sequence[Array]
    scales: Array | None = None

    @classmethod
    def of(cls, low: Lowering, node: Node) -> "StoredTables":
        """The tables of a sum. Raises InvalidInput for numbers beyond the range of float16."""
        op = node.op
        assert isinstance(op, SumOfRows)
        count = len(node.inputs) // 2
        values = node.inputs[count:-1]
        heights = [table.shape[0] for table in values]
        if op.dtype is DType.FLOAT32:
            return cls(op.dtype, heights, _FLOAT * node.output.shape[0], ())
        tables = [_padded(low.constant(table), low.target.lanes) for table in values]
        if op.dtype is DType.INT8:
            scales = np.abs(np.concatenate(tables)).max(axis=0) / np.float32(LARGEST_INT8)
            scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
            steps = [np.rint(table / scales).astype(np.int8) for table in tables]
            return cls(op.dtype, heights, steps[0].shape[1], steps, scales)
        halves = [_as_float16(table) for table in tables]
        return cls(DType.FLOAT16, heights, halves[0].itemsize * halves[0].shape[1], halves)

    def emit(
        self, asm: Assembler, at: Locations, registers: Sequence[Register], rest: Register
    ) -> RowSum:
        """Load addresses into registers; reads begin with indices, tables in memory, the rest.

        An index out of range is reported, and replaced by 0. Clobbers rax, r11 and, with int8, rbx.
        """
        count = len(self.heights)
        places: Sequence[Location] = [InPool(asm.literal(table)) for table in self.shorts]
        end = count if places else 2 * count
        asm.emit("xor", dword(r11), dword(r11))
        for register, index, table, height in zip(
            registers, at.reads, places or at.reads[count:end], self.heights, strict=False
        ):
            emit_row_of(asm, register, (index, table), (height, self.row_bytes))
        at.status.report_where(asm, r11)
        at.reads[end].point(asm, rest)
        if self.scales is not None:
            InPool(asm.literal(self.scales)).point(asm, rbx)
        return RowSum(self.stored, registers[:count], rest)

    def reads(self, low: Lowering, node: Node) -> tuple[View, ...]:
        """Views that the kernel reads of a sum's operands."""
        count = len(self.heights)
        read = (*node.inputs[:count], node.inputs[-1]) if self.shorts else node.inputs
        return tuple(map(low.contiguous, read))


@lowers(SumOfRows)
def lower_sum_of_rows(low: Lowering, node: Node) -> None:
    """Append the sum of one row of each table, in one pass over features.

    Raises CompileError for more tables than registers.
    """
    count, features = len(node.inputs) // 2, node.output.shape[0]
    if count > MOST_TABLES:
        raise CompileError(f"rows of {count} tables are added at once; add {MOST_TABLES} at most")
    if count <= len(GATE_ROWS) and only_gates_read(low, node):
        low.sums_for_gates[node.output] = node
        return
    tables = StoredTables.of(low, node)

    def emit(asm: Assembler, at: Locations) -> None:
        push(asm, (rbx,))
        rows = tables.emit(asm, at, _ROWS, _ROWS[count])
        at.writes[0].point(asm, r10)
        emit_sum_of_rows(asm, r10, rows, features)
        pop(asm, (rbx,))

    into = low.dense_result(node.output)
    facts = Facts(
        f"{count} rows of {features} features by index", weight_bytes=count * tables.row_bytes
    )
    reads = tables.reads(low, node)
    low.add(Step("sum-of-rows", node.output.origin, reads, (into,), emit, facts))


def sum_of_rows_for_gates(low: Lowering, node: Node) -> GateSum:
    """A sum of rows that a GRU's gates compute."""
    tables = StoredTables.of(low, node)

    def emit(asm: Assembler, at: Locations) -> RowSum:
        return tables.emit(asm, at, GATE_ROWS, rdi)

    count = len(tables.heights)
    words = f"{count} rows by index added"
    return GateSum(tables.reads(low, node), emit, words, count * tables.row_bytes)


def emit_row_of(
    asm: Assembler,
    register: Register,
    place: tuple[Location, Location],
    shape: tuple[int, int],
) -> None:
    """register = the address of a table's row by index; shape: rows, and bytes of a row.

    If the index is out of range, r11 = 1, and the address is of row 0. Clobbers rax.
    """
    index, table = place
    index.point(asm, register)
    asm.emit("mov", register, Memory(register))
    table.point(asm, rax)
    emit_row_address(asm, register, *shape, table=rax, missing=r11)


def _padded(table: Array, lanes: int) -> Array:
    """Float32 table with zeros behind each row, which short dtypes need: loads have no masks.

    Rows of whole vectors stay as they are. Others are rounded up and get one vector more, since
    a gate's vectors may begin at a feature that is no multiple of `lanes`.
    """
    rows, features = table.shape
    width = round_up(features, lanes) + (lanes if features % lanes else 0)
    stored = np.zeros((rows, width), np.float32)
    stored[:, :features] = table
    return stored


def _as_float16(table: Array) -> Array:
    """The table in float16. Raises InvalidInput for numbers beyond its range."""
    with np.errstate(over="ignore"):
        stored = table.astype(np.float16)
    if not np.isfinite(stored).all():
        raise InvalidInput("a table exceeds the range of float16; store it as float32")
    return stored
