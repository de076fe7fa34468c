"""Means of channels that lie in bytes, and channels times a number each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from native import built_model, check_at_guard_pages, run_built
from onnx.reference import ReferenceEvaluator
from sketch import Sketch, kinds
from test_byte_convolutions import LEVEL, at_both_levels, is_near, needs_vnni, quantised
from test_byte_layers import CHANNELS, SIZE, Qdq, in_bytes
from test_divided_steps import divided

import sparsejit
from sparsejit.errors import CompileError
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.int8_columns import ChannelMeans, ScaledChannels
from sparsejit.ir.spec import Quantisation
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.quantised_layers import quantised_layers

RESULT = Quantisation(0.0137, 11)


@dataclass(frozen=True)
class Scaling:
    """An image's means, and the image times other numbers by channel."""

    channels: int = 5
    space: tuple[int, ...] = (9, 13)
    samples: int = 1
    shift: int = -7

    @property
    def steps(self) -> Quantisation:
        return Quantisation(0.0211, self.shift)

    def graph(self) -> Graph:
        s = Sketch()
        x = s.input(self.samples, self.channels, *self.space)
        scale = s.input(self.samples, self.channels)
        y = s(ScaledChannels(self.steps, RESULT), x, scale)
        return s.finish(s(ChannelMeans(self.steps), x), y)

    def inputs(self) -> list[Array]:
        random = np.random.default_rng([self.channels, *self.space])
        low, high = (np.array([-140, 140]) - self.shift) * 0.0211
        shape = self.samples, self.channels
        x = random.uniform(low, high, (*shape, *self.space)).astype(np.float32)
        return [x, random.uniform(-1, 2, shape).astype(np.float32)]

    def check(self, inputs: list[Array], found: list[Array]) -> None:
        x, scale = inputs
        integers = quantised(x, self.steps) - self.shift
        axes = tuple(range(2, x.ndim))
        exactly = np.float64(np.float32(0.0211))
        np.testing.assert_allclose(found[0], integers.mean(axis=axes) * exactly, 1e-5, 1e-6)
        by = scale.astype(np.float64).reshape(*scale.shape, *(1,) * len(self.space))
        product = integers * exactly * by / RESULT.scale
        wanted = (np.rint(product) + RESULT.zero_point).clip(-128, 127)
        got = np.rint(found[1] / np.float32(RESULT.scale)) + RESULT.zero_point
        near = is_near(product)
        np.testing.assert_array_equal(got[~near], wanted[~near])
        assert np.abs(got - wanted).max() <= 1


def run(graph: Graph, inputs: list[Array], target: Target) -> list[Array]:
    built = built_model(lower_model(graph, ModelOptions(target)))
    return [each[0] for each in run_built(built, [x[None] for x in inputs]).outputs]


@at_both_levels
@pytest.mark.parametrize("space", [(1, 1), (1,), (70,), (7, 7), (9, 13), (64, 63), (3, 130)])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("shift", [-128, 5, 127])
def test_any_image(space: tuple[int, ...], samples: int, shift: int, target: Target) -> None:
    case = Scaling(5, space, samples, shift)
    inputs = case.inputs()
    case.check(inputs, run(case.graph(), inputs, target))


@at_both_levels
def test_at_guard_pages(target: Target) -> None:
    case = Scaling(samples=2)
    inputs = case.inputs()
    built = built_model(lower_model(case.graph(), ModelOptions(target)))
    check_at_guard_pages(built, inputs, lambda found: case.check(inputs, found))


@at_both_levels
def test_bits_do_not_depend_on_threads(target: Target) -> None:
    case = Scaling(12)
    inputs = case.inputs()
    together = run(case.graph(), inputs, target)
    lowered, count = divided(case.graph(), target, 3, 0)
    assert count
    parts = run_built(built_model(lowered), [x[None] for x in inputs]).outputs
    assert all(a[0].tobytes() == b.tobytes() for a, b in zip(parts, together, strict=True))


def test_other_processors_refuse_what_was_made_for_these() -> None:
    with pytest.raises(CompileError, match="vnni"):
        lower_model(Scaling().graph(), ModelOptions(LEVEL))


def squeezed() -> Any:
    """A convolution by channel, scaled by the means of its channels, and one behind it."""
    q = Qdq()
    y = q.steps("x", 0.02, 7)
    y = q.steps(q.convolution(y, CHANNELS, 1, 3, group=CHANNELS), 0.043, 120)
    y = q.steps(q("Mul", y, q.steps(q("Sigmoid", y), 0.0039)), 0.029, 10)
    gate = q.steps(q("GlobalAveragePool", y), 0.021, 33)
    gate = q.steps(q("Relu", q.convolution(gate, 8, CHANNELS)), 0.02, 0)
    gate = q.steps(q("Sigmoid", q.steps(q.convolution(gate, CHANNELS, 8), 0.03, 128)), 0.0039)
    y = q.steps(q("Mul", y, gate), 0.021, 14)
    return q.model(q.steps(q.convolution(y, CHANNELS, CHANNELS), 0.061, 121))


def test_scales_of_channels_are_made_and_used_in_bytes() -> None:
    model = squeezed()
    graph = in_bytes(model)
    assert {"ChannelMeans", "ScaledChannels"} <= set(kinds(graph))
    x = np.random.default_rng(5).uniform(-3, 3, (1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    before = run_passes(quantised_layers(import_onnx(model).graph(1)))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "target", [pytest.param("native", marks=needs_vnni), "avx2"]
)
def test_it_computes_what_the_file_says(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sparsejit.lowering.convolution.int8_choice._takes_bytes"
    monkeypatch.setattr(path, lambda low, node: True)
    model = squeezed()
    fast = sparsejit.compile(model, target=target)
    x = np.random.default_rng(5).uniform(-3, 3, (2, CHANNELS, SIZE, SIZE)).astype(np.float32)
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    steps = np.abs(fast(x) - wanted) / 0.061
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.01
