"""Makes this machine look like another processor: one that is known, or one that nobody tuned for.

What the processor can do stays, but for AVX-512 and AMX on cores that have neither. Vendor,
numbers, name and cache sizes come from the core's data, read through the ordinary readers of
/proc and /sys, so that whatever starts from here sees them too.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

UNKNOWN = "unknown"
# Tells Python processes that are started from here which one is meant.
VARIABLE = "SPARSEJIT_TESTS_PROCESSOR"
# Bytes; none is a power of two or any known core's.
UNKNOWN_CACHES = {"l1d": 40 << 10, "l1i": 24 << 10, "l2": 768 << 10, "l3": 6 << 20}

_CACHE_SIZE = re.compile(r"/sys/devices/system/cpu/cpu\d+/cache/index\d+/size")
_KINDS = {"1 Data": "l1d", "1 Instruction": "l1i", "2 Unified": "l2", "3 Unified": "l3"}
_read_text = Path.read_text


class Appearance(NamedTuple):
    """The fields of /proc/cpuinfo by name, bytes of caches, and the level."""

    fields: Mapping[str, str]
    caches: Mapping[str, int]
    isa: str

    @property
    def name(self) -> str:
        """As the machine calls itself."""
        return self.fields["model name"]


@cache
def appearance(key: str) -> Appearance:
    """The processor of a core of `microarchitecture.MICROARCHITECTURES`, or the unknown one."""
    from sparsejit.machine.microarchitecture import core_named  # not before a process needs it

    if key == UNKNOWN:
        vendor, family, model, name = "UnknownVendor", 99, 98, "Processor of no known make"
        caches, isa = UNKNOWN_CACHES, "avx512"
    else:
        core = core_named(key)
        vendor, family, model = core.vendor, core.family, min(core.models)
        name, caches, isa = f"{key}, pretended", core.caches, core.isa
    fields = {
        "vendor_id": vendor,
        "cpu family": str(family),
        "model": str(model),
        "model name": name,
    }
    return Appearance(fields, caches, isa)


def names() -> tuple[str, ...]:
    """Every processor that can be pretended."""
    from sparsejit.machine import microarchitecture as known

    return *(key for key in known.MICROARCHITECTURES if key != known.UNKNOWN), UNKNOWN


def install(key: str) -> None:
    """From here on every reader in this process, and every Python process it starts, sees it."""

    def changed_text(path: Path, *arguments: Any, **options: Any) -> str:
        text = _read_text(path, *arguments, **options)
        if str(path) == "/proc/cpuinfo":
            return "\n".join(_changed_line(line, appearance(key)) for line in text.split("\n"))
        if _CACHE_SIZE.fullmatch(str(path)):
            level, kind = (_read_text(path.with_name(n)).strip() for n in ("level", "type"))
            return f"{appearance(key).caches[_KINDS[f'{level} {kind}']] >> 10}K\n"
        return text

    Path.read_text = changed_text  # type: ignore[method-assign]
    folder = str(Path(__file__).parent / "pretended_processor_start")
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ[VARIABLE] = key


def _changed_line(line: str, seen: Appearance) -> str:
    name, _, value = line.partition(":")
    name = name.strip()
    if name == "flags" and seen.isa == "avx2":
        kept = [flag for flag in value.split() if not flag.startswith(("avx512", "amx"))]
        return f"{name}\t: {' '.join(kept)}"
    return f"{name}\t: {seen.fields[name]}" if name in seen.fields else line
