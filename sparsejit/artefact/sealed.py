"""safetensors files under one SHA-256 digest, which covers every byte, the header's too.

The digest is the metadata entry "sha256"; it is taken over the file with zeros in that place.
`write` and `read` add metadata of the compiler: the file's kind, the version of its format, and a
header of plain JSON data. Reading runs no code of a file.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparsejit.errors import DamagedFile
from sparsejit.files import atomic_path, check_writable, existing_file

_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BLANK = b"0" * 64
_BYTES = "bytes"  # the only tensor of `write_bytes`
_PIECE_BYTES = 4 << 20

# Written into every file; incremented by a change that older readers would misread.
FORMAT_VERSION = 3
_FORMAT = "sparsejit"
REMEDY = "copy it again, or save the kernel or model again"

Tensors = dict[str, npt.NDArray[Any]]


class SealedFile(NamedTuple):
    """The contents of a file: the kind of object in it, plain JSON data, and arrays."""

    kind: str
    header: dict[str, Any]
    tensors: Tensors


def write(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Write a header of plain JSON data and tensors atomically.

    Raises InvalidInput where the file cannot be written.
    """
    write_sealed(check_writable(path), tensors, _metadata(kind, header))


def write_bytes(path: Path, kind: str, header: Mapping[str, Any], data: memoryview) -> None:
    """Write a header and one tensor of bytes, which is not copied.

    Only this user may read the file. Raises OSError where it cannot be written.
    """
    metadata = {**_metadata(kind, header), "sha256": _BLANK.decode()}
    tensor = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    start = _with_length({"__metadata__": dict(sorted(metadata.items())), _BYTES: tensor})
    digest = hashlib.sha256(start)
    digest.update(data)
    (place,) = _DIGEST.finditer(start)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        temporary.chmod(0o600)
        file.write(start[: place.start(1)] + digest.hexdigest().encode() + start[place.end(1) :])
        file.write(data)


class BytesReader:
    """Reads an open file that `write_bytes` wrote: its `header`, and `size` bytes.

    Raises DamagedFile for another kind or format, and in `read_into` if a single bit differs.
    """

    def __init__(self, file: BinaryIO, kind: str) -> None:
        length = file.read(8)
        self._file, self._start = file, length
        rest = os.fstat(file.fileno()).st_size - len(length)
        self._start += file.read(min(int.from_bytes(length, "little"), max(rest, 0)))
        place = _DIGEST.search(self._start)
        try:
            entries = json.loads(self._start[8:])
            metadata, tensor = entries["__metadata__"], entries[_BYTES]
            self.header: dict[str, Any] = json.loads(metadata["header"])
            self.size = int(tensor["shape"][0])
            fits = metadata["kind"] == kind and metadata["version"] == str(FORMAT_VERSION)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise DamagedFile(f"no readable header ({error})") from error
        if place is None or not fits or self.size != rest - len(self._start) + len(length):
            raise DamagedFile("not a complete file of this kind")
        self._digest = place

    def read_into(self, room: memoryview) -> None:
        """Read all bytes, while another thread digests the pieces already read."""
        place = self._digest
        seen = hashlib.sha256(self._start[: place.start(1)] + _BLANK)
        seen.update(self._start[place.end(1) :])
        with ThreadPoolExecutor(1) as other:
            for first in range(0, len(room), _PIECE_BYTES):
                piece = room[first : first + _PIECE_BYTES]
                if self._file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise DamagedFile("shorter than its header says")
                other.submit(seen.update, piece)
        if seen.hexdigest().encode() != place[1]:
            raise DamagedFile("does not match its own SHA-256 digest")


