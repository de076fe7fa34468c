"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import arranging, normalisation, reductions
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.values import Value, axis_of

_EPSILON = 1e-5  # ONNX's default


def batch_normalization(write: Writer, call: Call) -> Any:
    """Normalise channels by the statistics of training."""
    training = call.flag("training_mode")
    epsilon = call.attribute("epsilon", _EPSILON)
    x, scale, shift, middle, square = (call.value(write, place) for place in range(5))
    result = normalisation.batch_norm(
        write, x, scale, shift, middle, square, training, 0.0, epsilon
    )
    return (result, *[None] * (call.outputs - 1)) if call.outputs > 1 else result


def instance_normalization(write: Writer, call: Call) -> Value:
    """Normalise over the positions of each channel."""
    x, scale, shift = call.values(write)
    epsilon = call.attribute("epsilon", _EPSILON)
    return normalisation.group_norm(write, x, x.shape[1], scale, shift, epsilon)


def group_normalization(write: Writer, call: Call) -> Value:
    """Normalise over groups of channels; before opset 21 each group has one scale and shift."""
    x, scale, shift = call.values(write)
    groups, epsilon = call.attribute("num_groups"), call.attribute("epsilon", _EPSILON)
    if call.opset >= 21:
        return normalisation.group_norm(write, x, groups, scale, shift, epsilon)
    each = x.shape[1] // groups
    normal = normalisation.group_norm(write, x, groups, eps=epsilon)
    wide = [
        arranging.reshaped(
            write,
            arranging.expanded(write, arranging.reshaped(write, part, (-1, 1)), (groups, each)),
            (-1,),
        )
        for part in (scale, shift)
    ]
    return normalisation.channelwise(write, normal, *wide)


def layer_normalization(write: Writer, call: Call) -> Any:
    """Normalise over the axes from `axis` on; mean and deviation are not returned."""
    x, scale, shift = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    axis = axis_of(call.attribute("axis", -1), len(x.shape))
    epsilon = call.attribute("epsilon", _EPSILON)
    result = normalisation.layer_norm(write, x, x.shape[axis:], scale, shift, epsilon)
    return (result, None, None)[: call.outputs] if call.outputs > 1 else result


def rms_normalization(write: Writer, call: Call) -> Any:
    """Divide by the root of the mean square over the axes from `axis` on; it is not returned."""
    x, scale = call.value(write, 0), call.value(write, 1)
    axis = axis_of(call.attribute("axis", -1), len(x.shape))
    epsilon = call.attribute("epsilon", _EPSILON)
    result = normalisation.rms_norm(write, x, x.shape[axis:], scale, epsilon)
    return (result, None)[: call.outputs] if call.outputs > 1 else result


def softmax(function: Callable[..., Value]) -> Callable[[Writer, Call], Value]:
    """Mapping of `function` over an axis; before opset 13 over all axes from it on together."""

    def mapping(write: Writer, call: Call) -> Value:
        x = call.value(write, 0)
        if not x.type.size:
            return x
        axis = axis_of(call.attribute("axis", -1 if call.opset >= 13 else 1), len(x.shape))
        if call.opset >= 13:
            return function(write, x, axis)
        rows = arranging.reshaped(write, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
        return arranging.reshaped(write, function(write, rows, 1), x.shape)

    return mapping


def local_response(write: Writer, call: Call) -> Value:
    """x / (bias + alpha / size * the sum of squares over channels around each)^beta."""
    x, size = write.floats(call.value(write, 0)), call.attribute("size")
    around = [(0, 0)] * len(x.shape)
    around[1] = (size - 1) // 2, size // 2
    squares = arranging.padded(write, write.pointwise("square", x), around)
    parts = [arranging.sliced(write, squares, 1, n, n + x.shape[1]) for n in range(size)]
    f, factor = write.formula("lrn"), call.attribute("alpha", 1e-4) / size
    total: Any = parts[0]
    for part in parts[1:]:
        total = f("add", total, part)
    whole = f("fma", total, factor, call.attribute("bias", 1.0))
    divisor = f("exp", f("mul", f("log", whole), call.attribute("beta", 0.75)))
    return f.finish(f("div", x, divisor))


def power_normalization(write: Writer, call: Call) -> Value:
    """x / (sum |x|^p)^(1 / p) over an axis; 0 where that is 0."""
    x = write.floats(call.value(write, 0))
    norm = reductions.vector_norm(
        write, x, call.attribute("p", 2), call.attribute("axis", -1), True
    )
    f = write.formula("lp_normalization")
    return f.finish(f("where", f("equal", norm, 0.0), 0.0, f("div", x, norm)))


def _hardmax(write: Writer, x: Value, axis: int) -> Value:
    """1 at the first of the largest elements, else 0."""
    place = reductions.arg_max(write, x, axis, True)
    shape = [1] * len(x.shape)
    shape[axis] = -1
    stands = write.constant(np.arange(x.shape[axis]).reshape(shape), "places")
    return write.floats(write.pointwise("equal", stands, place))


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "Hardmax": softmax(_hardmax),
    "LRN": local_response,
    "LpNormalization": power_normalization,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": softmax(normalisation.log_softmax),
    "RMSNormalization": rms_normalization,
    "SimplifiedLayerNormalization": rms_normalization,
    "Softmax": softmax(normalisation.softmax),
}
