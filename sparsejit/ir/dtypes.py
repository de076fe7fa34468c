"""Dtypes of values in a user's model, which a graph holds as float32 or int64.

A graph holds float16, bfloat16 and float64 as float32, and whole numbers as int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.ir.reference import round_to_bfloat16


class BFloat16:
    """bfloat16, which numpy lacks, with the attributes of a numpy dtype that callers use."""

    name, kind, itemsize = "bfloat16", "f", 2

    def __str__(self) -> str:
        return self.name


Dtype = np.dtype[Any] | BFloat16
BFLOAT16 = BFloat16()
FLOAT16 = np.dtype(np.float16)
LARGEST = float(np.finfo(np.float32).max)
# Floats shorter than float32, by name.
SHORT_FLOATS: dict[str, Dtype] = {"float16": FLOAT16, "bfloat16": BFLOAT16}
# Dtypes without an `Element` of their own, by name.
NOTED: dict[str, Dtype] = {
    **{
        name: np.dtype(name)
        for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float64")
    },
    **SHORT_FLOATS,
}
# Dtypes of tensors that a graph holds as pairs of float32 on a last axis of two, by name.
COMPLEX: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("complex64", "complex128")
}
# Strings, which a graph holds as the places in a table.
TEXT = np.dtype(object)
# Kinds of dtypes: an operation yields the highest of its operands.
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2}


def dtype_named(name: Any) -> Dtype:
    """The dtype of a name, or of a dtype of torch or numpy. Raises TypeError for unknown names."""
    text = str(name).removeprefix("torch.")
    return SHORT_FLOATS.get(text) or np.dtype(text)


def rank_of(dtype: Dtype) -> int:
    """Rank of the dtype's kind: 0 for bool, 1 for whole numbers, 2 for floats."""
    return _RANKS[dtype.kind]


def promoted_dtype(first: Dtype, second: Dtype) -> Dtype:
    """The dtype that torch gives an operation on tensors of two dtypes.

    The higher kind wins; float16 with bfloat16 makes float32.
    """
    if first == second:
        return first
    if rank_of(first) != rank_of(second):
        return max(first, second, key=rank_of)
    if first.kind != "f":
        return np.result_type(first.name, second.name)
    if first.itemsize == second.itemsize:
        return np.dtype(np.float32)
    return max(first, second, key=lambda dtype: dtype.itemsize)


def rounded(array: npt.NDArray[Any], dtype: Dtype) -> npt.NDArray[np.float32]:
    """Round floats to float32, and from there to a shorter dtype; return float32.

    To the nearest, ties to even. Numbers beyond the range become infinite; NaN and denormal numbers
    are kept.
    """
    with np.errstate(over="ignore"):
        single = np.asarray(array, np.float32)
        if dtype is BFLOAT16:
            return round_to_bfloat16(single)
        return single if dtype != FLOAT16 else single.astype(np.float16).astype(np.float32)


def as_pairs(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Complex numbers (...) as float32 (..., 2), real and imaginary parts."""
    rows = np.asarray(numbers, np.complex64, order="C")
    return rows.reshape(*rows.shape, 1).view(np.float32)


def from_pairs(pairs: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """float32 (..., 2) as complex numbers (...)."""
    rows = np.asarray(pairs, np.float32, order="C")
    return np.asarray(rows.view(np.complex64)[..., 0].astype(dtype, copy=False))


def within_float32(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert float64 to float32, with finite numbers clipped; return other arrays unchanged.

    The least number of float64, which masks contain, stays finite: sums with it are no NaN.
    """
    if array.dtype != np.float64:
        return array
    near = np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array)
    return near.astype(np.float32)


def largest_of(dtype: Dtype) -> float:
    """The largest finite number of a float dtype, at most float32's."""
    if isinstance(dtype, np.dtype):
        return min(LARGEST, float(np.finfo(dtype).max))
    return 2.0**128 - 2.0**120
