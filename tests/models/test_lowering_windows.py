"""Convolutions over padded images, and pooling by windows, against their float64 reference."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native import check_graph, kernels_of, random_input, run_graph
from runnable import ISAS
from sketch import Sketch
from window_cases import Sizes, Windows, windows

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.padded_image import PaddedImage, window_panels
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution import windows as lowering
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_plan import cheapest_planes, plan_windows

TOLERANCE = 1e-4


def convolution(
    shape: Sizes, filters: int, kernel: Sizes, op: Convolution, density: float, biased: bool = True
) -> Graph:
    """x of a shape (batch, channels, *spatial) by random filters, most of them zero."""
    s = Sketch()
    weights = s.random.standard_normal((filters, shape[1] // op.groups, *kernel))
    weights *= s.random.random(weights.shape) < density
    bias = [s.weight(filters)] if biased else []
    return s.finish(s(op, s.input(*shape), s.constant(weights.astype(np.float32)), *bias))


def check(graph: Graph, isa: str) -> None:
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    w, groups = draw(windows()), draw(st.sampled_from([1, 1, 1, 2]))
    filters = groups * draw(st.sampled_from([1, 3, 16, 35]))
    activation, biased = draw(st.sampled_from(Activation)), draw(st.booleans())
    op = Convolution(w.stride, w.padding, w.dilation, groups, activation=activation)
    shape = draw(st.integers(1, 2)), groups * draw(st.integers(2, 3)), *w.spatial
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return convolution(shape, filters, w.kernel, op, density, biased)


@pytest.mark.parametrize("isa", ISAS)
@given(graph=convolutions())
@settings(max_examples=15)
def test_any_window_over_any_image(isa: str, graph: Graph) -> None:
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
@given(graph=convolutions())
@settings(max_examples=25)
def test_any_window_over_planes_of_taps(isa: str, graph: Graph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "cheapest_planes", lambda image, *_: replace(image, by_tap=True))
        check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", [2, 3, 5, 7])
@pytest.mark.parametrize(("size", "stride"), [(33, 1), (32, 2), (17, 2), (16, 1), (8, 1), (5, 2)])
def test_planes_of_taps_have_the_bits_of_shared_ones(
    isa: str, kernel: int, size: int, stride: int
) -> None:
    """Every position adds the same products in the same order."""
    op = Convolution((stride,) * 2, (kernel // 2,) * 2, (1, 1), activation=Activation.RELU)
    graph = convolution((2, 9, size, size), 21, (kernel, kernel), op, 0.3)
    found, target = [], Target.named(isa)
    for by_tap in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                lowering, "cheapest_planes", lambda image, *_, b=by_tap: replace(image, by_tap=b)
            )
            patch.setattr(lowering, "plan_windows", partial(plan_windows, name="sparse-windows"))
            patch.setattr(lowering, "fills_windows", lambda *_: True)
            assert f"sparse-windows-{isa}" in kernels_of(graph, isa)
            found.append(run_graph(graph, [random_input(graph)], target)[0])
    np.testing.assert_array_equal(*found)


def test_small_images_of_whole_vectors_have_planes_of_taps() -> None:
    """8 x 8 positions are four vectors of 16, with zeros between rows five; 7 x 7 are four."""
    target = Target.named("avx512")
    planner = ModelOptions(target).planner
    random = np.random.default_rng(0)
    kept = random.random((128, 64 * 9)) < 0.1
    matrix = SparseMatrix(random.standard_normal(kept.shape) * kept)
    each = MatVec(*kept.shape)

    def chosen(size: int, stride: int) -> bool:
        axis = Axis(size * stride, size, 3, stride, 1, 1)
        image = PaddedImage(1, 64, axis, axis, (0, 0, 0))
        return cheapest_planes(image, matrix, each, planner).by_tap

    assert [chosen(size, 1) for size in (7, 8, 14, 56)] == [False, True, False, False]
    assert chosen(8, 2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("density", "names"), [(0.1, ["sparse-windows"]), (1.0, ["dense-windows", "winograd"])]
)
@pytest.mark.parametrize(("size", "stride"), [(56, 1), (56, 2), (28, 2), (14, 1), (7, 1)])
def test_the_layers_of_residual_nets(
    isa: str, density: float, names: list[str], size: int, stride: int
) -> None:
    op = Convolution((stride,) * 2, (1, 1), (1, 1), activation=Activation.RELU)
    graph = convolution((1, 20, size, size), 40, (3, 3), op, density)
    if size > 7 or isa == "avx512":
        copy, kernel = kernels_of(graph, isa)
        assert copy == "padding" and kernel in [f"{name}-{isa}" for name in names]
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_tile_in_parts_adds_up(isa: str) -> None:
    """Sums wait in scratch memory where a tile's code or inputs exceed L1."""
    op = Convolution((1, 1), (1, 1), (1, 1), activation=Activation.TANH)
    for biased in (True, False):
        graph = convolution((2, 130, 9, 9), 37, (3, 3), op, 0.1, biased)
        *_, last = lower_model(graph, ModelOptions(Target.named(isa))).steps
        assert last.kernel.startswith("sparse-windows") and last.scratch_bytes > 0
        check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("density", [0.5, 1.0])
