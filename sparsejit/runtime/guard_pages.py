"""Arrays that end, or begin, at an inaccessible page: an access beyond that edge faults.

    GuardedArray       a vector
    guarded_workspace  the workspace of a model's function
"""

import ctypes
import mmap
import os
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparsejit.runtime.native_call import WORKSPACE_ALIGNMENT
from sparsejit.whole_numbers import round_up

PAGE = os.sysconf("SC_PAGE_SIZE")
Edge = Literal["start", "end"]
EDGES: tuple[Edge, ...] = ("start", "end")

_PROT_NONE = 0
# A NaN with a payload: a stray read makes a sum NaN, a stray write is detected.
_FILLER = 0x7FC0BEEF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedArray:
    """A float32 vector flush against an inaccessible page at one of its edges.

    The page beyond the other edge is inaccessible too. The bytes between are filled, and
    `surroundings_intact` returns whether they still are. `address` is the address of the first
    value. Raises OSError where the system refuses the memory.
    """

    def __init__(self, values: npt.NDArray[np.float32], edge: Edge) -> None:
        room = round_up(values.nbytes, PAGE)
        whole = mmap.mmap(-1, room + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._room = np.frombuffer(whole, np.uint32)[PAGE // 4 : (PAGE + room) // 4]
        start = self._room.ctypes.data
        for guard in (start - PAGE, start + room):
            if _libc.mprotect(guard, PAGE, _PROT_NONE):
                code = ctypes.get_errno()
                raise OSError(code, f"mprotect of a guard page: {os.strerror(code)}")
        self._room[:] = _FILLER
        first = 0 if edge == "start" else room // 4 - len(values)
        self._span = slice(first, first + len(values))
        self.values = self._room.view(np.float32)[self._span]
        self.values[:] = values
        self.address = start + 4 * first

    def surroundings_intact(self) -> bool:
        """Whether nothing was written beside the values."""
        before, after = self._room[: self._span.start], self._room[self._span.stop :]
        return bool(np.all(before == _FILLER) and np.all(after == _FILLER))


def guarded_workspace(size: int) -> GuardedArray:
    """A workspace of at least `size` bytes: lines of NaN, the last of which ends at the page."""
    lines = np.full(round_up(size, WORKSPACE_ALIGNMENT) // 4, np.nan, np.float32)
    return GuardedArray(lines, "end")
