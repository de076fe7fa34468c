"""Scaled dot-product attention, of all keys or under a mask that is known at compile time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.ir.operator import Operator
from sparsejit.ir.spec import LARGEST_SCALE
from sparsejit.ir.values import Array, TensorType


@dataclass(frozen=True)
class Attention(Operator):
    """softmax(scale Q K^T) V over all keys, or over the keys that a mask allows.

    Q (..., queries, features), K (..., keys, features), V (..., keys, values); their leading axes
    broadcast. The mask, if there is one, is a constant bool array (..., queries, keys); its leading
    axes broadcast to theirs, and at most one of them is longer than 1, such as the axis of heads.
    A row without any key becomes zeros.
    """

    scale: float = 1.0

    types: ClassVar[str] = (
        "query float32 [..., n, d], key float32 [..., m, d], value float32 [..., m, e], "
        "mask? bool [..., n, m] -> float32 [..., n, e]"
    )
    needs: ClassVar[str] = (
        ", with a mask longer than 1 along at most one axis of the stack, and a scale of at most "
        f"{LARGEST_SCALE:.3g}"
    )
    mixing: ClassVar[str] = "attends from one sample to another"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        results = super().infer(*operands)
        if not abs(self.scale) <= LARGEST_SCALE:
            raise self.refusal(operands)
        for mask in operands[3:]:
            long = sum(length > 1 for length in mask.shape[:-2])
            if long > 1 or super().infer(*operands[:3]) != results:
                raise self.refusal(operands)
        return results

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value, *masks = operands
        scores = self.scale * (query @ key.swapaxes(-1, -2))
        for mask in masks:
            scores = np.where(mask, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = powers.sum(axis=-1, keepdims=True)
        return ((powers / np.where(total > 0, total, 1)) @ value,)
