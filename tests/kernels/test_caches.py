"""Caches of times, and what names them: whatever lies in their place, a kernel compiles."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damaged_files import mutants
from matvec_checks import block_weights

import sparsejit
from sparsejit.asm_templates.families import Template
from sparsejit.planner import measurement_store, tuning

pytestmark = pytest.mark.usefixtures("cache_folder")

WEIGHTS = block_weights((64, 64), 0.2)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were timed, each said to take as long as there are bytes in its name."""
    names: list[str] = []

    def time(template: Template, *_: object) -> float:
        names.append(template.name)
        return float(len(template.name))

    monkeypatch.setattr(tuning, "kernel_ns", time)
    return names


def test_damaged_times_are_measured_again(cache_folder: Path, timed: list[str]) -> None:
    chosen = sparsejit.compile_matrix(WEIGHTS, tune=True).strategy
    (file,) = cache_folder.glob("tuning-*.json")
    right = json.loads(file.read_bytes())
    for name, content in mutants(right):
        timed.clear()
        file.write_bytes(content)
        assert sparsejit.compile_matrix(WEIGHTS, tune=True).strategy == chosen, name
        assert set(timed) == right.keys(), name
        assert json.loads(file.read_bytes()) == right, name


def block_with_a_file(folder: Path) -> None:
    folder.write_text("")


def block_with_a_folder(folder: Path) -> None:
    """A folder in the file's place, which no file can be renamed onto."""
    sparsejit.compile_matrix(WEIGHTS, tune=True)
    (file,) = folder.glob("tuning-*.json")
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("block", [block_with_a_file, block_with_a_folder])
def test_times_that_cannot_be_kept_are_used_all_the_same(
    cache_folder: Path, timed: list[str], block: Callable[[Path], None]
) -> None:
    block(cache_folder)
    timed.clear()
    kernel = sparsejit.compile_matrix(WEIGHTS, tune=True)
    assert len(timed) == len(kernel.plan.measured_ns) > 1
    assert re.search(r"; the times are not stored: .* cannot be written: ", str(kernel.explain()))
    x = np.ones(64, np.float32)
    np.testing.assert_allclose(kernel(x), WEIGHTS.astype(np.float64) @ x, atol=1e-4)


def test_the_digest_knows_every_file_and_its_place(tmp_path: Path) -> None:
    files = {"a.py": "x", "inner/b.py": "y", "inner/deeper/c.toml": "z"}

    def digest(changed: dict[str, str]) -> str:
        folder = tmp_path / f"checkout-{len(list(tmp_path.iterdir()))}" / "room"
        for name, text in changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return measurement_store.source_digest([folder])

    same = digest(files)
    assert digest(dict(reversed(files.items()))) == same
    assert digest({**files, "__pycache__/a.pyc": "x"}) == same
    variants = [{**files, name: text + "!"} for name, text in files.items()]
    for name in files:
        moved = dict(files)
        moved[f"{name}.py"] = moved.pop(name)
        variants.append(moved)
    # The same names and the same bytes in one row, cut elsewhere.
    variants.append({"a.py": "xy", "inner/b.py": "", "inner/deeper/c.toml": "z"})
    assert len({digest(variant) for variant in variants} | {same}) == len(variants) + 1


def test_the_compiler_s_digest_covers_the_rooms_that_decide_code() -> None:
    package = Path(sparsejit.__file__).parent
    rooms = ("machine", "x86", "runtime", "ir", "asm_templates", "measuring", "planner")
    folders = (package / room for room in rooms)
    assert measurement_store.compiler_digest() == measurement_store.source_digest(folders)
    assert all(list((package / room).rglob("*.py")) for room in rooms)
