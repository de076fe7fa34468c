"""Kernels without taps that meet nothing but padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import check_graph, random_input
from runnable import ISAS
from sketch import Sketch, applied
from window_cases import Sizes, Windows, windows

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.trim_taps import trim_taps


def convolved(w: Windows, groups: int = 1) -> Graph:
    """Both with a bias and what is added to the result, which stay."""
    s = Sketch()
    op = Convolution(w.stride, w.padding, w.dilation, groups)
    x = s.input(2, 2 * groups, *w.spatial)
    first = s(op, x, s.weight(4, 2, *w.kernel), s.weight(4))
    return s.finish(s(op, x, s.weight(4, 2, *w.kernel), s.weight(4), first))


def kernels(graph: Graph) -> list[Sizes]:
    return [node.inputs[1].shape[2:] for node in graph.nodes]


@given(w=windows(), groups=st.integers(1, 2))
def test_any_window_computes_the_same(w: Windows, groups: int) -> None:
    graph = convolved(w, groups)
    after = applied(trim_taps, graph)
    assert all(own <= w.kernel for own in kernels(after))
    assert trim_taps(after) is after


@pytest.mark.parametrize(
    ("spatial", "kernel", "stride", "padding", "dilation", "left"),
    [
        ((1,), (3,), (1,), (1,), (1,), (1,)),
        ((2,), (3,), (2,), (1,), (1,), (2,)),  # the last two taps
        ((1, 5), (3, 3), (1, 1), (1, 1), (1, 1), (1, 3)),
        ((2, 2), (5, 3), (1, 1), (2, 1), (1, 1), (3, 3)),
        ((2, 2), (3, 3), (2, 2), (1, 1), (1, 1), (2, 2)),
        ((4,), (3,), (1,), (2,), (2,), (3,)),
        ((2,), (3,), (1,), (2,), (2,), (1,)),
    ],
)
def test_what_is_left(
    spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, left: Sizes
) -> None:
    graph = convolved(Windows(spatial, kernel, stride, padding, dilation))
    assert kernels(applied(trim_taps, graph)) == [left, left]


def test_a_tap_that_meets_an_element_at_one_position_stays() -> None:
    graph = convolved(Windows((2,), (3,), (1,), (1,), (1,)))
    assert trim_taps(graph) is graph


def test_transposed_convolutions_and_computed_weights_are_left_alone() -> None:
    s = Sketch()
    x, weights = s.input(1, 2, 1), s.input(2, 2, 3)
    plain = s(Convolution((1,), (1,), (1,)), x, weights)
    transposed = s(Convolution((1,), (1,), (1,), transposed=True), x, s.weight(2, 2, 3))
    graph = s.finish(plain, transposed)
    assert trim_taps(graph) is graph


@pytest.mark.parametrize("isa", ISAS)
def test_a_network_whose_image_shrinks_below_its_kernel(isa: str) -> None:
    s = Sketch()
    y = s.input(3, 5, 6, 6)
    for width in (8, 9, 10):
        y = s(Convolution((2, 2), (1, 1), (1, 1)), y, s.weight(width, y.shape[1], 3, 3))
    graph = run_passes(s.finish(s(Convolution((1, 1), (1, 1), (1, 1)), y, s.weight(4, 10, 3, 3))))
    assert kernels(graph) == [(3, 3), (3, 3), (2, 2), (1, 1)]
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


def test_weights_that_are_left_have_their_bits() -> None:
    graph = convolved(Windows((1,), (5,), (1,), (2,), (1,)))
    after = trim_taps(graph)
    for before, node in zip(graph.nodes, after.nodes, strict=True):
        own, fewer = (g.constants[n.inputs[1]] for g, n in ((graph, before), (after, node)))
        np.testing.assert_array_equal(own[:, :, 2:3], fewer)
