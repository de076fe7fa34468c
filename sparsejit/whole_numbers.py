"""Division of whole numbers, and of arrays of them, that rounds up."""

from typing import Any, overload

import numpy.typing as npt

_Numbers = npt.NDArray[Any]


@overload
def ceil_div(number: int, divisor: int) -> int: ...
@overload
def ceil_div(number: _Numbers, divisor: int | _Numbers) -> _Numbers: ...
def ceil_div(number: Any, divisor: Any) -> Any:
    """Return the quotient, rounded up to a whole number."""
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is at least `number`."""
    return ceil_div(number, multiple) * multiple
