"""Shrinking trained models: within the budget, faster, and the same file for others."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from level_marks import WHERE_INT8_GAINS
from torch import nn

import sparsejit
from sparsejit.api.models.final_graph import final_graph, kept_scales
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.seen_inputs import calls_of
from sparsejit.api.reports.accuracy import OutputErrors
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.passes.calibrated_layers import keyed_layers
from sparsejit.perf.zoo.attention import Bert
from sparsejit.prune.shrink import shrinking, sources
from sparsejit.prune.shrink.data import read_data
from sparsejit.prune.shrink.layers import DENSE, FORMS, ShrinkLayer, with_weights
from sparsejit.prune.shrink.layers_of_source import tensors_of
from sparsejit.prune.shrink.qdq import with_short_layers
from sparsejit.prune.shrink.reaction import Change, LevelledRun, reactions, stages
from sparsejit.prune.shrink.search import FormSearch, within_time
from sparsejit.prune.shrink.sources import Source
from sparsejit.prune.shrink.times import AMOUNTS, LayerTimes

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Net(nn.Module):
    """Two branches behind one layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.left, self.right = nn.Linear(64, 96), nn.Linear(96, 80), nn.Linear(96, 80)
        self.head = nn.Linear(80, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.head(torch.relu(self.left(h)) + torch.tanh(self.right(h)))


class Images(nn.Module):
    """Convolutions, one with a norm behind it, and a depthwise one that stays."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.second = nn.Conv2d(32, 64, 1)
        self.norm = nn.BatchNorm2d(64)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        self.head = nn.Linear(64, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depth(torch.relu(self.first(x)))
        return self.head(torch.relu(self.norm(self.second(x))).mean((2, 3)))


class Recurrent(nn.Module):
    """Two kinds of recurrent layers, one of them in both directions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mixing = nn.Linear(64, 48)
        self.both = nn.LSTM(48, 40, batch_first=True, bidirectional=True)
        self.last = nn.GRU(80, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.both(self.mixing(x))[0])[0]


class Trained(nn.Module):
    """A wide net whose outputs lie on few dimensions: most of its weights are not needed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Affine(nn.Module):
    """A factor before a convolution, which folding puts into its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 1)
        self.factor = nn.Parameter(torch.tensor([0.05]))
        self.head = nn.Linear(64, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x)) * self.factor)
        return self.head(torch.relu(x).mean((2, 3)))


MIXING = torch.randn(16, 64, generator=torch.Generator().manual_seed(9))


def rows(count: int, seed: int = 0, batch: int = 1) -> list[torch.Tensor]:
    """Inputs on a plane of few dimensions, as trained models have them."""
    generator = torch.Generator().manual_seed(seed)
    return list((torch.randn(count * batch, 16, generator=generator) @ MIXING).split(batch))


def sequences(count: int) -> list[torch.Tensor]:
    return [each[None] for each in rows(count, batch=6)]


def images(count: int) -> list[torch.Tensor]:
    return list(torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(0)).split(1))


def exported(model: nn.Module, x: torch.Tensor, path: Path) -> Path:
    torch.onnx.export(model.eval(), (x,), str(path), dynamo=False, input_names=["x"])
    return path


def job_of(model: Any, data: list[torch.Tensor]) -> shrinking._ShrinkJob:
    options = ModelSettings("native", 1, False, False)
    compiler = shrinking.ModelCompiler(model, True, False, None, {}, None, "float32", options)
    return shrinking._ShrinkJob.of(compiler, calls_of(data), False, lambda *_: None)


@pytest.mark.parametrize(
    ("make", "data", "kind", "count"),
    [
        *((Net, rows, kind, 4) for kind in ("torch", "onnx")),
        *((Images, images, kind, 3) for kind in ("torch", "onnx")),
        *((Recurrent, sequences, kind, 7) for kind in ("torch", "onnx")),
    ],
)
def test_the_source_takes_what_the_graph_has(
    make: Any, data: Any, kind: str, count: int, tmp_path: Path
) -> None:
    """Any weights and biases of the graph, written to the source and read again, are the same."""
    model, samples = make().eval(), data(8)
    given = model if kind == "torch" else str(exported(model, samples[0], tmp_path / "m.onnx"))
    job = job_of(given, samples)
    search, tied, source = job.search, job.tied, job.source
    assert len(tied) == count
    rng = np.random.default_rng(0)
    changed = {}
    for each in tied:
        layer = each.layer
        factors = rng.uniform(0.5, 1.5, layer.shape) * (rng.random(layer.shape) > 0.5)
        changed[layer.weights] = (search.graph.constants[layer.weights] * factors).astype("f4")
        if layer.bias is not None:
            bias = search.graph.constants[layer.bias]
            changed[layer.bias] = (bias + rng.normal(size=bias.shape)).astype("f4")
    made = with_weights(search.graph, changed)
    written = source.written(tensors_of(tied, search.graph, made))
    x = samples[1]
    found = sparsejit.compile(written, (x,))(x.numpy())
    (wanted,) = made.evaluate([x.numpy()])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    (before,) = search.graph.evaluate([x.numpy()])
    assert not np.allclose(before, wanted, rtol=0.1)


