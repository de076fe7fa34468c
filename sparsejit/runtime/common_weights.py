"""What native functions of one model have in common: the weights in the memory of the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.native.executable_memory import ExecutableMemory, Neighbourhood
from sparsejit.x86.literal_pool import CommonLiterals

Array = npt.NDArray[Any]


class CommonWeights:
    """Where the literals of the first function lie, and more of later ones, for all near it.

    Raises CompileError where the system does not grant the addresses.
    """

    def __init__(self) -> None:
        self.neighbourhood = Neighbourhood()
        self.literals = CommonLiterals(self.neighbourhood.first)
        self.memory: ExecutableMemory | None = None  # it keeps what was kept before
        self._newest: ExecutableMemory | None = None

    @property
    def is_there(self) -> bool:
        """Whether a function was built that others can share with."""
        return self.literals.is_there

    def written(self, memory: ExecutableMemory) -> None:
        """Know the memory of a function that was built; the first is kept."""
        self._newest = memory
        if self.memory is None:
            self.keep()

    def keep(self) -> None:
        """Have what the newest function has in common, too."""
        self.literals.keep()
        self.memory = self._newest

    def view_of(self, array: Array) -> Array | None:
        """The same array in the memory of one of them; None where it is not there."""
        address, newest = self.literals.address_of(array), self._newest
        if address is None or newest is None or not array.flags.c_contiguous:
            return None
        found = np.frombuffer(newest.view(array.nbytes, address), array.dtype)
        found = found.reshape(array.shape)
        return found if np.array_equal(_bytes_of(found), _bytes_of(array)) else None


def _bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
