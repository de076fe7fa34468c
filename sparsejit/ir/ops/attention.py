"""Scaled dot-product attention under a mask that is known at compile time."""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir.graph import Array, Element, TensorType
from sparsejit.ir.ops.types import broadcast_shape, float_type, require


@dataclass(frozen=True)
class MaskedAttention:
    """softmax(scale Q K^T) V over the keys that a mask allows; zeros for a row without any.

    Q (..., queries, features), K (..., keys, features), V (..., keys, values), of which the stacks
    broadcast, and a constant mask of bools (queries, keys) or (heads, queries, keys), whose heads
    are the last axis of the stack.
    """

    scale: float = 1.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        query, key, value, mask = operands
        wanted = "give Q (..., n, d), K (..., m, d), V (..., m, e), a mask ([heads,] n, m)"
        deep = all(len(operand.shape) >= 2 for operand in operands) and len(mask.shape) <= 3
        require(deep and mask.element is Element.BOOL, self, operands, wanted)
        stack = broadcast_shape(self, [float_type(x.shape[:-2]) for x in (query, key, value)])
        sizes = query.shape[-2], key.shape[-2]
        fits = (
            mask.shape[-2:] == sizes
            and value.shape[-2] == sizes[1]
            and query.shape[-1] == key.shape[-1]
            and mask.shape[:-2] in ((), stack[-1:])
        )
        require(fits, self, operands, wanted)
        return (float_type((*stack, sizes[0], value.shape[-1])),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value, mask = operands
        scores = self.scale * (query @ key.swapaxes(-1, -2))
        scores = np.where(mask, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = powers.sum(axis=-1, keepdims=True)
        return ((powers / np.where(total > 0, total, 1)) @ value,)
