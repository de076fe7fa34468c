"""What was measured on this machine earlier, kept as JSON in the user's cache directory.

A cache is never an error: what is damaged is measured again, what cannot be kept is not kept.
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

# The rooms whose source decides what code a layer becomes, and with it how long that takes.
_DECIDING_ROOMS = ("machine", "x86", "runtime", "ir", "asm_templates", "measuring", "planner")


def cache_file(kind: str, *parts: str) -> Path:
    """The file in the user's cache directory for what `parts` identify together."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return user_cache_path("sparsejit") / f"{kind}-{digest}.json"


def recall(file: Path) -> Any:
    """What was kept, or None where nothing was. Raises DamagedFile for what cannot be read."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"not JSON ({error})") from error
    if value is None:
        raise DamagedFile("it holds nothing")
    return value


def remember(file: Path, value: object) -> str | None:
    """Keep a value of JSON types. Returns why that was not possible; None where it was."""
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
    """A digest of all source that decides what code a layer becomes."""
    package = Path(__file__).parents[1]
    return source_digest(package / room for room in _DECIDING_ROOMS)


def source_digest(folders: Iterable[Path]) -> str:
    """A digest of every file in the folders and below: its path within them and its bytes."""
    digest = hashlib.sha256()
    for folder in folders:
        files = (path for path in folder.rglob("*") if path.is_file())
        sources = {path.relative_to(folder).as_posix(): path for path in files}
        for name, path in sorted(sources.items()):
            if "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{folder.name}/{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
