"""Channels of x that differ in size: divided before they are rounded, and weights multiplied."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import sparsejit
from sparsejit.api.models.final_graph import folded, quantised_layers
from sparsejit.api.quantising.scales_of_inputs import short_forms
from sparsejit.api.quantising.seen_inputs import SeenInput, WatchedModel
from sparsejit.frontends.torch_export import export
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions
from sparsejit.machine.target import Target
from sparsejit.prune import FakeQuantisation


def uneven(behind: nn.Module, kind: str = "linear") -> nn.Module:
    """Two layers, the channels between them of sizes from 0.05 to 20."""
    torch.manual_seed(6)
    sizes = torch.logspace(-1.3, 1.3, 48)
    if kind == "linear":
        first, second = nn.Linear(32, 48), nn.Linear(48, 40)
    else:
        first, second = nn.Conv2d(32, 48, 3, padding=1), nn.Conv2d(48, 40, 3, padding=1)
    around = (-1, *(1,) * (first.weight.ndim - 1))
    with torch.no_grad():
        first.weight.mul_(sizes.view(around))
        first.bias.mul_(sizes)
    return nn.Sequential(first, behind, second).eval()


def inputs_of(kind: str) -> Any:
    torch.manual_seed(7)
    return torch.randn((300, 32) if kind == "linear" else (2, 32, 14, 14))


def forms_of(model: nn.Module, x: Any) -> list[LayerScales]:
    graph = export(model, (x,), {}, False, None).graph(None)
    watched = WatchedModel(folded(quantised_layers(graph)), ModelOptions(Target.detect()))
    _, values = watched.run([x.numpy()])
    found = []
    for key, node in watched.layers.items():
        seen = SeenInput(node, watched.graph.constants[node.inputs[1]], 0)
        seen.add(values[node.inputs[0]], 400)
        forms = short_forms({key: seen}, key in watched.alone)
        found.append(forms[key][DType.INT8])
    return found


def scales_of(*layers: LayerScales) -> sparsejit.Scales:
    return sparsejit.Scales(layers, 0.0, None, 1.0, 1.0)


def in_float64(model: nn.Module, x: Any) -> np.ndarray:
    with torch.no_grad():
        wide = model.double()(x.double()).numpy()
        model.float()
    return wide


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("behind", [nn.ReLU(), nn.Identity(), nn.SiLU()])
def test_the_error_is_much_less(kind: str, behind: nn.Module) -> None:
    model, x = uneven(behind, kind), inputs_of(kind)
    first, second = forms_of(model, x)
    assert first.factors is None and second.factors is not None
    graph = export(model, (x,), {}, False, None).graph(None)
    watched = WatchedModel(folded(quantised_layers(graph)), ModelOptions(Target.detect()))
    key, node = list(watched.layers.items())[1]
    _, values = watched.run([x.numpy()])
    seen = SeenInput(node, watched.graph.constants[node.inputs[1]], 0)
    seen.add(values[node.inputs[0]], 400)
    plain = short_forms({key: seen})[key][DType.INT8]
    assert second.error < 0.8 * plain.error
    if kind == "linear":
        exact = in_float64(model, x)
        for form in (second, plain):
            off = sparsejit.compile(model, (x,), dtype=scales_of(form))(x).numpy() - exact
            error = np.sqrt(np.square(off).mean() / np.square(exact - exact.mean(0)).mean())
            assert error == pytest.approx(form.error, rel=0.5)


@pytest.mark.parametrize("behind", [nn.ReLU(), nn.Identity(), nn.Tanh()])
def test_it_costs_no_kernel(behind: nn.Module) -> None:
    model, x = uneven(behind), inputs_of("linear")
    (_, second) = forms_of(model, x)
    fast = sparsejit.compile(model, (x,), dtype=scales_of(second))
    plain = sparsejit.compile(model, (x,), dtype=scales_of(replace(second, factors=None)))
    kernels = [each.explain().facts["kernels"] for each in (fast, plain)]
    assert kernels[0] <= kernels[1] + (behind.__class__ is nn.Tanh)  # fused behind the product


def test_training_has_the_factors_too() -> None:
    model, x = uneven(nn.ReLU()), inputs_of("linear")[:3]
    scales = scales_of(*forms_of(model, inputs_of("linear")))
    fast = sparsejit.compile(model, (x,), dtype=scales)(x)
    bare = scales_of(*(replace(each, correction=None) for each in scales.layers))
    fast = sparsejit.compile(model, (x,), dtype=bare)(x)
    training = FakeQuantisation(model, scales)
    off = (fast - model(x)).abs().detach().numpy() / float(fast.abs().max())
    assert np.quantile(off, 0.9) < 1e-5 and off.max() < 0.02
    assert training.finalize().layers[1].factors is not None


def test_a_value_that_others_read_keeps_its_scale() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = uneven(nn.ReLU())

        def forward(self, x: Any) -> Any:
            y = self.model[1](self.model[0](x))
            return self.model[2](y), y

    assert all(each.factors is None for each in forms_of(Both().eval(), inputs_of("linear")))


def test_few_rows_do_not_tell_how_large_channels_are() -> None:
    model, x = uneven(nn.ReLU()), inputs_of("linear")
    assert forms_of(model, x)[1].factors is not None
    assert forms_of(model, x[:100])[1].factors is None


def test_factors_are_saved(tmp_path: Path) -> None:
    model, x = uneven(nn.ReLU()), inputs_of("linear")
    scales = scales_of(*forms_of(model, x))
    scales.save(tmp_path / "scales.sjit")
    found = sparsejit.load(tmp_path / "scales.sjit")
    np.testing.assert_array_equal(found.layers[1].factors, scales.layers[1].factors)
    both = (sparsejit.compile(model, (x,), dtype=each)(x) for each in (scales, found))
    np.testing.assert_array_equal(*both)


def test_channels_that_are_never_used() -> None:
    model, x = uneven(nn.ReLU()), inputs_of("linear")
    with torch.no_grad():
        model[0].weight[3], model[0].bias[3], model[2].weight[:, 5] = 0, 0, 0
    (_, second) = forms_of(model, x)
    assert np.isfinite(second.factors).all() and (second.factors > 0).all()
    assert second.factors[3] == second.factors[5] == 1
