"""Quantised numbers: whole steps of a scale, held as floats.

Layers between QuantizeLinear and DequantizeLinear are computed on the values that quantised numbers
stand for. `passes/quantised_layers.py` makes int8 layers of products and convolutions of such
values. MatMulInteger by known weights is such a layer at once (`product_of_bytes`): its scale is
known in the call alone. ConvInteger by known weights of values from DynamicQuantizeLinear is an
operator of its own (`DynamicConvolution`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call, plain
from sparsejit.frontends.onnx.reading import dtype_of
from sparsejit.frontends.writing import arranging, products
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.dtypes import Dtype
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.spec import LARGEST_INT8
from sparsejit.ir.values import Array, Value

_STEPS = 255  # of uint8
_DIFFERENCE = Pointwise("sub")  # of floats, whatever the model's dtypes

# The largest byte minus its zero point; and float32 holds all whole numbers up to this one.
LARGEST_CENTRED, WHOLE_IN_FLOAT32 = 255, 1 << 24
# Kernels may change a known float32 weight by 2**-17 of it: sums below this are off by less than a
# half.
ROUNDED_IN_FLOAT32 = 1 << 16


def quantize(write: Writer, call: Call) -> Value:
    """clamp(round(x / scale) + zero point) to the range of the zero point's dtype."""
    x = call.value(write, 0)
    scale, zero = _along(call, x)
    limits = np.iinfo(_dtype(call))
    f = write.formula("quantize")
    steps = f("round", f("div", x, scale))
    if np.any(zero):
        steps = f("add", steps, zero)
    bounded = f("minimum", f("maximum", steps, float(limits.min)), float(limits.max))
    quantised = f.finish(bounded)
    write.limits[quantised] = int(limits.min), int(limits.max)
    return quantised


def dequantize(write: Writer, call: Call) -> Value:
    """(x - zero point) scale."""
    x = write.floats(call.value(write, 0))
    scale, zero = _along(call, x)
    f = write.formula("dequantize")
    steps = f("sub", x, zero) if np.any(zero) else x
    return f.finish(f("mul", steps, scale))


def dynamic_quantize(write: Writer, call: Call) -> tuple[Value, ...]:
    """x in 255 steps of its own range, which a call decides, with their scale and zero point."""
    return dynamic_steps(write, call.value(write, 0))


def dynamic_steps(write: Writer, x: Value) -> tuple[Value, Value, Value]:
    """x in 255 steps from its minimum, or 0, to its maximum; with their scale and zero point."""
    row = arranging.reshaped(write, x, (1, x.type.size))
    f = write.formula("range")
    high, negated = f("row_max", row), f("row_max", f("neg", row))
    high, low = f("maximum", high, 0.0), f("neg", f("maximum", negated, 0.0))
    span = f("div", f("sub", high, low), float(_STEPS))
    scale = f("where", f("equal", span, 0.0), 1.0, span)
    below = f("round", f("neg", f("div", low, scale)))
    zero = f("minimum", f("maximum", below, 0.0), float(_STEPS))
    found = f.all(scale, zero, shape=row.shape)
    scale_value, zero_value = (arranging.reshaped(write, each, ()) for each in found)
    f = write.formula("quantize")
    steps = f("add", f("round", f("div", x, scale_value)), zero_value)
    quantised = f.finish(f("minimum", f("maximum", steps, 0.0), float(_STEPS)))
    write.limits[quantised] = 0, _STEPS
    write.dynamic_steps[quantised] = x, scale_value, zero_value
    return quantised, scale_value, zero_value


def centred(write: Writer, call: Call, place: int, zero: int, axis: int, axes: int) -> Value:
    """An operand of whole numbers, as floats, minus its zero point.

    `place` and `zero` are the places of both operands in the call. The zero point is one number, or
    a number for each place of `axis`, where the operand has `axes` axes.
    """
    given, point = call.operand(place), call.operand(zero)
    if point is None:
        point = np.zeros((), np.float32)
    shape = [1] * axes
    shape[axis] = -1
    if isinstance(point, np.ndarray):
        known = point.astype(np.float32).reshape(shape if point.size > 1 else ())
        if isinstance(given, np.ndarray):
            return write.constant(given.astype(np.float32) - known, call.name(place))
        x = write.floats(call.value(write, place))
        return write.one(_DIFFERENCE, x, known) if known.any() else x
    one = write.floats(call.value(write, zero))
    wide = arranging.reshaped(write, one, shape if one.type.size > 1 else ())
    return write.one(_DIFFERENCE, write.floats(call.value(write, place)), wide)