def test_rows_of_a_file_are_found_in_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices without a name, by rows in any order; each tensor of their width is read once."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(6, 4)).astype(np.float32) for name in ("a", "b", "twin")}
    arrays["twin"][3] = arrays["b"][0]
    arrays |= {"wide": rng.normal(size=(6, 5)).astype(np.float32), "whole": np.ones((6, 4), int)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    source = Source(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], tensors)))
    read: list[str] = []
    array_of = sources._array
    monkeypatch.setattr(sources, "_array", lambda one: read.append(one.name) or array_of(one))
    order = np.array([4, 0, 2])
    place = source.place_of("unnamed", arrays["a"][order])
    assert place is not None and place.name == "a" and (place.rows == order).all()
    assert read == ["a", "b", "twin", "whole", "a"]
    place = source.place_of("another", arrays["b"][1:])
    assert place is not None and place.name == "b" and read[5:] == ["b"]
    assert source.place_of("in two", arrays["b"][:1]) is None
    assert source.place_of("in none", arrays["a"] + 1) is None
    assert source.place_of("mixed", np.stack([arrays["a"][0], arrays["b"][1]])) is None
    place = source.place_of("twin", arrays["b"][:1])
    assert place is not None and place.name == "twin" and (place.rows == [3]).all()


def times_of(model: Any, data: list[torch.Tensor]) -> LayerTimes:
    search = job_of(model, data).search
    return LayerTimes(search.graph, search.layers, {DENSE.dtype: "float32"}, search.options)


