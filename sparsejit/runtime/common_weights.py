"""What native functions of one model have in common: the weights in the memory of the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.native.executable_memory import ExecutableMemory, Neighbourhood
from sparsejit.x86.literal_pool import CommonLiterals

Array = npt.NDArray[Any]


class CommonWeights:
    """Where the literals of the first function lie, for others that are built near it.

    Raises CompileError where the system does not grant the addresses.
    """

    def __init__(self) -> None:
        self.literals = CommonLiterals()
        self.neighbourhood = Neighbourhood()
        self.memory: ExecutableMemory | None = None

    @property
    def is_there(self) -> bool:
        """Whether a function was built that others can share with."""
        return self.literals.address > 0

    def view_of(self, array: Array) -> Array | None:
        """The same array in the memory of the first function; None where it is not there."""
        place = self.literals.place_of(array)
        if place is None or self.memory is None or not array.flags.c_contiguous:
            return None
        start = self.literals.address - self.memory.address + place
        data = self.memory.view(start + array.nbytes)[start:]
        found = np.frombuffer(data, array.dtype).reshape(array.shape)
        return found if np.array_equal(_bytes_of(found), _bytes_of(array)) else None


def _bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
