"""Attention of columns: find the attentions that only views separate from the products around them.

    linear -> reshape -> permute -> attention -> permute -> reshape -> linear

Where these products write and read columns, scores are computed with queries in the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.views import Permute, Reshape, Slice
from sparsejit.ir.values import Element, TensorType, Value
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.machine.target import Target

_MOST_LANES = 16


def padded_type(value: Value, pitch_of: Callable[[int], int] = spread_pitch) -> TensorType:
    """Type of a value's padded matrix (features, columns and padding)."""
    *rows, features = value.shape
    return replace(value.type, shape=(features, pitch_of(prod(rows))))


def columns_of(matrix: View, value: Value) -> View:
    """The value that a padded matrix holds: each column is a row of the value."""
    rows = prod(value.shape[:-1])
    view = matrix.sliced(1, 0, rows).permuted((1, 0)).reshaped(value.shape)
    assert view is not None
    return view


@dataclass(frozen=True)
class ColumnAttention:
    """An attention, with the views before and after it.

    Query, key and value are views of `roots`, through the view operators of `paths`. The view
    operators of `way_out` turn the result into `sink`.
    """

    node: Node
    roots: tuple[Value, ...]
    sink: Value
    paths: tuple[tuple[Node, ...], ...]
    way_out: tuple[Node, ...]

    @property
    def between(self) -> tuple[Node, ...]:
        """All view operators of `paths` and `way_out`."""
        return (*(node for path in self.paths for node in path), *self.way_out)

    @property
    def tokens(self) -> int:
        """Number of queries of one sample."""
        return self.node.output.shape[-2]

    @property
    def is_one_sample(self) -> bool:
        """Whether padding, and not the next sample, follows the last query."""
        return prod(self.sink.shape[:-1]) == self.tokens

    def operand(self, number: int, matrix: View) -> View | None:
        """The query, key or value in its root's matrix; None where no strides describe it."""
        view: View | None = columns_of(matrix, self.roots[number])
        for node in self.paths[number]:
            view = None if view is None else _behind(node, view)
        return view

    def result(self, matrix: View) -> View | None:
        """The attention's result in the matrix of `sink`; None where no strides describe it."""
        view: View | None = columns_of(matrix, self.sink)
        for node in reversed(self.way_out):
            view = None if view is None else _before(node, view)
        return view


def column_attention(
    node: Node,
    producers: Mapping[Value, Node],
    readers: Mapping[Value, Sequence[Node]],
    is_wanted: Callable[[Value], bool],
    target: Target,
) -> ColumnAttention | None:
    """The attention of a node, if it can run on columns: unmasked, with scores that stay in L2."""
    if not isinstance(node.op, Attention) or len(node.inputs) > 3:
        return None
    paths = tuple(_path(value, producers) for value in node.inputs)
    roots = tuple(
        path[0].inputs[0] if path else value
        for path, value in zip(paths, node.inputs, strict=True)
    )
    way_out = _way_out(node.output, readers)
    sink = way_out[-1].output if way_out else node.output
    found = ColumnAttention(node, roots, sink, paths, way_out)
    inner = {node, *found.between}
    values = (*roots, *(each.output for each in inner if each.output is not sink))
    alone = not any(is_wanted(value) for value in values) and all(
        inner.issuperset(readers[value]) for value in values
    )
    return found if alone and _fits(found, target) else None


def _path(value: Value, producers: Mapping[Value, Node]) -> tuple[Node, ...]:
    """The view operators that lead to a value, in the order in which they apply."""
    path: list[Node] = []
    while (node := producers.get(value)) and isinstance(node.op, Reshape | Permute | Slice):
        path.insert(0, node)
        value = node.inputs[0]
    return tuple(path)


def _way_out(value: Value, readers: Mapping[Value, Sequence[Node]]) -> tuple[Node, ...]:
    path: list[Node] = []
    while len(readers[value]) == 1 and isinstance(readers[value][0].op, Reshape | Permute):
        path.append(readers[value][0])
        value = path[-1].output
    return tuple(path)


def _fits(found: ColumnAttention, target: Target) -> bool:
    query, key, value = found.node.inputs
    stack, tokens = found.node.output.shape[:-2], found.tokens
    kinds = [*found.roots, found.sink, query, key, value]
    scores = 4 * prod(stack) * key.shape[-2] * tokens
    rows = prod(found.sink.shape[:-1])
    return (
        all(each.shape[:-2] == stack for each in (query, key, value))
        and all(each.type.element is Element.FLOAT32 for each in kinds)
        and prod(found.roots[0].shape[:-1]) == rows > 1
        and all(prod(each.shape[:-1]) > 1 for each in found.roots)
        and (found.is_one_sample or tokens % _MOST_LANES == 0)
        and 2 * scores <= target.l2_bytes
        and all(map(_are_columns, _views(found)))
    )


def _views(found: ColumnAttention) -> list[View | None]:
    """Views of operands and result in matrices of their own."""

    def matrix(value: Value) -> View:
        return View.whole(Buffer(padded_type(value).bytes), padded_type(value))

    operands = [found.operand(n, matrix(root)) for n, root in enumerate(found.roots)]
    return [*operands, found.result(matrix(found.sink))]


def _are_columns(view: View | None) -> bool:
    """Whether tokens follow each other, and features are further apart."""
    if view is None:
        return False
    (tokens, features), (step, pitch) = view.shape[-2:], view.strides[-2:]
    return step == Element.FLOAT32.bytes and features > 1 and pitch >= step * tokens


def _behind(node: Node, view: View) -> View | None:
    """The view that a reshape, permutation or slice makes of `view`."""
    if isinstance(node.op, Reshape):
        return view.reshaped(node.op.shape)
    if isinstance(node.op, Permute):
        return view.permuted(node.op.axes)
    assert isinstance(node.op, Slice)
    op = node.op
    return view.sliced(op.axis % len(view.shape), op.first, op.end, op.step)


def _before(node: Node, view: View) -> View | None:
    """The view from which a reshape or a permutation makes `view`."""
    if isinstance(node.op, Reshape):
        return view.reshaped(node.inputs[0].shape)
    assert isinstance(node.op, Permute)
    return view.permuted_back(node.op.axes)