def test_layers_of_a_kind_share_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the price of each alone to 2 %, and the same steps are left."""
    torch.manual_seed(2)
    words = [torch.randint(Bert.WORDS, (1, 24)) for _ in range(8)]
    times = times_of(Bert(2, 192, 3).eval(), words)
    assert len(set(times._kinds)) == 3 < len(times.layers)
    cases = [(form, amount) for form in FORMS if form.dtype is DENSE.dtype for amount in AMOUNTS]
    shared = [times._times(*case) for case in cases]
    monkeypatch.setattr("sparsejit.prune.shrink.times.matrices_by_zeros", lambda graph: {})
    same_zeros = [replace(times, _known={})._times(*case) for case in cases]
    monkeypatch.setattr("sparsejit.prune.shrink.times.kind_of", lambda layer, weights: layer)
    alone = [replace(times, _known={})._times(*case) for case in cases]
    for found, same, own in zip(shared, same_zeros, alone, strict=True):
        np.testing.assert_allclose([*found[0], found[1]], [*same[0], same[1]], rtol=1e-9)
        np.testing.assert_allclose(found[0], own[0], rtol=0.02)


def test_kinds_differ_where_magnitudes_lie_otherwise() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(*(nn.Linear(96, 96) for _ in range(5)))
            with torch.no_grad():
                self.layers[1].weight[::2] *= 3
                self.layers[2].weight[:, ::2] *= 3
                self.layers[3].weight[0, 0] = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    first, *others, last = times_of(Layers().eval(), [torch.randn(1, 96)] * 8)._kinds
    assert first == last and len({first, *others}) == 4


def test_layers_that_do_not_read_each_other_share_a_stage() -> None:
    search = job_of(Net().eval(), rows(8)).search
    assert [len(stage.layers) for stage in stages(search.graph, search.layers)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("make", "data", "levels"), [(Net, rows, 3), (Images, images, 3), (Recurrent, sequences, 4)]
)
def test_reactions_are_the_errors_of_changed_weights(make: Any, data: Any, levels: int) -> None:
    """The model runs from each layer on, or as a whole where y feeds back."""
    search = job_of(make().eval(), data(16)).search
    graph, elements = search.graph, search.fitted[:3]
    rng = np.random.default_rng(0)
    trials: list[tuple[ShrinkLayer, Change]] = []
    wanted = []
    for layer in search.layers:
        own = graph.constants[layer.weights]
        change = rng.normal(scale=0.1 * own.std(), size=own.shape).astype(np.float32)
        changed = {layer.weights: own + change}
        added = partial(layer.product, weights=change)
        trials.append((layer, changed if layer.is_recurrent else added))
        errors = OutputErrors()
        for inputs in elements:
            errors.add(with_weights(graph, changed).evaluate(inputs), graph.evaluate(inputs))
        wanted.append(errors.mean**2)
    found = reactions(graph, elements, trials, search.options)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    plain = [layer for layer in search.layers if not layer.is_recurrent]
    run = LevelledRun(graph, plain, search.options)
    assert len(run.dense(elements[0])) == levels
    if make is Net:
        assert [run.level_of[layer] for layer in plain] == [0, 1, 1, 2]


def test_predicted_and_measured_errors_agree() -> None:
    """Within a factor of 3, and both grow with the zeros."""
    search = job_of(Trained().eval(), rows(80, batch=16)).search
    search.prepare()
    losses = np.sqrt(search.choices.losses)
    states = [int(np.searchsorted(-losses, -wanted)) for wanted in (0.3, 0.15)]
    tried = [search.attempt(state) for state in states]
    for state, one in zip(states, tried, strict=True):
        assert losses[state] / 3 < one.error < 3 * losses[state]
    assert tried[0].error > tried[1].error
    assert tried[0].predicted_ns < tried[1].predicted_ns < search.dense_ns


def test_a_choice_has_the_zeros_that_it_says() -> None:
    search = job_of(Trained().eval(), rows(80, batch=16)).search
    search.prepare()
    tried = search.attempt(0)
    for layer, choice in tried.choices.items():
        zeros = np.mean(tried.graph.constants[layer.weights] == 0)
        assert abs(zeros - choice.amount) < 0.01


def test_each_gate_has_the_same_share_of_zeros() -> None:
    """But for blocks that the edge of a gate cuts off; errors are as predicted, within 3 times."""
    search = job_of(Recurrent().eval(), sequences(80)).search
    search.prepare()
    losses = np.sqrt(search.choices.losses)
    state = int(np.searchsorted(-losses, -0.1))
    tried = search.attempt(state)
    assert losses[state] / 3 < tried.error < 3 * losses[state]
    gates = {layer.gates for layer in tried.choices if layer.is_recurrent}
    assert gates == {3, 4}
    for layer, choice in tried.choices.items():
        weights = tried.graph.constants[layer.weights].reshape(layer.gates, -1)
        np.testing.assert_allclose(np.mean(weights == 0, axis=1), choice.amount, atol=0.05)


@pytest.fixture(scope="module")
def shrunk() -> tuple[nn.Module, sparsejit.Shrunk]:
    model = Trained().eval()
    return model, sparsejit.shrink(model, rows(80, batch=16), budget=0.2, dtype="float32")


def test_the_result_is_within_the_budget_and_of_the_source(
    shrunk: tuple[nn.Module, sparsejit.Shrunk],
) -> None:
    model, result = shrunk
    assert 0 < result.error <= 0.2
    fresh = torch.cat(rows(100, seed=5))
    found, wanted = torch.as_tensor(result.model(fresh)), model(fresh).detach()
    error = ((found - wanted).square().mean() / wanted.square().mean()).sqrt()
    assert error < 0.3
    torch.testing.assert_close(found, result.source(fresh).detach(), rtol=1e-3, atol=1e-3)
    assert not result.is_dense and any(layer.zeros > 0.3 for layer in result.layers)
    assert "times as fast" in str(result) and result.as_dict()["speed"] == result.speed


def test_the_given_model_stays_as_it_was(shrunk: tuple[nn.Module, sparsejit.Shrunk]) -> None:
    model, _ = shrunk
    pairs = zip(model.parameters(), Trained().parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_an_onnx_file_comes_out_as_it_went_in(tmp_path: Path) -> None:
    model, samples = Trained().eval(), rows(80, batch=16)
    path = exported(model, samples[0], tmp_path / "m.onnx")
    given = onnx.load(str(path))
    entry = given.metadata_props.add()
    entry.key, entry.value = "author", "somebody"
    onnx.save(given, str(path))
    result = sparsejit.shrink(path, [x.numpy() for x in samples], budget=0.3, dtype="float32")
    result.save(tmp_path / "small.onnx")
    made = onnx.load(str(tmp_path / "small.onnx"))
    assert made.opset_import == given.opset_import and made.metadata_props == given.metadata_props
    assert [x.name for x in made.graph.initializer] == [x.name for x in given.graph.initializer]
    assert made.graph.input == given.graph.input and made.graph.node == given.graph.node
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    x = samples[3].numpy()
    (theirs,) = session.run(None, {"x": x})
    np.testing.assert_allclose(result.model(x), theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
    with pytest.raises(InvalidInput, match=r"no \.onnx path"):
        result.save(tmp_path / "small.safetensors")


def test_an_exported_program_comes_out_as_one(tmp_path: Path) -> None:
    model, samples = Trained().eval(), rows(80, batch=16)
    program = torch.export.export(model, (samples[0],))
    result = sparsejit.shrink(program, samples, budget=0.3, dtype="float32")
    assert torch.equal(program.module()(samples[0]), model(samples[0]))
    result.save(tmp_path / "small.pt2")
    again = torch.export.load(tmp_path / "small.pt2").module()(samples[0]).detach()
    found = torch.as_tensor(result.model(samples[0]))
    torch.testing.assert_close(found, again, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(again, model(samples[0]), rtol=1e-3, atol=1e-3)


def test_a_speed_and_a_metric() -> None:
    model, samples = Trained().eval(), rows(80, batch=16)
    wanted = model(torch.cat(samples)).argmax(1).numpy()

    def right(outputs: list[Any]) -> float:
        return float(np.mean(np.concatenate(outputs).argmax(1) == wanted))

    result = sparsejit.shrink(model, samples, budget=0.1, metric=right, dtype="float32")
    assert result.loss is not None and result.loss <= 0.1
    search = job_of(copy.deepcopy(model), samples).search
    search.prepare()
    tried = within_time(search, search.dense_ns / 1.5, 3)
    assert tried.predicted_ns <= search.dense_ns / 1.5
    with pytest.raises(InvalidInput, match=r"speed=90 is out of reach.*ask for less"):
        sparsejit.shrink(model, samples, speed=90)


def test_a_budget_that_allows_nothing_returns_the_dense_model() -> None:
    model = Net().eval()
    result = sparsejit.shrink(model, [torch.randn(1, 64) for _ in range(256)], budget=1e-7)
    assert result.is_dense and result.speed == 1.0 and "stays dense" in str(result)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, r"budget=0; give the error"),
        ({"budget": 1.5}, r"budget=1.5; give the error"),
        ({"budget": True}, r"budget=True; give the error"),
        ({"speed": 0.5}, r"speed=0.5; give the speed over the dense model"),
        ({"speed": 2, "budget": 0.1}, r"speed and a budget are both given"),
        ({"metric": len}, r"metric needs a budget"),
        ({"finetune": -1}, r"finetune=-1; give a number of steps"),
        ({"dtype": "int8"}, r"dtype='int8'; give 'float32' or 'auto'"),
        ({"budget": 0.1, "metric": "accuracy"}, r"metric needs a budget"),
        ({"data": rows(1)}, r"data has 1 elements; give 8 at least"),
        ({"data": []}, r"data is empty"),
        ({"data": [*rows(9), torch.randn(2, 64)]}, r"data\[9\] has inputs of shape"),
        ({"data": [torch.full((1, 64), float("nan")) for _ in range(400)]}, r"NaN or infinite"),
        ({"data": [(x, torch.tensor(1)) for x in rows(9)]}, r"."),
        ({"data": rows(10), "dtype": "float32"}, r"too few elements for .* 10; give \d+ or more"),
        ({"data": rows(9), "model": nn.ReLU()}, r"no linear layer or convolution"),
        ({"budget": 0.1, "metric": lambda outputs: None}, r"metric returned None"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    given = {"model": Net().eval(), "data": rows(400), **given}
    with pytest.raises(InvalidInput, match=message):
        sparsejit.shrink(given.pop("model"), given.pop("data"), **given)


def test_files_of_data(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.arange(8.0).reshape(4, 2)
    np.savez(tmp_path / "two.npz", x=x, y=y)
    found = read_data(tmp_path / "two.npz", ["y", "x"])
    assert len(found) == 4 and np.array_equal(found[2][0], y[2:3]) and found[2][1].shape == (1, 3)
    np.save(tmp_path / "one.npy", x)
    assert np.array_equal(read_data(tmp_path / "one.npy", ["anything"])[3][0], x[3:])
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidInput, match=r"has no \.npy file"):
        read_data(folder, ["x"])
    np.save(folder / "a.npy", x)
    assert np.array_equal(read_data(folder, ["x"])[0][0], x)
    with pytest.raises(InvalidInput, match=r"has x, y, and the model takes x; .* without labels"):
        read_data(tmp_path / "two.npz", ["x"])
    with pytest.raises(InvalidInput, match="has x, y, and the model takes x, y, z; "):
        read_data(tmp_path / "two.npz", ["x", "y", "z"])
    np.savez(tmp_path / "unlike.npz", x=x, y=y[:3])
    with pytest.raises(InvalidInput, match="arrays of lengths"):
        read_data(tmp_path / "unlike.npz", ["x", "y"])
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(InvalidInput, match="is no data"):
        read_data(tmp_path / "data.csv", ["x"])


@WHERE_INT8_GAINS
def test_int8_goes_into_the_file(tmp_path: Path) -> None:
    """ONNX Runtime gives the numbers of the compiled model, as does the file compiled again."""
    model, samples = Trained().eval(), rows(80, batch=16)
    path = exported(model, samples[0], tmp_path / "m.onnx")
    inputs = [x.numpy() for x in samples]
    result = sparsejit.shrink(path, inputs, budget=0.05, dtype="auto")
    assert any(layer.storage == "int8" for layer in result.layers) and result.error <= 0.05
    result.save(tmp_path / "small.onnx")
    made = onnx.load(str(tmp_path / "small.onnx"))
    onnx.checker.check_model(made, full_check=True)
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in made.graph.node}
    assert made.graph.input == onnx.load(str(path)).graph.input
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    again = sparsejit.compile(tmp_path / "small.onnx", (inputs[0],))
    for x in inputs[:4]:
        (theirs,) = session.run(None, {"x": x})
        # A value on the border between two steps may go either way.
        off = np.abs(result.model(x) - theirs) / np.abs(theirs).max()
        assert (off > 1e-5).mean() < 0.2 and off.max() < 0.01
        np.testing.assert_array_equal(again(x), result.model(x))


def test_a_convolution_that_stays_in_float32_is_not_rounded() -> None:
    """Alone in int8 it may be slower; then its weights are its own in the result and its file."""
    search = job_of(Images().eval(), images(64)).search
    graph, options = search.graph, search.options
    short = search._short_layers(graph)
    for layer in search.layers:
        form = layer.stored(DType.INT8, short.forms)
        assert form is not None
        scales = kept_scales(graph, options, short.scales(short.all_layers([form])))
        nodes = keyed_layers(final_graph(graph, options, scales))
        kept = {each.key for each in scales.layers if each.dtype is DType.INT8}
        assert {key for key, node in nodes.items() if node.op.dtype is DType.INT8} == kept
        exact = graph.evaluate(search.held[0])
        made = search.outputs(graph, scales, search.held[:1])[0]
        is_same = np.allclose(made, exact, rtol=1e-4, atol=1e-5)
        assert is_same == (not kept)


def test_recurrent_layers_of_files(tmp_path: Path) -> None:
    """Gates in another order, two directions in one tensor: ONNX Runtime gives the same numbers."""
    data = sequences(80)
    file = exported(Recurrent(), data[0], tmp_path / "m.onnx")
    inputs = [x.numpy() for x in data]
    result = sparsejit.shrink(file, inputs, budget=0.1)
    assert len(result.layers) == 7 and any(each.zeros > 0.1 for each in result.layers)
    assert "int8" not in {each.storage for each in result.layers[1:]}
    session = onnxruntime.InferenceSession(result.source.SerializeToString())
    for x in inputs[:3]:
        (theirs,) = session.run(None, {"x": x})
        off = np.abs(result.model(x) - theirs) / np.abs(theirs).max()
        assert (off > 1e-5).mean() < 0.2 and off.max() < 0.01  # ties of the first layer's x


@WHERE_INT8_GAINS
@pytest.mark.parametrize("make", [Images, Affine])
@pytest.mark.parametrize("opset", [9, 11, 13])
def test_old_opsets_have_rounded_weights(make: Any, opset: int, tmp_path: Path) -> None:
    """Without a scale for each output, the weights are the rounded numbers themselves."""
    model, samples = make().eval(), images(64)
    path = tmp_path / "m.onnx"
    given = {"dynamo": False, "input_names": ["x"], "opset_version": opset}
    torch.onnx.export(model, (samples[0],), str(path), **given)
    result = sparsejit.shrink(path, samples, budget=0.3, dtype="auto")
    assert result.scales is not None
    made = result.source
    assert made.opset_import == onnx.load(str(path)).opset_import
    rounding = {node.op_type for node in made.graph.node} & {"QuantizeLinear"}
    assert bool(rounding) == (opset >= 10)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    x = samples[1].numpy()
    (theirs,) = session.run(None, {"x": x})
    error = np.sqrt(np.square(theirs - result.model(x)).mean() / np.square(theirs).mean())
    assert error < (1e-3 if opset >= 10 else 0.05)


@WHERE_INT8_GAINS
def test_a_torch_model_keeps_its_scales() -> None:
    model, samples = Trained().eval(), rows(80, batch=16)
    result = sparsejit.shrink(model, samples, speed=2, dtype="auto")
    assert result.scales is not None
    again = sparsejit.compile(result.source, (samples[0],), dtype=result.scales)
    np.testing.assert_array_equal(again(samples[0]), result.model(samples[0]))


def test_training_lowers_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zeros stay, and the source has the trained weights."""
    monkeypatch.setattr(shrinking, "_MEASURED_TRIES", 1)  # another time asks for other zeros
    model, samples = Trained().eval(), rows(80, batch=16)
    plain = sparsejit.shrink(model, samples, speed=3, dtype="float32")
    result = sparsejit.shrink(model, samples, speed=3, dtype="float32", finetune=60)
    assert result.error < 0.99 * plain.error
    assert [x.zeros for x in result.layers] == pytest.approx([x.zeros for x in plain.layers])
    found = torch.as_tensor(result.model(samples[0]))
    torch.testing.assert_close(found, result.source(samples[0]), rtol=1e-4, atol=1e-4)


