"""safetensors files under one SHA-256 digest: every byte is covered, the header's too.

The digest is the metadata entry "sha256"; it is taken over the file with zeros in that place.
`write` and `read` add what a file of the compiler says of itself: its kind, the version of its
format, and a header of plain JSON data. Reading runs nothing of a file.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import atomic_path, check_writable

_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BLANK = b"0" * 64

# Written into every file; a change that older readers would misread makes it one more.
FORMAT_VERSION = 2
_FORMAT = "sparsejit"
REMEDY = "copy it again, or save the kernel or model again"

Tensors = dict[str, npt.NDArray[Any]]


class SealedFile(NamedTuple):
    """What `read` returns: what kind of thing it is, plain JSON data, arrays."""

    kind: str
    header: dict[str, Any]
    tensors: Tensors


def write(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Write a header of plain JSON data and tensors, whole or not at all.

    Raises InvalidInput where the file cannot be written.
    """
    metadata = {
        "format": _FORMAT,
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "made_by": _compiler(),
        "header": json.dumps(header, allow_nan=False, separators=(",", ":")),
    }
    write_sealed(check_writable(path), tensors, metadata)


def read(path: str | os.PathLike[str], kinds: Collection[str]) -> SealedFile:
    """What `write` wrote, if it is of one of these kinds.

    Raises InvalidInput if there is no file, and DamagedFile, with the path and the remedy, if a
    single bit differs, if it is of another kind, or of another format.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give one that `save` wrote")
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
            raise DamagedFile("has a header without names")
    return SealedFile(kind, header, tensors)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give a DamagedFile that says what is wrong with a file's contents the path and the remedy.

    Asking for more memory than there is counts as wrong.
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
        raise DamagedFile(f"{file} has format version {number!r}, which is none; {REMEDY}")
    if int(number) != FORMAT_VERSION:
        made_by = metadata.get("made_by", "another sparsejit")
        newer = "install a newer sparsejit, or " if int(number) > FORMAT_VERSION else ""
        raise DamagedFile(
            f"{file} is of format version {number}, written by {made_by}; this is {_compiler()}, "
            f"which reads version {FORMAT_VERSION}: {newer}save it with this one"
        )


def _compiler() -> str:
    try:
        return f"sparsejit {version('sparsejit')}"
    except PackageNotFoundError:  # run from a checkout
        return "sparsejit of a checkout"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def write_sealed(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata whole or not at all; the same ones give the same bytes."""
    # safetensors writes an array's memory as it lies, whatever its strides.
    rows = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    content = _in_order(save(rows, {**metadata, "sha256": _BLANK.decode()}))
    (place,) = _DIGEST.finditer(content, 0, _header_end(content))
    digest = hashlib.sha256(content).hexdigest().encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content[: place.start(1)] + digest + content[place.end(1) :])


def read_sealed(path: Path, remedy: str) -> tuple[Tensors, dict[str, str]]:
    """Return tensors and metadata of a file as `write_sealed` wrote it.

    Raises DamagedFile, which ends with `remedy`, if a single bit differs.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path} is not readable ({error.strerror}); {remedy}") from error
    place = _DIGEST.search(content, 0, _header_end(content))
    if place is None:
        raise DamagedFile(f"{path} is not a whole file of sparsejit's; {remedy}")
    blanked = content[: place.start(1)] + _BLANK + content[place.end(1) :]
    if hashlib.sha256(blanked).hexdigest().encode() != place[1]:
        raise DamagedFile(f"{path} does not match its own SHA-256 digest; {remedy}")
    try:
        header = json.loads(content[8 : _header_end(content)])
        return load(content), header["__metadata__"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path} is not readable as safetensors ({error}); {remedy}") from error


def _in_order(content: bytes) -> bytes:
    """The file with its metadata sorted by name: safetensors orders them anew each time."""
    end = _header_end(content)
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return len(text).to_bytes(8, "little") + text + content[end:]


def _header_end(content: bytes) -> int:
    """Where the JSON header ends: its length is the first eight bytes, little-endian."""
    return min(8 + int.from_bytes(content[:8], "little"), len(content))
