"""Code of models compiled before, in a folder of the user's cache directory.

An entry is a sealed file: machine code, and what its caller must know. It is found by a digest of
the graph with its weights, the options, the processor's data and the compiler, so it is exactly
what compiling would make. Only entries are used that this user alone can have written. A cache is
never an error: what is damaged is made again, what cannot be kept is not kept. The longest unused
entries go first where all take more than `SPARSEJIT_CODE_CACHE_MB`, by default 2048; 0 keeps none.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from platformdirs import user_cache_path

from sparsejit.artefact import sealed
from sparsejit.artefact.graph_file import graph_to_data
from sparsejit.errors import CompileError, DamagedFile, InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.graph import Array, Graph
from sparsejit.lowering.context import ModelOptions
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.program import Program, debug_level, dump_folder
from sparsejit.x86.image import Image

VARIABLE = "SPARSEJIT_CODE_CACHE_MB"
_DEFAULT_MB = 2048
_KIND, _SUFFIX = "cached", ".sjc"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class KeptCode(NamedTuple):
    """What a header says, and the code that was kept with it."""

    about: dict[str, Any]
    program: Program


def folder() -> Path:
    """Where entries lie, whether it is there or not."""
    return user_cache_path("sparsejit") / "code"


def most_bytes() -> int:
    """What all entries may take. Raises InvalidInput for a variable that is no number."""
    text = os.environ.get(VARIABLE) or str(_DEFAULT_MB)
    if not text.isdecimal():
        raise InvalidInput(f"{VARIABLE}={text}: set it to megabytes, 0 for no cache, or unset it")
    return int(text) << 20


def is_kept(options: ModelOptions) -> bool:
    """Whether code for these options is kept: it must hold no addresses of this process."""
    plain = debug_level() == 0 and dump_folder() is None
    return plain and options.threads == 1 and most_bytes() > 0


def digest_of(*parts: object) -> str:
    """A digest of plain data, records, mappings, sets and arrays; equal ones are equal anywhere."""
    text = json.dumps([_compiler(), *map(_plain, parts)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(
    graphs: Sequence[tuple[Graph, int | None]], options: ModelOptions, name: str
) -> str | None:
    """By what the code of graphs, each of its tile, is found; None where it cannot be kept."""
    if not is_kept(options):
        return None
    try:
        written = [(graph_to_data(graph, _Digests()), tile) for graph, tile in graphs]
        return digest_of(written, options, name)
    except (InvalidInput, TypeError):  # of operators that no file holds
        return None


def remember(key: str, about: Mapping[str, Any], image: Image | None = None) -> None:
    """Keep a header of plain data, and code, if that is possible."""
    code = {} if image is None else {"code": _image_to_data(image)}
    content = memoryview(b"") if image is None else memoryview(image.content)
    with suppress(OSError, ValueError, TypeError):
        place = folder()
        place.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_ours(place.lstat()):
            return
        sealed.write_bytes(_file(key), _KIND, {"key": key, "about": about, **code}, content)
        _drop_oldest()


def recall(key: str) -> dict[str, Any] | None:
    """The header that was kept, of an entry without code."""
    with suppress(OSError, DamagedFile), _opened(key) as reader:
        reader.read_into(memoryview(b""))
        return dict(reader.header["about"])
    return None


def recall_code(key: str, name: str) -> KeptCode | None:
    """The header and the code that were kept."""
    with suppress(OSError, DamagedFile, CompileError, *_MISREAD), _opened(key) as reader:
        memory = ExecutableMemory.filled(reader.size, reader.read_into)
        image = _image_from_data(reader.header["code"], memory.view(reader.size))
        return KeptCode(dict(reader.header["about"]), Program(name, image, memory))
    return None


class Use(NamedTuple):
    """The cache: its folder, entries, their bytes, and how many they may be."""

    folder: str
    entries: int
    bytes: int
    most_bytes: int


def use() -> Use:
    """What there is now."""
    found = _entries()
    return Use(str(folder()), len(found), sum(size for _, size, _ in found), most_bytes())


def clear() -> int:
    """Remove all entries; returns how many there were."""
    found = _entries()
    for _, _, file in found:
        with suppress(OSError):
            file.unlink()
    return len(found)


_MISREAD = (KeyError, TypeError, ValueError)


class _Digests:
    """Takes the place of an `ArrayWriter`: describes arrays by their digests."""

    def add(self, array: Array | CompressedRows) -> dict[str, Any]:
        if isinstance(array, CompressedRows):
            parts = [self.add(part)["array"] for part in array.arrays]
            return {"rows": parts, "shape": list(array.shape)}
        return {"array": _plain(array)}


def _plain(part: Any) -> Any:
    if is_dataclass(part):
        return [type(part).__name__, *(_plain(getattr(part, f.name)) for f in fields(part))]
    if isinstance(part, Mapping):
        return sorted([repr(_plain(key)), _plain(value)] for key, value in part.items())
    if isinstance(part, set | frozenset):
        return sorted(map(repr, map(_plain, part)))
    if isinstance(part, tuple | list):
        return list(map(_plain, part))
    if hasattr(part, "dtype"):
        flat = part if part.flags.c_contiguous else part.copy()
        content = hashlib.sha256(memoryview(flat.reshape(-1)).cast("B") if flat.size else b"")
        return [str(part.dtype), list(part.shape), content.hexdigest()]
    if isinstance(part, str | int | float | None):
        return part
    raise TypeError(f"{type(part).__name__} has no digest")


@cache
def _compiler() -> list[Any]:
    """The compiler, by the places, sizes and times of its files; and what it computes with."""
    package = Path(__file__).parents[1]
    files = []
    for room, _, names in os.walk(package, followlinks=True):
        for file in (os.path.join(room, name) for name in names if name.endswith(".py")):
            about = os.stat(file)
            files.append([file, about.st_size, about.st_mtime_ns])
    return [sealed.FORMAT_VERSION, np.__version__, sorted(files)]


def _image_to_data(image: Image) -> dict[str, Any]:
    return {
        "code_bytes": image.code_bytes,
        "pool_bytes": image.pool_bytes,
        "counts": {name: int(count) for name, count in image.counts.items()},
        "forms": sorted(image.forms, key=repr),
    }


def _image_from_data(data: Mapping[str, Any], content: memoryview) -> Image:
    forms = frozenset(_as_tuples(form) for form in data["forms"])
    sizes = int(data["code_bytes"]), int(data["pool_bytes"])
    return Image(content, *sizes, dict(data["counts"]), forms, None)


def _as_tuples(data: Any) -> Any:
    return tuple(map(_as_tuples, data)) if isinstance(data, list) else data


def _file(key: str) -> Path:
    return folder() / f"{key}{_SUFFIX}"


@contextmanager
def _opened(key: str) -> Iterator[sealed.BytesReader]:
    """The entry of a key, marked as used. Raises OSError or DamagedFile where there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    where = os.open(folder(), flags | os.O_DIRECTORY)
    try:
        handle = os.open(f"{key}{_SUFFIX}", flags | os.O_NONBLOCK, dir_fd=where)
        with os.fdopen(handle, "rb", buffering=0) as file:
            safe = _is_ours(os.fstat(where)) and _is_ours(os.fstat(handle))
            if not safe or not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DamagedFile("others may have written it")
            yield _reader(file, key)
            with suppress(OSError):  # such as on what is mounted to be read
                os.utime(handle)
    finally:
        os.close(where)


def _reader(file: BinaryIO | Any, key: str) -> sealed.BytesReader:
    reader = sealed.BytesReader(file, _KIND)
    if reader.header.get("key") != key:
        raise DamagedFile("it is another entry's")
    return reader


def _is_ours(found: os.stat_result) -> bool:
    """Whether this user owns it, and nobody else may write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE


def _entries() -> list[tuple[int, int, Path]]:
    """When each was used, its bytes, where it is; the longest unused first."""
    found = []
    for file in folder().glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            about = file.lstat()
            found.append((about.st_mtime_ns, about.st_size, file))
    return sorted(found)


def _drop_oldest() -> None:
    found: Sequence[tuple[int, int, Path]] = _entries()
    room = most_bytes() - sum(size for _, size, _ in found)
    for _, size, file in found:
        if room >= 0:
            return
        with suppress(OSError):
            file.unlink()
            room += size