def test_one_channel_of_more_taps_than_fit_l1(isa: str, density: float) -> None:
    """One channel's code is longer than L1 holds: its tile is cut between taps."""
    op = Convolution((1,), (0,), (1,))
    graph = convolution((1, 1, 600), 40, (512,), op, density)
    *_, last = lower_model(graph, ModelOptions(Target.named(isa))).steps
    assert last.kernel.startswith("sparse-windows") and last.scratch_bytes > 0
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_signal_and_an_image_with_its_channels_last(isa: str) -> None:
    check(convolution((1, 3, 3001), 4, (9,), Convolution((2,), (4,), (1,)), 1.0), isa)
    s = Sketch()
    x = s(Permute((0, 3, 1, 2)), s.input(1, 20, 33, 3))
    graph = s.finish(s(Convolution((1, 1), (1, 1), (1, 1)), x, s.weight(4, 3, 3, 3)))
    assert kernels_of(graph, isa)[0] == "copy"
    check(graph, isa)


@given(window=windows(2), by_tap=st.booleans())
def test_no_lane_of_a_vector_leaves_its_plane(window: Windows, by_tap: bool) -> None:
    """Whatever tap its positions meet: behind the last row a plane has zeros for them."""
    w, axes = window, [Axis(1, 1, 1, 1, 0, 1)]
    for size, *rest in zip(w.spatial, w.kernel, w.stride, w.padding, w.dilation, strict=True):
        kernel, stride, padding, dilation = rest
        positions = (size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
        axes.append(Axis(size, positions, kernel, stride, padding, dilation))
    image = PaddedImage(1, 1, axes[-2], axes[-1], (0, 0, 0), by_tap)
    taps = image.tap_offsets()
    for isa in ("avx2", "avx512"):
        target = Target.named(isa)
        first = window_panels(image, target).table["x"] // 4
        ends = taps[:, None] % image.plane + first + target.lanes
        assert taps.min() >= 0 and ends.max() <= image.plane


@pytest.mark.parametrize("isa", ISAS)
def test_lanes_between_rows_find_no_subnormal_numbers(isa: str) -> None:
    """They would take a hundred times as long: all of the planes is written, or NaN stays."""
    graph = convolution((1, 3, 7, 7), 5, (3, 3), Convolution((1, 1), (1, 1), (1, 1)), 1.0)
    (found,) = run_graph(graph, [random_input(graph)], Target.named(isa))
    assert np.isfinite(found).all()


@st.composite
def poolings(draw: st.DrawFn) -> Graph:
    w, kind = draw(windows(2)), draw(st.sampled_from(PoolingKind))
    assume(all(2 * p <= k for p, k in zip(w.padding, w.kernel, strict=True)))
    counts = draw(st.booleans())
    after = draw(st.integers(0, 1)) if counts or kind is PoolingKind.MAX else 0
    around = tuple((p, p + after) for p in w.padding)
    op = Pooling(kind, w.kernel, w.stride, around, w.dilation, counts)
    s = Sketch()
    return s.finish(s(op, s.input(2, 2, *w.spatial)))


@pytest.mark.parametrize("isa", ISAS)
@given(graph=poolings())
@settings(max_examples=15)
def test_any_pooling(isa: str, graph: Graph) -> None:
    check(graph, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_of_what_is_not_a_number_is_none(isa: str) -> None:
    s = Sketch()
    op = Pooling(PoolingKind.MAX, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))
    graph = s.finish(s(op, s.input(1, 1, 20, 40)))
    assert kernels_of(graph, isa) == [f"pooling-{isa}"]
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        x = random_input(graph)
        x[0, 0, 5, 11] = x[0, 0, 10:14, 20:24] = value
        (found,) = run_graph(graph, [x], Target.named(isa))
        np.testing.assert_array_equal(found, graph.evaluate([x])[0].astype(np.float32))
