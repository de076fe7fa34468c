"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import moved
from sparsejit.frontends.writing.normalisation import softmax
from sparsejit.frontends.writing.selection import below
from sparsejit.frontends.writing.views import repeat_each
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.values import Array, Element, Value


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
        attn_mask = _causal(q.shape[-2], k.shape[-2])
    scores = write.one(Bmm(transposed=True, scale=factor), q, k)
    if attn_mask is None:
        weights = softmax(write, scores, -1)
    else:
        weights = masked_softmax(write, scores, attn_mask)
    return write.one(Bmm(), weights, v)


@lru_cache(maxsize=2)
def _causal(queries: int, keys: int) -> Array:
    """The causal mask, one array for all layers of a model."""
    return below((queries, keys))


def masked_softmax(write: Writer, scores: Value, mask: Operand) -> Value:
    """softmax of scores + mask, or of the scores that a mask of bools allows."""
    leaves_one = False
    if write.is_known(mask):
        offsets, leaves_one = write.derived(mask, _offsets)
        masked = write.pointwise("add", scores, offsets)
    elif write.element(mask) is Element.BOOL:
        masked = write.pointwise("where", mask, scores, float("-inf"))
    else:
        masked = write.pointwise("add", scores, mask)
    return softmax(write, masked, -1) if leaves_one else safe_softmax(write, masked)


def _offsets(write: Writer, mask: Operand) -> tuple[Value, bool]:
    """The numbers that a known mask adds to scores, and whether it leaves a key to every row."""
    known = write.known(mask)
    assert known is not None
    allowed = known if known.dtype == bool else known > row_chains.LEAST_SCORE
    offsets = np.where(known, 0.0, -np.inf) if known.dtype == bool else known
    return write.value(offsets.astype(np.float32)), bool(allowed.any(axis=-1).all())


def safe_softmax(write: Writer, x: Value) -> Value:
    """softmax over the last axis; rows of -infinity alone become zeros."""
    chain = row_chains.safe_softmax(x.shape)
    return write.one(chain, x, row_chains.LEAST_SCORE, row_chains.LEAST_TOTAL)


def safe_softmax_over(write: Writer, x: Operand, dim: int, *_: Any) -> Value:
    """softmax over any axis; where all elements are -infinity, zeros."""
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
    """Results of aten's flash attention: as `attention`, and None in place of the log sums."""
    result = attention(write, query, key, value, attn_mask, dropout_p, is_causal, scale)
    return result, None


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.scaled_dot_product_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": flash_attention,
    "aten._safe_softmax.default": safe_softmax_over,
}
