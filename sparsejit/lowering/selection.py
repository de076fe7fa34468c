"""Lookups of table rows by index, bags of rows, and the positions of the largest elements."""

from math import prod

import numpy as np

from sparsejit.asm_templates.selection.bags import Bags, emit_bags
from sparsejit.asm_templates.selection.largest import (
    LargestElements,
    emit_largest_elements,
    emit_true_places,
)
from sparsejit.asm_templates.selection.table_rows import (
    RowCopies,
    RowUpdates,
    emit_row_copies,
    emit_row_updates,
    emit_table_copy,
)
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.selection import (
    ArgMax,
    Embedding,
    EmbeddingBag,
    OwnRows,
    PlacedRows,
    TopK,
    TruePlaces,
)
from sparsejit.ir.values import Element, Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.layer_planner import weight_bytes
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import dword, r8, r9, r10, r11, rcx, rdi, rdx, rsi

_FLOAT, _INDEX = 4, 8


@lowers(Embedding)
def lower_embedding(low: Lowering, node: Node) -> None:
    """Append copies of rows, which go straight to their destination if its rows have one pitch."""
    assert isinstance(node.op, Embedding)
    indices, table = node.inputs
    rows, features = _table_shape(table)
    count = prod(indices.shape)
    places = low.view(indices).reshaped((count,)) or low.contiguous(indices).reshaped((count,))
    into = _row_result(low, node.output, count)
    assert places is not None
    floats = features * table.type.element.bytes // _FLOAT  # an int64 is copied as two
    spec = RowCopies(count, rows, floats, places.strides[0], into.strides[0])

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rdi)
        at.reads[1].point(asm, rsi)
        at.writes[0].point(asm, rdx)
        emit_row_copies(asm, spec)
        at.status.report_where(asm, r8)

    facts = Facts(f"{count} rows of {features} features by index")
    reads = (places, low.contiguous(table))
    low.add(Step("embedding", node.output.origin, reads, (into,), emit, facts))


@lowers(OwnRows)
def lower_own_rows(low: Lowering, node: Node) -> None:
    """Append copies of rows, table after table; r11 collects whether an index was out of range."""
    indices, tables = node.inputs
    batch, count, features = node.output.shape
    rows, floats = tables.shape[1], features * tables.type.element.bytes // _FLOAT
    if rows == 0:
        raise InvalidInput(f"{tables.origin.name} has no rows; give tables of at least one row")
    into = low.dense_result(node.output)
    spec = RowCopies(count, rows, floats, _INDEX, _FLOAT * floats)

    def emit(asm: Assembler, at: Locations) -> None:
        for register, place in zip((rdi, rsi, rdx), (*at.reads, *at.writes), strict=True):
            place.point(asm, register)
        asm.emit("xor", dword(r11), dword(r11))
        with counted_down(asm, r10, batch):
            emit_row_copies(asm, spec)
            asm.emit("or", r11, r8)
            asm.emit("add", rsi, rows * floats * _FLOAT)
        at.status.report_where(asm, r11)

    facts = Facts(f"{count} rows of {features} features by index, of {batch} tables")
    reads = (low.contiguous(indices), low.contiguous(tables))
    low.add(Step("own-rows", node.output.origin, reads, (into,), emit, facts))


@lowers(PlacedRows)
def lower_placed_rows(low: Lowering, node: Node) -> None:
    """Append a copy of the tables, then the update of one row after another.

    Where the result lies where the tables do, as the states of a stream may, nothing is copied.
    """
    assert isinstance(node.op, PlacedRows)
    indices, updates, tables = node.inputs
    batch, rows, features = node.output.shape
    element, count = tables.type.element, indices.shape[1]
    floats = features * element.bytes // _FLOAT
    spec = RowUpdates(batch, count, rows, floats, node.op.reduction, element)
    if not spec.has_code:
        raise CompileError(
            f"{node.output.origin.name} reduces {element.value} by {node.op.reduction.value}, "
            "for which there is no code; cast it to float32"
        )
    into = low.dense_result(node.output)

    def emit(asm: Assembler, at: Locations) -> None:
        at.writes[0].point(asm, rdx)
        at.reads[2].point(asm, rsi)
        copied = asm.label("tables copied")
        asm.emit("cmp", rsi, rdx)
        asm.jump("je", copied)
        emit_table_copy(asm, spec)
        asm.bind(copied)
        at.reads[0].point(asm, rdi)
        at.reads[1].point(asm, rsi)
        emit_row_updates(asm, spec)
        at.status.report_where(asm, r8)

    facts = Facts(f"{count} rows of {features} features put into each of {batch} tables")
    reads = (low.contiguous(indices), low.contiguous(updates), low.contiguous(tables))
    low.add(Step("placed-rows", node.output.origin, reads, (into,), emit, facts))