def test_shrinking_goes_on_from_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without measuring again; tables of other data are refused, as are damaged ones."""
    model, samples = Trained().eval(), rows(80, batch=16)
    path = tmp_path / "tables.sjit"
    monkeypatch.setattr(shrinking, "_MEASURED_TRIES", 1)  # another time asks for other zeros
    first = sparsejit.shrink(model, samples, speed=2, dtype="auto", resume=path)

    def measures(*_: Any) -> Any:
        raise AssertionError("the tables are measured again")

    with monkeypatch.context() as patch:
        patch.setattr(FormSearch, "_tables", measures)
        again = sparsejit.shrink(model, samples, speed=2, dtype="auto", resume=path)
    assert again.layers == first.layers and again.error == first.error
    with pytest.raises(InvalidInput, match="tables of another model, other data or options"):
        sparsejit.shrink(model, samples[1:], speed=2, dtype="auto", resume=path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFile, match=r"tables\.sjit"):
        sparsejit.shrink(model, samples, speed=2, dtype="auto", resume=path)


def test_another_process_finds_its_tables(tmp_path: Path) -> None:
    """Sets lie in another order there."""
    program = """if True:
        import sys
        from test_shrink import Net, job_of, rows
        print(job_of(Net().eval(), rows(8)).kept_in(sys.argv[1]).digest)
    """
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "tables.sjit")],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("speeds", "made"),
    [
        ({"a": 2.0}, ["a"]),
        ({"a": 1.5, "b": 1.9, "c": 1.95}, ["a", "b", "c"]),
        ({"a": 1.5, "b": 1.8, "c": 1.7}, ["a", "b", "c", "b"]),
        ({"a": 1.5, "b": None}, ["a", "b", "a"]),
        ({"a": None}, ["a"]),
    ],
)
def test_a_slower_try_gives_way_to_the_one_before_it(
    speeds: dict[str, float | None], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one is compiled again, so that two results are never in memory."""
    tried, compared = iter(speeds), []
    monkeypatch.setattr(shrinking, "within_time", lambda *_: next(tried))

    def result_of(one: str, _: None) -> Any:
        compared.append(one)
        return None if speeds[one] is None else SimpleNamespace(name=one, speed=speeds[one])

    choices = SimpleNamespace(times=np.array([10.0]))
    search = SimpleNamespace(choices=choices, times=SimpleNamespace(others=0.0), dense_ns=100.0)
    job: Any = SimpleNamespace(search=search, compared=result_of)
    found = shrinking._at_speed(job, 2.0)
    assert compared == made
    assert (found and found.name) == (None if speeds[made[-1]] is None else made[-1])


