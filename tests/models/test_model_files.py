"""Saved models: the same bits after loading, and one exception for files of no model.

`test_artefacts` has what is wrong with files of any kind.
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from saved_models import CASES, compiled, inputs_of, perceptron

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel, compile_saved
from sparsejit.api.models.model_file import model_to_data, read_model
from sparsejit.artefact import sealed
from sparsejit.errors import DamagedFile, InvalidInput, UnsupportedTarget
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind
from sparsejit.machine.target import Target


def loaded(path: Path) -> CompiledModel:
    model = sparsejit.load(path)
    assert isinstance(model, CompiledModel)
    return model


def assert_same_bits(again: CompiledModel, model: CompiledModel, samples: int = 1) -> None:
    inputs = inputs_of(model, samples)
    for found, wanted in zip(again.run(inputs), model.run(inputs), strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    model = CASES[name].compiled()
    model.save(tmp_path / "m.sjit")
    again = loaded(tmp_path / "m.sjit")
    assert again.parts.variants[0].program.image.data == model.parts.variants[0].program.image.data
    assert again.pointer != model.pointer and repr(again) == repr(model)
    assert again.parts.settings == model.parts.settings and again.tile == model.tile
    assert_same_bits(again, model)
    assert_same_bits(again, model, samples=6)
    again.save(tmp_path / "again.sjit")
    assert (tmp_path / "again.sjit").read_bytes() == (tmp_path / "m.sjit").read_bytes()


def test_a_pickled_model_is_compiled_anew() -> None:
    model = CASES["perceptron"].compiled()
    again = pickle.loads(pickle.dumps(model))
    assert again.pointer != model.pointer
    assert_same_bits(again, model, samples=5)


def test_settings_are_kept_as_they_were_given(tmp_path: Path) -> None:
    for target in ("native", "avx2", Target.named("avx2")):
        model = compiled(perceptron(1), 1, target=target, threads="auto", exact=True)
        model.save(tmp_path / "m.sjit")
        kept = loaded(tmp_path / "m.sjit").parts.settings
        assert kept == model.parts.settings and type(kept.target) is type(target)


def test_a_target_that_cannot_run_here_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Target.named("avx512").runs_on(Target.detect()):
        pytest.skip("needs avx512")
    compiled(perceptron(1), 1, target="avx512").save(tmp_path / "m.sjit")
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", "avx2")
    with pytest.raises(UnsupportedTarget, match="target avx512 does not run here"):
        sparsejit.load(tmp_path / "m.sjit")


class Pair(NamedTuple):
    total: Any
    parts: Any


def test_a_torch_model_runs_without_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 4)

        def forward(self, x: Any, more: Any, scale: float = 2.0) -> Any:
            y = self.fc(x) * scale
            return Pair(y + more["a"], [more["b"], y])

    x, more = torch.randn(3, 6), {"a": torch.randn(3, 4), "b": torch.randn(3, 2)}
    model = sparsejit.compile(Net().eval(), (x, more), example_kwargs={"scale": 3.0})
    model.save(tmp_path / "m.sjit")
    np.savez(tmp_path / "in.npz", x=x, a=more["a"], b=more["b"])
    script = """
import sys
sys.modules["torch"] = None
import numpy as np, sparsejit
given = dict(np.load("in.npz"))
total, (b, y) = result = sparsejit.load("m.sjit")(given.pop("x"), given, scale=3.0)
assert type(result).__name__ == "Pair" and result._fields == ("total", "parts")
np.savez("out.npz", total=total, b=b, y=y)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    wanted = model(x, more, scale=3.0)
    with np.load(tmp_path / "out.npz") as found:
        for name, tensor in (("total", wanted.total), ("b", more["b"]), ("y", wanted.parts[1])):
            np.testing.assert_array_equal(found[name], tensor.numpy(), strict=True)


def test_all_shapes_met_are_saved_with_their_weights_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            return self.fc(x).mean(1)

    model = sparsejit.compile(Net().eval(), (torch.randn(2, 5, 64),), free_shapes=True)
    model.save(tmp_path / "one.sjit")
    others = [np.ones((2, length, 64), np.float32) for length in (3, 5)]
    wanted = [model(x) for x in others]
    model.save(tmp_path / "two.sjit")
    again = loaded(tmp_path / "two.sjit")
    for x, y in zip(others, wanted, strict=True):
        np.testing.assert_array_equal(again(x), y)
    sizes = [(tmp_path / f"{name}.sjit").stat().st_size for name in ("one", "two")]
    assert sizes[1] < sizes[0] + 5000 < 1.5 * sizes[0]
    said = r"\(2, 4, 64\); .* code for \(any, 5, 64\) and for \(any, 3, 64\)"
    with pytest.raises(InvalidInput, match=said):
        again(np.ones((2, 4, 64), np.float32))


