"""`fast.accuracy`: what layers and outputs are off, against float64 computed here."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import sparsejit
from sparsejit.api.reports.accuracy import ErrorSums
from sparsejit.errors import InvalidInput
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.machine.target import Target
from sparsejit.planner.int8_plan import has_quads

needs_bytes = pytest.mark.skipif(
    not has_quads(Target.detect()), reason="convolutions to bytes need AVX-512 VNNI"
)


def model_of(*sizes: int) -> nn.Module:
    torch.manual_seed(1)
    pairs = pairwise(sizes)
    return nn.Sequential(*(part for n, m in pairs for part in (nn.Linear(n, m), nn.ReLU()))).eval()


def scaled(scale: float = 0.05, correction: float = 0.0) -> sparsejit.Scales:
    off = np.full(80, correction, np.float32) if correction else None
    layer = LayerScales("2", "2.weight", 0, DType.INT8, Quantisation(scale, -128), correction=off)
    return sparsejit.Scales((layer,), 0.0, None, 1.0, 1.0)


def in_float64(model: nn.Module, x: Any) -> np.ndarray:
    with torch.no_grad():
        wide = model.double()(x.double()).numpy()
        model.float()
    return wide


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", {"2": "float16"}, scaled(), "float32"])
def test_outputs_are_off_by_what_torch_says(dtype: Any) -> None:
    model = model_of(40, 64, 80)
    data = [torch.randn(samples, 40) for samples in (1, 7, 17, 70)]
    fast = sparsejit.compile(model, (data[0],), dtype=dtype)
    found = fast.accuracy(data)
    exact = np.concatenate([in_float64(model, x) for x in data])
    off = np.concatenate([fast(x).numpy() for x in data]) - exact
    assert found.error == pytest.approx(np.abs(off).max() / np.abs(exact).max(), rel=1e-6)
    (output,) = found.outputs
    assert output.mean == pytest.approx(np.sqrt((off**2).mean() / (exact**2).mean()), rel=1e-6)
    assert 0 < output.float32 < 1e-5 and found.elements == 4
    assert (output.largest > 1e-5) is (dtype != "float32")


def test_layers_have_the_error_of_what_came_before() -> None:
    model, x = model_of(40, 64, 80, 30), torch.randn(9, 40)
    fast = sparsejit.compile(model, (x,), dtype={"2": "int8"})
    before, itself, behind = fast.accuracy([x]).layers
    assert [each.name for each in (before, itself, behind)] == ["0", "2", "4"]
    assert [each.dtype for each in (before, itself, behind)] == ["float32", "int8", "float32"]
    assert before.largest < 1e-5 < 1e-3 < min(itself.largest, behind.largest)
    alone = sparsejit.compile(model[:4].eval(), (x,), dtype={"2": "int8"})
    assert itself.largest == pytest.approx(alone.accuracy([x]).error, rel=1e-3)


def test_a_correction_counts_as_what_it_does() -> None:
    """It is no part of the compared outputs."""
    model, x = model_of(40, 64, 80), torch.randn(6, 40)
    fast = sparsejit.compile(model, (x,), dtype=scaled(correction=3.0))
    assert fast.accuracy([x]).error > 1


class TimeFirst(nn.Module):
    """Its batch lies on axis 1, and an input has none."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(10, 32), nn.Linear(32, 5)

    def forward(self, x: Any, scale: Any) -> Any:
        return self.out(self.rnn(x)[0] * scale)


def test_batches_on_other_axes() -> None:
    torch.manual_seed(0)
    model = TimeFirst().eval()
    data = [(torch.randn(6, batch, 10), torch.rand(32)) for batch in (3, 1, 20)]
    shapes = {"x": {1: "batch"}, "scale": {}}
    fast = sparsejit.compile(model, data[0], dynamic_shapes=shapes, dtype="int8")
    found = fast.accuracy(data)
    with torch.no_grad():
        exact = [model(*each) for each in data]
    off = max(float((fast(*each) - y).abs().max()) for each, y in zip(data, exact, strict=True))
    assert found.error == pytest.approx(off / max(float(y.abs().max()) for y in exact), rel=1e-2)
    assert {each.name for each in found.layers} == {"rnn", "out"}


@needs_bytes
def test_convolutions_in_bytes_are_seen_too() -> None:
    """Between them are no floats, unless somebody asks for them."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(3)]
    for each in convolutions:
        each.weight.data *= torch.rand_like(each.weight) < 0.1
    model = nn.Sequential(*(part for each in convolutions for part in (each, nn.ReLU()))).eval()
    x = torch.rand(2, 64, 28, 28)
    layers = []
    with torch.no_grad():
        ranges = {"0": 1.0, "2": model[:2](x).max(), "4": model[:4](x).max()}
    for name, largest in ranges.items():
        scale = float(largest) / 255
        layers.append(LayerScales(name, f"{name}.weight", 0, DType.INT8, Quantisation(scale, -128)))
    fast = sparsejit.compile(model, (x,), dtype=sparsejit.Scales(tuple(layers), 0, None, 1, 1))
    found = fast.accuracy([x])
    exact = in_float64(model, x)
    off = np.abs(fast(x).numpy() - exact).max() / np.abs(exact).max()
    assert found.error == pytest.approx(off, rel=1e-6)
    assert all(1e-4 < each.largest < 0.03 and each.float32 < 1e-5 for each in found.layers)
    assert [each.dtype for each in found.layers[:2]] == ["int8", "int8"]
    byte_layers = [node for node in fast.graph.nodes if getattr(node.op, "rounding", None)]
    assert len(byte_layers) == 2


def test_reports_show_it() -> None:
    model, x = model_of(40, 64, 80), torch.randn(3, 40)
    fast = sparsejit.compile(model, (x,), dtype={"2": "int8"})
    assert [each.error for each in fast.explain().layers] == [None, None]
    assert "error" not in str(fast.explain()) and "error" not in fast.explain().html()
    found = fast.accuracy([x])
    report = fast.explain()
    assert [each.error for each in report.layers] == [each.largest for each in found.layers]
    for text in (str(report), report.html()):
        assert found.line in text and f"{found.layers[1].largest:.1e}" in text
    assert found.as_dict()["layers"][1]["dtype"] == "int8"
    assert "int8" in str(found) and "output" in str(found)


def test_bad_data_is_named() -> None:
    model, x = model_of(40, 80), torch.randn(3, 40)
    fast = sparsejit.compile(model, (x,))
    with pytest.raises(InvalidInput, match="data is a Tensor; give a list"):
        fast.accuracy(x)
    with pytest.raises(InvalidInput):
        fast.accuracy([torch.randn(3, 41)])


def test_errors_of_whole_numbers_infinities_and_nan() -> None:
    sums = ErrorSums()
    sums.add(np.array([1, 2, 3, 4]), np.array([1, 2, 5, 4]))
    assert sums.largest == sums.mean == 0.25
    sums = ErrorSums()
    sums.add(np.float32([np.inf, 2.0]), np.array([np.inf, 4.0]))
    assert (sums.largest, sums.mean) == (0.5, 0.5)
    sums.add(np.float32([np.nan]), np.array([1.0]))
    assert sums.largest == np.inf
    assert ErrorSums().largest == 0
