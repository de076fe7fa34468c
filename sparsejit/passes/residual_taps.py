"""Adds the operand of a residual sum as a tap of the convolution by channel that reads it too.

    y = conv[by channel](x, W, b)
    z = add(y, x from element o on)   ->   z = conv[by channel](x, W + 1 at the tap of o, b)

The operand is x, a slice of x, or a value that x is concatenated of, as in networks with memories
(FSMN): the window of every position has its element under one tap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation, DType
from sparsejit.ir.values import Value, axis_of
from sparsejit.passes.rewriter import Site, rewrite


def fold_residual_taps(graph: Graph) -> Graph:
    """The graph with such sums inside of convolutions in float32 that nothing else reads."""
    return rewrite(graph, _fold)


def _fold(site: Site) -> Sequence[Value] | None:
    if not _is_sum(site.op) or not site.is_float:
        return None
    for value, added in (site.inputs, site.inputs[::-1]):
        node = _convolution(site, value)
        tap = None if node is None or added.shape != value.shape else _tap(site, node, added)
        if node is None or tap is None:
            continue
        x, weights, *bias = node.inputs
        array = site.array(weights)
        assert array is not None
        taps = array.astype(np.float64)
        flat = taps.reshape(len(taps), -1)
        flat[:, np.ravel_multi_index(tap, taps.shape[2:])] += 1.0
        with_tap = site.constant(taps.astype(np.float32), weights.origin)
        made = site.one(node.op, x, with_tap, *bias, origin=node.output.origin)
        return (made if made.shape == site.output.shape else site.one(Reshape(value.shape), made),)
    return None


def _is_sum(op: Operator) -> bool:
    """Whether an operator adds two operands, and does nothing else."""
    if isinstance(op, Chain):
        return op.steps == (ChainStep("add", (0, 1)),) and not op.reduces
    return isinstance(op, Pointwise) and op.kind == "add"


def _convolution(site: Site, value: Value) -> Node | None:
    """The float32 convolution by channel behind a value that nothing else reads, else None."""
    node = site.producer(value)
    if node is not None and isinstance(node.op, Reshape) and site.is_used_once(value):
        (value,) = node.inputs
        node = site.producer(value)
    if node is None or not isinstance(node.op, Convolution) or not site.is_used_once(value):
        return None
    op, (x, weights, *_) = node.op, node.inputs
    is_plain = op.activation is Activation.NONE and op.x_steps is None and op.rounding is None
    by_channel = not op.transposed and op.groups == x.shape[1] == node.output.shape[1] > 1
    is_float = op.dtype is DType.FLOAT32 and site.is_constant(weights) and len(node.inputs) < 4
    return node if is_plain and by_channel and is_float and set(op.stride) == {1} else None


def _tap(site: Site, node: Node, added: Value) -> tuple[int, ...] | None:
    """The tap under which all windows of a convolution have the elements of a value, else None."""
    op, (x, weights, *_) = node.op, node.inputs
    assert isinstance(op, Convolution)
    offsets = _offsets(site, x, added)
    if offsets is None:
        return None
    taps = []
    for axis, offset in enumerate(offsets):
        place = offset + op.padding[axis]
        if place % op.dilation[axis] or place // op.dilation[axis] >= weights.shape[2 + axis]:
            return None
        taps.append(place // op.dilation[axis])
    return tuple(taps)


def _offsets(site: Site, x: Value, added: Value) -> list[int] | None:
    """The place in an image, by spatial axis, from which on its elements are a value's; or None."""
    source, wanted = _before_reshapes(site, x), _before_reshapes(site, added)
    offsets, single = [0] * (len(source.shape) - 2), len(source.shape) > len(x.shape)
    if source is not wanted:
        found = _part(site, source, wanted)
        if found is None or found[0] < 2:
            return None
        offsets[found[0] - 2] = found[1]
    if not single:
        return offsets if len(source.shape) == len(x.shape) else None
    # An axis of one element was left out.
    kept = [n for n, length in enumerate(source.shape[2:]) if length > 1]
    return [offsets[n] for n in kept] if len(kept) == len(x.shape) - 2 else None


def _part(site: Site, source: Value, wanted: Value) -> tuple[int, int] | None:
    """Axis and first element of a value that is a part of another, as operand or as slice."""
    node, behind = site.producer(source), site.producer(wanted)
    if node is not None and isinstance(node.op, Concat):
        axis, first = axis_of(node.op.axis, len(source.shape)), 0
        for each in node.inputs:
            if each is wanted or _before_reshapes(site, each) is wanted:
                return axis, first
            first += each.shape[axis]
    if behind is None or not isinstance(behind.op, Slice) or behind.op.step != 1:
        return None
    is_slice = _before_reshapes(site, behind.inputs[0]) is source
    return (axis_of(behind.op.axis, len(source.shape)), behind.op.first) if is_slice else None


def _before_reshapes(site: Site, value: Value) -> Value:
    """A value before reshapes that only add or remove axes of one element at its end."""
    node = site.producer(value)
    while node is not None and isinstance(node.op, Reshape):
        (before,) = node.inputs
        short, long = sorted((before.shape, value.shape), key=len)
        if long[: len(short)] != short or {*long[len(short) :]} - {1}:
            break
        value, node = before, site.producer(before)
    return value
