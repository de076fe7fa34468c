"""QuantizeLinear and DequantizeLinear: steps of a scale, as floats.

What stands between them is computed on the values that quantised numbers stand for.
`passes/quantised_layers.py` makes layers in int8 of products and convolutions of such values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call, plain
from sparsejit.frontends.onnx.reading import dtype_of
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.graph import Array, Value


def quantize(write: Writer, call: Call) -> Value:
    """clamp(round(x / scale) + zero point) to the range of the zero point's dtype."""
    x = call.value(write, 0)
    scale, zero = _along(call, x)
    limits = np.iinfo(_dtype(call))
    f = write.formula("quantize")
    steps = f("round", f("div", x, scale))
    if np.any(zero):
        steps = f("add", steps, zero)
    return f.finish(f("minimum", f("maximum", steps, float(limits.min)), float(limits.max)))


def dequantize(write: Writer, call: Call) -> Value:
    """(x - zero point) scale."""
    x = write.floats(call.value(write, 0))
    scale, zero = _along(call, x)
    f = write.formula("dequantize")
    steps = f("sub", x, zero) if np.any(zero) else x
    return f.finish(f("mul", steps, scale))


def _dtype(call: Call) -> np.dtype[Any]:
    if call.has(2):
        return call.known(2, "zero point").dtype
    if call.attribute("output_dtype"):
        return dtype_of(call.attribute("output_dtype"), "attribute output_dtype")
    return np.dtype(np.uint8)


def _along(call: Call, x: Value) -> tuple[Array, Array]:
    """Scale and zero point, each one number, or one for each place of `axis`."""
    if call.attribute("block_size", 0):
        raise Unmapped("of blocks")
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
    "QuantizeLinear": quantize,
}
