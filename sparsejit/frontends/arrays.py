"""Numpy arrays out of tensors and sparse matrices, which are recognised by what they can do.

Neither torch nor scipy is imported: whoever gives a tensor has imported torch already.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

Array = npt.NDArray[Any]

# Properties of a torch tensor that holds no plain values, what that is called, and the remedy.
_UNREADABLE = (
    ("is_quantized", "is quantised", "give its dequantize()"),
    ("is_meta", "is on the meta device, which holds no values", "load the weights first"),
    ("is_nested", "is a nested tensor", "give one matrix of it"),
)
# Dtypes of torch, or of ml_dtypes, that numpy cannot compute with; float32 holds all their values.
_WIDENED = ("bfloat16", "float8_")


def to_array(values: Any, name: str, bools: bool = False) -> Array:
    """`values` as a dense numpy array of integers or floats, in their own shape.

    They may be an array, nested sequences of numbers, a torch tensor of any layout and on any
    device, or a scipy sparse matrix. bfloat16 and float8 become float32, bools integers where
    `bools` lets them be numbers. `name` is that of the argument, for messages. Raises InvalidInput
    for a tensor that is quantised, complex, nested or on the meta device, and for anything else
    that does not hold real numbers.
    """
    try:
        array = _converted(values, name)
    except InvalidInput:
        raise
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InvalidInput(
            f"{name}, a {type(values).__name__}, cannot be read as an array of numbers ({reason}); "
            "give a numpy array or a dense tensor, all rows of one length"
        ) from error
    if bools and array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} has dtype {array.dtype}; give real numbers")
    return array


def is_tensor(values: Any) -> bool:
    """Whether these are a torch tensor."""
    return hasattr(values, "detach") and hasattr(values, "layout")


def _converted(values: Any, name: str) -> Array:
    if is_tensor(values):
        return _tensor_to_array(values, name)
    if hasattr(values, "toarray"):  # scipy.sparse
        return np.asarray(values.toarray())
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidInput(f"{name} is a masked array; give its filled(0)")
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name.startswith(_WIDENED) else array


def _tensor_to_array(tensor: Any, name: str) -> Array:
    for attribute, problem, remedy in _UNREADABLE:
        if getattr(tensor, attribute, False):
            raise InvalidInput(f"{name} {problem}; {remedy}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype.startswith("complex"):
        raise InvalidInput(f"{name} has dtype {dtype}; give real numbers, such as its real part")
    plain = tensor.detach()
    if str(plain.layout) != "torch.strided":
        plain = plain.to_dense()
    plain = plain.cpu().resolve_neg()
    return np.asarray((plain.float() if dtype.startswith(_WIDENED) else plain).numpy())
