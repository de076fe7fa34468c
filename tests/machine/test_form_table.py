"""The forms that ship are what PeachPy teaches, and a damaged table is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsejit.errors import DamagedFile
from sparsejit.x86 import form_table
from sparsejit.x86.form_table import KeptForm
from sparsejit.x86.forms import Key
from sparsejit.x86.general_registers import family, representative
from sparsejit.x86.instructions import instruction_sets
from sparsejit.x86.learning import learned_form, learned_sets

KEYS = form_table.keys()


def check(key: Key) -> None:
    """Assert that the form of the table is PeachPy's."""
    kept = form_table.kept(key)
    assert kept is not None
    learned = learned_form(key)
    assert np.array_equal(kept.form.template, learned.template), key
    assert len(kept.form.registers) == len(learned.registers), key
    for one, other in zip(kept.form.registers, learned.registers, strict=True):
        assert np.array_equal(one, other), key
    assert kept.form.displacement == learned.displacement, key
    assert kept.form.immediate == learned.immediate, key


def test_every_form_is_what_peachpy_teaches() -> None:
    assert len(KEYS) > 1000
    for key in KEYS:
        check(key)


@pytest.mark.parametrize("seed", range(4))
def test_forms_of_other_general_registers_are_too(seed: int) -> None:
    """The forms that stand for others, with the lowest bits of each number drawn."""
    random = np.random.default_rng(seed)

    def drawn(number: int) -> int:
        return number & ~7 | int(random.integers(8))

    def other(signature: tuple[Any, ...], alone: bool) -> tuple[Any, ...]:
        if signature[0] in ("r32", "r64") and not alone:
            return signature[0], drawn(signature[1]), *signature[2:]
        if signature[0] != "memory":
            return signature
        _, base, index, *rest = signature
        if index is None and base & 7 == 4:
            return signature
        if index is not None:
            number = drawn(index[1])
            index = index if number == 4 else (index[0], number)  # rsp is no index
        return "memory", drawn(base), index, *rest

    seen = 0
    for key in KEYS:
        alone = representative(key) == key and not any(s[0] == "memory" for s in key[1])
        pair = [s[0] in ("r32", "r64") for s in key[1][:2]] == [True, True]
        moved = key[0], tuple(other(s, alone and not pair) for s in key[1]), key[2]
        if representative(moved) == key:  # rsp and r12 without an index represent themselves
            check(moved)
            seen += moved != key
    assert seen > 500


def test_a_family_has_its_own_representatives() -> None:
    for key in KEYS[::7]:
        assert all(representative(each) == each for each in family(key))
        assert representative(key) in set(family(key))


def test_their_instruction_sets_are_peachpys() -> None:
    for key in KEYS[::5]:
        if key[0] != "lea":  # of a label, which PeachPy takes for no address
            assert instruction_sets(key) == learned_sets((*key[:2], 4)), key


def test_a_table_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [kept for kept in map(form_table.kept, KEYS[:50]) if kept is not None]
    path = tmp_path / "forms.json"
    form_table.write(some, path)
    _read(monkeypatch, path)
    assert set(form_table.keys()) == set(KEYS[:50])
    for wanted in some:
        found = form_table.kept(wanted.form.key)
        assert isinstance(found, KeptForm)
        assert found.sets == wanted.sets
        assert np.array_equal(found.form.template, wanted.form.template)


def test_forms_are_added_to_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (form_table.kept(key) for key in KEYS[:2])
    assert first is not None
    assert second is not None
    monkeypatch.setattr(form_table, "FILE", tmp_path / "forms.json")
    form_table.write([first], form_table.FILE)
    assert form_table.add([first, second]) == 2
    assert form_table.keys() == KEYS[:2]
    monkeypatch.undo()
    form_table._rows.cache_clear()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff"])
def test_a_damaged_table_is_refused(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "forms.json"
    path.write_bytes(damage)
    _read(monkeypatch, path)
    with pytest.raises(DamagedFile, match="install sparsejit again"):
        form_table.keys()


def test_a_changed_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "forms.json"
    path.write_text(form_table.FILE.read_text().replace('"62f1', '"62f2', 1))
    _read(monkeypatch, path)
    with pytest.raises(DamagedFile, match="not as it was shipped"):
        form_table.keys()


def _read(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(form_table, "FILE", path)
    monkeypatch.setattr(form_table, "_rows", form_table._rows.__wrapped__)
