"""Lets a product apply the activation that follows it.

y = linear(x, W, b)               z = linear[relu](x, W, b)
z = relu(y)                  ->

y = linear[relu](x, W, b)         z = linear[relu6](x, W, b)
z = minimum(y, 6)            ->
"""

from dataclasses import replace

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, rounds
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite

FUSED = {
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
    "sigmoid": Activation.SIGMOID,
}


def fuse_activations(graph: Graph) -> Graph:
    """The graph with activations inside the products that nothing else reads."""
    return rewrite(graph, _fuse)


def _fuse(site: Site) -> tuple[Value, ...] | None:
    if not isinstance(site.op, Pointwise):
        return None
    product = site.producer(site.inputs[0])
    if product is None or not isinstance(product.op, Linear | Convolution) or rounds(product.op):
        return None
    both = _both(product.op.activation, site)
    same = site.output.type == product.output.type
    if both is None or not same or not site.is_used_once(product.output):
        return None
    fused = replace(product.op, activation=both)
    return site.add(fused, *product.inputs, origins=[product.output.origin])


def _both(first: Activation, site: Site) -> Activation | None:
    """The activation that equals `first`, then the site's function; None if there is none."""
    assert isinstance(site.op, Pointwise)
    if first is Activation.NONE:
        return FUSED.get(site.op.kind)
    if first is Activation.RELU and site.op.kind == "minimum":
        return Activation.RELU6 if site.number(site.inputs[1]) == 6 else None
    return None
