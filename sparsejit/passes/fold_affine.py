"""Folds scales, shifts and recurrent biases into the product before or behind them.

`fold_affine`, scales and shifts of channels, as of batch-norm:

    y = conv(x, W, b)                 z = conv(x, W * s, b * s + t)
    m = mul(y, s)                ->
    z = add(m, t)

    m = mul(x, s)                     y = linear(x, W * s, b)
    y = linear(m, W, b)          ->

`fold_recurrent_bias`, once instead of at every step:

    g = linear(x, W_ih, b_ih)         g = linear(x, W_ih, b_ih + b_hh)
    h = lstm(g, h0, c0, W_hh, b_hh)   h = lstm(g, h0, c0, W_hh, 0)
                                 ->

A GRU does so for its gates r and z only: n multiplies its recurrent part by r first.

Products are computed in float64 and rounded once to float32. Zeros of W stay zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution, rounds
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.spec import Activation, DType
from sparsejit.ir.values import Array, Value
from sparsejit.passes.rewriter import Site, rewrite

Product = Linear | Convolution


class Affine(NamedTuple):
    """source * scale + shift; scale and shift broadcast to the source's shape."""

    source: Value
    scale: Array
    shift: Array

    def by_channel(self, axis: int) -> tuple[Array, Array] | None:
        """Scale and shift as vectors over that axis, or None where they vary along others."""
        scale, shift = (_vector(a, self.source.shape, axis) for a in (self.scale, self.shift))
        return None if scale is None or shift is None else (scale, shift)


def fold_affine(graph: Graph) -> Graph:
    """The graph without scales and shifts that products can take over."""
    return rewrite(graph, _fold_behind, _fold_before)


def _fold_behind(site: Site) -> Sequence[Value] | None:
    found = _affine(site, site.op, site.inputs)
    node = site.producer(found.source) if found is not None else None
    if found is None or node is None or not isinstance(node.op, Product):
        return None
    op = node.op
    is_plain = op.activation is Activation.NONE and not rounds(op)
    is_plain = is_plain and site.is_used_once(found.source)
    vectors = found.by_channel(_channel_axis(op, found.source))
    parts = _weights_and_bias(site, node.inputs)
    if not is_plain or vectors is None or parts is None or found.source.shape != site.output.shape:
        return None
    (scale, shift), (weights, bias) = vectors, parts
    scaled = _scale_outputs(op, weights, scale)
    return _product(site, op, node.inputs, scaled, bias * scale + shift, node.output)


def _fold_before(site: Site) -> Sequence[Value] | None:
    op = site.op
    if not isinstance(op, Product) or op.dtype is DType.INT8:
        return None  # int8 quantises x as it is
    node, parts = site.producer(site.inputs[0]), _weights_and_bias(site, site.inputs)
    found = _affine(site, node.op, node.inputs) if node is not None else None
    if node is None or found is None or parts is None or not site.is_used_once(node.output):
        return None
    if found.source.shape != node.output.shape:
        return None
    vectors = found.by_channel(_channel_axis(op, found.source))
    if vectors is None:
        return None
    (scale, shift), (weights, bias) = vectors, parts
    if isinstance(op, Convolution) and (op.transposed or (any(op.padding) and shift.any())):
        return None
    shifted = bias + _input_weights(op, weights, shift).reshape(len(weights), -1).sum(axis=1)
    inputs = (found.source, *site.inputs[1:])
    return _product(site, op, inputs, _input_weights(op, weights, scale), shifted, site.output)


def _affine(site: Site, op: object, inputs: Sequence[Value]) -> Affine | None:
    """The scale and shift of an operator that applies constants to one value, else None."""
    if not isinstance(op, Pointwise) or any(v.type.element.value != "float32" for v in inputs):
        return None
    variable = [value for value in inputs if not site.is_constant(value)]
    if len(variable) != 1:
        return None
    (x,), is_first = variable, variable[0] is inputs[0]
    arrays = (site.array(value) for value in inputs)
    constants = [array.astype(np.float64) for array in arrays if array is not None]
    one, zero = np.ones(()), np.zeros(())
    if op.kind == "neg":
        return Affine(x, -one, zero)
    if op.kind == "add":
        return Affine(x, one, constants[0])
    if op.kind == "sub":
        return Affine(x, one, -constants[0]) if is_first else Affine(x, -one, constants[0])
    if op.kind == "mul":
        return Affine(x, constants[0], zero)
    if op.kind == "div" and is_first and constants[0].all():
        return Affine(x, 1 / constants[0], zero)
    if op.kind == "fma" and x is not inputs[2]:
        return Affine(x, *constants)
    return None


