"""A child process to try hostile surroundings in, such as `runtime.guard_pages`."""

import contextlib
import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparsejit.runtime.guard_pages import EDGES, Edge, GuardedArray

__all__ = ["EDGES", "Edge", "GuardedArray", "Outcome", "run_in_child"]


@dataclass(frozen=True)
class Outcome:
    """The end of a child: the signal that killed it (0: none), a traceback, its last check."""

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
