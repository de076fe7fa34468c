"""Cache of the code of models compiled before, in a folder of the user's cache directory.

An entry is a sealed file: machine code, and a header for its caller. Its key is a digest of the
graph with its weights, the options, the processor's data and the compiler, so the code is exactly
the code that compiling would make. Only entries that nobody but this user can have written are
used. The cache never raises for its files: damaged entries are compiled again, and entries that
cannot be written are left out. Where all take more than `SPARSEJIT_CODE_CACHE_MB` (default 2048;
0 disables the cache), the longest unused entries are removed first.
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
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.cheapest_row import preferred
from sparsejit.runtime.program import Program, debug_level, dump_folder
from sparsejit.x86.image import Image

VARIABLE = "SPARSEJIT_CODE_CACHE_MB"
_DEFAULT_MB = 2048
_KIND, _SUFFIX = "cached", ".sjc"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class KeptCode(NamedTuple):
    """An entry of the code cache: its header of plain data, and the native function."""

    about: dict[str, Any]
    program: Program


def folder() -> Path:
    """Return the folder of the entries, which may not exist yet."""
    return user_cache_path("sparsejit") / "code"


def most_bytes() -> int:
    """Return the limit of the cache in bytes. Raises InvalidInput if the variable is no number."""
    text = os.environ.get(VARIABLE) or str(_DEFAULT_MB)
    if not text.isdecimal():
        raise InvalidInput(f"{VARIABLE}={text}: set it to megabytes, 0 for no cache, or unset it")
    return int(text) << 20


def is_kept(options: ModelOptions) -> bool:
    """Whether code for these options is cached: it must hold no addresses of this process."""
    plain = debug_level() == 0 and dump_folder() is None
    return plain and options.threads == 1 and most_bytes() > 0


def digest_of(*parts: object) -> str:
    """Return a digest of plain data, records, mappings, sets and arrays, and of the compiler.

    Equal parts have the same digest in every process with the same preferred rows.
    """
    about = [*_compiler(), sorted(preferred())]
    text = json.dumps([about, *map(_plain, parts)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(
    graphs: Sequence[tuple[Graph, int | None]], options: ModelOptions, name: str
) -> str | None:
    """Return the key of the code of graphs, each with its tile; None where it cannot be cached."""
    if not is_kept(options):
        return None
    try:
        written = [(graph_to_data(graph, _Digests()), tile) for graph, tile in graphs]
        return digest_of(written, options, name)
    except (InvalidInput, TypeError):  # from operators that cannot be saved
        return None


def remember(key: str, about: Mapping[str, Any], image: Image | None = None) -> None:
    """Write an entry: a header of plain data, and code; does nothing where that fails."""
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
    """Return the header of an entry without code; None where there is no such entry."""
    with suppress(OSError, DamagedFile), _opened(key) as reader:
        reader.read_into(memoryview(b""))
        return dict(reader.header["about"])
    return None


def recall_code(key: str, name: str) -> KeptCode | None:
    """Return the header and the code of an entry; None where there is no such entry."""
    with suppress(OSError, DamagedFile, CompileError, *_MISREAD), _opened(key) as reader:
        memory = ExecutableMemory.filled(reader.size, reader.read_into)
        image = _image_from_data(reader.header["code"], memory.view(reader.size))
        return KeptCode(dict(reader.header["about"]), Program(name, image, memory))
    return None


class Use(NamedTuple):
    """Use of the cache: its folder, the number of entries, their bytes, and the limit in bytes."""

    folder: str
    entries: int
    bytes: int
    most_bytes: int


def use() -> Use:
    """Return the current use of the cache."""
    found = _entries()
    return Use(str(folder()), len(found), sum(size for _, size, _ in found), most_bytes())


def clear() -> int:
    """Remove all entries, and return their number."""
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
    """Version of the compiler: format, numpy's version, and its files' paths, sizes and times."""
    package = Path(__file__).parents[2]
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
    """Open the entry of a key, and mark it as used. Raises OSError or DamagedFile without one."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    where = os.open(folder(), flags | os.O_DIRECTORY)
    try:
        handle = os.open(f"{key}{_SUFFIX}", flags | os.O_NONBLOCK, dir_fd=where)
        with os.fdopen(handle, "rb", buffering=0) as file:
            safe = _is_ours(os.fstat(where)) and _is_ours(os.fstat(handle))
            if not safe or not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DamagedFile("others may have written it")
            yield _reader(file, key)
            with suppress(OSError):  # such as on a read-only file system
                os.utime(handle)
    finally:
        os.close(where)


def _reader(file: BinaryIO | Any, key: str) -> sealed.BytesReader:
    reader = sealed.BytesReader(file, _KIND)
    if reader.header.get("key") != key:
        raise DamagedFile("it is another entry's")
    return reader


def _is_ours(found: os.stat_result) -> bool:
    """Whether this user owns a file, and nobody else may write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE


def _entries() -> list[tuple[int, int, Path]]:
    """Return the time of last use, size and path of each entry, the longest unused first."""
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
