"""Scaled dot-product attention, of all keys or under a mask that is known at compile time."""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir.graph import Array, Element, TensorType
from sparsejit.ir.ops.types import broadcast_shape, float_type, require


@dataclass(frozen=True)
class Attention:
    """softmax(scale Q K^T) V over all keys, or over those that a mask allows.

    Q (..., queries, features), K (..., keys, features), V (..., keys, values), of which the stacks
    broadcast. The mask, if there is one, is a constant of bools (..., queries, keys) whose stack
    broadcasts to theirs and is longer than 1 along one axis at most, that of the heads, say. A row
    without any key becomes zeros.
    """

    scale: float = 1.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        wanted = "give Q (..., n, d), K (..., m, d), V (..., m, e), and a mask (..., n, m) if any"
        deep = len(operands) in (3, 4) and all(len(operand.shape) >= 2 for operand in operands)
        require(deep, self, operands, wanted)
        query, key, value, *masks = operands
        stack = broadcast_shape(self, [float_type(x.shape[:-2]) for x in (query, key, value)])
        sizes = query.shape[-2], key.shape[-2]
        fits = value.shape[-2] == sizes[1] and query.shape[-1] == key.shape[-1]
        require(fits and all(_masks(mask, stack, sizes) for mask in masks), self, operands, wanted)
        return (float_type((*stack, sizes[0], value.shape[-1])),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value, *masks = operands
        scores = self.scale * (query @ key.swapaxes(-1, -2))
        for mask in masks:
            scores = np.where(mask, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = powers.sum(axis=-1, keepdims=True)
        return ((powers / np.where(total > 0, total, 1)) @ value,)


def _masks(mask: TensorType, stack: tuple[int, ...], sizes: tuple[int, int]) -> bool:
    """Whether a mask is one of all that stack."""
    own = mask.shape[:-2]
    along = stack[len(stack) - len(own) :]
    return (
        mask.element is Element.BOOL
        and mask.shape[-2:] == sizes
        and len(own) <= len(stack)
        and all(length in (1, whole) for length, whole in zip(own, along, strict=True))
        and sum(length > 1 for length in own) <= 1
    )
