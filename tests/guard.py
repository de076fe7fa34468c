"""Arrays that end, or begin, where memory is inaccessible, and a child process to try them in."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import traceback
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

PAGE = os.sysconf("SC_PAGE_SIZE")
Edge = Literal["start", "end"]
EDGES: tuple[Edge, ...] = ("start", "end")

_PROT_NONE, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS = 0, 3, 0x22
# A NaN with a payload: read by mistake it spoils a sum, written over by mistake it is missed.
_FILLER = 0x7FC0BEEF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class GuardedArray:
    """A float32 vector flush against an inaccessible page at one of its edges.

    The page beyond the other edge is inaccessible too; what lies between is filled, and
    `surroundings_intact` tells whether it still is.
    """

    def __init__(self, values: npt.NDArray[np.float32], edge: Edge) -> None:
        room = -(-values.nbytes // PAGE) * PAGE
        whole = room + 2 * PAGE
        base = _libc.mmap(None, whole, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value)
        weakref.finalize(self, _libc.munmap, base, whole)
        for guard in (base, base + PAGE + room):
            assert _libc.mprotect(guard, PAGE, _PROT_NONE) == 0
        floats = (ctypes.c_float * (room // 4)).from_address(base + PAGE)
        self._room = np.frombuffer(floats, np.float32)
        self._room.view(np.uint32)[:] = _FILLER
        first = 0 if edge == "start" else room // 4 - len(values)
        self._span = slice(first, first + len(values))
        self.values = self._room[self._span]
        self.values[:] = values
        self.address = base + PAGE + 4 * first

    def surroundings_intact(self) -> bool:
        around = np.delete(self._room.view(np.uint32), np.r_[self._span])
        return bool(np.all(around == _FILLER))


@dataclass(frozen=True)
class Outcome:
    """How a child ended: the signal that killed it (0: none), a traceback, its last check."""

    signal: int
    failure: str
    last_check: str

    def assert_clean(self) -> None:
        name = signal.Signals(self.signal).name if self.signal else ""
        assert not name, f"killed by {name} at {self.last_check}"
        assert not self.failure, f"at {self.last_check}:\n{self.failure}"


def run_in_child(checks: Iterable[tuple[str, Callable[[], None]]]) -> Outcome:
    """Run named checks in a forked process, where a fault does no harm, up to the first failure.

    Prepare what is slow before: what the child learns is lost with it.
    """
    checks = list(checks)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _be_the_child(checks, write_end)
    os.close(write_end)
    with open(read_end, errors="replace") as pipe:
        names, _, failure = pipe.read().partition("\0")
    _, status = os.waitpid(child, 0)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Outcome(killed_by, failure, (names.splitlines() or ["the start"])[-1])


def _be_the_child(checks: list[tuple[str, Callable[[], None]]], pipe: int) -> None:
    faulthandler.disable()
    try:
        for name, check in checks:
            os.write(pipe, f"{name}\n".encode())
            check()
    except BaseException:
        with contextlib.suppress(OSError):
            os.write(pipe, b"\0" + traceback.format_exc().encode())
    finally:
        os._exit(0)
