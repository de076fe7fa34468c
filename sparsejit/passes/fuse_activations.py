"""Moves activations into the products before them, and additions into convolutions.

    fuse_activations   a product applies the activation that follows it
    fuse_residuals     a convolution adds an operand to its result

`fuse_activations`:

    y = linear(x, W, b)               z = linear[relu](x, W, b)
    z = relu(y)                  ->

    y = linear[relu](x, W, b)         z = linear[relu6](x, W, b)
    z = minimum(y, 6)            ->

`fuse_residuals`:

    y = conv(x, W, b)
    z = add(y, r)                ->   z = conv(x, W, b, r)
"""

from dataclasses import replace
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, rounds
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import Activation, DType
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
    """The one activation that equals `first` and then the site's function; None if none does."""
    assert isinstance(site.op, Pointwise)
    if first is Activation.NONE:
        return FUSED.get(site.op.kind)
    if first is Activation.RELU and site.op.kind == "minimum":
        return Activation.RELU6 if site.number(site.inputs[1]) == 6 else None
    return None


def fuse_residuals(graph: Graph) -> Graph:
    """The graph with sums inside the convolutions that nothing else reads."""
    return rewrite(graph, _fuse_addition)


def _fuse_addition(site: Site) -> tuple[Value, ...] | None:
    if not isinstance(site.op, Pointwise) or site.op.kind != "add":
        return None
    # The later of two convolutions first: the result that is computed last is near.
    for value, added in (site.inputs[::-1], site.inputs):
        node = site.producer(value)
        if node is not None and _can_add(site, node) and added.type == site.output.type:
            x, weights, *bias = node.inputs
            if not bias:
                zeros = np.zeros(node.output.shape[1], np.float32)
                bias = [site.constant(zeros, weights.origin)]
            return site.add(node.op, x, weights, *bias, added, origins=[node.output.origin])
    return None


def _can_add(site: Site, node: Node) -> bool:
    """Whether `node` is a float convolution that can add the other operand of the site's sum.

    Nothing else may read it. It may not be transposed, grouped, have an activation, or be a product
    of one tap and one position.
    """
    op = node.op
    if not isinstance(op, Convolution) or op.transposed or op.dtype is DType.INT8:
        return False
    weights, is_plain = node.inputs[1].shape, op.activation is Activation.NONE
    is_many = max(prod(weights[2:]), prod(node.output.shape[2:])) > 1
    fits = len(node.inputs) < 4 and is_many and op.groups == 1
    is_result = node.output.type == site.output.type
    return fits and is_plain and is_result and site.is_used_once(node.output)
