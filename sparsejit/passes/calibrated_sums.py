"""Rounds the operands of sums of images, so that these may stay bytes between convolutions.

    p = conv(x, W, b)                       p = conv(x, W, b)
    y = add(p, q)                 ->        y = add(rounded(p; of p), rounded(q; of q))

An operand that convolutions read in steps is rounded to these steps.
"""

from collections.abc import Iterable, Mapping, Sequence

from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import SumScales
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Element, Value
from sparsejit.passes.quantised_values import rounded_to_steps
from sparsejit.passes.rewriter import Site, rewrite


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
    """The graph in which the operands of these sums are rounded."""
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
    """The names of sums that still read an operand rounded by a chain for them alone."""
    producers = graph.producers()
    return {
        node.output.origin.name
        for node in graph.nodes
        if _is_sum(node) and any(map(_is_rounding, map(producers.get, node.inputs)))
    }


def _is_rounding(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Chain) and node.op.title == "quantised"


def _steps_by_value(graph: Graph) -> Mapping[Value, QuantisedSteps]:
    """The steps in which int8 convolutions read each x."""
    return {
        node.inputs[0]: QuantisedSteps(node.op.input_scale, node.op.input_shift or 0)
        for node in graph.nodes
        if isinstance(node.op, Convolution)
        and node.op.dtype is DType.INT8
        and node.op.input_scale is not None
    }


def _rounded(site: Site, value: Value, steps: QuantisedSteps) -> Value:
    chain, numbers = rounded_to_steps(value.shape, steps.scale, steps.shift)
    return site.one(chain, value, *map(site.constant, numbers), origin=value.origin)
