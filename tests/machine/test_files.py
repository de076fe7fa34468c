"""Whether a file could be written is asked before the work, and the asking leaves no trace."""

import os
from pathlib import Path

import pytest

from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "inner").mkdir()
    return tmp_path


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        *("new.json", "file", "inner/new.json", "absent/deeper/new.json", "./x/../y.json"),
        "n" * 236 + ".json",
    ],
)
def test_a_writable_file_is_left_as_it_was(folder: Path, name: str) -> None:
    before = contents(folder)
    assert check_writable(name) == Path(name)
    assert contents(folder) == before
    assert (folder / "file").read_text() == "kept"
    with atomic_path(name) as path:
        path.write_text("new")
    assert Path(name).read_text() == "new"


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("inner", "it is a folder"),
        ("", "it is a folder"),
        ("file/new.json", "file is no folder"),
        ("file/deeper/new.json", "file is no folder"),
        ("/proc/new.json", "No such file or directory"),
        ("/proc/absent/new.json", "No such file or directory"),
        ("/dev/null", "it is no regular file"),
        ("a\0b", "a name has no null bytes"),
        ("n" * 300, "File name too long"),
        (f"{'n' * 300}/new.json", "File name too long"),
    ],
)
def test_an_unwritable_file_is_named_with_the_reason(
    folder: Path, name: str, obstacle: str
) -> None:
    before = contents(folder)
    with pytest.raises(InvalidInput) as refused:
        check_writable(name)
    remedy = "name a file in a folder that can be written to"
    assert str(refused.value) == f"{name!r} cannot be written: {obstacle}; {remedy}"
    assert contents(folder) == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(
    folder: Path, mask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is the process's: other threads make files meanwhile."""
    before = os.umask(mask)
    try:
        monkeypatch.setattr(os, "umask", None)
        with atomic_path("inner/new.json") as path:
            path.write_text("new")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (folder / "inner/new.json").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_of_another_s(folder: Path) -> None:
    (folder / "inner").chmod(0o555)
    with pytest.raises(InvalidInput, match="Permission denied"):
        check_writable("inner/new.json")
