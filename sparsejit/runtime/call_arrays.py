"""Arguments of a model's native function: tables of addresses, and a workspace."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WORKSPACE_ALIGNMENT = 64

Array = npt.NDArray[Any]


def address_table(arrays: Sequence[Array]) -> Any:
    """Return a C array of the arrays' addresses."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def new_workspace(size: int) -> Array:
    """Return `size` bytes or more, uninitialised, aligned to WORKSPACE_ALIGNMENT."""
    room = np.empty(max(size, 1) + WORKSPACE_ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % WORKSPACE_ALIGNMENT :]


def aligned_copy(array: Array) -> Array:
    """Return a C-contiguous copy that begins at a cache line."""
    room = new_workspace(array.nbytes)[: array.nbytes]
    copy: Array = room.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
