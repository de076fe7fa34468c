"""Attention of com.microsoft: softmax(q k^T / sqrt(depth) + mask) v of several heads."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import quantisation
from sparsejit.frontends.writing import arranging, normalisation, pointwise, products
from sparsejit.frontends.writing.views import cut
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Value

_FORBIDDEN = -10000.0  # added to scores that a mask forbids


def attention(write: Writer, call: Call) -> Any:
    """Attention with q, k and v by one product."""
    x, weights, bias = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    if call.has(4) or call.has(6):
        raise Unmapped("keeps a past")
    if call.attribute("qkv_hidden_sizes") or call.flag("do_rotary"):
        raise Unmapped("has qkv_hidden_sizes or do_rotary")
    whole = pointwise.total(write, [products.matmul(write, x, weights), bias])
    return _of_one_product(write, call, whole, 3, 5)


def quantised_attention(write: Writer, call: Call) -> Any:
    """Attention as in `attention`, of an x and weights that are bytes with a scale."""
    if call.has(8):
        raise Unmapped("keeps a past")
    weights = quantisation.centred_weights(write, call, 1, 7)
    product = quantisation.product_of_steps(write, call, 0, 6, weights)
    scale = write.pointwise("mul", call.value(write, 3), call.value(write, 4))
    scaled = write.pointwise("mul", product, scale)
    whole = pointwise.total(write, [scaled, call.optional(write, 2)])
    return _of_one_product(write, call, whole, 5)


def multi_head_attention(write: Writer, call: Call) -> Any:
    """Attention of q, k, v (batch, length, heads depth) apart, with one bias for all three."""
    if any(map(call.has, range(6, len(call)))):
        raise Unmapped("keeps a past")
    given = [call.optional(write, place) for place in range(3)]
    parts = [x for x in given if x is not None and len(x.shape) == 3]
    if len(parts) < 3:
        shapes = [None if x is None else list(x.shape) for x in given]
        raise Unmapped(f"its query, key and value have shapes {shapes}, not three axes each")
    if call.has(3):
        biases = cut(write, call.value(write, 3), [part.shape[2] for part in parts])
        parts = [write.pointwise("add", *pair) for pair in zip(parts, biases, strict=True)]
    return _attended(write, call, parts, 4, 5)


def _of_one_product(
    write: Writer, call: Call, whole: Value, mask: int, added: int | None = None
) -> Any:
    """Attention where q, k and v lie side by side (batch, length, 3 heads depth)."""
    return _attended(write, call, cut(write, whole, [whole.shape[2] // 3] * 3, 2), mask, added)


def _attended(
    write: Writer, call: Call, parts: list[Value], mask: int, added: int | None = None
) -> Any:
    """Attention of q, k, v (batch, length, heads depth); `mask` and `added` are places of operands.

    Other results of the operator are left out.
    """
    (batch, length, width), keys = parts[0].shape, parts[1].shape[1]
    heads = call.attribute("num_heads")
    q, k, v = (_apart(write, part, heads) for part in parts)
    scores = products.matmul(write, q, arranging.swapped(write, k, -2, -1))
    scale = call.attribute("scale") or 1 / sqrt(width // heads)
    summands: list[Value | None] = [write.pointwise("mul", scores, float(scale))]
    if call.flag("unidirectional"):
        if length != keys:
            raise Unmapped(f"is unidirectional with {length} queries and {keys} keys")
        summands.append(write.value(np.triu(np.full((length, length), -np.inf, np.float32), 1)))
    if call.has(mask):
        summands.append(_mask(write, call, mask, (batch, length, keys)))
    if added is not None:
        summands.append(call.optional(write, added))
    weights = normalisation.softmax(write, pointwise.total(write, summands), -1)
    turned = arranging.swapped(write, products.matmul(write, weights, v), 1, 2)
    result = arranging.reshaped(write, turned, (batch, length, -1))
    return (result, *[None] * (call.outputs - 1)) if call.outputs > 1 else result


def _apart(write: Writer, x: Value, heads: int) -> Value:
    """(batch, length, heads depth) as (batch, heads, length, depth)."""
    batch, length, width = x.shape
    split = arranging.reshaped(write, x, (batch, length, heads, width // heads))
    return arranging.swapped(write, split, 1, 2)


def _mask(write: Writer, call: Call, place: int, sizes: tuple[int, int, int]) -> Value:
    """Summand of scores (batch, heads, queries, keys), from a mask of 1 for keys that are seen.

    The mask may also be the number of keys that are seen, from the first on.
    """
    given = write.floats(call.value(write, place))
    batch, queries, keys = sizes
    if given.shape == (batch,):
        f, ends = write.formula("keys"), arranging.reshaped(write, given, (batch, 1))
        places = np.arange(keys, dtype=np.float32)
        given = f.finish(f("where", f("less", places, ends), 1.0, 0.0))
    if given.shape not in ((batch, keys), (batch, queries, keys)):
        raise Unmapped(f"its mask has shape {list(given.shape)}, not one number for each key")
    f, number = write.formula("mask"), float(call.attribute("mask_filter_value", _FORBIDDEN))
    shape = (batch, 1, -1, keys)
    return f.finish(f("mul", f("sub", 1.0, arranging.reshaped(write, given, shape)), number))
