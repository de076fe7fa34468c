"""Means of the channels of a quantised image, and channels times a number each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sparsejit.ir.operator import Operator
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.reference import on_steps
from sparsejit.ir.signature import Bound
from sparsejit.ir.values import Array


@dataclass(frozen=True)
class ChannelMeans(Operator):
    """The mean of every channel of x (batch, channels, *space); x is rounded to `steps` first."""

    steps: QuantisedSteps

    types: ClassVar[str] = "x float32 [batch, channels, *space] -> float32 [batch, channels]"
    needs: ClassVar[str] = ", of one or two axes of space"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if 1 <= len(bound["*space"]) <= 2 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        rounded = on_steps(x, self.steps.scale, self.steps.shift)
        return (rounded.mean(axis=tuple(range(2, x.ndim))),)


@dataclass(frozen=True)
class ScaledChannels(Operator):
    """x (batch, channels, *space), rounded to `steps`, times a scale a channel, rounded again."""

    steps: QuantisedSteps
    result: QuantisedSteps

    types: ClassVar[str] = (
        "x float32 [batch, channels, *space], scale float32 [batch, channels] "
        "-> float32 [batch, channels, *space]"
    )
    needs: ClassVar[str] = ", of one or two axes of space"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return {} if 1 <= len(bound["*space"]) <= 2 else None

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, scale = operands
        rounded = on_steps(x, self.steps.scale, self.steps.shift)
        scaled = rounded * scale.reshape(*scale.shape, *(1,) * (x.ndim - 2))
        return (on_steps(scaled, self.result.scale, self.result.shift),)
