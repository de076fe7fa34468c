"""Products of matrices: with weights, and of activations with each other.

    Linear      a product with weights
    Bmm         products of two stacks of matrices
    Attention   scaled dot-product attention, of all keys or under a mask that is known at compile
                time
    CachedAttention   attention of a few queries to the keys that a mask of a call allows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.ir.operator import BatchPlace, Node, Operator
from sparsejit.ir.reference import ACTIVATIONS, on_steps
from sparsejit.ir.signature import Signature, signature
from sparsejit.ir.spec import LARGEST_SCALE, Activation, DType, Quantisation
from sparsejit.ir.time_rules import Apart, Attended, TimeRule, Whole
from sparsejit.ir.values import Array, TensorType


@dataclass(frozen=True)
class Linear(Operator):
    """y = activation(x W^T + bias) over the last axis: x (..., in), W (out, in), bias (out,).

    The bias may be left out. W is stored in `dtype`; with int8 x is quantised too, to `x_steps` or
    by its largest magnitude. x of a quantised model is rounded and clipped to its steps with every
    dtype; other dtypes ignore symmetric steps.
    """

    activation: Activation = Activation.NONE
    dtype: DType = DType.FLOAT32
    x_steps: Quantisation | None = None

    types: ClassVar[str] = (
        "x float32 [*rows, in], weights float32 [out, in], bias? float32 [out] "
        "-> float32 [*rows, out]"
    )
    mixing: ClassVar[str] = "multiplies samples with each other"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        """Compute in the operands' precision, not in `dtype`; only x may be rounded before.

        It is rounded to `x_steps` unless these are symmetric, as the class says.
        """
        x, weights, *bias = operands
        if self.x_steps is not None and not self.x_steps.symmetric:
            x = on_steps(x, self.x_steps.scale, self.x_steps.zero_point)
        y = x @ weights.T + (bias[0] if bias else 0)
        return (ACTIVATIONS[self.activation](y),)


@dataclass(frozen=True)
class Bmm(Operator):
    """scale * A B for every matrix of a stack: A (..., m, k), B (..., k, n).

    With `transposed`, B is (..., n, k). The stacks broadcast.
    """

    transposed: bool = False
    scale: float = 1.0

    mixing: ClassVar[str] = "multiplies samples with each other"

    def signature(self, operands: int) -> Signature:
        right = "n, k" if self.transposed else "k, n"
        return signature(
            f"a float32 [..., m, k], b float32 [..., {right}] -> float32 [..., m, n]"
        )

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        a, b = operands
        return (self.scale * (a @ (b.swapaxes(-1, -2) if self.transposed else b)),)


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

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        from_end = [
            None if place is None else place._replace(axis=place.axis - len(value.shape))
            for value, place in zip(node.inputs[:3], places, strict=False)
        ]
        if BatchPlace(-2) not in from_end:
            return Apart()
        if len(node.inputs) < 4:
            return Whole("attends to all frames", "mask the frames outside of a window")
        if set(from_end) != {BatchPlace(-2)} or any(places[3:]):
            return Whole("attends to something else than frames", "attend to frames alone")
        return Attended(self.scale)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value, *masks = operands
        scores = self.scale * (query @ key.swapaxes(-1, -2))
        for mask in masks:
            scores = np.where(mask, scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = powers.sum(axis=-1, keepdims=True)
        return ((powers / np.where(total > 0, total, 1)) @ value,)


# The greatest mask of a key that `CachedAttention` need not read.
FORBIDDING = -1e30


@dataclass(frozen=True)
class CachedAttention(Operator):
    """softmax(scale Q K^T + mask) V over the keys of a cache, with one mask for all queries.

    A mask of at most FORBIDDING stands in the place of its scores, and keys behind the last other
    one are not read. If all masks are at most that, all keys are read. A row of -infinity becomes
    zeros if `is_safe`, else NaN.
    """

    scale: float = 1.0
    is_safe: bool = True

    types: ClassVar[str] = (
        "query float32 [*stack, n, d], key float32 [*stack, m, d], value float32 [*stack, m, e], "
        "mask float32 [m] -> float32 [*stack, n, e]"
    )
    needs: ClassVar[str] = (
        ", with d and e multiples of 8, m a multiple of 16, and a scale of at most "
        f"{LARGEST_SCALE:.3g}"
    )
    mixing: ClassVar[str] = "attends from one sample to another"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        results = super().infer(*operands)
        key, value = operands[1].shape, operands[2].shape
        is_whole = key[-1] % 8 == value[-1] % 8 == key[-2] % 16 == 0
        if not abs(self.scale) <= LARGEST_SCALE or not is_whole or 0 in (*key, *value):
            raise self.refusal(operands)
        return results

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value, mask = operands
        scores = self.scale * (query @ key.swapaxes(-1, -2))
        scores = np.where(mask <= FORBIDDING, mask, scores + mask)
        largest = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = powers.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            return ((powers / np.where((total == 0) & self.is_safe, 1, total)) @ value,)
