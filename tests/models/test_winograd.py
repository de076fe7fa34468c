"""Convolutions by Winograd's algorithm, whatever they cost, against their float64 reference."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native import check_graph, random_input, run_graph
from runnable import ISAS
from sketch import Sketch

import sparsejit
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import Activation
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.convolution_plan import DENSE_WINDOWS, WINOGRAD

SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 70]


def convolution(
    shape: tuple[int, ...], filters: int, op: Convolution, biased: bool = True, adds: bool = False
) -> Graph:
    """x of a shape (batch, channels, rows, columns) by random 3x3 filters, something added."""
    s = Sketch()
    height, width = (size + 2 * p - 2 for size, p in zip(shape[2:], op.padding, strict=True))
    weights = s.weight(filters, shape[1], 3, 3)
    bias = s.weight(filters) if biased or adds else None
    x = s.input(*shape)
    added = [s.weight(shape[0], filters, height, width)] if adds else []
    return s.finish(s(op, x, weights, *([bias] if bias else []), *added))


def is_winograd(graph: Graph, isa: str) -> bool:
    *_, last = lower_model(graph, ModelOptions(Target.named(isa))).steps
    return last.kernel.startswith(WINOGRAD)


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    padding = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    spatial = draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
    assume(all(size + 2 * p >= 3 for size, p in zip(spatial, padding, strict=True)))
    shape = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 20])), *spatial
    op = Convolution((1, 1), padding, (1, 1), activation=draw(st.sampled_from(Activation)))
    filters = draw(st.sampled_from([16, 17, 35]))
    return convolution(shape, filters, op, draw(st.booleans()), draw(st.booleans()))


@pytest.mark.parametrize("isa", ISAS)
@given(graph=convolutions())
@settings(max_examples=20)
def test_any_image(isa: str, graph: Graph) -> None:
    with preferring(WINOGRAD):
        check_graph(graph, [random_input(graph)], Target.named(isa), 1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_of_many_channels_and_rounding_of_a_sum_of_products(isa: str) -> None:
    """V and M fill L2 many times over; errors stay as in the windows themselves."""
    op = Convolution((1, 1), (1, 1), (1, 1), activation=Activation.RELU)
    graph, target = convolution((1, 130, 40, 50), 70, op), Target.named(isa)
    errors = {}
    for name in (WINOGRAD, DENSE_WINDOWS):
        with preferring(name):
            assert is_winograd(graph, isa) == (name == WINOGRAD)
            x = random_input(graph)
            (found,), (wanted,) = run_graph(graph, [x], target), graph.evaluate([x])
        errors[name] = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert errors[WINOGRAD] <= 1e-6
    assert errors[WINOGRAD] <= 4 * errors[DENSE_WINDOWS]


@pytest.mark.plans
def test_exact_models_keep_sums_of_products() -> None:
    """Whatever it costs; others take what is cheaper."""
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).eval()
    x = torch.randn(1, 64, 56, 56)
    kernels = [
        [each.kernel for each in sparsejit.compile(layer, (x,), exact=exact).explain().layers]
        for exact in (False, True)
    ]
    assert any(WINOGRAD in kernel for kernel in kernels[0])
    assert not any(WINOGRAD in kernel for kernel in kernels[1])


@pytest.mark.parametrize(("outputs", "side"), [(17, 14), (64, 60)])
@pytest.mark.usefixtures("barriers_are_free")
def test_threads_give_the_same_bits(outputs: int, side: int) -> None:
    """One of 17 outputs is a part by itself, whose few sums would be taken in several chains."""
    layer, x = torch.nn.Conv2d(32, outputs, 3, padding=1).eval(), torch.randn(1, 32, side, side)
    with preferring(WINOGRAD):
        one, *more = (sparsejit.compile(layer, (x,), threads=threads)(x) for threads in (1, 2, 3))
    assert all(torch.equal(one, other) for other in more)
