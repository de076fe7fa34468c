"""Scales of layers: what they are made from, what they do to a model, and what they cost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import sparsejit
from sparsejit.api.quantising.scales import read_scales, scales_to_data
from sparsejit.api.quantising.scales_of_inputs import short_forms
from sparsejit.api.quantising.seen_inputs import SeenInput
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.reference import on_steps, stored_weights
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Quantisation

RNG = np.random.default_rng(5)
KEY = LayerKey("0", "0.weight", 0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def scales_of(*layers: LayerScales) -> sparsejit.Scales:
    return sparsejit.Scales(layers, 0.0, None, 1.0, 1.0)


def layers_of(model: Any) -> dict[str, Any]:
    nodes = [node for node in model.graph.nodes if hasattr(node.op, "dtype")]
    return {node.outputs[0].origin.layer: node.op for node in nodes}


def perceptron() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 33)).eval()


def node_of(model: nn.Module, x: Any, kind: type) -> Any:
    graph = sparsejit.compile(model, (x,)).graph
    (node,) = (each for each in graph.nodes if isinstance(each.op, kind))
    return node, graph.constants[node.inputs[1]]


def seen_by(model: nn.Module, x: Any, kind: type = Linear, most: int = 1000) -> SeenInput:
    seen = SeenInput(*node_of(model, x, kind), 0)
    seen.add(x.numpy(), most)
    return seen


def test_rows_of_a_linear_layer_are_those_of_x() -> None:
    x = torch.randn(3, 7, 20)
    seen = seen_by(nn.Linear(20, 5).eval(), x)
    np.testing.assert_array_equal(seen.rows, x.reshape(21, 20))
    assert (seen.least, seen.largest) == (x.min(), x.max())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(5, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        nn.Conv1d(5, 6, 3, padding=2),
    ],
)
def test_rows_of_a_convolution_are_its_windows(layer: nn.Module) -> None:
    x = torch.randn(2, 5, *((9, 8) if isinstance(layer, nn.Conv2d) else (9,)))
    layer.eval()
    seen = seen_by(layer, x, Convolution)
    with torch.no_grad():
        wanted = layer(x).movedim(1, -1).reshape(-1, 6)
    found = seen.rows @ seen.weights.T + layer.bias.detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(seen_by(layer, x, Convolution, most=4).rows) == 4


def test_the_error_of_a_layer_is_what_its_code_has() -> None:
    model, x = nn.Sequential(nn.Linear(64, 48)).eval(), torch.randn(200, 64).relu()
    exact = (x @ model[0].weight.T).detach().numpy()
    for dtype, form in short_forms({KEY: seen_by(model, x)})[KEY].items():
        fast = sparsejit.compile(model, (x,), dtype=scales_of(form))
        assert layers_of(fast)["0"].dtype is dtype
        found = fast(x).numpy() - model[0].bias.detach().numpy()
        error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
        assert error == pytest.approx(form.error, rel=0.02), dtype


def test_a_layer_in_fixed_steps_computes_what_they_say() -> None:
    model, x = perceptron(), torch.randn(1, 96)
    steps = Quantisation(0.03, 5)
    given = LayerScales("0", "0.weight", 0, DType.INT8, steps, correction=random(200))
    fast = sparsejit.compile(model, (x,), dtype=scales_of(given))
    op = layers_of(fast)["0"]
    assert (op.dtype, op.x_steps) == (DType.INT8, Quantisation(0.03, 5))
    weights, bias = (each.detach().numpy() for each in (model[0].weight, model[0].bias))
    stored = stored_weights(SparseMatrix(weights), DType.INT8)
    hidden = on_steps(x.numpy().astype(np.float64), 0.03, 5) @ stored.T + bias + given.correction
    wanted = np.maximum(hidden, 0) @ model[2].weight.detach().numpy().T.astype(np.float64)
    wanted += model[2].bias.detach().numpy()
    np.testing.assert_allclose(fast(x), wanted, rtol=1e-4, atol=1e-4)


def test_a_range_with_far_values_is_cut_or_measured_by_rows() -> None:
    layer = nn.Linear(64, 16).eval()
    x = torch.randn(250, 64)
    x[3, 5] = 400.0  # in one row of many
    form = short_forms({KEY: seen_by(layer, x)})[KEY][DType.INT8]
    assert form.x_steps is None and form.how == "each row"
    x = torch.rand(250, 64)  # all rows alike: steps of one sign are finer
    form = short_forms({KEY: seen_by(layer, x)})[KEY][DType.INT8]
    assert form.x_steps.zero_point == -128 and form.error < 0.005


def test_a_correction_takes_off_the_mean_error() -> None:
    """A bias of weights' rounding, where x is far from 0."""
    layer = nn.Linear(300, 8).eval()
    x = 5 + 0.1 * torch.randn(200, 300)
    form = short_forms({KEY: seen_by(layer, x)})[KEY][DType.INT8]
    assert form.correction is not None
    seen = seen_by(layer, x)
    stored = stored_weights(SparseMatrix(seen.weights), DType.INT8)
    numbers = form.x_steps.scale, form.x_steps.zero_point
    off = on_steps(seen.rows.astype(np.float64), *numbers) @ stored.T
    off -= seen.rows @ seen.weights.T
    np.testing.assert_allclose(form.correction, -off.mean(axis=0), atol=1e-4)


