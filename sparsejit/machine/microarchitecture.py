"""Designs of core, by the vendor, family and model numbers that CPUID gives.

Models follow Linux: arch/x86/include/asm/intel-family.h for Intel, arch/x86/kernel/cpu/amd.c for
AMD. Cores whose differences do not matter to any kernel here share a key.
"""

from dataclasses import replace

from sparsejit.machine.core import Core, caches, models
from sparsejit.machine.cpuinfo import processor_numbers
from sparsejit.machine.processors.generic import GENERIC
from sparsejit.machine.processors.golden_cove import GOLDEN_COVE
from sparsejit.machine.processors.raptor_lake import RAPTOR_LAKE
from sparsejit.machine.processors.zen4 import ZEN4
from sparsejit.machine.processors.zen5 import ZEN5

UNKNOWN = GENERIC.key

_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"


def _kin(
    key: str,
    vendor: str,
    family: int,
    numbers: frozenset[int],
    products: str,
    isa: str,
    sizes: dict[str, int],
) -> Core:
    """Return a core without measurements: known by name, with the costs of GENERIC."""
    return replace(
        GENERIC,
        key=key,
        vendor=vendor,
        family=family,
        models=numbers,
        products=products,
        isa=isa,
        caches=sizes,
    )


_CORES = (
    ZEN5,
    ZEN4,
    GOLDEN_COVE,
    RAPTOR_LAKE,
    _kin(
        *("zen3", _AMD, 25, models(range(0x10), range(0x20, 0x60))),
        *("EPYC 7003, Ryzen 5000", "avx2", caches(32, 32, 512, 32 << 10)),
    ),
    _kin(
        *("zen2", _AMD, 23, models(0x31, 0x60, 0x68, 0x71, 0x90, 0xA0)),
        *("EPYC 7002, Ryzen 3000", "avx2", caches(32, 32, 512, 16 << 10)),
    ),
    _kin(
        *("zen", _AMD, 23, models(range(0x30))),
        *("EPYC 7001, Ryzen 1000 and 2000", "avx2", caches(32, 64, 512, 8 << 10)),
    ),
    _kin(
        *("redwood_cove", _INTEL, 6, models(0xAA, 0xAC, 0xAD, 0xAE)),
        *("Xeon 6, Core Ultra 100", "avx512", caches(48, 64, 2 << 10, 432 << 10)),
    ),
    _kin(
        *("sunny_cove", _INTEL, 6, models(0x6A, 0x6C, 0x7D, 0x7E, 0xA7)),
        *("Ice and Rocket Lake", "avx512", caches(48, 32, 1280, 48 << 10)),
    ),
    _kin(
        *("willow_cove", _INTEL, 6, models(0x8C, 0x8D)),
        *("Tiger Lake", "avx512", caches(48, 32, 1280, 12 << 10)),
    ),
    _kin(
        *("skylake", _INTEL, 6, models(0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6)),
        *("Skylake, Cascade, Kaby, Coffee and Comet Lake", "avx512"),
        caches(32, 32, 1 << 10, 22 << 10),
    ),
    _kin(
        *("broadwell", _INTEL, 6, models(0x3D, 0x47, 0x4F, 0x56)),
        *("Broadwell", "avx2", caches(32, 32, 256, 30 << 10)),
    ),
    _kin(
        *("haswell", _INTEL, 6, models(0x3C, 0x3F, 0x45, 0x46)),
        *("Haswell", "avx2", caches(32, 32, 256, 8 << 10)),
    ),
    GENERIC,
)

_BY_KEY = {core.key: core for core in _CORES}
_BY_NUMBERS = {
    (core.vendor, core.family, number): core for core in _CORES for number in core.models
}
MICROARCHITECTURES = tuple(_BY_KEY)


def core_of(vendor: str, family: int, model: int) -> Core:
    """Return the core with these numbers; the generic one where they are not known."""
    return _BY_NUMBERS.get((vendor, family, model), GENERIC)


def core_named(key: str) -> Core:
    """Return the core with this key, one of `MICROARCHITECTURES`. Raises KeyError for another."""
    return _BY_KEY[key]


def detect() -> str:
    """Return the key of this machine's core. Raises UnsupportedTarget if not on x86-64 Linux."""
    return core_of(*processor_numbers()).key
