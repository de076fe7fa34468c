"""The same values as another kind of element."""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir.graph import Array, Element, TensorType


@dataclass(frozen=True)
class Cast:
    """Each element as `element`: numbers become integers towards zero, bools 0 or 1.

    A number becomes a bool by whether it differs from zero.
    """

    element: Element

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        return (TensorType(x.shape, self.element),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        if self.element is Element.BOOL:
            return (np.not_equal(x, 0),)
        kind = np.float64 if self.element is Element.FLOAT32 else np.int64
        return (np.asarray(x).astype(kind),)
