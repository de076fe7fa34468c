"""Conversion of tensors and sparse matrices to numpy arrays, and a check of their numbers.

    to_array, to_matrix   the conversion, dense or with sparse matrices as nonzeros
    check_held            check that float32 can hold the numbers of a fitted estimator

Types are recognised by their attributes, so that neither torch nor scipy is imported here.
"""

from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.values import Array

# Attribute of a torch tensor without plain values, its description in messages, and the remedy.
_UNREADABLE = (
    ("is_quantized", "is quantised", "give its dequantize()"),
    ("is_meta", "is on the meta device, which holds no values", "load the weights first"),
    ("is_nested", "is a nested tensor", "give one matrix of it"),
)
# Sparse layouts of torch that index single elements, not blocks.
_ELEMENTWISE = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc")
# Dtypes of torch, or of ml_dtypes, that numpy cannot compute with; float32 holds all their values.
_WIDENED = ("bfloat16", "float8_")


def to_matrix(values: Any, name: str) -> Array | CompressedRows:
    """Convert to a dense array as `to_array` does, but a 2-D sparse matrix to compressed rows."""
    try:
        found = _compressed(values, name)
    except InvalidInput:
        raise
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        raise _unreadable(values, name, error) from error
    if found is None:
        return to_array(values, name)
    if found.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} has dtype {found.dtype}; give real numbers")
    return found


def to_array(values: Any, name: str, takes_bools: bool = False) -> Array:
    """`values` as a dense numpy array of integers or floats, in their own shape.

    They may be an array, nested sequences of numbers, a torch tensor of any layout and on any
    device, or a scipy sparse matrix. bfloat16 and float8 become float32; with `takes_bools`, bools
    become 0 and 1. `name` is the argument's name, for messages. Raises InvalidInput for a tensor
    that is quantised, complex, nested or on the meta device, and for anything else that does not
    hold real numbers.
    """
    try:
        array = _converted(values, name)
    except InvalidInput:
        raise
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        raise _unreadable(values, name, error) from error
    if array.dtype.kind == "b" and takes_bools:
        return array.astype(np.uint8)
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} has dtype {array.dtype}; give real numbers")
    return array


def _unreadable(values: Any, name: str, error: Exception) -> InvalidInput:
    reason = str(error).strip().split("\n")[0]
    return InvalidInput(
        f"{name}, a {type(values).__name__}, cannot be read as an array of numbers ({reason}); "
        "give a numpy array or a dense tensor, all rows of one length"
    )


def is_tensor(values: Any) -> bool:
    """Whether `values` is a torch tensor."""
    return hasattr(values, "detach") and hasattr(values, "layout")


def _compressed(values: Any, name: str) -> CompressedRows | None:
    """A 2-D sparse matrix or tensor as compressed rows of its nonzeros; None for anything else."""
    if isinstance(values, CompressedRows):
        return values
    if is_tensor(values):
        if str(values.layout) not in _ELEMENTWISE or values.ndim != 2:
            return None
        parts = _coordinates(values, name)
    elif hasattr(values, "tocoo") and len(values.shape) == 2:
        found = values.tocoo()
        parts = (found.row, found.col, np.asarray(found.data))
    else:
        return None
    row, column = (np.asarray(part, np.int64) for part in parts[:2])
    return CompressedRows.of_places(tuple(map(int, values.shape)), row, column, parts[2])


def _coordinates(tensor: Any, name: str) -> tuple[Array, Array, Array]:
    """Row, column and value of each element that a sparse tensor holds."""
    held = tensor.detach().to_sparse_coo().coalesce().cpu()
    row, column = held.indices().numpy()
    return row, column, _tensor_to_array(held.values(), name)


def _converted(values: Any, name: str) -> Array:
    if is_tensor(values):
        return _tensor_to_array(values, name)
    if hasattr(values, "toarray"):  # scipy.sparse
        return np.asarray(values.toarray())
    # `np.ma` is imported by its first use, which takes 10 ms.
    if type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray):
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


_LEAST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def check_held(estimator: Any, name: str, numbers: Array) -> None:
    """Raise InvalidInput where float32 makes the numbers infinite, or all of them denormal."""
    largest = float(np.abs(numbers[~np.isnan(numbers)]).max(initial=0.0))
    if largest > _LARGEST or 0 < largest < _LEAST:
        raise InvalidInput(
            f"the {type(estimator).__name__} has {largest:.1e} among {name}, and results are "
            f"float32, which holds {_LEAST:.0e} to {_LARGEST:.0e}; fit it to scaled targets"
        )
