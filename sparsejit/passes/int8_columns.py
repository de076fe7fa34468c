"""Transposes values between quantised linear layers, so that features are channels.

    y = linear[int8](x, W, b)                    x' = x transposed to (1, features, columns)
    z = layer_norm(rounded(y) + c + r)     ->    y' = conv[int8](x', W, b)
                                                 z' = normalised[c](y' in steps, r')
                                                 z  = z' transposed back

Elementwise functions between them are transposed too, and attention in steps becomes one operator.
Transposing back and forth takes views, which vanish between two transposed operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.int8_columns import ByteAttention, NormalisedColumns
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.views import Expand, Permute, Reshape
from sparsejit.ir.spec import LARGEST_SCALE, SMALLEST_SCALE, DType, Quantisation
from sparsejit.ir.values import Array, Element, Value
from sparsejit.passes.quantised_layers import steps_of
from sparsejit.passes.rewriter import Site, rewrite

# Forms of a value (samples, tokens, features) whose features are heads * each: as it is, as
# (samples, tokens, heads, each), as (samples, heads, tokens, each), (samples, heads, each, tokens).
_ROWS, _SPLIT, _HEADS, _TURNED = "rows", "split", "heads", "turned"
_PERMUTED: dict[tuple[str, tuple[int, ...]], str] = {
    (_SPLIT, (0, 2, 1, 3)): _HEADS,
    (_SPLIT, (0, 2, 3, 1)): _TURNED,
    (_HEADS, (0, 2, 1, 3)): _SPLIT,
    (_HEADS, (0, 1, 3, 2)): _TURNED,
}
_AXES = {_HEADS: (0, 2, 1, 3), _TURNED: (0, 2, 3, 1)}


class _Turned(NamedTuple):
    """A value's transposed form, `columns` (1, features, columns), and the value's own layout.

    `form` is "rows" for (samples, tokens, features), or names an order of axes with heads.
    """

    columns: Value
    form: str


def byte_columns(graph: Graph, wins: Callable[[Node], bool]) -> Graph:
    """The graph with int8 linear layers, where `wins` accepts them, on transposed values.

    Values between such layers are transposed too, to (1, features, columns). `wins` is asked only
    about layers whose results all readers round to bytes.
    """
    readers = graph.consumers()
    rounded = _rounded_soon(graph, readers)
    found = (node for node in graph.nodes if _is_layer(node) and node.output in rounded)
    layers = {node.output for node in found if wins(node)}
    if not layers:
        return graph
    wanted = {v for v, nodes in readers.items() if any(n.outputs[0] in layers for n in nodes)}
    for node in reversed(graph.nodes):
        if isinstance(node.op, Reshape) and node.output in wanted:
            wanted.add(node.inputs[0])
    return rewrite(graph, _Turning(layers, wanted).rule)


def _is_layer(node: Node) -> bool:
    op = node.op
    return isinstance(op, Linear) and op.dtype is DType.INT8 and op.x_steps is not None


def _rounded_soon(graph: Graph, readers: dict[Value, list[Node]]) -> set[Value]:
    """Values that all readers round to a scale and zero point, at once or after sums and views."""
    numbers = {v: a.flat[0].item() for v, a in graph.constants.items() if a.size == 1}
    rounded: set[Value] = set()
    for node in reversed(graph.nodes):
        for value in node.outputs:
            if value in graph.outputs or not readers[value]:
                continue
            found = readers[value]
            if all(steps_of(each, numbers.get) or _passes_on(each, rounded) for each in found):
                rounded.add(value)
    return rounded


def _passes_on(node: Node, rounded: set[Value]) -> bool:
    is_sum = isinstance(node.op, Pointwise) and node.op.kind == "add"
    return (is_sum or isinstance(node.op, Reshape)) and node.output in rounded


class _Turning:
    """Rules that transpose nodes to (1, features, columns).

    `layers` are outputs of linear layers to transpose, `wanted` their operands.
    """

    def __init__(self, layers: set[Value], wanted: set[Value]) -> None:
        self._layers, self._wanted = layers, wanted
        self._turned: dict[Value, _Turned] = {}

    def rule(self, site: Site) -> Sequence[Value] | None:
        op = site.op
        if isinstance(op, Linear):
            return self._layer(site, op) if site.outputs[0] in self._layers else None
        if isinstance(op, Reshape | Permute):
            return self._view(site, op)
        if not isinstance(op, Chain | Pointwise) or len(site.outputs) != 1:
            return None
        if isinstance(op, Chain) and op.reduces:
            return self._norm(site)
        return self._attention(site) or self._elementwise(site)

    def _columns(self, site: Site, value: Value) -> Value:
        """A value (*, features) transposed to (1, features, columns), a column for each row."""
        if value in self._turned:
            return self._turned[value].columns
        features = value.shape[-1]
        flat = site.one(Reshape((1, value.type.size // features, features)), value)
        return site.one(Permute((0, 2, 1)), flat)

    def _back(self, site: Site, columns: Value, form: str) -> tuple[Value]:
        """The site's result, transposed back from (1, features, columns) to the layout `form`.

        The columns are noted, so that a reader that is transposed too takes them.
        """
        shape = site.output.shape
        if form in _AXES:
            shape = tuple(np.array(shape)[np.argsort(_AXES[form])].tolist())
        value = site.one(Reshape(shape), site.one(Permute((0, 2, 1)), columns))
        if form in _AXES:
            value = site.one(Permute(_AXES[form]), value)
        self._turned[value] = _Turned(columns, form)
        return (value,)

    def _layer(self, site: Site, op: Linear) -> Sequence[Value] | None:
        x, weights, *bias = site.inputs
        rows = site.array(weights)
        known = self._turned.get(x)
        if rows is None or (known is not None and known.form != _ROWS):
            return None
        made = Convolution(
            *((1,), (0,), (1,)),
            activation=op.activation,
            dtype=op.dtype,
            x_steps=op.x_steps,
        )
        taps = site.constant(rows.reshape(*rows.shape, 1), weights.origin)
        return self._back(site, site.one(made, self._columns(site, x), taps, *bias), _ROWS)

    def _view(self, site: Site, op: Reshape | Permute) -> Sequence[Value] | None:
        known = self._turned.get(site.inputs[0])
        if known is None:
            return None
        kept = site.keep()
        form = _form_of(op, known.form, site.inputs[0].shape)
        if form is not None:
            self._turned[kept[0]] = known._replace(form=form)
        return kept

    def _elementwise(self, site: Site) -> Sequence[Value] | None:
        """The site's function computed on columns (1, features, columns), then transposed back.

        None unless an operand is transposed already; constants may vary by feature.
        """
        forms = {self._turned[v].form for v in site.inputs if v in self._turned}
        if len(forms) != 1 or not _is_float(site):
            return None
        (form,), operands = forms, list[Value]()
        for value in site.inputs:
            array = site.array(value)
            if array is None and value.shape == site.output.shape:
                if value not in self._turned and form != _ROWS:
                    return None
                operands.append(self._columns(site, value))
                continue
            turned = None if array is None else _by_feature(array, site.output.shape, form)
            if turned is None:
                return None
            operands.append(site.constant(turned, value.origin))
        op = site.op
        product = self._with_bias(site, operands)
        if product is not None:
            return self._back(site, product, form)
        if isinstance(op, Chain):
            shape = next(v.shape for v in operands if len(v.shape) == 3 and v.shape[0] == 1)
            op = replace(op, shape=shape)
        columns = site.one(op, *operands)
        return self._back(site, columns, form)

    def _with_bias(self, site: Site, operands: list[Value]) -> Value | None:
        """The convolution that takes the constant added by the site as its bias, else None.

        It must have no bias yet, and nothing else may read its result.
        """
        if not isinstance(site.op, Pointwise) or site.op.kind != "add":
            return None
        for place, columns in enumerate(operands):
            layer, bias = site.producer(columns), site.array(operands[1 - place])
            if layer is None or not isinstance(layer.op, Convolution) or bias is None:
                continue
            if len(layer.inputs) == 2 and site.is_used_once(site.inputs[place]):
                vector = np.broadcast_to(bias.reshape(-1), columns.shape[1:2])
                named = site.constant(np.array(vector), operands[1 - place].origin)
                return site.one(layer.op, *layer.inputs, named, origin=layer.output.origin)
        return None

    def _norm(self, site: Site) -> Sequence[Value] | None:
        """Replace a layer norm and the additions before it by a `NormalisedColumns`, else None."""
        op, shape = site.op, site.output.shape
        assert isinstance(op, Chain)
        x, *numbers = site.inputs
        if op != row_chains.layer_norm(shape, True, True) or x.shape != shape:
            return None
        if x not in self._turned and site.outputs[0] not in self._wanted:
            return None
        share, epsilon = (site.number(value) for value in numbers[:2])
        weight, bias = (site.array(value) for value in numbers[2:])
        features = shape[-1]
        if share != np.float32(1 / features) or epsilon is None or weight is None or bias is None:
            return None
        if weight.size != features or bias.size != features:
            return None
        added, more = self._summands(site, self._columns(site, x))
        steps = tuple(each.steps for each in added)
        parameters = np.stack([more, weight.reshape(-1), bias.reshape(-1)]).astype(np.float32)
        operands = [each.value for each in added]
        made = NormalisedColumns(epsilon, steps)
        columns = site.one(made, *operands, site.constant(parameters, numbers[2].origin))
        return self._back(site, columns, _ROWS)

    def _summands(self, site: Site, x: Value) -> tuple[list["_Summand"], Array]:
        """The summands of x that are no constants, two at most; the constants' sum by feature."""
        added, more = [x], np.zeros(x.shape[1], np.float64)
        for number in range(2):
            while number < len(added) and (parts := _parts_of_sum(site, added[number])):
                known = [array for part in parts if (array := site.array(part)) is not None]
                values = [part for part in parts if site.array(part) is None]
                is_vast = any(each.size > x.shape[1] for each in known)
                if is_vast or len(added) - 1 + len(values) > 2:
                    break
                more += sum(each.reshape(-1) for each in known)
                added[number : number + 1] = values
        return [_summand(site, value) for value in added], more

    def _attention(self, site: Site) -> Sequence[Value] | None:
        """Replace two products and the softmax between them by one `ByteAttention`, else None.

        Each of their results must be rounded.
        """
        mixed = _rounded(site, Node(site.op, site.inputs, site.outputs))
        product = None if mixed is None else _product(site, mixed[0])
        if mixed is None or product is None or product.op != Bmm():
            return None
        shares = _rounded(site, site.producer(product.inputs[0]))
        softmax = None if shares is None else site.producer(shares[0])
        if shares is None or softmax is None or shares[1].zero_point != -128:
            return None
        if softmax.op != row_chains.softmax(softmax.output.shape):
            return None
        unmasked, mask = _unmasked(site, softmax.inputs[0])
        scaled, scale = _unscaled(site, unmasked)
        scores = _rounded(site, site.producer(scaled))
        first = None if scores is None else _product(site, scores[0])
        if scores is None or first is None or not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
            return None
        assert isinstance(first.op, Bmm)
        query = self._operand(site, first.inputs[0], _HEADS)
        key = self._operand(site, first.inputs[1], _HEADS if first.op.transposed else _TURNED)
        value = self._operand(site, product.inputs[1], _HEADS)
        _, heads, length, each = product.output.shape
        if query is None or key is None or value is None or each % 4:
            return None
        if not query[0].shape == key[0].shape == value[0].shape:
            return None
        steps, operands = (query[1], key[1], value[1]), [query[0], key[0], value[0]]
        if mask is not None:
            samples = product.output.shape[0]
            rows = site.one(Reshape((mask.type.size // length, length)), mask)
            operands.append(site.one(Expand((samples, length)), rows))
        op = ByteAttention(heads, length, scale, steps, scores[1], shares[1], mixed[1])
        return self._back(site, site.one(op, *operands), _HEADS)

    def _operand(self, site: Site, value: Value, form: str) -> tuple[Value, Quantisation] | None:
        """The columns of a value in the layout `form`, and the scale and zero point that round it.

        None where it is not transposed from that layout, or not rounded.
        """
        known = self._turned.get(value)
        if known is None or known.form != form:
            return None
        return _rounded(site, site.producer(known.columns))


class _Summand(NamedTuple):
    value: Value
    steps: Quantisation | None


def _summand(site: Site, value: Value) -> _Summand:
    return _Summand(*(_rounded(site, site.producer(value)) or (value, None)))


def _rounded(site: Site, node: Node | None) -> tuple[Value, Quantisation] | None:
    return steps_of(node, site.number)


def _product(site: Site, value: Value) -> Node | None:
    """The `Bmm` of scale 1 that makes a value with one reader; None for any other value."""
    node = site.producer(value)
    is_plain = node is not None and isinstance(node.op, Bmm) and node.op.scale == 1
    is_square = is_plain and len(value.shape) == 4
    return node if is_square and site.is_used_once(value) else None


def _unscaled(site: Site, value: Value) -> tuple[Value, float]:
    node = site.producer(value)
    if node is None or not isinstance(node.op, Pointwise) or node.op.kind not in ("mul", "div"):
        return value, 1.0
    first, second = node.inputs
    number = site.number(second)
    if number is None and node.op.kind == "mul":
        first, number = second, site.number(first)
    if not number:
        return value, 1.0
    return first, number if node.op.kind == "mul" else 1 / number


def _unmasked(site: Site, value: Value) -> tuple[Value, Value | None]:
    """Scores before a mask is added to them, and that mask (samples or 1, 1, 1, keys), if any."""
    for scores, mask in (parts, parts[::-1]) if (parts := _parts_of_sum(site, value)) else ():
        if scores.shape == value.shape and len(mask.shape) == 4 and mask.shape[1] == 1:
            found = _by_key(site, mask)
            if found is not None:
                return scores, found
    return value, None


def _by_key(site: Site, value: Value) -> Value | None:
    """A mask's row for one query (..., 1, keys), if all queries have the same; else None."""
    if len(value.shape) < 2 or value.shape[-2] == 1:
        return value
    array, node = site.array(value), site.producer(value)
    if array is not None:
        first = array[..., :1, :]
        return site.constant(first, value.origin) if (array == first).all() else None
    if node is None or not isinstance(node.op, Pointwise):
        return None
    operands = [_by_key(site, each) for each in node.inputs]
    known = [each for each in operands if each is not None]
    return site.one(node.op, *known) if len(known) == len(operands) else None


def _parts_of_sum(site: Site, value: Value) -> tuple[Value, ...] | None:
    node = site.producer(value)
    is_sum = node is not None and isinstance(node.op, Pointwise) and node.op.kind == "add"
    return node.inputs if node is not None and is_sum else None


def _is_float(site: Site) -> bool:
    return all(v.type.element is Element.FLOAT32 for v in (*site.inputs, *site.outputs))


def _form_of(op: Reshape | Permute, form: str, shape: tuple[int, ...]) -> str | None:
    """The layout that a Reshape or Permute makes of the layout `form`; None if it has no name."""
    if isinstance(op, Permute):
        return _PERMUTED.get((form, op.axes))
    if form == _ROWS:
        if op.shape[-1] == shape[-1]:
            return _ROWS
        is_split = len(op.shape) == 4 and prod(op.shape[2:]) == shape[-1]
        return _SPLIT if is_split else None
    if form == _SPLIT and prod(op.shape[:-1]) == prod(shape[:2]):
        return _ROWS
    return None


def _by_feature(array: Array, shape: tuple[int, ...], form: str) -> Array | None:
    """A constant that broadcasts to (*, features), reshaped to broadcast to (1, features, columns).

    None unless it is a number, or a vector by feature of the layout "rows".
    """
    if array.size == 1:
        return array.reshape(())
    is_vector = array.size == array.shape[-1] == shape[-1]
    return array.reshape(-1, 1) if is_vector and form == _ROWS else None
