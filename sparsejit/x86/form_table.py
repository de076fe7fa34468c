"""Table of forms that were learned before, in `forms.json`; they need no PeachPy.

Each line has a form behind its key as JSON; forms that differ from it in general registers alone
follow from it (`general_registers`). `python -m sparsejit.perf.studies.forms` makes the file, and
`pytest --keep-forms` adds other forms that its tests needed. A test compares each form with
PeachPy's, and with the output of an independent disassembler.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.errors import DamagedFile
from sparsejit.files import atomic_path
from sparsejit.x86.forms import Form, Hole, Key, register_table
from sparsejit.x86.general_registers import moved, representative

FILE = Path(__file__).with_name("forms.json")
_REGISTER_BITS = 5
_DIGEST = "digest"


class KeptForm(NamedTuple):
    """A form, and the instruction sets that it needs and not every processor with AVX has."""

    form: Form
    sets: frozenset[str]


def kept(key: Key) -> KeptForm | None:
    """Return the form of a key, an instruction with its kinds of operands, from the table, or None.

    The table has a representative of all forms that differ in general registers alone.

    Raises DamagedFile where the file differs from the shipped one.
    """
    kept_key = representative(key)
    row = _rows().get(_text(kept_key))
    if row is None:
        return None
    form, sets = _from_data(kept_key, row)
    return KeptForm(form if kept_key == key else moved(form, key), sets)


def keys() -> list[Key]:
    """Return the keys of all forms in the table."""
    return [_as_key(json.loads(text)) for text in _rows()]


def add(forms: Iterable[KeptForm]) -> int:
    """Add forms to the file, which several processes may do at once; return its number of forms.

    Each form must be its own representative.
    """
    folder = os.open(FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _rows.cache_clear()  # another process may have written since
        known = [each for each in map(kept, keys()) if each is not None]
        write([*known, *forms], FILE)
        _rows.cache_clear()
        return len(_rows())
    finally:
        os.close(folder)


def write(forms: Iterable[KeptForm], path: Path = FILE) -> None:
    """Write a file of these forms, with a digest."""
    rows = {_text(each.form.key): _to_data(each) for each in forms}
    lines = [f"{json.dumps(text)}: {_text(row)}" for text, row in sorted(rows.items())]
    digest = json.dumps(_digest_of(lines))
    with atomic_path(path) as temporary:
        temporary.write_text("{\n" + ",\n".join([f'"{_DIGEST}": {digest}', *lines]) + "\n}\n")


@cache
def _rows() -> dict[str, Any]:
    try:
        text = FILE.read_text()
        lines = [line.removesuffix(",") for line in text.splitlines()[2:-1]]
        rows: dict[str, Any] = json.loads(text)
        is_whole = rows.pop(_DIGEST) == _digest_of(lines)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise DamagedFile(f"{FILE} is not as it was shipped; install sparsejit again")
    return rows


def _digest_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _text(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _as_key(data: Any) -> Key:
    mnemonic, signatures, displacement_bytes = data
    return mnemonic, tuple(map(_as_tuple, signatures)), displacement_bytes


def _as_tuple(data: Any) -> Any:
    return tuple(map(_as_tuple, data)) if isinstance(data, list) else data


def _to_data(each: KeptForm) -> list[Any]:
    form = each.form
    masks = [
        [table[1 << bit].tobytes().hex() for bit in range(_REGISTER_BITS)]
        for table in form.registers
    ]
    return [
        form.template.tobytes().hex(),
        masks,
        form.displacement,
        form.immediate,
        sorted(each.sets),
    ]


def _from_data(key: Key, row: Any) -> KeptForm:
    template, masks, displacement, immediate, sets = row
    tables = tuple(register_table(list(map(_bytes_of, each))) for each in masks)
    holes = (None if hole is None else Hole(*hole) for hole in (displacement, immediate))
    return KeptForm(Form(key, _bytes_of(template), tables, *holes), frozenset(sets))


def _bytes_of(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(text), np.uint8)
