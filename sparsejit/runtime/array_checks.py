"""Checks of arrays that native code reads and writes: used in place, copied, or refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.runtime.python_objects import ArrayType

Array = npt.NDArray[Any]


def is_free(kind: ArrayType) -> bool:
    return None in kind.shape


def free_length(arrays: Sequence[Array], kinds: Sequence[ArrayType]) -> int:
    """Return the batch of the first array whose type has a free length.

    It is 0 where that array has too few axes, or no type has a free length.
    """
    for array, kind in zip(arrays, kinds, strict=True):
        if is_free(kind):
            axis = kind.shape.index(None)
            found = isinstance(array, np.ndarray) and axis < array.ndim
            return int(array.shape[axis]) if found else 0
    return 0


def require_number(what: str, found: int, kinds: Sequence[ArrayType]) -> None:
    if found != len(kinds):
        names = ", ".join(kind.name for kind in kinds)
        raise InvalidInput(f"{found} {what} given; the model has {len(kinds)}: {names}")


def checked_array(array: Array, kind: ArrayType, rows: int = 0) -> Array:
    """Return the array, or a contiguous copy in native byte order where it is not usable in place.

    Raises InvalidInput for another type, dtype or shape; `rows` is the free length.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidInput(
            f"{kind.name} is a {type(array).__name__}; give a numpy array of {kind.dtype}"
        )
    if array.dtype.newbyteorder("=") != kind.dtype:
        raise InvalidInput(
            f"{kind.name} has dtype {array.dtype}; convert it with astype(np.{kind.dtype})"
        )
    if array.shape != with_rows(kind.shape, rows):
        lengths = ["any" if length is None else str(length) for length in kind.shape]
        wanted = ", ".join(lengths) + "," * (len(lengths) == 1)
        same = _rows_in_words(kind, rows)
        raise InvalidInput(f"{kind.name} has shape {array.shape}; give ({wanted}){same}")
    return array if _is_plain(array) else np.require(array, kind.dtype, ("C", "A", "E"))


def _rows_in_words(kind: ArrayType, rows: int) -> str:
    """Describe the free length and its axis, for an error message."""
    if not is_free(kind):
        return ""
    axis = kind.shape.index(None)
    return f"; axis {axis} is the batch, {rows} in this call"


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def check_in_place(arrays: Sequence[Array], kinds: Sequence[ArrayType]) -> None:
    """Raise InvalidInput for an array that could only be read or written as a copy."""
    for array, kind in zip(arrays, kinds, strict=True):
        if not _is_plain(array):
            raise InvalidInput(
                f"{kind.name} is not contiguous, aligned and in native byte order; "
                "give np.ascontiguousarray of it"
            )


def check_outputs(
    outputs: Sequence[Array], kinds: Sequence[ArrayType], inputs: Sequence[Array], rows: int = 0
) -> None:
    """Raise InvalidInput for arrays that results cannot be written to."""
    for number, (output, kind) in enumerate(zip(outputs, kinds, strict=True)):
        checked_array(output, kind, rows)
        check_in_place([output], [kind])
        if not output.flags.writeable:
            raise InvalidInput(f"{kind.name} is read-only; give a writable array")
        if any(np.may_share_memory(output, other) for other in [*inputs, *outputs[:number]]):
            raise InvalidInput(f"{kind.name} shares memory with another array; give a new array")


def with_rows(shape: tuple[int | None, ...], rows: int) -> tuple[int, ...]:
    return tuple(rows if length is None else length for length in shape)
