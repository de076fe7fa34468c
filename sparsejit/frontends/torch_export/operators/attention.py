"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.torch_export.operators.arranging import moved
from sparsejit.frontends.torch_export.operators.normalisation import softmax
from sparsejit.frontends.torch_export.operators.selection import below
from sparsejit.frontends.torch_export.operators.views import repeat_each
from sparsejit.frontends.torch_export.writing import Unmapped
from sparsejit.ir.graph import Element
from sparsejit.ir.ops.attention import MaskedAttention
from sparsejit.ir.ops.products import Bmm

if TYPE_CHECKING:
    from sparsejit.frontends.torch_export.writing import Operand, Writer
    from sparsejit.ir.graph import Array, Value

# Finite, so that a row in which all is masked becomes zeros and not NaN, as in torch.
_LOWEST, _TINY = -3.0e38, 1e-30
# With fewer queries than the widest vectors have lanes, most lanes would idle.
_FEWEST_QUERIES = 16


def attention(
    write: Writer,
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Operand = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(scale Q K^T + mask) V over the last two axes; scale 1 / sqrt(features) by default."""
    if dropout_p:
        raise Unmapped("drops out at random")
    q, k, v = (write.floats(x) for x in (query, key, value))
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        k, v = (repeat_each(write, x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    factor = float(q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = below((q.shape[-2], k.shape[-2]))
    if (allowed := known_mask(write, attn_mask, q, k, v)) is not None:
        return write.one(MaskedAttention(factor), q, k, v, allowed)
    scores = write.one(Bmm(transposed=True, scale=factor), q, k)
    if attn_mask is None:
        weights = softmax(write, scores, -1)
    else:
        weights = masked_softmax(write, scores, attn_mask)
    return write.one(Bmm(), weights, v)


def known_mask(write: Writer, mask: Operand, q: Value, k: Value, v: Value) -> Array | None:
    """A known mask that only allows or forbids, as bools; None for any other.

    (queries, keys), or (heads, queries, keys) where heads differ.
    """
    known = None if mask is None else write.known(mask)
    if known is None or known.ndim < 2:
        return None
    allowed = known if known.dtype == bool else known > _LOWEST
    if known.dtype != bool and known[allowed].any():
        return None  # it also adds to scores
    heads = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])[-1:]
    leading = allowed.shape[:-2]
    if any(length != 1 for length in leading[:-1]) or leading[-1:] not in ((), (1,), heads):
        return None
    own = allowed.reshape(*(n for n in leading[-1:] if n != 1), *allowed.shape[-2:])
    sizes = q.shape[-2], k.shape[-2]
    if sizes[0] < _FEWEST_QUERIES or own.shape[:-2] not in ((), heads):
        return None
    return np.ascontiguousarray(np.broadcast_to(own, (*own.shape[:-2], *sizes)))


def masked_softmax(write: Writer, scores: Value, mask: Operand) -> Value:
    """softmax of scores + mask, or of those where a mask of bools is set."""
    known, leaves_one = write.known(mask), False
    if known is not None:
        allowed = known if known.dtype == bool else known > _LOWEST
        leaves_one = bool(allowed.any(axis=-1).all())
        offsets = np.where(known, 0.0, -np.inf) if known.dtype == bool else known
        masked = write.pointwise("add", scores, offsets.astype(np.float32))
    elif write.element(mask) is Element.BOOL:
        masked = write.pointwise("where", mask, scores, float("-inf"))
    else:
        masked = write.pointwise("add", scores, mask)
    return softmax(write, masked, -1) if leaves_one else safe_softmax(write, masked)


def safe_softmax(write: Writer, x: Value) -> Value:
    """softmax over the last axis; rows of -infinity alone become zeros."""
    f = write.formula("masked_softmax")
    shift = f("maximum", f("row_max", x), _LOWEST)
    powers = f("exp", f("sub", x, shift))
    total = f("maximum", f("row_sum", powers), _TINY)
    return f.finish(f("mul", powers, f("reciprocal", total)))


def safe_softmax_over(write: Writer, x: Operand, dim: int, *_: Any) -> Value:
    """`safe_softmax` over any axis."""
    return moved(write, safe_softmax(write, moved(write, write.floats(x), dim, -1)), -1, dim)


def flash_attention(
    write: Writer,
    query: Operand,
    key: Operand,
    value: Operand,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Operand = None,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """As `attention`, as decompositions write it; the sums are not kept."""
    result = attention(write, query, key, value, attn_mask, dropout_p, is_causal, scale)
    return result, None


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.scaled_dot_product_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": flash_attention,
    "aten._safe_softmax.default": safe_softmax_over,
}