def test_an_interrupt_keeps_the_best_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = Trained().eval(), rows(80, batch=16)
    attempt, calls = FormSearch.attempt, []

    def interrupted(search: FormSearch, state: int) -> Any:
        calls.append(state)
        if len(calls) == stop:
            raise KeyboardInterrupt
        tried = attempt(search, state)
        return replace(tried, error=tried.error / 4)  # which asks for another try

    monkeypatch.setattr(FormSearch, "attempt", interrupted)
    stop = 2
    result = sparsejit.shrink(model, samples, budget=0.3, dtype="float32")
    assert len(calls) == 2 and not result.is_dense
    calls, stop = [], 1
    with pytest.raises(KeyboardInterrupt):
        sparsejit.shrink(model, samples, budget=0.3)


def test_layers_with_too_few_rows_are_named() -> None:
    """A head meets one row an image, and convolutions meet many."""
    result = sparsejit.shrink(Images().eval(), images(64), budget=0.5)
    assert result.left_out == ("head",) and "head: no further zeros" in str(result)
    assert result.as_dict()["left_out"] == ["head"]


def test_one_layer_with_enough_rows_is_enough() -> None:
    torch.manual_seed(3)
    around = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *around, nn.Linear(32, 40)).eval()
    result = sparsejit.shrink(model, images(64), budget=0.5, dtype="float32")
    assert len(result.layers) == 1 and len(result.left_out) == 1


