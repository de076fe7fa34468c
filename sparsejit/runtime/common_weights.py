"""Weights that native functions of one model share: literals in the memory of earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.native.executable_memory import ExecutableMemory, Neighbourhood
from sparsejit.x86.literal_pool import CommonLiterals

Array = npt.NDArray[Any]


class CommonWeights:
    """Addresses of the shared literals, in the memory of the first function and of later ones.

    All these functions lie in one neighbourhood. Raises CompileError where the system refuses its
    addresses.
    """

    def __init__(self) -> None:
        self.neighbourhood = Neighbourhood()
        self.literals = CommonLiterals(self.neighbourhood.first)
        self.memory: ExecutableMemory | None = None  # holds the memory of earlier functions alive
        self._newest: ExecutableMemory | None = None

    @property
    def is_there(self) -> bool:
        """Whether a function has been built whose literals others can share."""
        return self.literals.is_there

    def written(self, memory: ExecutableMemory) -> None:
        """Record the memory of a new function; share the literals of the first."""
        self._newest = memory
        if self.memory is None:
            self.keep()

    def keep(self) -> None:
        """Share the literals of the newest function, too."""
        self.literals.keep()
        self.memory = self._newest

    def view_of(self, array: Array) -> Array | None:
        """Return the same array in the memory of one of the functions; None where none has it."""
        address, newest = self.literals.address_of(array), self._newest
        if address is None or newest is None or not array.flags.c_contiguous:
            return None
        found = np.frombuffer(newest.view(array.nbytes, address), array.dtype)
        found = found.reshape(array.shape)
        return found if np.array_equal(_bytes_of(found), _bytes_of(array)) else None


def _bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
