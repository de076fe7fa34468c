"""What calibration says of one layer: how its weights are stored, and the steps of its x."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.spec import DType


class LayerKey(NamedTuple):
    """Names a layer of a model. Its weights, and which of several that share them, tell it apart.

    Its own name may change: a sum inside a convolution gives it the sum's.
    """

    layer: str
    weights: str
    number: int

    @property
    def place(self) -> tuple[str, int]:
        """What passes leave as it is."""
        return self.weights, self.number


@dataclass(frozen=True, eq=False)
class LayerScales:
    """One layer with weights, as it was calibrated.

    Attributes:
        layer: its name in the model, as `explain()` has it
        weights: the name of its weights
        number: which it is of the layers that have these weights, from 0
        dtype: how its weights are to be stored
        input_scale: with int8, the step of x; None where each row of x is measured at every call
        input_shift: the zero point of x, -128 to 127; None without a step
        how: where the step is from: "range" (all values seen), "percentile" or "least squares" (cut
            where that costs least), "each row" (measured at every call); empty without int8
        error: root mean square of its error, of the outputs' root mean square, on the data, alone
        saved_ns: nanoseconds a run that it is predicted to save, with others of this name
        correction: added to the bias, (out,): less the mean error; None for none
        factors: by which channels of x are divided and their weights multiplied, (in,), before both
            are rounded, so that no channel has few steps; None for none
        shape: the shape of its weights, (out, in, *kernel); empty where it is not known
    """

    layer: str
    weights: str
    number: int
    dtype: DType
    input_scale: float | None = None
    input_shift: int | None = None
    how: str = ""
    error: float = 0.0
    saved_ns: float = 0.0
    correction: Array | None = field(default=None, repr=False)
    factors: Array | None = field(default=None, repr=False)
    shape: tuple[int, ...] = field(default=(), metadata={"newer": True})

    def __post_init__(self) -> None:
        """Raises InvalidInput for steps that cannot be, or that are of another dtype."""
        if (self.input_scale is None) is not (self.input_shift is None):
            raise InvalidInput(f"{self.layer}: give input_scale and input_shift, or neither")
        if self.input_scale is not None:
            QuantisedSteps(self.input_scale, self.input_shift or 0)
            if self.dtype is not DType.INT8:
                raise InvalidInput(f"{self.layer}: only int8 has an input_scale, leave it out")

    @property
    def place(self) -> tuple[str, int]:
        """As of its key."""
        return self.key.place

    @property
    def key(self) -> LayerKey:
        """What tells it from the model's other layers."""
        return LayerKey(self.layer, self.weights, self.number)


@dataclass(frozen=True)
class SumScales:
    """The steps of what a sum of images adds, so that it may stay in bytes.

    Attributes:
        name: of the sum's result
        first: the steps of its first operand, where no layer reads that in steps
        second: the steps of its second operand, likewise
    """

    name: str
    first: QuantisedSteps
    second: QuantisedSteps
