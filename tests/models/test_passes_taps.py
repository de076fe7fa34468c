"""Kernels without taps of padding, filters with half of their taps, axes of one element."""

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
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.mirrored_taps import halve_mirrored
from sparsejit.passes.single_positions import leave_single_positions
from sparsejit.passes.trim_taps import trim_taps


def convolved(w: Windows, groups: int = 1) -> Graph:
    """Both with a bias and what is added to the result, which stay."""
    s = Sketch()
    op = Convolution(w.stride, w.padding, w.dilation, groups)
    x = s.input(2, 2 * groups, *w.spatial)
    first = s(op, x, s.weight(4, 2, *w.kernel), s.weight(4))
    return s.finish(s(op, x, s.weight(4, 2, *w.kernel), s.weight(4), first))


def kernels(graph: Graph) -> list[Sizes]:
    layers = (node for node in graph.nodes if isinstance(node.op, Convolution))
    return [node.inputs[1].shape[2:] for node in layers]


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
    assert kernels(graph) == [(3, 3), (3, 3), (2, 2), (1,)]
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


def test_weights_that_are_left_have_their_bits() -> None:
    graph = convolved(Windows((1,), (5,), (1,), (2,), (1,)))
    after = trim_taps(graph)
    for before, node in zip(graph.nodes, after.nodes, strict=True):
        own, fewer = (g.constants[n.inputs[1]] for g, n in ((graph, before), (after, node)))
        np.testing.assert_array_equal(own[:, :, 2:3], fewer)


def spectrum(size: int, rows: int) -> np.ndarray:
    """Random filters of one size (2 * rows, size): even ones, then odd ones, each of its bits."""
    random = np.random.default_rng(0)
    half = random.standard_normal((2 * rows, size // 2 - 1)).astype(np.float32)
    alone = random.standard_normal((2, 2 * rows, 1)).astype(np.float32)
    alone[:, rows:] = 0
    signs = np.repeat([1, -1], rows)[:, None].astype(np.float32)
    return np.concatenate([alone[0], half, alone[1], signs * half[:, ::-1]], 1)


def filtered(
    filters: np.ndarray, stride: int, windows: int, batch: int = 2, extra: int = 0
) -> Graph:
    s = Sketch()
    x = s.input(batch, 1, (windows - 1) * stride + filters.shape[1] + extra)
    op = Convolution((stride,), (0,), (1,), activation=Activation.RELU)
    return s.finish(s(op, x, s.constant(filters[:, None]), s.weight(len(filters))))


def products(graph: Graph) -> int:
    sizes = (node.inputs[1].type.size for node in graph.nodes if isinstance(node.op, Convolution))
    return sum(sizes)


@given(
    size=st.sampled_from([4, 6, 16, 30]),
    stride=st.integers(1, 33),
    windows=st.integers(1, 4),
    batch=st.integers(1, 3),
    extra=st.integers(0, 3),
    has_first=st.booleans(),
)
def test_even_and_odd_filters_need_half_of_their_products(
    size: int, stride: int, windows: int, batch: int, extra: int, has_first: bool
) -> None:
    filters = spectrum(size, 64)
    filters[:64, 0] *= has_first
    graph = filtered(filters, stride, windows, batch, extra if extra < stride else 0)
    after = applied(halve_mirrored, graph)
    assert products(after) == 64 * (size // 2 + has_first) + 64 * (size // 2 - 1)
    assert halve_mirrored(after) is after


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(("size", "stride"), [(64, 32), (64, 16), (64, 64), (60, 25)])
def test_code_of_halved_filters(isa: str, size: int, stride: int, batch: int) -> None:
    graph = run_passes(filtered(spectrum(size, 64), stride, 3, batch))
    assert products(graph) == 64 * size
    check_graph(graph, [random_input(graph)], Target.named(isa), 1e-3)


def test_the_sine_of_frequency_0_is_odd() -> None:
    """The parts of a spectrum that readers take are then the products themselves."""
    filters = spectrum(32, 64)
    filters[64] = 0
    after = applied(halve_mirrored, filtered(filters, 16, 2))
    assert [n.output.shape[1] for n in after.nodes if isinstance(n.op, Convolution)] == [64, 64]


@pytest.mark.parametrize("change", ["one weight", "few", "odd size", "padding", "rows", "middle"])
def test_filters_that_are_not_all_mirrored_stay(change: str) -> None:
    filters = spectrum(32, 60 if change == "few" else 64)
    if change == "one weight":
        filters[3, 5] = np.nextafter(filters[3, 5], np.float32(9))
    if change == "odd size":
        filters = filters[:, :31]
    if change == "rows":
        filters = filters.reshape(2, 64, 32).swapaxes(0, 1).reshape(128, 32)  # in turn
    if change == "middle":
        filters[100, 16] = 1.0  # odd except for an element that has no mirror image
    graph = filtered(filters, 16, 2)
    if change == "padding":
        s = Sketch()
        x = s.input(1, 1, 40)
        graph = s.finish(s(Convolution((16,), (1,), (1,)), x, s.constant(filters[:, None])))
    assert halve_mirrored(graph) is graph


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_an_axis_of_one_element_is_left_out(isa: str, axis: int, groups: int) -> None:
    """With the bias, the activation and an operand that is added; `axis` is the one that stays.

    Layers of groups add none.
    """
    long, each = ((29, 1), (5, 1)) if axis == 0 else ((1, 29), (1, 5))
    steps = tuple((2, 1)[n != axis] for n in range(2)), tuple((1, 0)[n != axis] for n in range(2))
    s = Sketch()
    x = s.input(2, 12, *long)
    op = Convolution(*steps, (1, 1), groups, activation=Activation.RELU)
    weights, bias = s.weight(12, 12 // groups, *each), s.weight(12)
    y = s(op, x, weights, bias)
    graph = s.finish(y, s(op, x, weights, bias, *([y] if groups == 1 else [])))
    after = applied(leave_single_positions, graph)
    assert [len(n.op.stride) for n in after.nodes if isinstance(n.op, Convolution)] == [1, 1]
    assert leave_single_positions(after) is after
    check_graph(run_passes(graph), [random_input(graph)], Target.named(isa), 1e-3)


@pytest.mark.parametrize(("long", "kernel", "padding"), [((9, 1), (3, 1), 1), ((9, 2), (3, 1), 0)])
def test_axes_of_several_elements_and_padded_ones_stay(
    long: Sizes, kernel: Sizes, padding: int
) -> None:
    s = Sketch()
    op = Convolution((1, 1), (0, padding), (1, 1))
    graph = s.finish(s(op, s.input(1, 4, *long), s.weight(4, 4, *kernel)))
    assert leave_single_positions(graph) is graph
