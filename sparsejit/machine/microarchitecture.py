"""Which design of core a processor has, by the numbers that CPUID gives.

Models follow Linux: arch/x86/include/asm/intel-family.h for Intel, arch/x86/kernel/cpu/amd.c for
AMD. Cores that differ in nothing a kernel here would notice share a key.
"""

from dataclasses import dataclass

from sparsejit.machine.cpuinfo import processor_numbers

UNKNOWN = "generic"

_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"


@dataclass(frozen=True)
class Core:
    """Models of one vendor and family that have this core; `origin` names products.

    `gains_from_padding`: whether a stream from L2 arrives faster with unread lines in it. Measured
    on two: on zen5 it does, on golden_cove a kernel takes 1.16 of the time that it takes without
    (768x256 at 90 %, permute: 1030 ns with, 890 without); others are taken to be like that one.
    `step_cycles`: (kind of step, level, cycles), where its ports make a step of a kernel cost
    otherwise than `planner.prices` says. `shared_panel_loads`: of the weights of AVX-512 panels,
    how many come four with a load and are spread by permutation, for 1, 2, 3 and more panels.
    """

    key: str
    vendor: str
    family: int
    models: frozenset[int]
    origin: str
    gains_from_padding: bool = False
    step_cycles: tuple[tuple[str, str, float], ...] = ()
    shared_panel_loads: tuple[float, ...] = (0.12, 0.2, 0.4, 0.45)


def _models(*parts: int | range) -> frozenset[int]:
    return frozenset(one for part in parts for one in ([part] if isinstance(part, int) else part))


_ROWS = (
    Core("zen5", _AMD, 26, _models(range(0x50), range(0x60, 0x80)), "EPYC 9005, Ryzen 9000", True),
    Core("zen4", _AMD, 25, _models(range(0x10, 0x20), range(0x60, 0xB0)), "EPYC 9004, Ryzen 7000"),
    Core("zen3", _AMD, 25, _models(range(0x10), range(0x20, 0x60)), "EPYC 7003, Ryzen 5000"),
    Core("zen2", _AMD, 23, _models(0x31, 0x60, 0x68, 0x71, 0x90, 0xA0), "EPYC 7002, Ryzen 3000"),
    Core("zen", _AMD, 23, _models(range(0x30)), "EPYC 7001, Ryzen 1000 and 2000"),
    Core("redwood_cove", _INTEL, 6, _models(0xAA, 0xAC, 0xAD, 0xAE), "Xeon 6, Core Ultra 100"),
    Core(
        "golden_cove",
        _INTEL,
        6,
        _models(0x8F, 0xCF, 0x97, 0x9A, 0xB7, 0xBA, 0xBF),
        "Sapphire and Emerald Rapids, Alder and Raptor Lake",
        # Only port 5 permutes: one vpermi2ps a step, and for lookup 16 of its cycles for 4 steps.
        step_cycles=(
            ("permute-inline", "avx512", 1.19),
            ("int8-permute", "avx512", 2.0),
            ("int8-single", "avx512", 1.1),
            *(("permute", "avx512", 1.47), ("lane16", "avx512", 1.3), ("lookup", "avx512", 4.0)),
        ),
        # The same port spreads: 512x784 at 90 %, 64 columns: 52.9 us with 0.2, 54.7 with 0.45.
        shared_panel_loads=(0.12, 0.2, 0.2, 0.2),
    ),
    Core("sunny_cove", _INTEL, 6, _models(0x6A, 0x6C, 0x7D, 0x7E, 0xA7), "Ice and Rocket Lake"),
    Core("willow_cove", _INTEL, 6, _models(0x8C, 0x8D), "Tiger Lake"),
    Core(
        "skylake",
        _INTEL,
        6,
        _models(0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6),
        "Skylake, Cascade, Kaby, Coffee and Comet Lake",
    ),
    Core("broadwell", _INTEL, 6, _models(0x3D, 0x47, 0x4F, 0x56), "Broadwell"),
    Core("haswell", _INTEL, 6, _models(0x3C, 0x3F, 0x45, 0x46), "Haswell"),
)

_GENERIC = Core(UNKNOWN, "", 0, frozenset(), "any other")
MICROARCHITECTURES = (*(row.key for row in _ROWS), UNKNOWN)


def microarchitecture_of(vendor: str, family: int, model: int) -> str:
    """The key of a core, one of `MICROARCHITECTURES`; "generic" where its numbers are not known."""
    for row in _ROWS:
        if (vendor, family) == (row.vendor, row.family) and model in row.models:
            return row.key
    return UNKNOWN


def core_of(key: str) -> Core:
    """The row of that key."""
    return next((row for row in _ROWS if row.key == key), _GENERIC)


def detect() -> str:
    """The key of this machine's core. Raises UnsupportedTarget where it is not x86-64 Linux."""
    return microarchitecture_of(*processor_numbers())
