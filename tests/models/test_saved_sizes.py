"""Named sizes in a file: a loaded model is compiled for further lengths, without the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_model_files import changes
from test_named_sizes import TAGGER, Attending, example, strided
from test_named_sizes import WIDTH as FEATURES
from test_other_sizes import READER, Averaging, Cutting, frames, pruned, words
from test_other_sizes_onnx import as_file, file_of
from torch import nn
from torch.export import Dim

import sparsejit
from sparsejit.api.models import code_cache
from sparsejit.api.models.compiled_model import CompiledModel, compile_saved
from sparsejit.api.models.model_file import model_to_data, read_model
from sparsejit.artefact import sealed
from sparsejit.errors import DamagedFile, InvalidInput, SparseJitError
from sparsejit.machine.target import Target

BATCHES = (1, 3, 20)
LENGTHS = (2, 9, 17, 66)


class Sized(NamedTuple):
    """A model with a named size `time` on an axis, and the input of a batch and a length.

    A length below `least` is computed otherwise where the model is read at it.
    """

    model: nn.Module
    input: Callable[[int, int], torch.Tensor]
    axis: int = 1
    first: int = 24
    least: int = 2


CONVOLUTIONS = nn.Conv1d(FEATURES, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 4, 1)


def channels(batch: int, time: int) -> torch.Tensor:
    return example(batch, FEATURES, time)


MODELS = {
    "recurrent": Sized(TAGGER, lambda batch, time: example(batch, time, FEATURES)),
    "attention": Sized(READER, words),
    "attention of few": Sized(READER, words, first=7),
    "convolutional": Sized(nn.Sequential(*CONVOLUTIONS).eval(), channels, axis=2, least=5),
}


def compiled(sized: Sized, **options: object) -> CompiledModel:
    time = Dim("time", min=1, max=70)
    sizes = [{0: "batch", sized.axis: time}]
    inputs = (sized.input(1, sized.first),)
    return sparsejit.compile(sized.model, inputs, dynamic_shapes=sizes, **options)


def isas() -> list[str]:
    return [isa for isa in ("avx2", "avx512") if Target.named(isa).runs_on(Target.detect())]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_has_the_bits_of_the_saved_one_at_further_lengths(
    tmp_path: Path, name: str, isa: str
) -> None:
    sized = MODELS[name]
    compiled(sized, target=isa).save(tmp_path / "m.sjit")
    fast = compiled(sized, target=isa)
    given = {f"{b} {n}": sized.input(b, n) for n in LENGTHS for b in BATCHES}
    np.savez(tmp_path / "in.npz", **{key: x.numpy() for key, x in given.items()})
    script = """
import sys
sys.modules["torch"] = None
import numpy as np, sparsejit
model = sparsejit.load("m.sjit")
np.savez("out.npz", **{key: model(x) for key, x in np.load("in.npz").items()})
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    with np.load(tmp_path / "out.npz") as found:
        for key, x in given.items():
            wanted = fast(x).numpy()
            if x.shape[sized.axis] >= sized.least:
                np.testing.assert_array_equal(found[key], wanted, strict=True, err_msg=key)
            else:
                np.testing.assert_allclose(found[key], wanted, rtol=1e-5, atol=1e-6, err_msg=key)


def loaded(fast: Any, folder: Path) -> CompiledModel:
    fast.save(folder / "m.sjit")
    again = sparsejit.load(folder / "m.sjit")
    assert isinstance(again, CompiledModel)
    return again


