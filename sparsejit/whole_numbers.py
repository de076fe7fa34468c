"""Whole numbers as arguments, and division that rounds up, also of arrays.

    whole_number         an argument in a range, or a refusal
    ceil_div, round_up   a quotient, and a multiple, rounded up
"""

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

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


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an argument that is a whole number from `least` to `most`, if that is given.

    Raises InvalidInput, with the argument's name, for any other value.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidInput(f"{name}={value!r}; give a whole number {wanted}")
    return int(value)