def branching_file(path: Path) -> Path:
    """A model whose first layer lies in both branches of an If, and whose second lies behind it."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> Any:
        array = random.normal(size=shape) / np.sqrt(shape[0])
        return numpy_helper.from_array(array.astype(np.float32), name)

    def branch(name: str) -> Any:
        nodes = [
            helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.h"]),
            helper.make_node("Relu", [f"{name}.h"], [f"{name}.y"]),
        ]
        made = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [made], [tensor(f"{name}.w", 64, 96)])

    nodes = [
        helper.make_node(
            "If", ["flag"], ["h"], then_branch=branch("yes"), else_branch=branch("no")
        ),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 40])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [tensor("w", 96, 40)])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_layers_within_branches_shrink(dtype: str, tmp_path: Path) -> None:
    path = branching_file(tmp_path / "m.onnx")
    samples = [x.numpy() for x in rows(40, batch=16)]
    given = {"constants": {"flag": True}, "dtype": dtype}
    result = sparsejit.shrink(path, samples, budget=0.2, **given)
    assert len(result.layers) == 2 and not result.is_dense
    result.save(tmp_path / "small.onnx")
    onnx.checker.check_model(str(tmp_path / "small.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    (theirs,) = session.run(None, {"x": samples[0], "flag": np.array(True)})
    off = np.abs(result.model(samples[0]) - theirs) / np.abs(theirs).max()
    assert (off > 1e-5).mean() < 0.2 and off.max() < 0.01


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_weights_have_factors_only_beside_an_x_that_is_divided(
    opset: int, tmp_path: Path
) -> None:
    """If x cannot be rounded in the file, the layer's products are its own weights'."""
    model, x = nn.Sequential(nn.Conv2d(16, 64, 1)).eval(), torch.randn(1, 16, 6, 6)
    path = tmp_path / "m.onnx"
    given = {"dynamo": False, "input_names": ["x"], "opset_version": opset}
    torch.onnx.export(model, (x,), str(path), **given)
    job = job_of(str(path), [torch.randn(1, 16, 6, 6) for _ in range(64)])
    (layer,) = job.tied
    factors = np.linspace(0.5, 2, 16).astype(np.float32)
    scales = LayerScales(
        *(*layer.layer.key, DType.INT8, Quantisation(0.06, 0), "range"),
        factors=factors,
        shape=layer.layer.shape,
    )
    for input_scales in ({}, {layer: 1.0}):
        made = with_short_layers(
            job.source.model, job.search.graph, {layer: scales}, input_scales
        )
        session = onnxruntime.InferenceSession(made.SerializeToString())
        (found,) = session.run(None, {"x": x.numpy()})
        wanted = model(x).detach().numpy()
        assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
