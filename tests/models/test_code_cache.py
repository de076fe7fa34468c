"""Code that is kept on disk: found again, bit for bit, and never trusted too far."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from typer.testing import CliRunner

import sparsejit
from sparsejit.api.models import code_cache, variant
from sparsejit.commands.cli import app
from sparsejit.errors import InvalidInput
from sparsejit.planner.cheapest_row import preferring

X = np.linspace(-1, 1, 48, dtype=np.float32)[None]


@pytest.fixture
def folder(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where code is kept."""
    monkeypatch.setenv(code_cache.VARIABLE, "64")
    return cache_folder / "code"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each graph that is lowered."""
    seen: list[object] = []
    real: Callable[..., Any] = variant.lower_model

    def counted(*args: Any, **given: Any) -> Any:
        seen.append(args[0])
        return real(*args, **given)

    monkeypatch.setattr(variant, "lower_model", counted)
    return seen


def net(file: Path, seed: int = 0) -> Path:
    """y = relu(x W), three quarters of W being zeros."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((48, 32)) * (random.random((48, 32)) < 0.25)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 48), ("y", 32))
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    held = [numpy_helper.from_array(weights.astype(np.float32), "w")]
    graph = helper.make_graph(nodes, "net", [x], [y], held)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(file))
    return file


def test_a_file_is_compiled_once(folder: Path, lowered: list[object], tmp_path: Path) -> None:
    file = net(tmp_path / "net.onnx")
    first = sparsejit.compile(file)
    count = len(lowered)
    again = sparsejit.compile(file)
    assert len(lowered) == count
    assert again.image.data == first.image.data
    assert again.image.instruction_sets == first.image.instruction_sets
    assert np.array_equal(again(X), first(X))
    assert str(again.graph) == str(first.graph)
    alike = [{**model.stats, "compile_ms": 0} for model in (first, again)]
    assert alike[0] == alike[1]
    assert len(lowered) == count
    assert again.disassemble() == first.disassemble()
    assert len(again.explain().layers) == len(first.explain().layers)


def test_a_saved_model_is_loaded_without_compiling(
    folder: Path, lowered: list[object], tmp_path: Path
) -> None:
    saved = tmp_path / "net.sjit"
    model = sparsejit.compile(net(tmp_path / "net.onnx"))
    model.save(saved)
    count = len(lowered)
    loaded = [sparsejit.load(saved) for _ in range(2)]
    assert len(lowered) == count  # the graph is the same: so is its code
    assert all(np.array_equal(each(X), model(X)) for each in loaded)
    contents = saved.read_bytes()
    saved.unlink()
    loaded[1].save(saved)  # from the file that it holds open
    assert saved.read_bytes() == contents


def test_another_question_has_another_answer(
    folder: Path, lowered: list[object], tmp_path: Path
) -> None:
    file = net(tmp_path / "net.onnx")
    for dtype in ({"*": "int8", "z*": "float32"}, {"z*": "float32", "*": "int8"}):
        found = sparsejit.compile(file, dtype=dtype)
        plain = sparsejit.compile(net(tmp_path / "other.onnx"), dtype=[*dtype.values()][-1])
        assert found.image.data == plain.image.data
    before = sparsejit.compile(file)
    net(file, seed=1)
    after = sparsejit.compile(file)
    assert not np.array_equal(before(X), after(X))


def test_preferred_rows_have_code_of_their_own(
    folder: Path, lowered: list[object], tmp_path: Path
) -> None:
    file = net(tmp_path / "net.onnx")
    sparsejit.compile(file)
    with preferring("a row"):
        sparsejit.compile(file)
        assert len(lowered) == 2
        sparsejit.compile(file)
    sparsejit.compile(file)
    assert len(lowered) == 2


def test_a_file_that_changed_in_place_is_told(folder: Path, tmp_path: Path) -> None:
    file = net(tmp_path / "net.onnx")
    sparsejit.compile(file)
    model = sparsejit.compile(file)
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert model(X).shape == (1, 32)
    with pytest.raises(InvalidInput, match=r"net\.onnx was changed"):
        _ = model.graph


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_entry_is_made_again(
    damage: bytes | None, folder: Path, lowered: list[object], tmp_path: Path
) -> None:
    file = net(tmp_path / "net.onnx")
    first = sparsejit.compile(file)
    code = max(folder.iterdir(), key=lambda entry: entry.stat().st_size)
    whole = code.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    code.write_bytes(flipped if damage is None else damage)
    count = len(lowered)
    assert np.array_equal(sparsejit.compile(file)(X), first(X))
    assert len(lowered) == count + 1
    assert code.read_bytes() == whole


@pytest.mark.parametrize("others", ["folder", "file", "link"])
def test_entries_that_others_may_write_are_not_used(
    others: str, folder: Path, lowered: list[object], tmp_path: Path
) -> None:
    file = net(tmp_path / "net.onnx")
    sparsejit.compile(file)
    count = len(lowered)
    code = max(folder.iterdir(), key=lambda entry: entry.stat().st_size)
    if others == "link":
        moved = code.rename(tmp_path / "moved")
        code.symlink_to(moved)
    else:
        (folder if others == "folder" else code).chmod(0o777)
    sparsejit.compile(file)
    assert len(lowered) == count + 1


def test_nothing_is_kept_where_that_is_off_or_impossible(
    folder: Path, lowered: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = net(tmp_path / "net.onnx")
    folder.parent.mkdir()
    folder.write_text("in the way")
    sparsejit.compile(file)
    folder.unlink()
    monkeypatch.setenv(code_cache.VARIABLE, "0")
    sparsejit.compile(file)
    assert not folder.exists() and len(lowered) == 2
    monkeypatch.setenv(code_cache.VARIABLE, "much")
    with pytest.raises(InvalidInput, match="much: set it to megabytes"):
        sparsejit.compile(file)


def test_the_longest_unused_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "most_bytes", lambda: 2000)
    for number, name in enumerate("abcd"):
        code_cache.remember(name, {"room": "x" * 300})
        os.utime(folder / f"{name}.sjc", (number, number))
    assert code_cache.recall("a") is None
    assert code_cache.recall("d") == {"room": "x" * 300}
    assert 0 < code_cache.use().bytes <= 2000


def test_the_command_tells_and_clears(folder: Path, tmp_path: Path) -> None:
    sparsejit.compile(net(tmp_path / "net.onnx"))
    told = CliRunner().invoke(app, ["cache"])
    assert told.exit_code == 0 and f"{folder}: " in told.stdout
    cleared = CliRunner().invoke(app, ["cache", "--clear"])
    assert cleared.exit_code == 0 and "0 entries" in cleared.stdout
    assert list(folder.iterdir()) == []
