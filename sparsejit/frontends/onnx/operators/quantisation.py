"""QuantizeLinear and DequantizeLinear: steps of a scale, as floats.

What stands between them is computed on the values that quantised numbers stand for. A product or
convolution of both, activations in steps and weights in int8, becomes a layer in int8 (`products`,
`convolution`), whose sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.call import Call, Operand, plain
from sparsejit.frontends.onnx.quantised import Quantised
from sparsejit.frontends.onnx.reading import dtype_of
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.graph import Array, Element, Value
from sparsejit.passes.quantised_values import rounded_to_steps

if TYPE_CHECKING:
    from onnx import NodeProto

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def note_stored(
    node: NodeProto, operands: Sequence[Operand], quantised: dict[str, Quantised]
) -> None:
    """Note what a file stores in bytes: DequantizeLinear of a tensor, and views of that."""
    stored = operands[0] if operands else None
    is_bytes = isinstance(stored, np.ndarray) and stored.dtype in _BYTES
    if (node.op_type == "DequantizeLinear" and is_bytes) or (
        node.op_type in ("Identity", "Reshape", "Transpose") and node.input[0] in quantised
    ):
        quantised[node.output[0]] = Quantised()


def quantize(write: Writer, call: Call) -> Value:
    """clamp(round(x / scale) + zero point) to the range of the zero point's dtype."""
    x = call.value(write, 0)
    scale, zero = _along(call, x)
    limits = np.iinfo(_dtype(call))
    f = write.formula("quantize")
    steps = f("round", f("div", x, scale))
    if np.any(zero):
        steps = f("add", steps, zero)
    low, high = float(limits.min), float(limits.max)
    if scale.size == 1 and _dtype(call) in _BYTES:
        middle = (low + high + 1) / 2
        call.quantised[call.result] = Quantised(
            write.floats(x), float(scale), int(zero), int(zero - middle)
        )
    return f.finish(f("minimum", f("maximum", steps, low), high))


def dequantize(write: Writer, call: Call) -> Value:
    """(x - zero point) scale."""
    x = write.floats(call.value(write, 0))
    scale, zero = _along(call, x)
    steps_of = call.quantised.get(call.name(0))
    source = None if steps_of is None or scale.size > 1 else steps_of.source
    if steps_of is not None and source is not None and _agree(steps_of, scale, zero):
        call.quantised[call.result] = steps_of
        return _rounded(write, source, steps_of)
    f = write.formula("dequantize")
    steps = f("sub", x, zero) if np.any(zero) else x
    return f.finish(f("mul", steps, scale))


def _agree(steps_of: Quantised, scale: Array, zero: Array) -> bool:
    """Whether steps are read by the scale and zero point that they were made with."""
    return (float(scale), int(zero)) == (steps_of.scale, steps_of.zero)


def _rounded(write: Writer, source: Value, steps_of: Quantised) -> Value:
    """What was quantised and is read again, in one chain."""
    chain, numbers = rounded_to_steps(source.shape, steps_of.scale, steps_of.shift)
    return write.one(chain, source, *(write.number(float(n), Element.FLOAT32) for n in numbers))


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
