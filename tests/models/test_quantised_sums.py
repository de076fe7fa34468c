"""Residual sums of calibrated models: in bytes where both operands are, in floats elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import sparsejit
from sparsejit.ir.layer_scales import LayerScales, SumScales
from sparsejit.ir.ops.convolution import adds_operand
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.machine.target import Target
from sparsejit.planner.int8_plan import has_quads

needs_bytes = pytest.mark.skipif(
    not has_quads(Target.detect()), reason="convolutions to bytes need AVX-512 VNNI"
)


class Block(nn.Module):
    """relu(x + conv(relu(conv(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        for each in (self.first, self.second):
            each.weight.data *= torch.rand_like(each.weight) < 0.1

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Residual(nn.Module):
    """A convolution, blocks, the mean of each channel."""

    def __init__(self, channels: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))

    def forward(self, x: Any) -> Any:
        return self.blocks(torch.relu(self.stem(x))).mean((2, 3))


def residual() -> nn.Module:
    torch.manual_seed(4)
    return Residual().eval()


def error(found: Any, exact: Any) -> float:
    return float((found - exact).abs().max() / exact.abs().max())


@needs_bytes
def test_sums_between_convolutions_are_in_bytes(tmp_path: Path) -> None:
    model = residual()
    data = [torch.randn(2, 3, 28, 28) for _ in range(3)]
    scales = sparsejit.quantise(model, data, budget=0.05)
    assert len(scales.sums) == 3
    fast = sparsejit.compile(model, (data[0],), dtype=scales)
    exact = sparsejit.compile(model, (data[0],))
    sums = [node for node in fast.graph.nodes if adds_operand(node)]
    assert len([node for node in sums if node.op.rounding]) == 2  # the last is a sum of floats
    for x in data:
        assert 1e-4 < error(fast(x), exact(x)) <= 0.05
    found = fast.accuracy(data)
    assert found.error <= 0.05
    assert all(1e-4 < each.mean < 0.03 and each.float32 < 1e-5 for each in found.layers)
    scales.save(tmp_path / "scales.sjit")
    again = sparsejit.compile(model, (data[0],), dtype=sparsejit.load(tmp_path / "scales.sjit"))
    np.testing.assert_array_equal(again(data[1]), fast(data[1]))


def test_a_sum_of_what_nobody_has_in_bytes_is_exact() -> None:
    """Its steps are far too coarse, and so not to be used."""
    model, x = residual(), torch.randn(1, 3, 12, 12)
    exact = sparsejit.compile(model, (x,))
    names = [node.outputs[0].origin.name for node in exact.graph.nodes]
    coarse = Quantisation(10.0, 0)
    sums = tuple(SumScales(name, coarse, coarse) for name in ("add", "add_1", "add_2", "other"))
    layer = LayerScales("stem", "stem.weight", 0, DType.BFLOAT16)
    for layers in ((), (layer,)):
        scales = sparsejit.Scales(layers, 0.0, None, 1.0, 1.0, sums)
        fast = sparsejit.compile(model, (x,), dtype=scales)
        assert [node.outputs[0].origin.name for node in fast.graph.nodes] == names
        assert error(fast(x), exact(x)) < 0.01


def test_layers_that_read_one_value_have_its_steps() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 200, 3, padding=1)

        def forward(self, x: Any) -> Any:
            y = x.exp()  # with a long tail
            return self.one(y), self.other(y)

    from sparsejit.api.models.final_graph import folded, quantised_layers
    from sparsejit.api.quantising.scales_of_inputs import short_forms
    from sparsejit.api.quantising.seen_inputs import SeenInput, WatchedModel
    from sparsejit.frontends.torch_export import export
    from sparsejit.lowering.context import ModelOptions

    torch.manual_seed(0)
    x = torch.randn(2, 8, 20, 20)
    graph = export(Two().eval(), (x,), {}, False, None).graph(None)
    watched = WatchedModel(folded(quantised_layers(graph)), ModelOptions(Target.detect()))
    _, values = watched.run([x.numpy()])
    seen = {}
    for key, node in watched.layers.items():
        seen[key] = SeenInput(node, watched.graph.constants[node.inputs[1]], 0)
        seen[key].add(values[node.inputs[0]], 300)
    both = [forms[DType.INT8] for forms in short_forms(seen).values()]
    assert len({each.x_steps for each in both}) == 1
    assert both[0].x_steps.scale * 255 < float(x.exp().max())