def test_budgets_hold_on_the_data() -> None:
    model = perceptron()
    data = [torch.randn(4, 96) for _ in range(5)]
    exact = sparsejit.compile(model, (data[0],))
    for budget in (0.0, 1e-3, 0.05):
        scales = sparsejit.quantise(model, data, budget=budget)
        assert [each.layer for each in scales.layers] == ["0", "2"]
        assert scales.budget == budget and scales.error <= budget
        assert scales.predicted_ns <= scales.float32_ns
        short = sparsejit.compile(model, (data[0],), dtype=scales)
        off = max(float((short(x) - exact(x)).abs().max()) for x in data)
        assert off <= budget * max(float(exact(x).abs().max()) for x in data) + 1e-5
        assert {name: op.dtype.value for name, op in layers_of(short).items()} == {
            **dict.fromkeys(("0", "2"), "float32"),
            **scales.dtypes,
        }
    assert not sparsejit.quantise(model, data, budget=0.0).dtypes


def test_gains_are_those_of_calls_like_the_example() -> None:
    data = [torch.randn(64, 96)]
    model = perceptron()
    alone, many = (
        sparsejit.quantise(model, data, example_inputs=like)
        for like in ((torch.randn(1, 96),), None)
    )
    assert 4 * alone.float32_ns < many.float32_ns  # one sample, and a tile of 64


def test_a_function_may_be_the_budget() -> None:
    model, asked = perceptron(), []

    def good(outputs: list[Any]) -> bool:
        asked.append(outputs)
        return len(asked) == 1  # float32 alone

    scales = sparsejit.quantise(model, [torch.randn(1, 96), torch.randn(3, 96)], budget=good)
    assert not scales.dtypes and scales.budget is None
    assert [tuple(each.shape) for each in asked[0]] == [(1, 33), (3, 33)]
    assert all(isinstance(each, torch.Tensor) for each in asked[0])
    with pytest.raises(InvalidInput, match="in float32 are not good enough either"):
        sparsejit.quantise(model, [torch.randn(1, 96)], budget=lambda outputs: False)


