"""Operators between the products of quantised models, whose features are channels.

    NormalisedColumns, ByteAttention   norm and attention of a transformer
    ChannelMeans, ScaledChannels       means of an image's channels; channels times a number each

A transformer's values are (1, features, columns), a column for each token of all samples, so that a
linear layer is a convolution of one tap, and values in bytes are read by vectors of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.reference import on_steps
from sparsejit.ir.signature import Bound, Signature, signature
from sparsejit.ir.spec import LARGEST_SCALE, SMALLEST_SCALE, Quantisation
from sparsejit.ir.values import Array

_MOST_ADDED = 2
_COLUMNS = "[1, features, columns]"


@dataclass(frozen=True)
class NormalisedColumns(Operator):
    """Layer norm over the features of a sum: (x - mean) / sqrt(variance + epsilon) * w + b.

    x is the sum of one or two operands and a number for each feature. The last operand is the
    parameters (3, features): these numbers, w and b.

    Attributes:
        epsilon: added to the variance
        steps: the steps to which each operand is rounded; None where it is not rounded
    """

    epsilon: float
    steps: tuple[Quantisation | None, ...]

    mixes: ClassVar[tuple[str, ...]] = ("features",)
    mixing: ClassVar[str] = "normalises over features"

    def __post_init__(self) -> None:
        """Raise InvalidInput unless the sum has one or two operands."""
        if not 1 <= len(self.steps) <= _MOST_ADDED:
            raise InvalidInput(f"{self} has {len(self.steps)} operands; give 1 to {_MOST_ADDED}")

    def signature(self, operands: int) -> Signature:
        added = ", ".join(f"x{n} float32 {_COLUMNS}" for n in range(len(self.steps)))
        return signature(f"{added}, parameters float32 [3, features] -> float32 {_COLUMNS}")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        *added, parameters = operands
        more, weight, bias = parameters[..., None]
        pairs = zip(added, self.steps, strict=True)
        x = more + sum(y if s is None else on_steps(y, s.scale, s.zero_point) for y, s in pairs)
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        return (centred / np.sqrt(variance + self.epsilon) * weight + bias,)


@dataclass(frozen=True)
class ByteAttention(Operator):
    """Attention among each sample's tokens, in quantised values: softmax(scale Q K^T) V.

    Q, K and V (1, heads * features, samples * length) are rounded to their steps, and so are Q K^T
    before scaling, the shares (the results of the softmax), and the result. A mask
    (samples, length), if there is one, is added to a key's scores after scaling.

    Attributes:
        heads: number of heads; the channels of a head lie side by side
        length: tokens of a sample
        scale: factor of the scores
        steps: the steps of Q, K and V
        scores: the steps of Q K^T
        shares: the steps of the softmax's results; the least integer, -128, stands for 0
        result: the steps of the result
    """

    heads: int
    length: int
    scale: float
    steps: tuple[Quantisation, Quantisation, Quantisation]
    scores: Quantisation
    shares: Quantisation
    result: Quantisation

    types: ClassVar[str] = (
        "query float32 [1, heads*each, columns], key float32 [1, heads*each, columns], "
        "value float32 [1, heads*each, columns], mask? float32 [samples, length] "
        "-> float32 [1, heads*each, columns]"
    )
    needs: ClassVar[str] = (
        ", with features of a head in multiples of 4 and columns in multiples of the length"
    )
    mixes: ClassVar[tuple[str, ...]] = ("columns", "heads*each")
    mixing: ClassVar[str] = "attends from one token to another"

    def __post_init__(self) -> None:
        """Raise InvalidInput for values that no code supports."""
        is_factor = SMALLEST_SCALE <= abs(self.scale) <= LARGEST_SCALE
        if self.heads < 1 or self.length < 1 or self.shares.zero_point != -128 or not is_factor:
            raise InvalidInput(
                f"{self}: give heads and length of at least 1, shares with zero point -128, and a "
                f"scale of {SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.3g}"
            )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        samples, rest = divmod(bound["columns"], self.length)
        fits = bound["each"] % 4 == 0 and rest == 0 and bound.get("samples", samples) == samples
        return {} if fits else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        query, key, value = (
            self._by_head(on_steps(x, s.scale, s.zero_point))
            for x, s in zip(operands, self.steps, strict=False)
        )
        products = np.einsum("hcbq,hcbk->bhqk", query, key)
        scores = self.scale * on_steps(products, self.scores.scale, self.scores.zero_point)
        for mask in operands[3:]:
            scores = scores + mask[:, None, None]
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        shares = on_steps(shares, self.shares.scale, self.shares.zero_point)
        mixed = np.einsum("bhqk,hcbk->hcbq", shares, value).reshape(operands[0].shape)
        return (on_steps(mixed, self.result.scale, self.result.zero_point),)

    def _by_head(self, x: Array) -> Array:
        """x as (heads, features, samples, length)."""
        return x.reshape(self.heads, -1, x.shape[2] // self.length, self.length)


@dataclass(frozen=True)
class ChannelMeans(Operator):
    """The mean of every channel of x (batch, channels, *space); x is rounded to `steps` first."""

    steps: Quantisation

    types: ClassVar[str] = "x float32 [batch, channels, *space] -> float32 [batch, channels]"
    needs: ClassVar[str] = ", of one or two axes of space"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if 1 <= len(bound["*space"]) <= 2 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        rounded = on_steps(x, self.steps.scale, self.steps.zero_point)
        return (rounded.mean(axis=tuple(range(2, x.ndim))),)


@dataclass(frozen=True)
class ScaledChannels(Operator):
    """Each channel of x (batch, channels, *space) times its own scale (batch, channels).

    x is rounded to `steps` first, and the product to `result`.
    """

    steps: Quantisation
    result: Quantisation

    types: ClassVar[str] = (
        "x float32 [batch, channels, *space], scale float32 [batch, channels] "
        "-> float32 [batch, channels, *space]"
    )
    needs: ClassVar[str] = ", of one or two axes of space"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if 1 <= len(bound["*space"]) <= 2 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, scale = operands
        rounded = on_steps(x, self.steps.scale, self.steps.zero_point)
        scaled = rounded * scale.reshape(*scale.shape, *(1,) * (x.ndim - 2))
        return (on_steps(scaled, self.result.scale, self.result.zero_point),)