def read(path: str | os.PathLike[str], kinds: Collection[str]) -> SealedFile:
    """Read a file that `write` wrote, of one of these kinds.

    Raises InvalidInput if there is no file or a folder, and DamagedFile, with the path and the
    remedy, if a single bit differs, or if the file has another kind or format.
    """
    file = existing_file(path, "a file that `save` wrote", "give one that `save` wrote")
    tensors, metadata = read_sealed(file, REMEDY)
    _check_format(file, metadata)
    kind = metadata.get("kind", "")
    if kind not in kinds:
        known = " or ".join(sorted(kinds))
        raise DamagedFile(f"{file} holds a {kind!r}; give the file of: {known}")
    with naming(file):
        try:
            header = json.loads(metadata["header"], parse_constant=_no_number)
        except (KeyError, ValueError, RecursionError) as error:
            raise DamagedFile(f"has no readable header ({error})") from error
        if not isinstance(header, dict):
            raise DamagedFile("has a header that is not an object")
    return SealedFile(kind, header, tensors)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path and the remedy to a DamagedFile that is raised inside.

    A MemoryError becomes a DamagedFile as well.
    """
    try:
        yield
    except DamagedFile as error:
        raise DamagedFile(f"{path} {error}; {REMEDY}") from error
    except MemoryError as error:
        raise DamagedFile(f"{path} needs more memory than there is; {REMEDY}") from error


def _check_format(file: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        found = metadata.get("format")
        raise DamagedFile(f"{file} has format {found!r}, not {_FORMAT!r}; {REMEDY}")
    number = metadata.get("version", "")
    if not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise DamagedFile(f"{file} has format version {number!r}, which does not exist; {REMEDY}")
    if int(number) != FORMAT_VERSION:
        made_by = metadata.get("made_by", "another sparsejit")
        newer = "install a newer sparsejit, or " if int(number) > FORMAT_VERSION else ""
        raise DamagedFile(
            f"{file} is of format version {number}, written by {made_by}; this is {_compiler()}, "
            f"which reads version {FORMAT_VERSION}: {newer}save it with this one"
        )


def _metadata(kind: str, header: Mapping[str, Any]) -> dict[str, str]:
    return {
        "format": _FORMAT,
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "made_by": _compiler(),
        "header": json.dumps(header, allow_nan=False, separators=(",", ":")),
    }


def _compiler() -> str:
    try:
        return f"sparsejit {version('sparsejit')}"
    except PackageNotFoundError:  # run from a checkout
        return "sparsejit of a checkout"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def write_sealed(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata atomically; the same contents give the same bytes."""
    # safetensors writes an array's memory without regard to strides.
    rows = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    content = _in_order(save(rows, {**metadata, "sha256": _BLANK.decode()}))
    (place,) = _DIGEST.finditer(content, 0, _header_end(content))
    digest = hashlib.sha256(content).hexdigest().encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content[: place.start(1)] + digest + content[place.end(1) :])


def read_sealed(path: Path, remedy: str) -> tuple[Tensors, dict[str, str]]:
    """Return tensors and metadata of a file that `write_sealed` wrote.

    Raises DamagedFile, whose message ends with `remedy`, if a single bit differs.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path} is not readable ({error.strerror}); {remedy}") from error
    place = _DIGEST.search(content, 0, _header_end(content))
    if place is None:
        raise DamagedFile(f"{path} is not a complete file of sparsejit; {remedy}")
    digest = hashlib.sha256(content[: place.start(1)] + _BLANK)
    digest.update(memoryview(content)[place.end(1) :])
    if digest.hexdigest().encode() != place[1]:
        raise DamagedFile(f"{path} does not match its own SHA-256 digest; {remedy}")
    try:
        header = json.loads(content[8 : _header_end(content)])
        return load(content), header["__metadata__"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path} is not readable as safetensors ({error}); {remedy}") from error


def _in_order(content: bytes) -> bytes:
    """Return the file with its metadata sorted by name: safetensors' order varies."""
    end = _header_end(content)
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    return _with_length(header) + content[end:]


def _with_length(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return len(text).to_bytes(8, "little") + text


def _header_end(content: bytes) -> int:
    """Offset of the end of the JSON header: the first eight bytes are its length, little-endian."""
    return min(8 + int.from_bytes(content[:8], "little"), len(content))
