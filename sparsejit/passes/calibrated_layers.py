"""Layers with scales from calibration, and sums of images with rounded operands.

    with_scales         stores layers with scales
    in_float32          restores them in float32
    with_rounded_sums   rounds the operands of sums of images

`with_scales`:

    y = linear(x, W, b)      ->      z = x / factors
                                     y = linear[int8; scale, shift](z, W factors, b + correction)

`with_rounded_sums`, so that images may stay bytes between convolutions:

    p = conv(x, W, b)                       p = conv(x, W, b)
    y = add(p, q)                 ->        y = add(rounded(p; of p), rounded(q; of q))

An operand that convolutions read in steps is rounded to these steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales, SumScales
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.ops.sampling import GruStep, SumOfRows
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Array, Element, Origin, Value
from sparsejit.passes.quantised_layers import rounded_to_steps
from sparsejit.passes.rewriter import Site, rewrite

# Operators with weights that may be stored in a dtype.
STORING = Linear | Convolution | Recurrence | SumOfRows | GruStep


def keyed_layers(graph: Graph) -> dict[LayerKey, Node]:
    """The nodes that store weights, by the `LayerKey` of each, in the graph's order."""
    number = _Numbering()
    return {
        number(node.op, node.inputs, node.outputs): node
        for node in graph.nodes
        if isinstance(node.op, STORING)
    }


def weights_of(node: Node) -> Value:
    """The operand that has a layer's weights."""
    return _weights(node.op, node.inputs)


def _weights(op: Operator, inputs: Sequence[Value]) -> Value:
    return inputs[1 if isinstance(op, Linear | Convolution) else -2]  # before the bias


class _Numbering:
    """Makes keys of layers, and counts layers of the same weights."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def __call__(
        self, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> LayerKey:
        layer, weights = outputs[0].origin.layer, _weights(op, inputs).origin.name
        self._seen[weights] += 1
        return LayerKey(layer, weights, self._seen[weights] - 1)


def with_scales(graph: Graph, layers: Sequence[LayerScales]) -> Graph:
    """The graph with its float32 layers stored with these scales; others stay as they are.

    Raises InvalidInput for scales of a layer that the graph lacks or that has other weights.
    """
    _check_layers(graph, layers)
    by_place = {each.place: each for each in layers if each.dtype is not DType.FLOAT32}

    def store(site: Site, op: STORING, key: LayerKey) -> Sequence[Value] | None:
        found = by_place.get(key.place)
        if found is None or op.dtype is not DType.FLOAT32:
            return None
        if not isinstance(op, Linear | Convolution):
            return site.add(replace(op, dtype=found.dtype), *site.inputs)
        made = replace(op, dtype=found.dtype, x_steps=found.x_steps)
        x, weights, *others = site.inputs
        if found.factors is not None:
            x, weights = _equalised(site, found.factors)
        return _with_bias(site, made, (x, weights, *others), found.correction)

    return _at_layers(graph, store)


def _check_layers(graph: Graph, layers: Iterable[LayerScales]) -> None:
    shapes = {key.place: weights_of(node).shape for key, node in keyed_layers(graph).items()}
    for each in layers:
        found = shapes.get(each.place)
        if found is None and each.dtype is not DType.FLOAT32:
            raise InvalidInput(
                f"the scales name {each.weights}, which no layer of the model multiplies with; "
                "give the scales that quantise chose for this model"
            )
        if found is not None and each.shape and found != each.shape:
            raise InvalidInput(
                f"the scales are for {each.weights} of shape {each.shape}, the model has "
                f"{found}; give the scales that quantise chose for this model"
            )


def in_float32(graph: Graph, layers: Iterable[LayerScales]) -> Graph:
    """Restore float32 layers in a graph that passes made from a result of `with_scales`.

    Corrections of biases are taken back. Layers that the model itself quantises with a zero point
    stay so, unless `layers` names them.
    """
    by_place = {each.place: each for each in layers if each.dtype is not DType.FLOAT32}

    def restore(site: Site, op: STORING, key: LayerKey) -> Sequence[Value] | None:
        found = by_place.get(key.place)
        if op.dtype is DType.FLOAT32:
            return None
        if not isinstance(op, Linear | Convolution):
            return site.add(replace(op, dtype=DType.FLOAT32), *site.inputs)
        if found is None and op.x_steps is not None and not op.x_steps.symmetric:
            return None
        plain = replace(op, dtype=DType.FLOAT32, x_steps=None)
        if isinstance(plain, Convolution):
            plain = replace(plain, rounding=None)
        correction = None if found is None else found.correction
        return _with_bias(
            site, plain, site.inputs, None if correction is None else -correction
        )

    return _at_layers(graph, restore)


def _at_layers(
    graph: Graph, change: Callable[[Site, STORING, LayerKey], Sequence[Value] | None]
) -> Graph:
    """The graph with each node that stores weights replaced by `change(site, op, key)`.

    `change` returns None to keep a node.
    """
    number = _Numbering()

    def rule(site: Site) -> Sequence[Value] | None:
        if not isinstance(site.op, STORING):
            return None
        return change(site, site.op, number(site.op, site.inputs, site.outputs))

    return rewrite(graph, rule)


def _equalised(site: Site, factors: Array) -> tuple[Value, Value]:
    """Return x / factors, with factors by channel, and weights * factors.

    Where x is relu(z), the first is relu(z / factors).
    """
    x, weights = site.inputs[:2]
    array = site.array(weights)
    assert array is not None
    around = (1,) * (array.ndim - 2)
    divided = site.constant((1 / factors).astype(np.float32).reshape(-1, *around))
    times = site.constant((array * factors.reshape(-1, *around)).astype(np.float32), weights.origin)
    node = site.producer(x)
    if node is None or node.op != Pointwise("relu"):
        return site.one(Pointwise("mul"), x, divided, origin=x.origin), times
    before = node.inputs[0]
    scaled = site.one(Pointwise("mul"), before, divided, origin=before.origin)
    return site.one(node.op, scaled, origin=x.origin), times


def _with_bias(
    site: Site,
    op: Linear | Convolution,
    inputs: Sequence[Value],
    correction: Array | None,
) -> Sequence[Value]:
    """The layer with these operands and a corrected bias, added if the layer has none."""
    x, weights, *others = inputs
    bias = site.array(others[0]) if others else np.zeros((), np.float32)
    if correction is None or bias is None:  # a computed bias is not known here
        return (site.one(op, *inputs),)
    origin = others[0].origin if others else Origin(f"{weights.origin.name}.bias")
    corrected = site.constant((bias + correction).astype(np.float32), origin)
    return (site.one(op, x, weights, corrected, *others[1:]),)


def sums_of_images(graph: Graph) -> dict[str, Node]:
    """The sums of two images, at least one of them a convolution's result, by name."""
    producers = graph.producers()
    return {
        node.output.origin.name: node
        for node in graph.nodes
        if _is_sum(node) and any(map(_is_convolution, map(producers.get, node.inputs)))
    }


