"""Makes this machine look like one that nobody has tuned anything for.

Only what the processor can do stays: its instruction sets. Vendor, numbers, name and cache sizes
are made up, and read through the ordinary readers of /proc and /sys.
"""

import os
import re
from pathlib import Path
from typing import Any

VENDOR, FAMILY, MODEL = "UnknownVendor", 99, 98
NAME = "Processor of no known make"
# Bytes by level and kind as /sys names them; none is a power of two or that of any known core.
CACHES = {"1 Data": 40 << 10, "1 Instruction": 24 << 10, "2": 768 << 10, "3": 6 << 20}

_FIELDS = {
    "vendor_id": VENDOR,
    "cpu family": str(FAMILY),
    "model": str(MODEL),
    "model name": NAME,
}
_CACHE_SIZE = re.compile(r"/sys/devices/system/cpu/cpu\d+/cache/index\d+/size")
_read_text = Path.read_text


def install() -> None:
    """From here on every reader in this process, and every Python process it starts, sees it."""
    Path.read_text = _changed_text  # type: ignore[method-assign]
    folder = str(Path(__file__).parent / "unknown_processor_start")
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _changed_text(path: Path, *arguments: Any, **options: Any) -> str:
    text = _read_text(path, *arguments, **options)
    if str(path) == "/proc/cpuinfo":
        return "\n".join(map(_changed_line, text.split("\n")))
    if _CACHE_SIZE.fullmatch(str(path)):
        level, kind = (_read_text(path.with_name(n)).strip() for n in ("level", "type"))
        return f"{CACHES.get(f'{level} {kind}', CACHES.get(level, 0)) >> 10}K\n"
    return text


def _changed_line(line: str) -> str:
    name = line.partition(":")[0].strip()
    return f"{name}\t: {_FIELDS[name]}" if name in _FIELDS else line
