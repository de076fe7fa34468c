"""safetensors files under one SHA-256 digest: every byte is covered, the header's too.

The digest is the metadata entry "sha256"; it is taken over the file with zeros in that place.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparsejit.errors import DamagedFile
from sparsejit.files import atomic_path

_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BLANK = b"0" * 64

Tensors = dict[str, npt.NDArray[Any]]


def write_sealed(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata whole or not at all."""
    content = save(dict(tensors), {**metadata, "sha256": _BLANK.decode()})
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


def _header_end(content: bytes) -> int:
    """Where the JSON header ends: its length is the first eight bytes, little-endian."""
    return min(8 + int.from_bytes(content[:8], "little"), len(content))
