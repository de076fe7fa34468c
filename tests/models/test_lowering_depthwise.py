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


def test_windows_without_such_code_gather_columns() -> None:
    """Strides above 2, and kernels of more taps than a tile's code may have."""
    for kernel, stride in (((3, 3), (1, 3)), ((9, 9), (1, 1))):
        op = Convolution(stride, (1, 1), (1, 1), 2)
        assert "depthwise-avx2" not in kernels_of(depthwise((1, 2, 20, 20), kernel, 1, op), "avx2")
