"""Operators of com.microsoft that ONNX Runtime's optimiser and quantiser write.

ONNX Runtime's ContribOperators.md defines them. `expansions.py` has the quantised ones that stand
for a row of standard nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import (
    attention,
    convolution,
    products,
    quantisation,
    recurrent,
)
from sparsejit.frontends.writing import arranging, normalisation, pointwise, selection
from sparsejit.frontends.writing import products as writing_products
from sparsejit.frontends.writing.recurrent import one_layer_of_bytes
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Element, Value
from sparsejit.whole_numbers import ceil_div

_EPSILON = 1e-12  # of its normalisations


def fused_matmul(write: Writer, call: Call) -> Value:
    """alpha A B, with A's and B's last two axes exchanged, or their first one moved, if asked."""
    a, b = call.values(write)
    a = arranging.moved(write, a, 0, -2) if call.flag("transBatchA") else a
    b = arranging.moved(write, b, 0, -2) if call.flag("transBatchB") else b
    a = arranging.swapped(write, a, -2, -1) if call.flag("transA") else a
    product = writing_products.matmul(write, a, _turned(write, b, call.flag("transB")))
    return writing_products.scaled_sum(write, 0.0, product, 0, call.attribute("alpha", 1.0))


def _turned(write: Writer, b: Value, is_turned: bool) -> Value:
    known = write.known(b)
    if not is_turned:
        return b
    if known is None:
        return arranging.swapped(write, b, -2, -1)
    return write.constant(np.ascontiguousarray(known.swapaxes(-2, -1)), b.origin.name)


def gelu(approximate: str) -> Callable[[Writer, Call], Value]:
    """Mapping of gelu of x, or of x plus a bias."""

    def mapping(write: Writer, call: Call) -> Value:
        x, bias = call.value(write, 0), call.optional(write, 1)
        whole = x if bias is None else write.pointwise("add", x, bias)
        return pointwise.gelu(write, whole, approximate)

    return mapping


def quick_gelu(write: Writer, call: Call) -> Value:
    """x sigmoid(alpha x)."""
    f, x = write.formula("quick_gelu"), call.value(write, 0)
    return f.finish(f("mul", x, f("sigmoid", f("mul", x, call.attribute("alpha", 1.702)))))


def _activated(write: Writer, call: Call, x: Value) -> Value:
    """Apply the function that attribute `activation` names."""
    kind, given = call.attribute("activation", ""), call.attribute("activation_params", [])
    if kind in ("", "Relu", "Sigmoid", "Tanh"):
        return write.pointwise(kind.lower(), x) if kind else x
    if kind == "LeakyRelu" and len(given) == 1:
        return pointwise.leaky_relu(write, x, given[0])
    if kind == "Clip" and len(given) == 2:
        f = write.formula("clip")
        return f.finish(f("minimum", f("maximum", x, float(given[0])), float(given[1])))
    if kind == "HardSigmoid" and len(given) == 2:
        f = write.formula("hard_sigmoid")
        inner = f("add", f("mul", x, float(given[0])), float(given[1]))
        return f.finish(f("minimum", f("maximum", inner, 0.0), 1.0))
    raise Unmapped(f"its activation is {kind} of {given}")


def fused_conv(write: Writer, call: Call) -> Value:
    """activation(conv(x) + z)."""
    result = convolution.conv(write, call)
    if call.has(3):
        result = write.pointwise("add", result, call.value(write, 3))
    return _activated(write, call, result)


def fused_gemm(write: Writer, call: Call) -> Value:
    """activation(alpha A B + beta C)."""
    if call.attribute("activation", "") not in ("Relu", "Sigmoid", "Tanh"):
        raise Unmapped(f"its activation is {call.attribute('activation', '')}")
    return _activated(write, call, products.gemm(write, call))


def skip_layer_normalization(write: Writer, call: Call) -> Any:
    """LayerNormalization of input + skip + bias, which is its fourth result."""
    parts = [call.optional(write, place) for place in (0, 1, 4)]
    total = pointwise.total(write, parts)
    scale, shift = call.value(write, 2), call.optional(write, 3)
    epsilon = call.attribute("epsilon", _EPSILON)
    normal = normalisation.layer_norm(write, total, total.shape[-1:], scale, shift, epsilon)
    return (normal, None, None, total)[: call.outputs] if call.outputs > 1 else normal


def skip_simplified_layer_normalization(write: Writer, call: Call) -> Any:
    """input + skip + bias, its fourth result, over the root of its mean square."""
    total = pointwise.total(write, [call.optional(write, place) for place in (0, 1, 3)])
    epsilon = call.attribute("epsilon", _EPSILON)
    normal = normalisation.rms_norm(write, total, total.shape[-1:], call.value(write, 2), epsilon)
    return (normal, None, None, total)[: call.outputs] if call.outputs > 1 else normal


def embed_layer_normalization(write: Writer, call: Call) -> Any:
    """The norm of the sum of rows for words, positions and segments; the sum is the third result.

    The second result is the number of words of each sample that the mask keeps.
    """
    words = call.value(write, 0)
    rows = [selection.looked_up(write, call.value(write, 2), 0, words)]
    positions = call.value(write, 3)
    if call.has(8):
        rows.append(selection.looked_up(write, positions, 0, call.value(write, 8)))
    else:
        rows.append(arranging.sliced(write, positions, 0, 0, words.shape[1]))
    if call.has(1) and call.has(4):
        rows.append(selection.looked_up(write, call.value(write, 4), 0, call.value(write, 1)))
    total, epsilon = pointwise.total(write, rows), call.attribute("epsilon", _EPSILON)
    scale, shift = call.value(write, 5), call.value(write, 6)
    normal = normalisation.layer_norm(write, total, total.shape[-1:], scale, shift, epsilon)
    if call.outputs < 2:
        return normal
    kept = None
    if call.has(7):
        f, mask = write.formula("kept"), write.floats(call.value(write, 7))
        counts = f.finish(f("row_sum", mask), shape=mask.shape)
        kept = write.cast(arranging.reshaped(write, counts, mask.shape[:1]), Element.INT64)
    return (normal, kept, total)[: call.outputs]


def dynamic_quantize_matmul(write: Writer, call: Call) -> Value:
    """A, quantised by its own range, times B of bytes, plus a bias."""
    steps, scale, zero = quantisation.dynamic_steps(write, call.value(write, 0))
    b = quantisation.centred_weights(write, call, 1, 3)
    product = quantisation.product_of_bytes(write, steps, zero, b)
    if product is None:
        product = writing_products.matmul(write, write.pointwise("sub", steps, zero), b)
    factor = write.pointwise("mul", scale, call.value(write, 2))
    scaled = write.pointwise("mul", product, factor)
    return pointwise.total(write, [scaled, call.optional(write, 4)])


def matmul_integer_to_float(write: Writer, call: Call) -> Value:
    """Bytes times bytes, times both scales, plus a bias."""
    b = quantisation.centred_weights(write, call, 1, 5)
    whole = quantisation.product_of_steps(write, call, 0, 4, b)
    factor = write.pointwise("mul", call.value(write, 2), call.value(write, 3))
    product = write.pointwise("mul", whole, factor)
    return pointwise.total(write, [product, call.optional(write, 6)])


def matmul_n_bits(write: Writer, call: Call) -> Value:
    """x W^T plus a bias, with weights (N, blocks, bytes) of few bits and a scale for each block."""
    bits, length = call.attribute("bits", 4), call.attribute("block_size")
    columns, rows = call.attribute("K"), call.attribute("N")
    if call.has(4):
        raise Unmapped("its columns are in another order (g_idx)")
    if bits not in (2, 4, 8):
        raise Unmapped(f"has weights of {bits} bits")
    blocks = ceil_div(columns, length)
    held = np.asarray(call.known(1, "weights"), np.uint8).reshape(rows, blocks, -1)
    steps = _unpacked(held, bits)[..., :length].astype(np.float32)
    scale = np.asarray(call.known(2, "scales"), np.float32).reshape(rows, blocks, 1)
    zero: Any = np.float32(1 << (bits - 1))
    if call.has(3):
        point = call.known(3, "zero points")
        if point.dtype == np.uint8:
            point = _unpacked(point.reshape(rows, -1), bits)[:, :blocks]
        zero = np.asarray(point, np.float32).reshape(rows, blocks, 1)
    weights = ((steps - zero) * scale).reshape(rows, -1)[:, :columns]
    weight = write.constant(np.ascontiguousarray(weights), call.name(1))
    return writing_products.linear(write, call.value(write, 0), weight, call.optional(write, 5))


def _unpacked(held: Array, bits: int) -> Array:
    """Bytes along the last axis as numbers of `bits` bits, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (held[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(apart.reshape(*held.shape[:-1], -1))


def dynamic_lstm(write: Writer, call: Call) -> Any:
    """An LSTM whose weights are bytes, (directions, in, 4 hidden).

    ONNX Runtime quantises x and h by the range of all samples that a thread has. Here each sample
    has its own range, which is ONNX Runtime's for a batch of one.
    """
    held = {}
    for place, scale in ((1, 8), (2, 10)):
        steps = call.known(place, "weights").astype(np.float32)
        factor, zero = (
            np.asarray(call.known(each, "scale"), np.float32).reshape(len(steps), 1, -1)
            for each in (scale, scale + 1)
        )
        held[place] = np.ascontiguousarray(((steps - zero) * factor).swapaxes(1, 2))
    return recurrent.layer(write, call.as_of("LSTM", held, 8), one_layer_of_bytes)


DOMAIN = "com.microsoft"
_ROWS: dict[str, Callable[[Writer, Call], Any]] = {
    "Attention": attention.attention,
    "BiasGelu": gelu("none"),
    "DynamicQuantizeLSTM": dynamic_lstm,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "EmbedLayerNormalization": embed_layer_normalization,
    "FastGelu": gelu("tanh"),
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "Gelu": gelu("none"),
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_n_bits,
    "MultiHeadAttention": attention.multi_head_attention,
    "QAttention": attention.quantised_attention,
    "QuickGelu": quick_gelu,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
}
OPERATORS = {f"{DOMAIN}.{name}": mapping for name, mapping in _ROWS.items()}
