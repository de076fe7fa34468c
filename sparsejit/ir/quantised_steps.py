"""Scale and zero point of the values of quantised models."""

from dataclasses import dataclass

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import LARGEST_INT8, LARGEST_SCALE, SMALLEST_SCALE


@dataclass(frozen=True)
class QuantisedSteps:
    """The numbers (q - shift) * scale of integers q in -128 .. 127."""

    scale: float
    shift: int

    def __post_init__(self) -> None:
        """Raise InvalidInput for a scale or a zero point out of range."""
        if not fits_steps(self.scale, self.shift):
            raise InvalidInput(
                f"the scale is {self.scale!r} and the zero point {self.shift}; give a scale of "
                f"{SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.3g} and a zero point of -128 to 127"
            )


def fits_steps(scale: float, shift: int) -> bool:
    """Whether a scale and a zero point are in range."""
    in_range = SMALLEST_SCALE <= scale <= LARGEST_SCALE
    return in_range and -LARGEST_INT8 - 1 <= shift <= LARGEST_INT8
