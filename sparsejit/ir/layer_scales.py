"""Scales of quantised models.

    LayerScales      result of calibrating one layer: the dtype of its weights, the steps of its x
    SumScales        steps of the operands of a sum of images
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Array


class LayerKey(NamedTuple):
    """Key of a layer: its weights, and its number among the layers that share them, identify it.

    Its own name may change: a convolution that takes in a sum gets the sum's name.
    """

    layer: str
    weights: str
    number: int

    @property
    def place(self) -> tuple[str, int]:
        """`weights` and `number`, the part of the key that passes do not change."""
        return self.weights, self.number


@dataclass(frozen=True, eq=False)
class LayerScales:
    """One layer with weights, as it was calibrated.

    Attributes:
        layer: its name in the model, as `explain()` has it
        weights: the name of its weights
        number: its number among the layers that have these weights, from 0
        dtype: the dtype in which its weights are to be stored
        x_steps: with int8, the scale and zero point of x; None where each row of x is measured at
            every call
        how: the origin of the steps: "range" (all values seen), "percentile" or "least squares"
            (cut where that costs least), "each row" (measured at every call); empty without int8
        error: root mean square of the error of its outputs on the data, relative to the outputs',
            with exact inputs
        saved_ns: predicted nanoseconds saved a run, together with other layers of this name
        correction: added to the bias, (out,), to remove the mean error; None without one
        factors: channels of x are divided by them and weights multiplied, (in,), before both are
            rounded, so that no channel has few steps; None without them
        shape: the shape of its weights, (out, in, *kernel); empty where it is not known
    """

    layer: str
    weights: str
    number: int
    dtype: DType
    x_steps: Quantisation | None = None
    how: str = ""
    error: float = 0.0
    saved_ns: float = 0.0
    correction: Array | None = field(default=None, repr=False)
    factors: Array | None = field(default=None, repr=False)
    shape: tuple[int, ...] = field(default=(), metadata={"newer": True})

    def __post_init__(self) -> None:
        """Raise InvalidInput for steps with a dtype that does not quantise x."""
        if self.x_steps is not None and self.dtype is not DType.INT8:
            raise InvalidInput(f"{self.layer}: only int8 has steps of x; leave x_steps out")

    @property
    def place(self) -> tuple[str, int]:
        """`weights` and `number`, the part of the key that passes do not change."""
        return self.key.place

    @property
    def key(self) -> LayerKey:
        """The key that identifies the layer in the model."""
        return LayerKey(self.layer, self.weights, self.number)


@dataclass(frozen=True)
class SumScales:
    """Scales and zero points for the operands of an elementwise addition of two images.

    With them the addition may be computed in bytes.

    Attributes:
        name: name of the sum's result
        first: scale and zero point of its first operand, if no int8 layer that reads it has others
        second: scale and zero point of its second operand, likewise
    """

    name: str
    first: Quantisation
    second: Quantisation
