"""A clock that tests wind themselves, in place of the one that all timing code reads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparsejit.perf.machine import machine_limits
from sparsejit.perf.timing import empty_native_call, empty_python_call
from sparsejit.runtime import native_timing

# As long as a sample of the timing code is, so that one call makes one.
TICK_NS = 100_000


class FakeClock:
    """Nanoseconds that pass where a test says so, and `step` with every reading."""

    def __init__(self, step: int = 0) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now

    def pass_time(self, nanoseconds: int) -> None:
        """Let so much time go by."""
        self.now += nanoseconds


@contextmanager
def ticking() -> Iterator[FakeClock]:
    """All that is timed meanwhile takes `TICK_NS`, whatever it is and however often it runs."""
    clock = FakeClock(TICK_NS)
    remembered = (machine_limits, empty_native_call, empty_python_call)
    with pytest.MonkeyPatch.context() as patch:
        for function in remembered:
            function.cache_clear()
        patch.setattr(native_timing, "clock", clock)
        yield clock
    for function in remembered:
        function.cache_clear()