class Mixed(nn.Module):
    """Complex numbers, and an argument by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 6)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.layer(x.real) * self.layer(x.imag) * scale


def test_complex_inputs_by_name_and_batches_on_axis_1_are_kept(tmp_path: Path) -> None:
    time, scale = Dim("time", max=60), torch.ones(1, 6)
    mixed = sparsejit.compile(
        Mixed().eval(),
        (example(2, 9, FEATURES) * (1 + 2j),),
        example_kwargs={"scale": scale},
        dynamic_shapes={"x": {0: "batch", 1: time}, "scale": None},
    )
    last = sparsejit.compile(
        nn.GRU(FEATURES, 8).eval(),
        (example(9, 2, FEATURES), torch.zeros(1, 2, 8)),
        dynamic_shapes={"input": {0: time, 1: "batch"}, "hx": {1: "batch"}},
    )
    again = loaded(mixed, tmp_path), loaded(last, tmp_path)
    for length in (4, 9, 30):
        x = example(3, length, FEATURES) * (1 + 2j)
        assert torch.equal(again[0](x, scale=scale), mixed(x, scale=scale))
        y = example(length, 3, FEATURES), torch.ones(1, 3, 8)
        assert all(map(torch.equal, again[1](*y), last(*y)))


def test_names_and_bounds_are_kept(tmp_path: Path) -> None:
    again = loaded(compiled(MODELS["recurrent"]), tmp_path)
    again.prepare(time=11)
    again.prepare(batch=7, time=11)
    assert [each.input_shapes for each in again.parts.variants] == [
        ((24, FEATURES),),
        ((11, FEATURES),),
    ]
    for time in (0, 71):
        said = f"axis 1 of input x, 'time', has {time} elements; it takes 1 to 70"
        with pytest.raises(InvalidInput, match=said):
            again(np.zeros((1, time, FEATURES), np.float32))
        with pytest.raises(InvalidInput, match=said):
            again.prepare(time=time)
    with pytest.raises(InvalidInput, match=r"prepare\(length=...\): .* are batch, time"):
        again.prepare(length=3)


def test_a_loaded_model_is_saved_as_it_was(tmp_path: Path) -> None:
    for name, sized in MODELS.items():
        again = loaded(compiled(sized), tmp_path)
        again.save(tmp_path / "again.sjit")
        assert (tmp_path / "again.sjit").read_bytes() == (tmp_path / "m.sjit").read_bytes(), name
        again.prepare(time=31)
        third = loaded(again, tmp_path)
        for time in (24, 31, 45):
            x = sized.input(2, time)
            assert torch.equal(third(x), again(x)), (name, time)


def test_lengths_made_before_saving_share_the_weights_of_the_first(tmp_path: Path) -> None:
    fast = compiled(MODELS["recurrent"])
    for time in (9, 30, 31):
        fast.prepare(time=time)
    again = loaded(fast, tmp_path)
    found, wanted = (
        [each.program.image.size for each in one.parts.variants] for one in (again, fast)
    )
    assert found == wanted


@pytest.mark.parametrize("time", [1, 9])
@pytest.mark.parametrize("kind", [Averaging, Cutting])
def test_a_size_without_a_rule_has_the_lengths_that_were_saved(
    tmp_path: Path, kind: type[nn.Module], time: int
) -> None:
    model = pruned(kind())
    fast = sparsejit.compile(
        model, (frames(1, 4),), dynamic_shapes=[{0: "batch", 1: Dim("time", max=30)}]
    )
    again = loaded(fast, tmp_path)
    assert torch.equal(again(frames(3, 4)), fast(frames(3, 4)))
    held = r"shapes \(2, \d, 48\); this model was loaded with code for \(any, 4, 48\) \(any:"
    with pytest.raises(InvalidInput, match=held):
        again(frames(2, time))
    with pytest.raises(InvalidInput, match=r"'time', has 31 elements; it takes .* 30"):
        again(frames(2, 31))


def test_strides_have_no_rule(tmp_path: Path) -> None:
    fast = sparsejit.compile(
        strided(), (example(1, 3, 30),), dynamic_shapes={"input": {2: "time"}}
    )
    fast.prepare(time=31)
    again = loaded(fast, tmp_path)
    assert torch.equal(again(example(1, 3, 31)), fast(example(1, 3, 31)))
    with pytest.raises(InvalidInput, match=r"for \(1, 3, 30\) and for \(1, 3, 31\) \("):
        again(example(1, 3, 33))


def test_two_new_lengths_at_once_are_refused(tmp_path: Path) -> None:
    model = Attending().eval()
    sizes = {"x": {0: "batch", 1: "queries"}, "memory": {0: "batch", 1: "keys"}}
    inputs = example(2, 4, FEATURES), example(2, 6, FEATURES)
    fast = sparsejit.compile(model, inputs, dynamic_shapes=sizes)
    again = loaded(fast, tmp_path)
    for queries, keys in ((9, 6), (4, 11)):
        given = example(3, queries, FEATURES), example(3, keys, FEATURES)
        assert torch.equal(again(*given), fast(*given))
    said = r"makes others for one new length of queries or keys\. Compile it again"
    for queries, keys in ((9, 11), (1, 6)):
        with pytest.raises(InvalidInput, match=said):
            again(example(3, queries, FEATURES), example(3, keys, FEATURES))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_there", [True, False])
def test_rules_reach_as_far_as_the_model_can_be_read(tmp_path: Path, is_there: bool) -> None:
    pytest.importorskip("onnx")
    path = as_file(READER, tmp_path / "reader.onnx")
    sizes = {"ids": {0: "batch", 1: Dim("time", min=1, max=70)}}
    fast = sparsejit.compile(path, (words(1, 6).numpy(),), dynamic_shapes=sizes)
    if not is_there:
        path.unlink()
    again = loaded(fast, tmp_path)
    for time in (3, 6, 12, 40):
        x = words(2, time).numpy()
        np.testing.assert_allclose(again(x), READER(words(2, time)).detach(), rtol=1e-5, atol=1e-5)
    if is_there:
        np.testing.assert_array_equal(again(words(2, 70).numpy()), fast(words(2, 70).numpy()))
    else:
        with pytest.raises(InvalidInput, match=r"loaded with code for \(any, 6\) "):
            again(words(2, 70).numpy())  # more places than the rule was made from


def test_a_length_at_which_an_operator_does_not_fit_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model = file_of(("Gather", ["x", "v10"], "y"), v10=[10])
    model.graph.node[0].attribute.add(name="axis", i=1, type=2)
    inputs = {time: frames(1, time)[..., :8].numpy() for time in (20, 12, 11, 10, 2)}
    fast = sparsejit.compile(model, (inputs[20],), dynamic_shapes={"x": {1: "time"}})
    again = loaded(fast, tmp_path)
    for time in (12, 11):
        np.testing.assert_array_equal(again(inputs[time]), inputs[time][:, 10:11])
    for time in (10, 2):
        with pytest.raises(InvalidInput, match="was loaded with code for"):
            again(inputs[time])


def test_the_cache_of_code_keeps_names(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, "64")
    batch = {"input": {0: Dim("batch", max=8)}}
    model = nn.Sequential(nn.Linear(FEATURES, 5)).eval()
    sparsejit.compile(model, (example(2, FEATURES),), dynamic_shapes=batch).save(
        tmp_path / "batch.sjit"
    )
    compiled(MODELS["convolutional"]).save(tmp_path / "time.sjit")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="'batch', has 9 elements; it takes"):
            sparsejit.load(tmp_path / "batch.sjit")(np.zeros((9, FEATURES), np.float32))
        again = sparsejit.load(tmp_path / "time.sjit")
        assert again(channels(2, 33)).shape == (2, 4, 33)
    assert (cache_folder / "code").exists()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> sealed.SealedFile:
    path = tmp_path_factory.mktemp("sizes") / "m.sjit"
    small = Sized(TAGGER, MODELS["recurrent"].input, first=7)
    compiled(small).save(path)
    return sealed.read(path, {"model"})


def copied(file: sealed.SealedFile) -> tuple[Any, Any]:
    return json.loads(json.dumps(file.header)), dict(file.tensors)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda h: h.update(sizes=[]), "rules that are not one for each size"),
        (lambda h: h.update(sizes=2 * h["sizes"]), "sizes of 2 inputs"),
        (lambda h: h.update(sizes=[h["settings"]]), "where a record belongs"),
        (lambda h: h["sizes"][0].update(shape=[1, 8, 12]), "does not take inputs of shapes"),
        (lambda h: h["sizes"][0].update(shape=[1, 7, 12, 1]), "4 axes|sizes and shape"),
        (lambda h: size(h).update(least=8), "it takes 8 to 70"),
        (lambda h: size(h).update(most=6), "it takes 1 to 6"),
        (lambda h: size(h).update(least=71), "NamedInput that is not valid"),
        (lambda h: size(h).update(name="space"), "rules that are not one for each size"),
        (lambda h: rule(h).update(size="space"), "rules that are not one for each size"),
        (lambda h: rule(h).update(size="batch"), "rules that are not one for each size"),
        (lambda h: h.update(rules=2 * h["rules"]), "rules that are not one for each size"),
        (lambda h: rule(h).update(tile=2), "a rule of time that is none|2 samples"),
        (lambda h: rule(h)["lengths"].__setitem__(1, 7), "needs graphs of 3 lengths"),
        (lambda h: rule(h)["lengths"].__setitem__(1, 69), "differ in more than one length"),
        (lambda h: rule(h)["lengths"].__setitem__(0, -7), "a rule of time for lengths"),
        (lambda h: rule(h)["lengths"].__setitem__(0, True), "a rule of time for lengths"),
        (lambda h: rule(h).update(lengths=[107, 156, 128]), "it takes 1 to 70"),
        (lambda h: rule(h).update(lengths=[8, 57, 29]), "does not take inputs of shapes"),
        (lambda h: rule(h)["graphs"].pop(), "needs graphs of 3 lengths|unread"),
        (lambda h: rule(h)["graphs"].reverse(), "differ in more than one length"),
        (lambda h: rule(h).update(graphs=[]), "needs graphs of 3 lengths|unread"),
    ],
)
def test_forged_sizes_are_refused(
    tmp_path: Path, file: sealed.SealedFile, damage: Callable[[Any], Any], message: str
) -> None:
    header, tensors = copied(file)
    damage(header)
    sealed.write(tmp_path / "odd.sjit", "model", header, tensors)
    with pytest.raises(DamagedFile, match=rf"odd\.sjit has .*({message}).*; copy it again"):
        sparsejit.load(tmp_path / "odd.sjit")


def size(header: Any) -> Any:
    return header["sizes"][0]["sizes"][1]


def rule(header: Any) -> Any:
    return header["rules"][0]


def test_one_wrong_field_is_refused_or_is_a_model() -> None:
    """Also at a further length: refused by one of our errors, or an output of its shape."""
    layer = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1)).eval()
    sizes = {"input": {0: "batch", 2: Dim("time", max=90)}}
    fast = sparsejit.compile(layer, (example(1, 2, 20),), dynamic_shapes=sizes)
    header, tensors = model_to_data(fast.source())
    header = json.loads(json.dumps(header))
    before, refused, ran = json.dumps(header), 0, 0
    for part in (header["sizes"], header["rules"][0]):
        for what, change in changes(part):
            change()
            try:
                model = compile_saved(read_model(header, tensors))
            except DamagedFile:
                refused += 1
                continue
            try:
                ran += model(np.zeros((2, 2, 33), np.float32)).shape == (2, 3, 33)
            except SparseJitError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} after {what}") from error
    assert json.dumps(header) == before and refused > 500 and ran > 10, (refused, ran)
