"""Check that float32 can hold the numbers of a fitted estimator."""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

_LEAST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def check_held(estimator: Any, name: str, numbers: Array) -> None:
    """Raise InvalidInput where float32 makes the numbers infinite, or all of them denormal."""
    largest = float(np.abs(numbers[~np.isnan(numbers)]).max(initial=0.0))
    if largest > _LARGEST or 0 < largest < _LEAST:
        raise InvalidInput(
            f"the {type(estimator).__name__} has {largest:.1e} among {name}, and results are "
            f"float32, which holds {_LEAST:.0e} to {_LARGEST:.0e}; fit it to scaled targets"
        )
