"""Cores by the numbers of CPUID: those that were measured, and those that nobody knows."""

import pytest

from sparsejit.machine import cpuinfo, microarchitecture
from sparsejit.machine.cpuinfo import processor_numbers
from sparsejit.machine.microarchitecture import (
    MICROARCHITECTURES,
    UNKNOWN,
    core_named,
    core_of,
)

pytestmark = pytest.mark.plans


@pytest.mark.parametrize(
    ("vendor", "family", "model", "key"),
    [
        ("AuthenticAMD", 26, 2, "zen5"),  # EPYC 9005
        ("AuthenticAMD", 26, 0x44, "zen5"),  # Ryzen 9000
        ("AuthenticAMD", 26, 0x50, UNKNOWN),  # what comes after
        ("AuthenticAMD", 25, 0x11, "zen4"),
        ("AuthenticAMD", 25, 1, "zen3"),
        ("GenuineIntel", 6, 143, "golden_cove"),  # Sapphire Rapids
        ("GenuineIntel", 6, 207, "golden_cove"),  # Emerald Rapids
        ("GenuineIntel", 6, 0x97, "raptor_lake"),  # Alder Lake
        ("GenuineIntel", 6, 0xB7, "raptor_lake"),
        ("GenuineIntel", 6, 85, "skylake"),
        ("GenuineIntel", 6, 63, "haswell"),
        ("GenuineIntel", 6, 28, UNKNOWN),
        ("GenuineIntel", 26, 2, UNKNOWN),
        ("", 0, 0, UNKNOWN),
    ],
)
def test_known_numbers(vendor: str, family: int, model: int, key: str) -> None:
    assert core_of(vendor, family, model).key == key
    assert key in MICROARCHITECTURES


def test_no_processor_is_two() -> None:
    cores = map(core_named, MICROARCHITECTURES)
    seen = [(core.vendor, core.family, model) for core in cores for model in core.models]
    assert len(set(seen)) == len(seen)


def test_this_machine_has_one() -> None:
    vendor, family, model = processor_numbers()
    assert vendor and family > 0 and model >= 0
    assert microarchitecture.detect() == core_of(vendor, family, model).key


def test_a_processor_that_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "read_machine", lambda: ("flags\t: avx2 fma avx\n", {}))
    assert processor_numbers() == ("", 0, 0)
    assert microarchitecture.detect() == UNKNOWN


def measured_sources(key: str) -> set[str]:
    sources = {step.source for step in core_named(key).steps.values()}
    assert sources and all(sources)
    return {source for source in sources if not source.startswith(("assumed", "on paper"))}


@pytest.mark.parametrize("key", MICROARCHITECTURES)
def test_every_step_says_where_its_price_is_from(key: str) -> None:
    """A core was measured, or it has no measurement of another core."""
    others = (each for each in MICROARCHITECTURES if each != key)
    if core_named(key).assumed:
        assert not measured_sources(key) & set().union(*map(measured_sources, others))
    else:
        assert measured_sources(key)