def centred_weights(write: Writer, call: Call, place: int, zero: int) -> Operand:
    """The right operand of a product, minus its zero points, one for each output or for all."""
    return centred(write, call, place, zero, -1, len(call.value(write, place).shape))


def product_of_steps(
    write: Writer, call: Call, x: int, x_zero: int, right: Operand
) -> Value:
    """(x - its zero point) @ right, in float32 or by a layer in int8.

    `x` and `x_zero` are places in the call; `right` is minus its own zero point.
    """
    given = call.value(write, x)
    found = product_of_bytes(write, given, call.operand(x_zero), right)
    if found is not None:
        return found
    axes = len(given.shape)
    left = centred(write, call, x, x_zero, -2 if axes > 1 else -1, axes)
    return products.matmul(write, left, right)


def product_of_bytes(
    write: Writer, x: Value, zero: Operand, weights: Operand
) -> Value | None:
    """(x - zero) @ weights as a layer in int8; None unless int8 holds x, moved, and the weights.

    x (..., in) is quantised, with one zero point for all of it, and weights (in, out) are known,
    minus their own. It is (x - m) @ weights + (m - zero) sum(weights), where m is 128 for unsigned
    bytes: the sums of whole numbers are exact, whatever the zero point of the call.
    """
    middle = {(0, 255): 128, (-128, 127): 0}.get(write.limits.get(x, (0, 0)))
    known, size = write.known(weights), zero.size if isinstance(zero, np.ndarray) else 1
    if isinstance(zero, Value):
        size = zero.type.size
    if middle is None or known is None or known.ndim != 2 or size != 1 or len(x.shape) < 2:
        return None
    rows = np.ascontiguousarray(known.T, np.float32)
    if np.abs(rows).max(initial=0) > LARGEST_INT8:
        return None
    moved = write.pointwise("sub", x, float(middle)) if middle else x
    product, sums = products.product_and_sums(write, moved, rows)
    lack: Operand
    if isinstance(zero, Value):
        flat = arranging.reshaped(write, write.floats(zero), ())
        lack = write.pointwise("sub", float(middle), flat)
    else:
        lack = float(middle) - (0.0 if zero is None else float(np.asarray(zero).reshape(())))
        if lack == 0:
            return product
    added = write.pointwise("mul", write.constant(sums, "sums"), lack)
    return write.pointwise("add", product, added)


def largest_sum(write: Writer, weights: Value, terms: int) -> float:
    """The largest magnitude of a sum of products of bytes, and of its parts.

    `weights` are minus their zero point, with outputs on the last axis of a matrix. Each sum has
    `terms` products.
    """
    known = write.known(weights)
    if known is None or known.ndim != 2:
        return terms * LARGEST_CENTRED**2
    return float(np.abs(known).sum(axis=0).max(initial=0) * LARGEST_CENTRED)


def _dtype(call: Call) -> Dtype:
    if call.has(2):
        return call.known(2, "zero point").dtype
    if call.attribute("output_dtype"):
        return dtype_of(call.attribute("output_dtype"), "attribute output_dtype")
    return np.dtype(np.uint8)


def _along(call: Call, x: Value) -> tuple[Array, Array]:
    """The known scale and zero point of a call, in shapes that broadcast to x.

    They are scalars, or have a number for each place of the attribute `axis`.
    """
    if call.attribute("block_size", 0):
        raise Unmapped("has a scale for each block")
    if _dtype(call).kind not in "iu":
        raise Unmapped(f"to {_dtype(call)}")
    scale = plain(call.known(1, "scale"))
    zero = plain(call.known(2, "zero point")) if call.has(2) else np.zeros_like(scale)
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(()).astype(np.float32)
    shape = [1] * len(x.shape)
    shape[call.attribute("axis", 1)] = -1
    return scale.reshape(shape), zero.reshape(shape).astype(np.float32)


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "QuantizeLinear": quantize,
}
