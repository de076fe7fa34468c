"""Convolutions of few positions: one product for all samples, against their float64 reference."""

from typing import Any

import numpy as np
import pytest
import torch
from native import check_graph, kernels_of, random_input, run_graph
from runnable import ISAS
from sketch import Sketch
from torch import nn

import sparsejit
from sparsejit.frontends.torch_export import export
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.views import Concat, Slice
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.tiles import samples_a_tile
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

pytestmark = pytest.mark.plans

SAMPLES, CHANNELS, OUTPUTS = 16, 12, 10
# Sizes of the image, and the convolution: kernel, stride, padding, dilation, groups.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "one tap": ((4,), ((1,), (1,), (0,), (1,), 1)),
    "padded": ((4,), ((3,), (1,), (1,), (1,), 1)),
    "strides": ((9,), ((4,), (3,), (1,), (2,), 1)),
    "one position": ((6,), ((6,), (1,), (0,), (1,), 1)),
    "groups": ((5,), ((3,), (1,), (1,), (1,), 2)),
    "two axes": ((4, 3), ((3, 2), (1, 1), (1, 0), (1, 1), 1)),
}


def convolved(shape: str, density: float = 1.0, samples: int = SAMPLES, **given: Any) -> Graph:
    """Two convolutions of one shape's kind, the second of the first one's result as it lies."""
    sizes, (kernel, stride, padding, dilation, groups) = SHAPES[shape]
    s = Sketch()
    op = Convolution(stride, padding, dilation, groups=groups, **given)
    weights = s.random.standard_normal((OUTPUTS, CHANNELS // groups, *kernel))
    weights *= s.random.random(weights.shape) < density
    y = s(op, s.input(samples, CHANNELS, *sizes), s.constant(weights), s.weight(OUTPUTS))
    plain = Convolution((1,) * len(sizes), (0,) * len(sizes), (1,) * len(sizes))
    return s.finish(s(plain, y, s.weight(7, OUTPUTS, *(1,) * len(sizes))))


def one_layer(shape: str, samples: int, **given: Any) -> Graph:
    """A convolution of one shape, with the same weights for any number of samples."""
    sizes, (kernel, stride, padding, dilation, groups) = SHAPES[shape]
    s = Sketch()
    op = Convolution(stride, padding, dilation, groups=groups, **given)
    x = s.input(samples, CHANNELS, *sizes)
    weights = s.weight(OUTPUTS, CHANNELS // groups, *kernel)
    return s.finish(s(op, x, weights, s.weight(OUTPUTS)))


def products(kernels: list[str]) -> int:
    return sum(name not in ("copy", "fill", "padding") for name in kernels)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_samples_are_one_product(isa: str, density: float, shape: str) -> None:
    graph = convolved(shape, density, activation=Activation.RELU)
    assert products(kernels_of(graph, isa)) == 2
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_a_result_that_is_wanted_elsewhere_is_put_there(isa: str) -> None:
    s = Sketch()
    op = Convolution((1,), (1,), (1,))
    x = s.input(SAMPLES, CHANNELS, 4)
    both = [s(op, x, s.weight(OUTPUTS, CHANNELS, 3)) for _ in range(2)]
    graph = s.finish(s(Concat(1), *both), both[0])
    assert products(kernels_of(graph, isa)) == 2
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("steps", [None, Quantisation(0.01, 0), Quantisation(0.01, 5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_samples_in_int8_have_the_bits_that_they_have_alone(
    isa: str, shape: str, steps: Quantisation | None
) -> None:
    """Scales are of columns, so that a loud sample does not drown the others."""
    target = Target.named(isa)
    given = {"dtype": DType.INT8, "x_steps": steps, "activation": Activation.RELU}
    graph, alone = (one_layer(shape, samples, **given) for samples in (SAMPLES, 1))
    assert products(kernels_of(graph, isa)) == 1
    x = (random_input(graph).T * np.logspace(-4, 4, SAMPLES)).T.astype(np.float32)
    (found,) = run_graph(graph, [x], target)
    for number in range(SAMPLES):
        (own,) = run_graph(alone, [x[number : number + 1]], target)
        np.testing.assert_array_equal(own[0], found[number])


def test_long_images_stay_apart() -> None:
    s = Sketch()
    x = s.input(3, CHANNELS, 16)
    graph = s.finish(s(Convolution((1,), (0,), (1,)), x, s.weight(OUTPUTS, CHANNELS, 1)))
    assert products(kernels_of(graph, "avx2")) == 3


@pytest.mark.parametrize("isa", ISAS)
def test_long_images_of_one_tap_that_save_vectors_are_one_product(isa: str) -> None:
    """Results lie side by side, and so does what functions make of them and of each other."""
    s = Sketch()
    point = Convolution((1, 1), (0, 0), (1, 1))
    x = s.input(8, CHANNELS, 3, 6)  # 18 positions, 144 in all
    first, second = (s(point, x, s.weight(OUTPUTS, CHANNELS, 1, 1)) for _ in range(2))
    both = s("tanh", s("add", first, s("mul", second, s.constant(np.array(0.5)))))
    other = s(point, both, s.weight(CHANNELS, OUTPUTS, 1, 1), s.weight(CHANNELS))
    graph = run_passes(s.finish(s("add", other, x), both))
    kernels = kernels_of(graph, isa)
    assert sum("f32" in name for name in kernels) == 3
    assert kernels.count("copy") <= 3  # of x, to the output, and of the value read beside x
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_positions_of_short_images_have_their_samples_side_by_side(isa: str) -> None:
    """Parts of a result, and what functions make of them, stay so; the copies are of x and y."""
    s = Sketch()
    wide, point = (Convolution((1,), (p,), (1,)) for p in (1, 0))
    x = s.input(SAMPLES, CHANNELS, 3)
    y = s(wide, x, s.weight(2 * OUTPUTS, CHANNELS, 3))
    halves = [s(Slice(1, first, first + OUTPUTS), y) for first in (0, OUTPUTS)]
    power = s("add", *(s("square", half) for half in halves))
    graph = run_passes(s.finish(s(point, power, s.weight(7, OUTPUTS, 1))))
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    names = [step.kernel.removesuffix(f"-{isa}") for step in lowered.steps]
    product = [name for name in names if name not in ("copy", "fill")]
    assert len(product) == 3 and names[-4:] == [*product, "copy"]
    whole = {view.type.size for step in lowered.steps[-4:-1] for view in step.writes}
    assert all(view.is_contiguous for step in lowered.steps[-4:-1] for view in step.reads)
    assert whole == {n * SAMPLES * 3 for n in (2 * OUTPUTS, OUTPUTS, 7)}
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_fewer_samples_than_positions_have_positions_side_by_side(isa: str) -> None:
    graph = convolved("padded", samples=3)
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


def encoder() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv1d(CHANNELS, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 8, 3, 2, padding=1)
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).eval()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_has_the_same_bits_in_any_company(threads: int) -> None:
    model, x = encoder(), torch.randn(37, CHANNELS, 4)
    fast = sparsejit.compile(model, (x[:16],), threads=threads, exact=True)
    assert fast.tile is not None and fast.tile > 1
    found = fast(x)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    for number in (0, 15, 16, 36):
        np.testing.assert_array_equal(fast(x[number : number + 1])[0], found[number])
    sizes = [sparsejit.compile(model, (x[:batch],)).stats for batch in (1, 16)]
    assert sizes[1]["kernels"] <= sizes[0]["kernels"] + 8


def test_samples_of_few_positions_run_together() -> None:
    short = export(encoder(), (torch.randn(16, CHANNELS, 4),)).graph(1)
    long = export(encoder()[:4].eval(), (torch.randn(16, CHANNELS, 40),)).graph(1)
    assert samples_a_tile(short, 16) == 16 and samples_a_tile(long, 16) == 1
