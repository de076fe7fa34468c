"""Conversion of values to another element."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.values import Array, Element


@dataclass(frozen=True)
class Cast(Operator):
    """Convert to `element`: numbers become integers towards zero, bools 0 or 1.

    A number becomes True where it differs from zero, an int64 the nearest float32. Numbers that
    int64 cannot hold, NaN too, become its least number.
    """

    element: Element

    def __post_init__(self) -> None:
        if self.element is Element.FLOAT64:
            raise InvalidInput("a Cast cannot make float64; cast to float32")

    types: ClassVar[str] = "x any [...] -> element [...]"

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        if self.element is Element.BOOL:
            return (np.not_equal(x, 0),)
        x = np.asarray(x)
        if self.element is Element.FLOAT32:
            # Integers are rounded as in compiled code; floats stay in float64.
            rounded = x if x.dtype.kind == "f" else x.astype(np.float32)
            return (rounded.astype(np.float64),)
        with np.errstate(invalid="ignore"):
            return (x.astype(np.int64),)
