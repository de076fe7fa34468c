"""Replaces a layer norm that is written out, as in ONNX below opset 17, by one chain.

    c = sub(x, mean(x))
    v = mean(square(c))                                  y = layer_norm(x, w, b)
    y = add(mul(div(c, sqrt(add(v, epsilon))), w), b)    ->
"""

from collections.abc import Sequence

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import row_chains
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.passes.simplify_pointwise import kind_of


def recognise_norms(graph: Graph) -> Graph:
    """The graph with layer norms as one chain each."""
    return rewrite(graph, _norm)


def _norm(site: Site) -> Sequence[Value] | None:
    node = Node(site.op, site.inputs, site.outputs)
    scaled = _by_vector(site, node, "add")
    divided = scaled and _by_vector(site, site.producer(scaled[0]), "mul")
    ratio = site.producer(divided[0]) if divided else None
    if scaled is None or not divided or ratio is None or kind_of(ratio) != "div":
        return None
    centred, root = map(site.producer, ratio.inputs)
    if root is None or kind_of(root) != "sqrt":
        return None
    total = _by_vector(site, site.producer(root.inputs[0]), "add")
    squares = _mean(site, total[0]) if total else None
    square = None if squares is None else site.producer(squares)
    if not total or square is None or kind_of(square) != "square":
        return None
    if square.inputs != ratio.inputs[:1] or centred is None or kind_of(centred) != "sub":
        return None
    x, mean = centred.inputs
    if _mean(site, mean) is not x or x.shape != site.output.shape:
        return None
    share, epsilon = _share(site, mean), total[1]
    if share is None or epsilon.type.size != 1:
        return None
    operands = x, share, epsilon, divided[1], scaled[1]
    return (site.one(row_chains.layer_norm(x.shape, True, True), *operands),)


def _by_vector(site: Site, node: Node | None, kind: str) -> tuple[Value, Value] | None:
    """A function's operands, a value and a constant by feature; None for any other node."""
    if node is None or kind_of(node) != kind:
        return None
    for first, second in (node.inputs, node.inputs[::-1]):
        array = site.array(second)
        if array is not None and array.size in (1, *first.shape[-1:]) and array.ndim <= 1:
            return first, second
    return None


def _mean(site: Site, value: Value) -> Value | None:
    """The operand of the mean over the last axis that makes a value, else None."""
    node = site.producer(value)
    if node is None or node.op != row_chains.mean(node.inputs[0].shape):
        return None
    length = node.inputs[0].shape[-1]
    share = site.number(node.inputs[1])
    return node.inputs[0] if share is not None and abs(share * length - 1) < 1e-6 else None


def _share(site: Site, mean: Value) -> Value | None:
    node = site.producer(mean)
    return None if node is None else node.inputs[1]
