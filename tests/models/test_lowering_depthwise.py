"""Convolutions of one channel each, between guard pages, against their float64 reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph, kernels_of, random_input, run_graph
from runnable import ISAS
from sketch import Sketch
from window_cases import Sizes, windows

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.views import Permute, Slice
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.convolution_plan import CHANNELS, POSITIONS


def depthwise(
    shape: Sizes, kernel: Sizes, multiplier: int, op: Convolution, biased: bool = True
) -> Graph:
    """x of a shape (batch, channels, *spatial), and `multiplier` kernels a channel."""
    s, filters = Sketch(), shape[1] * multiplier
    bias = [s.weight(filters)] if biased else []
    return s.finish(s(op, s.input(*shape), s.weight(filters, 1, *kernel), *bias))


def check(graph: Graph, isa: str) -> None:
    check_graph(graph, [random_input(graph)], Target.named(isa), 2e-5)


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    w = draw(windows())
    channels, multiplier = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    activation = draw(st.sampled_from(Activation))
    op = Convolution(w.stride, w.padding, w.dilation, channels, activation=activation)
    shape = draw(st.integers(1, 2)), channels, *w.spatial
    return depthwise(shape, w.kernel, multiplier, op, draw(st.booleans()))


@pytest.mark.parametrize("isa", ISAS)
@given(graph=convolutions())
@settings(max_examples=15)
def test_any_window_at_any_border(isa: str, graph: Graph) -> None:
    assert kernels_of(graph, isa) == [f"depthwise-{isa}"]
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("size", "kernel", "stride"),
    [((11, 34), (5, 2), (1, 2)), ((12, 66), (4, 3), (2, 2)), ((6, 130), (5, 2), (1, 1))],
)
def test_taps_that_leave_no_register_for_what_is_loaded(
    isa: str, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
) -> None:
    """Ten to twelve of them lay where a tile with wide loads has its x."""
    op = Convolution(stride, (0, 0), (1, 1), 2, activation=Activation.RELU)
    check(depthwise((1, 2, *size), kernel, 1, op, True), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("size", "stride"), [(112, 1), (112, 2), (56, 1), (56, 2), (28, 2), (14, 1), (14, 2), (7, 1)]
)
def test_the_layers_of_mobile_nets(isa: str, size: int, stride: int) -> None:
    op = Convolution((stride,) * 2, (1, 1), (1, 1), 2, activation=Activation.RELU)
    check(depthwise((1, 2, size, size), (3, 3), 1, op), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_long_signal_takes_little_code(isa: str) -> None:
    op = Convolution((1,), (4,), (1,), 2)
    graph = depthwise((1, 2, 5001), (9,), 1, op)
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_may_lie_apart_but_not_their_elements(isa: str) -> None:
    """A slice is read where it lies; an image with its channels last is copied."""
    op = Convolution((1, 1), (1, 1), (1, 1), 3)
    s = Sketch()
    part = s(Slice(3, 2, 31), s.input(1, 3, 20, 40))
    sliced = s.finish(s(op, part, s.weight(3, 1, 3, 3)))
    assert kernels_of(sliced, isa) == [f"depthwise-{isa}"]
    check(sliced, isa)
    s = Sketch()
    last = s(Permute((0, 3, 1, 2)), s.input(1, 20, 33, 3))
    moved = s.finish(s(op, last, s.weight(3, 1, 3, 3)))
    assert kernels_of(moved, isa) == ["copy", f"depthwise-{isa}"]
    check(moved, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_not_a_number_stays_where_it_is(isa: str) -> None:
    """No sum meets an element outside its window, as by a product with zero."""
    op = Convolution((1, 1), (1, 1), (1, 1), 2)
    graph = depthwise((1, 2, 9, 40), (3, 3), 1, op)
    x = random_input(graph)
    x[0, 0, 4, 17] = np.nan
    (found,) = run_graph(graph, [x], Target.named(isa))
    wanted = np.zeros((1, 2, 9, 40), bool)
    wanted[0, 0, 3:6, 16:19] = True
    assert np.array_equal(np.isnan(found), wanted)


@st.composite
def lines(draw: st.DrawFn) -> Graph:
    """x (batch, positions, channels) turned, and a filter for each channel of any number."""
    channels, kernel = draw(st.integers(2, 70)), draw(st.integers(1, 26))
    stride, dilation, padding = (draw(st.integers(low, 3)) for low in (1, 1, 0))
    least = max(1, (kernel - 1) * dilation + 1 - 2 * padding)
    positions = draw(st.integers(least, least + 40))
    s = Sketch()
    x = s(Permute((0, 2, 1)), s.input(draw(st.integers(1, 3)), positions, channels))
    activation = draw(st.sampled_from(Activation))
    op = Convolution((stride,), (padding,), (dilation,), channels, activation=activation)
    bias = [s.weight(channels)] if draw(st.booleans()) else []
    y = s(op, x, s.weight(channels, 1, kernel), *bias)
    return s.finish(s("relu", s(Permute((0, 2, 1)), y)))


@pytest.mark.parametrize("isa", ISAS)
@given(graph=lines())
@settings(max_examples=40)
def test_channels_side_by_side_are_lanes(isa: str, graph: Graph) -> None:
    with preferring(CHANNELS):
        check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("channels", "taps"), [(37, 3), (128, 20), (16, 40), (5, 9)])
def test_lanes_of_channels_have_the_bits_of_lanes_of_positions(
    isa: str, channels: int, taps: int
) -> None:
    """And read nothing of a channel that is not a number for another one."""
    target = Target.named(isa)
    s = Sketch()
    x = s(Permute((0, 2, 1)), s.input(2, taps + 9, channels))
    op = Convolution((1,), (0,), (1,), channels)
    y = s(op, x, s.weight(channels, 1, taps), s.weight(channels))
    graph = s.finish(s("relu", s(Permute((0, 2, 1)), y)))
    given_x = random_input(graph)
    given_x[0, 3, 2] = np.nan
    found = []
    for name in (CHANNELS, POSITIONS):
        with preferring(name):
            found += run_graph(graph, [given_x], target)
            assert ("copy" in kernels_of(graph, isa)) == (name == POSITIONS)
    np.testing.assert_array_equal(*found)
    assert (np.isnan(found[0]).any(axis=(0, 1)) == (np.arange(channels) == 2)).all()


def test_windows_without_such_code_gather_columns() -> None:
    """Strides above 2, and kernels of more taps than a tile's code may have."""
    for kernel, stride in (((3, 3), (1, 3)), ((9, 9), (1, 1))):
        op = Convolution(stride, (1, 1), (1, 1), 2)
        assert "depthwise-avx2" not in kernels_of(depthwise((1, 2, 20, 20), kernel, 1, op), "avx2")