def _is_sum(node: Node) -> bool:
    if not isinstance(node.op, Pointwise) or node.op.kind != "add":
        return False
    kinds = {value.type for value in (*node.inputs, node.output)}
    first, second = node.inputs
    is_image = len(first.shape) == 4 and first.type.element is Element.FLOAT32
    return is_image and len(kinds) == 1 and first is not second


def _is_convolution(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Convolution)


def with_rounded_sums(graph: Graph, sums: Iterable[SumScales]) -> Graph:
    """The graph in which the operands of these sums are rounded to their scales and zero points."""
    known, read_in = sums_of_images(graph), _steps_by_value(graph)
    rounded = {
        each.name: [
            read_in.get(value, steps)
            for value, steps in zip(
                known[each.name].inputs, (each.first, each.second), strict=True
            )
        ]
        for each in sums
        if each.name in known
    }

    def rule(site: Site) -> Sequence[Value] | None:
        found = rounded.get(site.outputs[0].origin.name)
        if found is None or site.op != Pointwise("add"):
            return None
        pairs = zip(site.inputs, found, strict=True)
        return (site.one(site.op, *(_rounded(site, value, steps) for value, steps in pairs)),)

    return rewrite(graph, rule)


def left_in_floats(graph: Graph) -> set[str]:
    """The names of sums of images that have an operand which a chain rounds, so it is in floats."""
    producers = graph.producers()
    return {
        node.output.origin.name
        for node in graph.nodes
        if _is_sum(node) and any(map(_is_rounding, map(producers.get, node.inputs)))
    }


def _is_rounding(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Chain) and node.op.title == "quantised"


def _steps_by_value(graph: Graph) -> Mapping[Value, Quantisation]:
    """The scale and zero point in which int8 convolutions read each x, where they are fixed."""
    return {
        node.inputs[0]: node.op.x_steps
        for node in graph.nodes
        if isinstance(node.op, Convolution)
        and node.op.dtype is DType.INT8
        and node.op.x_steps is not None
    }


def _rounded(site: Site, value: Value, steps: Quantisation) -> Value:
    chain, numbers = rounded_to_steps(value.shape, steps.scale, steps.zero_point)
    return site.one(chain, value, *map(site.constant, numbers), origin=value.origin)
