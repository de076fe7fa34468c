"""The least time: what the nearest caches can hold of the data comes from there."""

from dataclasses import replace

import pytest

from sparsejit.machine.target import Target
from sparsejit.planner.cost import limit_ns, nearest_places

TARGET = replace(
    Target.named("avx2"), l1d_bytes=100, l2_bytes=1_000, l3_bytes=10_000, between_bytes=0
)


@pytest.mark.parametrize(
    ("own", "others", "places"),
    [
        (80, 0, {"L1": 80}),
        (300, 0, {"L1": 100, "L2": 200}),
        (300, 300, {"L1": 50, "L2": 250}),
        (2_100, 0, {"L1": 100, "L2": 1_000, "L3": 1_000}),
        (12_000, 0, {"L1": 100, "L2": 1_000, "L3": 10_000, "memory": 900}),
        (0, 0, {"L1": 0}),
    ],
)
def test_data_lie_as_near_as_there_is_room(own: int, others: int, places: dict[str, float]) -> None:
    assert nearest_places(own, others, TARGET) == pytest.approx(places)


def test_a_little_beyond_a_cache_is_no_slower_than_all_of_it() -> None:
    """Nothing is said to come from L3 because the last line does."""
    rates = TARGET.core.rates
    within, beyond = (limit_ns(0, size, 0, TARGET) for size in (1_100, 1_101))
    assert beyond - within == pytest.approx(1 / rates.data["L3"] / rates.cycles_per_ns)


def test_l2_is_as_fast_as_any_way_of_reading_it() -> None:
    """Some weights come faster with lines left unread."""
    rates = TARGET.core.rates
    fastest = max(rates.data["L2"], rates.data["padded L2"])
    cycles = 100 / rates.data["L1"] + 900 / fastest
    assert limit_ns(0, 1_000, 0, TARGET) == pytest.approx(cycles / rates.cycles_per_ns)


def test_multipliers_are_a_limit_too() -> None:
    core = TARGET.core
    cycles = 1_000_000 / (2 * core.multipliers * TARGET.lanes)
    assert limit_ns(1_000_000, 10, 0, TARGET) == pytest.approx(cycles / core.rates.cycles_per_ns)