@lowers(EmbeddingBag)
def lower_embedding_bag(low: Lowering, node: Node) -> None:
    """Append a loop over bags, which combines the table's rows of each."""
    op = node.op
    assert isinstance(op, EmbeddingBag)
    indices, table, *_ = node.inputs
    rows, features = _table_shape(table)
    bags = node.output.shape[0]
    into = _row_result(low, node.output, bags)
    total = prod(indices.shape)
    pitch = into.strides[0]
    spec = Bags(bags, total, rows, features, op.kind, op.with_offsets, op.weighted, pitch)
    registers = (rdi, rsi, *[rcx] * op.with_offsets, *[r9] * op.weighted)

    def emit(asm: Assembler, at: Locations) -> None:
        for register, location in zip(registers, at.reads, strict=True):
            location.point(asm, register)
        at.writes[0].point(asm, rdx)
        emit_bags(asm, spec)
        at.status.report_where(asm, r8)

    facts = Facts(f"{bags} bags of {total} rows of {features} features")
    reads = tuple(map(low.contiguous, node.inputs))
    low.add(Step("embedding-bag", node.output.origin, reads, (into,), emit, facts))


@lowers(ArgMax)
def lower_argmax(low: Lowering, node: Node) -> None:
    """Append a search for the largest element of each row."""
    assert isinstance(node.op, ArgMax)
    _lower_largest(low, node, 1, False)


@lowers(TopK)
def lower_topk(low: Lowering, node: Node) -> None:
    """Append a search for the largest (or least) elements of each row, one after another."""
    assert isinstance(node.op, TopK)
    _lower_largest(low, node, node.op.count, node.op.least)


def _lower_largest(low: Lowering, node: Node, count: int, least: bool) -> None:
    (x,) = node.inputs
    bytes_ = x.type.element.bytes
    if x.type.element not in (Element.FLOAT32, Element.FLOAT64):
        raise CompileError(
            f"{x.origin.name} is {x.type.element.value}; cast it to float32 to find the largest "
            "elements"
        )
    length, origin = x.shape[-1], node.outputs[0].origin
    shape = (prod(x.shape[:-1]), length)
    source = low.view(x).reshaped(shape)
    if source is None or source.strides[1] != bytes_:
        source = low.contiguous(x).reshaped(shape)
    assert source is not None
    into = tuple(low.dense_result(value) for value in node.outputs)
    pitch, with_values = source.strides[0], len(into) > 1
    spec = LargestElements(shape[0], length, count, pitch, with_values, least, bytes_)
    registers = (rsi, rdx) if spec.with_values else (rdx,)

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rdi)
        for register, location in zip(registers, at.writes, strict=True):
            location.point(asm, register)
        at.scratch.point(asm, rcx)
        emit_largest_elements(asm, spec)

    facts = Facts(f"{count} of {length} elements, {shape[0]} times")
    scratch = spec.scratch_bytes(low.target)
    low.add(Step("largest", origin, (source,), into, emit, facts, scratch))


@lowers(TruePlaces)
def lower_true_places(low: Lowering, node: Node) -> None:
    """Append one pass over a mask: it writes the places of true elements, and their number."""
    (mask,) = node.inputs
    into = tuple(low.dense_result(value) for value in node.outputs)

    def emit(asm: Assembler, at: Locations) -> None:
        for register, place in zip((rdi, rsi, rdx), (*at.reads, *at.writes), strict=True):
            place.point(asm, register)
        emit_true_places(asm, mask.type.size)

    facts = Facts(f"places of the true elements among {mask.type.size} elements")
    low.add(Step("true-places", node.outputs[0].origin, (low.contiguous(mask),), into, emit, facts))


def _table_shape(table: Value) -> tuple[int, int]:
    rows, features = table.shape
    if rows == 0:
        raise InvalidInput(f"{table.origin.name} has no rows; give a table of at least one row")
    return rows, features


def _row_result(low: Lowering, value: Value, count: int) -> View:
    """The view (count, features) to which a kernel writes rows at any pitch."""
    shape = (count, value.shape[-1])

    def fits(view: View) -> bool:
        rows = view.reshaped(shape)
        return rows is not None and rows.strides[1] == value.type.element.bytes

    rows = low.result(value, fits).reshaped(shape)
    assert rows is not None
    return rows


def unread_bytes(graph: Graph) -> int:
    """Estimate of the bytes of lookup tables that a call does not touch."""
    readers: dict[Value, list[Node]] = {value: [] for value in graph.constants}
    for node in graph.nodes:
        for value in node.inputs:
            readers.get(value, []).append(node)
    total = 0
    for value, nodes in readers.items():
        if nodes and value not in graph.outputs and all(_looks_up(n, value) for n in nodes):
            rows = sum(node.inputs[0].type.size for node in nodes)
            array = graph.constants[value]
            held = weight_bytes(int(np.count_nonzero(array)), array.nbytes)
            total += max(0, held - rows * array.nbytes // max(1, len(array)))
    return total


def _looks_up(node: Node, table: Value) -> bool:
    return isinstance(node.op, Embedding | EmbeddingBag) and node.inputs[1] is table
