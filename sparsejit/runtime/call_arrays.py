"""What the native function of a model is called with: tables of addresses, and a workspace."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WORKSPACE_ALIGNMENT = 64

Array = npt.NDArray[Any]


def address_table(arrays: Sequence[Array]) -> Any:
    """The arrays' addresses, one after the other."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def new_workspace(size: int) -> Array:
    """At least `size` bytes, not initialised, that begin at a multiple of WORKSPACE_ALIGNMENT."""
    room = np.empty(max(size, 1) + WORKSPACE_ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % WORKSPACE_ALIGNMENT :]


def aligned_copy(array: Array) -> Array:
    """The array, C-contiguous, where a load of a vector crosses no cache line for its sake."""
    room = new_workspace(array.nbytes)[: array.nbytes]
    copy: Array = room.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