class Several(nn.Module):
    """Recurrent, with names, nests, convolutions in groups and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(12, 64, batch_first=True)
        self.twice = nn.Linear(64, 64)
        self.wide, self.deep = nn.Conv1d(64, 64, 3, padding=1), nn.Conv1d(64, 64, 3, groups=64)

    def forward(self, x: Any, *, scale: Any) -> dict[str, Any]:
        y = self.twice(torch.tanh(self.twice(self.rnn(x)[0] * scale)))
        return {"y": y, "z": self.deep(self.wide(y.transpose(1, 2)).relu())}


def test_layers_of_all_kinds_by_arguments_of_all_kinds() -> None:
    torch.manual_seed(0)
    model = Several().eval()
    data = [{"x": torch.randn(2, 9, 12), "scale": torch.ones(2, 1, 1)} for _ in range(2)]
    scales = sparsejit.quantise(model, data, budget=0.02)
    names = [each.layer for each in scales.layers]
    assert names.count("twice") == 2 and {"rnn", "wide", "deep"} <= set(names)
    fast = sparsejit.compile(model, (), example_kwargs=data[0], dtype=scales)
    exact = sparsejit.compile(model, (), example_kwargs=data[0])
    for each in data:
        short, long = (fn(**each) for fn in (fast, exact))
        for name in ("y", "z"):
            assert float((short[name] - long[name]).abs().max() / long[name].abs().max()) < 0.021


def test_other_sizes_keep_the_scales() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    given = LayerScales("2", "2.weight", 0, DType.INT8, Quantisation(0.02, -128))
    shapes = {"input": {0: "batch", 1: "time"}}
    fast = sparsejit.compile(
        model, (torch.randn(1, 4, 32),), dynamic_shapes=shapes, dtype=scales_of(given)
    )
    assert layers_of(fast)["2"].x_steps == Quantisation(0.02, -128)
    x = torch.randn(1, 11, 32)
    longer = sparsejit.compile(model, (x,), dtype=scales_of(given))
    np.testing.assert_allclose(fast(x), longer(x), rtol=1e-5, atol=1e-6)


def test_scales_are_saved_as_they_are(tmp_path: Path) -> None:
    model, x = perceptron(), torch.randn(2, 96)
    given = scales_of(
        LayerScales(
            *("0", "0.weight", 0, DType.INT8, Quantisation(0.03, 5)),
            *("range", 0.01, 7.0, random(200)),
        ),
        LayerScales("2", "2.weight", 0, DType.BFLOAT16),
    )
    given.save(tmp_path / "scales.sjit")
    found = sparsejit.load(tmp_path / "scales.sjit")
    assert isinstance(found, sparsejit.Scales) and str(found) == str(given)
    both = [sparsejit.compile(model, (x,), dtype=each)(x) for each in (given, found)]
    np.testing.assert_array_equal(*both)
    content = bytearray((tmp_path / "scales.sjit").read_bytes())
    content[-3] ^= 1
    (tmp_path / "scales.sjit").write_bytes(content)
    with pytest.raises(DamagedFile):
        sparsejit.load(tmp_path / "scales.sjit")
    fast = sparsejit.compile(model, (x,), dtype=given)
    fast.save(tmp_path / "model.sjit")
    np.testing.assert_array_equal(sparsejit.load(tmp_path / "model.sjit")(x), fast(x))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": torch.ones(2, 96)}, "data is a Tensor; give a list of example inputs"),
        ({"data": []}, "data is empty"),
        ({"data": [torch.ones(0, 96)]}, r"data\[0\] has an input of shape \(0, 96\), without"),
        ({"budget": -0.1}, "budget=-0.1; give the error"),
        ({"budget": True}, "budget=True; give the error"),
        ({"data": [torch.full((1, 96), torch.nan)]}, "meets NaN or infinite values"),
    ],
)
def test_what_makes_no_sense_is_named(arguments: dict[str, Any], said: str) -> None:
    given = {"data": [torch.ones(1, 96)], **arguments}
    with pytest.raises(InvalidInput, match=said):
        sparsejit.quantise(perceptron(), **given)


@pytest.mark.parametrize("steps", [Quantisation(0.1, 3), None])
def test_earlier_files_had_scale_and_zero_point_apart(steps: Quantisation | None) -> None:
    given = scales_of(LayerScales("0", "w", 0, DType.INT8, steps, "range"))
    header, tensors = scales_to_data(given)
    record = header["layers"][0]["scales"]
    assert record.pop("x_steps") == (steps and {"record": "Quantisation", **vars(steps)})
    record["input_scale"], record["input_shift"] = (steps.scale, 3) if steps else (None, None)
    (found,) = read_scales(header, tensors).layers
    assert (found.key, found.x_steps, found.how) == (given.layers[0].key, steps, "range")


def test_steps_belong_to_int8() -> None:
    with pytest.raises(InvalidInput, match="only int8 has steps of x"):
        LayerScales("0", "w", 0, DType.FLOAT16, Quantisation(0.1, 0))
    with pytest.raises(InvalidInput, match="zero point of -128 to 127"):
        Quantisation(0.1, 300)
    with pytest.raises(InvalidInput, match="zero point of 0"):
        Quantisation(0.1, 3, symmetric=True)
