"""The processor's description by Linux, in /proc/cpuinfo and /sys, read once."""

import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from sparsejit.errors import UnsupportedTarget


def first_processor(cpuinfo: str) -> dict[str, str]:
    """Return the fields of the first processor in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.strip().splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def parse_cache_size(text: str) -> int:
    """Return the bytes of a size in /sys, such as "48K" or "32768K"."""
    text = text.strip()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def read_caches(cpu_directory: Path) -> dict[str, int]:
    """Return cache sizes in bytes of one processor, from its directory under /sys."""
    letters = {"Data": "d", "Instruction": "i", "Unified": ""}
    sizes = {}
    for index in sorted(cpu_directory.glob("cache/index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            sizes[f"l{level}{letters[kind]}"] = parse_cache_size(size)
        except (OSError, KeyError, ValueError):
            continue
    return sizes


@lru_cache(maxsize=1)
def read_machine() -> tuple[str, dict[str, int]]:
    """Return the text of /proc/cpuinfo, and cache sizes. Raises UnsupportedTarget without it."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError as error:
        raise UnsupportedTarget(
            f"cannot read /proc/cpuinfo on {platform.system()}; sparsejit runs on x86-64 Linux"
        ) from error
    return cpuinfo, read_caches(Path("/sys/devices/system/cpu/cpu0"))


def numbers_of(fields: Mapping[str, str]) -> tuple[str, int, int]:
    """Return vendor, family and model number from a processor's fields; "" and 0 if missing."""
    family, model = (int(fields.get(name, 0)) for name in ("cpu family", "model"))
    return fields.get("vendor_id", ""), family, model


def processor_numbers() -> tuple[str, int, int]:
    """Return this processor's vendor, family and model number, as CPUID gives them.

    Raises UnsupportedTarget where it is not x86-64 Linux.
    """
    return numbers_of(first_processor(read_machine()[0]))
