"""Products with constants are Linear, products of two activations are Bmm.

y = bmm(x, B)     (B constant)    y = linear(x, B^T)
z = linear(x, y, b)          ->   p = bmm[transposed](x, y)
                                  z = add(p, b)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.pointwise import Pointwise, write_activation
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite


def sort_products(graph: Graph) -> Graph:
    """The graph with every Linear's weights and bias constant, and no Bmm by one matrix."""
    return rewrite(graph, _bmm_to_linear, _linear_to_bmm, _bias_to_add)


def _bmm_to_linear(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Bmm):
        return None
    x, matrix = site.inputs
    array = site.array(matrix)
    if array is None or prod(matrix.shape[:-2]) != 1 or len(matrix.shape) > len(x.shape):
        return None
    if site.is_constant(x):
        return None
    square = array.reshape(matrix.shape[-2:]).astype(np.float64) * site.op.scale
    weights = square if site.op.transposed else square.T
    return (site.one(Linear(), x, site.constant(np.ascontiguousarray(weights), matrix.origin)),)


def _linear_to_bmm(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Linear) or site.is_constant(site.inputs[1]):
        return None
    x, weights, *bias = site.inputs
    matrix = x if len(x.shape) > 1 else site.one(Reshape((1, *x.shape)), x)
    product = site.one(Bmm(transposed=True), matrix, weights)
    if len(x.shape) == 1:
        product = site.one(Reshape(site.output.shape), product)
    return (_finished(site, product, bias),)


def _bias_to_add(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Linear) or all(map(site.is_constant, site.inputs[2:])):
        return None
    x, weights, *bias = site.inputs
    plain = replace(site.op, activation=Activation.NONE)
    return (_finished(site, site.one(plain, x, weights), bias),)


def _finished(site: Site, product: Value, bias: Sequence[Value]) -> Value:
    """A Linear's product followed by its bias and activation as separate functions."""
    assert isinstance(site.op, Linear)
    for value in bias:
        product = site.one(Pointwise("add"), product, value)
    return write_activation(
        site.op.activation,
        product,
        lambda kind, *operands: site.one(Pointwise(kind), *operands),
        lambda number: site.constant(np.array(number, np.float32)),
    )
