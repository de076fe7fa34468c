"""Measurements of this machine, kept as JSON in the user's cache directory.

A cache is never an error: damaged values are measured again, and values that cannot be written are
not kept.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from sparsejit.errors import DamagedFile
from sparsejit.files import atomic_path

# Packages whose source determines the code of a layer, and with it the layer's time.
_DECIDING_ROOMS = ("machine", "x86", "runtime", "ir", "asm_templates", "measuring", "planner")


def cache_file(kind: str, *parts: str) -> Path:
    """Path in the user's cache directory of the value that `parts` identify together."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return user_cache_path("sparsejit") / f"{kind}-{digest}.json"


def recall(file: Path) -> Any:
    """Return the stored value, or None without a file. Raises DamagedFile if it is unreadable."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"not JSON ({error})") from error
    if value is None:
        raise DamagedFile("it holds no value")
    return value


def remember(file: Path, value: object) -> str | None:
    """Store a value of JSON types. Return the reason where that failed, else None."""
    try:
        with atomic_path(file) as path:
            path.write_text(json.dumps(value, indent=2))
    except OSError as error:
        return f"{file} cannot be written: {error.strerror}"
    return None


def is_number(value: Any, least: float, most: float) -> bool:
    """Whether `value` from JSON is a number within these finite bounds."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and least <= value <= most


@cache
def compiler_digest() -> str:
    """Digest of all source that determines the code of a layer."""
    package = Path(__file__).parents[1]
    return source_digest(package / room for room in _DECIDING_ROOMS)


def source_digest(folders: Iterable[Path]) -> str:
    """Digest of every file in the folders and below: its path within them and its bytes."""
    digest = hashlib.sha256()
    for folder in folders:
        files = (path for path in folder.rglob("*") if path.is_file())
        sources = {path.relative_to(folder).as_posix(): path for path in files}
        for name, path in sorted(sources.items()):
            if "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{folder.name}/{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
