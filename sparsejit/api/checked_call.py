"""Calls with arrays that the trampoline does not take as they are: used, or refused in words."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CheckedCall:
    """`call(x, out)` through ctypes."""

    native: Callable[..., None]
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]

    def __call__(self, x: FloatArray, out: FloatArray) -> FloatArray:
        self.native(*self.addresses(x, out))
        return out

    def addresses(self, x: FloatArray, out: FloatArray) -> tuple[int, int]:
        """Where x and out lie; raises InvalidInput where the kernel cannot use them."""
        source = _address(x, "x", self.x_shape)
        destination = _address(out, "out", self.y_shape)
        if not out.flags.writeable:
            raise InvalidInput("out is read-only; give a writable array")
        if source < destination + out.nbytes and destination < source + x.nbytes:
            raise InvalidInput("x and out share memory; give out an array of its own")
        return source, destination


def _address(array: FloatArray, name: str, shape: tuple[int, ...]) -> int:
    if not isinstance(array, np.ndarray):
        raise InvalidInput(f"{name} is a {type(array).__name__}; give a numpy float32 array")
    if array.dtype != np.float32:
        raise InvalidInput(f"{name} has dtype {array.dtype}; convert it with astype(np.float32)")
    if array.shape != shape:
        raise InvalidInput(f"{name} has shape {array.shape}; give {shape}")
    if not array.flags.c_contiguous:
        raise InvalidInput(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    return int(array.ctypes.data)