@pytest.mark.parametrize(
    "nest",
    [
        Nest(NestKind.DICT, (TENSOR,), ((1, 2),)),
        Nest(NestKind.TUPLE, (TENSOR, Nest(NestKind.CONSTANT, value=float("inf")))),
    ],
)
def test_a_nest_that_json_does_not_take_is_refused(tmp_path: Path, nest: Nest) -> None:
    model = CASES["perceptron"].compiled()
    model._output_nest = nest
    with pytest.raises(InvalidInput, match="the nest of outputs has keys or constants that cannot"):
        model.save(tmp_path / "m.sjit")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "m.sjit"
    compiled(perceptron(2, 3), 2).save(path)
    return path.read_bytes()


def test_a_kernel_s_header_in_a_model_is_refused(tmp_path: Path) -> None:
    sparsejit.compile_matrix(np.ones((2, 3))).save(tmp_path / "k.sjit")
    _, header, tensors = sealed.read(tmp_path / "k.sjit", {"kernel"})
    sealed.write(tmp_path / "odd.sjit", "model", header, tensors)
    with pytest.raises(DamagedFile, match=r"odd\.sjit has .* where only name, settings, inputs"):
        sparsejit.load(tmp_path / "odd.sjit")


def changes(data: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """Everything that one wrong value, one missing or one more makes of JSON data, in place."""
    places = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(places):
        for wrong in _wrong(value):
            yield f"{key}: {value!r} -> {wrong!r}", lambda k=key, w=wrong: _put(data, k, w)
            _put(data, key, value)
        if isinstance(data, dict):
            yield f"no {key}", lambda k=key: data.pop(k)
            _put(data, key, value)
        if isinstance(value, dict | list):
            yield from changes(value)


def _put(data: Any, key: Any, value: Any) -> None:
    data[key] = value


def _wrong(value: Any) -> list[Any]:
    anything = [None, -1, 0, 1, 2**40, True, 1.5, "float32", "int8", "int64", [], {}]
    near: list[Any] = []
    if type(value) is int:
        near = [value + 1, value - 1, 2 * value]
    if isinstance(value, list) and value:
        near = [value[1:], value[::-1], value + value]
    return [wrong for wrong in anything + near if json.dumps(wrong) != json.dumps(value)]


@pytest.mark.parametrize("name", ["perceptron", "words"])
def test_a_forged_file_is_refused_or_is_a_model(name: str) -> None:
    """A digest does not keep anyone from writing nonsense under a digest of its own."""
    header, tensors = model_to_data(CASES[name].compiled().source())
    header = json.loads(json.dumps(header))
    before = json.dumps(header)
    refused = 0
    for what, change in changes(header):
        change()
        try:
            assert compile_saved(read_model(header, tensors)).stats
        except DamagedFile:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} after {what}") from error
    assert json.dumps(header) == before and refused > 1000


def first_graph(header: Any) -> Any:
    return header["variants"][0]["graphs"][0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda h: h["settings"].update(target="sse2"), "target 'sse2'"),
        (lambda h: h["settings"].update(threads=0), "threads=0"),
        (
            lambda h: h.update(settings=first_graph(h)["graph"]["nodes"][0]["op"]),
            "record belongs",
        ),
        (lambda h: h.update(inputs={"kind": "tensor"}), "inputs that are no arguments"),
        (lambda h: h.update(outputs={"kind": "bag"}), "outputs that are no nest"),
        (lambda h: h["outputs"].update(items=[]), "other inputs or outputs than the model's"),
        (lambda h: first_graph(h).update(tile=3), "does not run 3 samples at a time"),
        (lambda h: first_graph(h).update(tile=-1), "a graph of tile -1"),
        (
            lambda h: first_graph(h)["graph"]["constants"][0]["array"].update(tensors=[99, 1]),
            "none as tensor 99",
        ),
        (lambda h: h.update(variants=[]), "unread tensors: "),
        (lambda h: h.update(variants=2 * h["variants"]), "not one model for inputs of several"),
    ],
)
def test_a_model_that_cannot_be_is_refused(
    tmp_path: Path, sound: bytes, damage: Callable[[Any], Any], message: str
) -> None:
    path = tmp_path / "odd.sjit"
    path.write_bytes(sound)
    kind, header, tensors = sealed.read(path, {"model"})
    damage(header)
    sealed.write(path, kind, header, tensors)
    with pytest.raises(DamagedFile, match=rf"odd\.sjit has .*{message}.*; copy it again"):
        sparsejit.load(path)
