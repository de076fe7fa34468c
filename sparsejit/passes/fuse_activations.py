"""Lets a product apply the activation that follows it.

y = linear(x, W, b)               z = linear[relu](x, W, b)
z = relu(y)                  ->
"""

from dataclasses import replace

from sparsejit.ir.graph import Graph, Value
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation
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
    activation = FUSED.get(site.op.kind) if isinstance(site.op, Pointwise) else None
    product = site.producer(site.inputs[0]) if activation else None
    if activation is None or product is None or not isinstance(product.op, Linear | Convolution):
        return None
    if product.op.activation is not Activation.NONE or not site.is_used_once(product.output):
        return None
    fused = replace(product.op, activation=activation)
    return site.add(fused, *product.inputs, origins=[product.output.origin])
