"""Settings and fixtures that every test shares."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pretended_processor
import pytest
from fake_clock import FakeClock, ticking
from hypothesis import settings
from temporary_folder import own_temporary_folder

from sparsejit.machine.price_records import SharingPrices
from sparsejit.planner import sharing
from sparsejit.runtime import native_timing
from sparsejit.x86.instructions import forms_used
from sparsejit.x86.shipping import ship

# pytest's own folders stay where they can be looked at after a failure.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
_TEMPORARY = own_temporary_folder()

# An earlier calibration or tuning of this machine must not sway the planner.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-")

# Nor is code taken that an earlier run left there.
os.environ["SPARSEJIT_CODE_CACHE_MB"] = "0"

# Nor is it measured: prices come from its data.
os.environ["SPARSEJIT_CALIBRATE"] = "0"

# Elements that an operator leaves unwritten are NaN, or -1.
os.environ["SPARSEJIT_FILL"] = "1"

# A forked process has no other threads, which torch would wait for.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Output is as in a pipe, whatever terminal the tests run in.
os.environ.pop("COLUMNS", None)

# A command that a shell runs in the background ignores Ctrl-C, and so would all that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may compile a kernel or wait for a busy core; that is not a failure.
settings.register_profile("sparsejit", deadline=None)
settings.load_profile("sparsejit")

# Looks a millisecond apart or more: so long a wait only bounds a hang.
_LOOKS = 60_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor",
        choices=pretended_processor.names(),
        help="run as on that processor: its vendor, numbers, caches and data, not this one's",
    )
    parser.addoption(
        "--keep-forms",
        action="store_true",
        help="add the forms of instructions that these tests need to those that ship",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--keep-forms"):
        ship(form.key for form in forms_used())


def pytest_unconfigure() -> None:
    _TEMPORARY.cleanup()


def pytest_configure(config: pytest.Config) -> None:
    if key := config.getoption("--processor"):
        pretended_processor.install(key)


@pytest.fixture(scope="module")
def barriers_are_free() -> Iterator[None]:
    """Small layers are split too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "sharing_prices", lambda target: SharingPrices(0.0, 1e9))
        yield


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The timing code's clock stands still, but where the test lets time pass."""
    clock = FakeClock()
    monkeypatch.setattr(native_timing, "clock", clock)
    return clock


@pytest.fixture
def steady_clock() -> Iterator[FakeClock]:
    """All that is timed takes `fake_clock.TICK_NS`."""
    with ticking() as clock:
        yield clock


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Whether something happens at last; False only where a test would otherwise hang."""

    def wait(happened: Callable[[], bool]) -> bool:
        pause = threading.Event()
        return any(happened() or pause.wait(0.001) for _ in range(_LOOKS))

    return wait


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, which is not made yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sparsejit"
