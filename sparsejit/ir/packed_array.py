"""An array put away: where it is mostly zeros, only what is not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# What packing leaves, at most, of what an array takes; else it is copied as it is.
_WORTH_IT = 0.75


@dataclass(frozen=True, eq=False)
class PackedArray:
    """What is not zero in an array, where that is, and which zeros are -0.0, as masks leave them.

    Places are bits, as np.packbits has them.
    """

    shape: tuple[int, ...]
    values: Array
    places: npt.NDArray[np.uint8]
    negative_zeros: npt.NDArray[np.uint8]


def packed(array: Array) -> Array | PackedArray:
    """The array in memory of its own, packed where that pays."""
    whole = np.ascontiguousarray(array).reshape(-1)
    is_set = whole != 0
    left = np.count_nonzero(is_set) * whole.itemsize + whole.size / 4
    if left > _WORTH_IT * whole.nbytes:
        return array.copy()
    is_negative = np.signbit(whole) & ~is_set if whole.dtype.kind == "f" else np.zeros(0, bool)
    return PackedArray(
        array.shape, whole[is_set], np.packbits(is_set), np.packbits(is_negative)
    )


def unpacked(kept: Array | PackedArray) -> Array:
    """The array that `packed` was given."""
    if not isinstance(kept, PackedArray):
        return kept
    array = np.zeros(kept.shape, kept.values.dtype)
    flat = array.reshape(-1)
    flat[np.unpackbits(kept.places, count=flat.size).view(bool)] = kept.values
    if len(kept.negative_zeros):
        flat[np.unpackbits(kept.negative_zeros, count=flat.size).view(bool)] = -0.0
    return array
