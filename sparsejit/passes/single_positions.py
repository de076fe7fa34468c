"""Convolutions over two axes, one of them of one element, as convolutions over the other axis.

x (batch, channels, 29, 1), W (out, in, 20, 1)   ->   x (batch, channels, 29), W (out, in, 20)

Kernels have positions of the last axis as lanes, which would hold one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite


def leave_single_positions(graph: Graph) -> Graph:
    """The graph with convolutions over one axis where the other has one element."""
    return rewrite(graph, _over_one_axis)


def _over_one_axis(site: Site) -> Sequence[Value] | None:
    op = site.op
    if not isinstance(op, Convolution) or op.transposed or op.rounding is not None:
        return None
    x, weights, *others = site.inputs
    array = site.array(weights)
    if array is None or len(op.stride) != 2:
        return None
    sizes = zip(x.shape[2:], weights.shape[2:], op.padding, strict=True)
    single = [axis for axis, each in enumerate(sizes) if each == (1, 1, 0)]
    if not single:
        return None
    kept = 1 - single[-1]
    stride, padding, dilation = ((each[kept],) for each in (op.stride, op.padding, op.dilation))
    smaller = replace(op, stride=stride, padding=padding, dilation=dilation)

    def without(value: Value) -> Value:
        shape = (*value.shape[:2], value.shape[2 + kept])
        return site.one(Reshape(shape), value, origin=value.origin)

    taps = site.constant(array.reshape(*array.shape[:2], -1), weights.origin)
    operands = [each if len(each.shape) == 1 else without(each) for each in others]
    made = site.one(smaller, without(x), taps, *operands)
    return (site.one(Reshape(site.output.shape), made),)
