"""The same values as another kind of element."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array, Element
from sparsejit.ir.ops.operator import Operator


@dataclass(frozen=True)
class Cast(Operator):
    """Each element as `element`: numbers become integers towards zero, bools 0 or 1.

    A number becomes a bool by whether it differs from zero, an int64 the float32 next to it. What
    int64 does not hold, NaN too, becomes its least number.
    """

    element: Element

    def __post_init__(self) -> None:
        if self.element is Element.FLOAT64:
            raise InvalidInput("a Cast makes no float64; cast to float32")

    types: ClassVar[str] = "x any [...] -> element [...]"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        if self.element is Element.BOOL:
            return (np.not_equal(x, 0),)
        x = np.asarray(x)
        if self.element is Element.FLOAT32:
            # As compiled code has it; what is of floats already stays in float64.
            rounded = x if x.dtype.kind == "f" else x.astype(np.float32)
            return (rounded.astype(np.float64),)
        with np.errstate(invalid="ignore"):
            return (x.astype(np.int64),)
