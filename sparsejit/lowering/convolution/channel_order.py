"""Choose the images of convolutions by channel whose channels lie side by side, by predicted time.

    p = permute(h, (0, 2, 1))                  q = concat(permute(cache), h)    axis 1
    x = concat(cache, p)        axis 2    ->   x = permute(q, (0, 2, 1))
    y = conv[by channel](x, W)                 y = conv[by channel](x, W)

A linear layer writes h to its part of q then, and the convolution has channels in its lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.views import Concat, Permute, Reshape
from sparsejit.ir.values import Element, Value, axis_of
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.depthwise import is_depthwise, lies_by_channel, lies_in_lanes
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.planner.cheapest_row import about

# Axes of an image with one axis of positions, in the order in which its channels lie side by side,
# by rank; and the way back.
_ORDERS = {3: ((0, 2, 1), (0, 2, 1)), 4: ((0, 2, 3, 1), (0, 3, 1, 2))}
_TIME = 2


def with_channel_order(graph: Graph, options: ModelOptions) -> Graph:
    """The graph whose concatenated images have channels side by side, where that is faster."""
    readers, producers = graph.consumers(), graph.producers()
    chosen = {
        node.output
        for node in graph.nodes
        if isinstance(node.op, Concat) and _gains(node, readers, producers, options)
    }

    def rule(site: Site) -> Sequence[Value] | None:
        if site.outputs[0] not in chosen:
            return None
        order, back = _ORDERS[len(site.output.shape)]
        parts = [site.one(Permute(order), value) for value in site.inputs]
        return (site.one(Permute(back), site.one(Concat(1), *parts)),)

    return rewrite(graph, rule) if chosen else graph


def _gains(
    node: Node,
    readers: Mapping[Value, Sequence[Node]],
    producers: Mapping[Value, Node],
    options: ModelOptions,
) -> bool:
    """Whether a concat should have its channels side by side."""
    op, value = node.op, node.output
    assert isinstance(op, Concat)
    shape = value.shape
    is_image = len(shape) in _ORDERS and value.type.element is Element.FLOAT32
    if not is_image or axis_of(op.axis, len(shape)) != _TIME or shape[3:] not in ((), (1,)):
        return False
    layers = [each for each in _convolutions(value, readers) if is_depthwise(each)]
    turned = {each for each in node.inputs if _comes_by_channel(each, producers)}
    if len(layers) != 1 or not turned:
        return False
    about(layers[0].output.origin.layer)
    of_turned = sum(each.type.bytes for each in turned)
    return lies_in_lanes(layers[0], of_turned, value.type.bytes - of_turned, options.target)


def _convolutions(value: Value, readers: Mapping[Value, Sequence[Node]]) -> list[Node]:
    """The convolutions that read an image, or a Reshape of it."""
    found: list[Node] = []
    for node in readers[value]:
        if isinstance(node.op, Reshape):
            found += _convolutions(node.output, readers)
        elif isinstance(node.op, Convolution) and node.inputs[0] is value:
            found.append(node)
    return found


def _comes_by_channel(value: Value, producers: Mapping[Value, Node]) -> bool:
    """Whether views alone make a value of one whose channels lie side by side."""
    path: list[Node] = []
    source = value
    while (node := producers.get(source)) and isinstance(node.op, Reshape | Permute):
        path.insert(0, node)
        (source,) = node.inputs
    if source not in producers or source is value:
        return False
    view: View | None = View.whole(Buffer(source.type.bytes), source.type)
    for node in path:
        if view is not None and isinstance(node.op, Reshape):
            view = view.reshaped(node.op.shape)
        elif view is not None and isinstance(node.op, Permute):
            view = view.permuted(node.op.axes)
    return view is not None and lies_by_channel(view)