def _vector(array: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """An array that varies along one axis of `shape` only, as a vector over all of that axis."""
    if array.ndim > len(shape):
        return None
    aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if aligned.size != aligned.shape[axis] or aligned.size not in (1, shape[axis]):
        return None
    return np.array(np.broadcast_to(aligned.reshape(-1), (shape[axis],)))


def _channel_axis(op: Product, x: Value) -> int:
    return len(x.shape) - 1 if isinstance(op, Linear) else 1


def _weights_and_bias(site: Site, inputs: Sequence[Value]) -> tuple[Array, Array] | None:
    """Weights and bias in float64, zeros for a missing bias; None where one is not constant."""
    arrays = [site.array(value) for value in inputs[1:]]
    known = [array.astype(np.float64) for array in arrays if array is not None]
    if len(known) < len(arrays):
        return None
    return known[0], known[1] if len(known) > 1 else np.zeros(1)


def _scale_outputs(op: Product, weights: Array, scale: Array) -> Array:
    if isinstance(op, Linear) or not op.transposed:
        return weights * scale.reshape(-1, *(1,) * (weights.ndim - 1))
    grouped = weights.reshape(op.groups, -1, *weights.shape[1:])
    factors = scale.reshape(op.groups, 1, -1, *(1,) * (weights.ndim - 2))
    return (grouped * factors).reshape(weights.shape)


def _input_weights(op: Product, weights: Array, factor: Array) -> Array:
    """The weights times a number for each input channel."""
    if isinstance(op, Linear):
        return weights * factor
    grouped = weights.reshape(op.groups, -1, *weights.shape[1:])
    factors = factor.reshape(op.groups, 1, -1, *(1,) * (weights.ndim - 2))
    return (grouped * factors).reshape(weights.shape)


def _product(
    site: Site, op: Product, inputs: Sequence[Value], weights: Array, bias: Array, named: Value
) -> Sequence[Value] | None:
    """The product with new weights and bias; None where float32 cannot hold them."""
    x, old, *rest = inputs
    before = site.array(old)
    with np.errstate(over="ignore"):
        arrays = [weights.astype(np.float32), bias.astype(np.float32)]
    if before is None or not all(np.isfinite(array).all() for array in arrays):
        return None
    same = np.array_equal(arrays[0], before)
    operands = [x, old if same else site.constant(arrays[0], old.origin)]
    if rest or bias.any():
        whole = np.broadcast_to(arrays[1], (named.shape[_channel_axis(op, named)],))
        origin = rest[0].origin if rest else replace(old.origin, name=f"{old.origin.name}.bias")
        operands.append(site.constant(np.ascontiguousarray(whole), origin))
    return site.add(op, *operands, origins=[named.origin])


def fold_recurrent_bias(graph: Graph) -> Graph:
    """The graph with as much of b_hh as possible in the product before the recurrence."""
    return rewrite(graph, _fold_recurrent)


def _fold_recurrent(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Recurrence):
        return None
    gates, *states, weights, second = site.inputs
    recurrent, views = site.array(second), _views_behind_linear(site, gates)
    if recurrent is None or views is None:
        return None
    linear, *rest = views
    x, input_weights, *bias = linear.inputs
    first = site.array(bias[0]) if bias else np.zeros_like(recurrent)
    rows = len(recurrent) * 2 // 3 if site.op.cell is RecurrentCell.GRU else len(recurrent)
    if first is None or not recurrent[:rows].any():
        return None
    total, left = first.astype(np.float64), recurrent.copy()
    total[:rows] += recurrent[:rows]
    left[:rows] = 0
    named = bias[0].origin if bias else second.origin
    operands = (x, input_weights, site.constant(total, named))
    moved = site.one(linear.op, *operands, origin=linear.output.origin)
    for view in rest:
        moved = site.one(view.op, moved, origin=view.output.origin)
    left_bias = site.constant(left, second.origin)
    return site.add(site.op, moved, *states, weights, left_bias)


def _views_behind_linear(site: Site, value: Value) -> list[Node] | None:
    """A plain Linear and the views that lead to `value`, all read once, features kept last."""
    views: list[Node] = []
    while (node := site.producer(value)) is not None and site.is_used_once(value):
        views.append(node)
        if isinstance(node.op, Linear):
            return views[::-1] if node.op.activation is Activation.NONE else None
        if not _keeps_features(node):
            return None
        (value,) = node.inputs
    return None


def _keeps_features(node: Node) -> bool:
    if isinstance(node.op, Permute):
        return node.op.axes[-1] == len(node.op.axes) - 1
    if isinstance(node.op, Reshape):
        return node.inputs[0].shape[-1:] == node.output.shape[-1:]
    return False
