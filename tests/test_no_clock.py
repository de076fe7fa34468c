"""No test looks at a clock: how fast something is, `sparsejit bench check` measures."""

from pathlib import Path

import pytest
from clock_rules import breaches

TESTS = Path(__file__).parent
SOURCES = [
    path
    for path in sorted(TESTS.rglob("*.py"))
    if path.name not in {"test_no_clock.py", "clock_rules.py"}
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_clock(path: Path) -> None:
    found = breaches(path.read_text())
    assert not found, f"{path.name}: use fake_clock or steady_clock, or `bench check`: {found}"


@pytest.mark.parametrize(
    "snippet",
    [
        "import time\nstart = time.perf_counter()",
        "import time as t\nstart = t.monotonic_ns()",
        "import time\nassert time.time() < 5",
        "import time\nused = time.process_time",
        "from time import perf_counter",
        "from timeit import default_timer as timer",
        "import datetime\nnow = datetime.datetime.now()",
        "from datetime import datetime\nnow = datetime.now()",
        "import os\nused = os.times()",
        "import resource\nused = resource.getrusage(0)",
        "SCRIPT = 'import time; print(time.perf_counter_ns())'",
        "def test() -> None:\n    assert timing.min_ns < 5",
        "def test() -> None:\n    assert 2 < a.min_ns / b.median_ns < 3",
        "def test() -> None:\n    assert row['measured_ns'] > 0",
        "def test() -> None:\n    assert found.speed_up >= 3",
        "def test() -> None:\n    assert time_native(address).samples <= 5 * least_ns(target, f)",
        "def test() -> None:\n    ratio = time_native(f).min_ns / 2\n    assert 8 < ratio",
        "def test() -> None:\n    ours.append(peer.time().min_ns)\n    assert ours[-1] > 3",
        "def test() -> None:\n    assert third.ns > second.ns",
        "def test(tmp_path) -> None:\n    ok = all(0 < ns < 1 for ns in plan.measured_ns) > 0",
        "def test() -> None:\n    assert sorted([report['in_turn_us']])[0] >= 1",
    ],
)
def test_looks_at_a_clock_are_found(snippet: str) -> None:
    assert len(breaches(snippet)) >= 1


@pytest.mark.parametrize(
    "snippet",
    [
        "import time\ntime.sleep(0)",
        "def test(steady_clock) -> None:\n    assert row['measured_ns'] <= 5",
        "def test() -> None:\n    assert row['measured_ns'] == TICK_NS",
        "@pytest.mark.recordings\ndef test() -> None:\n    assert row['measured_ns'] <= 5",
        "def test() -> None:\n    assert predicted.cost.ns < 25",
        "assert {'torch', 'MKL'} <= row['speed_up'].keys()",
        "process.communicate(timeout=300)",
        "assert step < steps",
        "reading = clock.time()",
    ],
)
def test_waits_and_known_times_are_let_be(snippet: str) -> None:
    assert breaches(snippet) == []


def test_the_rule_is_asked_of_every_test() -> None:
    assert len(SOURCES) >= 60
    assert TESTS / "machine" / "test_workers.py" in SOURCES
