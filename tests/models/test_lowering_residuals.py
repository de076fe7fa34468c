"""Sums with another image inside convolutions, and ReLU6, against their float64 reference."""

from dataclasses import replace

import numpy as np
import pytest
from matvec_checks import block_weights
from native import check_graph, kernels_of, random_input
from runnable import ISAS, LEVELS
from sketch import Sketch, applied, kinds

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, Layout, MatMul, MatVec
from sparsejit.ir.values import Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution import convolutions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory.storage import InputBuffer
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.fuse_activations import fuse_residuals
from sparsejit.planner.batch_plan import adds_in_place
from sparsejit.planner.layer_planner import LayerPlanner

TOLERANCE = 1e-3


def residual(
    size: int, density: float, activation: Activation, stride: int = 1, samples: int = 1
) -> Graph:
    """conv2(conv1(x)) + x, or where that does not fit + conv3(x), and an activation behind it."""
    s = Sketch()
    x = s.input(samples, 12, size, size)
    same = Convolution((1, 1), (1, 1), (1, 1))
    first = Convolution((stride,) * 2, (1, 1), (1, 1), activation=Activation.RELU)

    def weight(kernel: int) -> object:
        array = s.random.standard_normal((12, 12, kernel, kernel))
        array *= s.random.random(array.shape) < density
        return s.constant(array.astype("float32"))

    y = s(same, s(first, x, weight(3)), weight(3), s.weight(12))
    other = x if stride == 1 else s(Convolution((stride,) * 2, (0, 0), (1, 1)), x, weight(1))
    total = s("add", y, other)
    if activation is Activation.RELU6:
        total = s("minimum", s("relu", total), s.constant(6.0))
    elif activation is not Activation.NONE:
        total = s(activation.value, total)
    return s.finish(total)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize(("size", "stride", "samples"), [(28, 1, 1), (20, 2, 2), (14, 1, 2)])
@pytest.mark.parametrize("activation", Activation)
def test_a_residual_block(
    isa: str, density: float, size: int, stride: int, samples: int, activation: Activation
) -> None:
    graph = run_passes(residual(size, density, activation, stride, samples))
    assert not {"add", "relu"} & set(kinds(graph))
    assert sum(map(adds_operand, graph.nodes)) == 1
    assert [name for name in kernels_of(graph, isa) if "window" in name]
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


def bottlenecks(
    size: int, density: float, activation: Activation, stride: int = 1, samples: int = 1
) -> Graph:
    """Two blocks x + conv(conv(conv(x))) of 1x1, 3x3 and 1x1, and one more convolution behind."""
    s = Sketch()
    point, across = Convolution((1, 1), (0, 0), (1, 1)), Convolution((1, 1), (1, 1), (1, 1))

    def conv(op: Convolution, x: Value, out: int, kernel: int) -> Value:
        array = s.random.standard_normal((out, x.shape[1], kernel, kernel))
        array *= s.random.random(array.shape) < density
        array /= kernel * (density * x.shape[1]) ** 0.5
        return s(op, x, s.constant(array.astype("float32")), s.weight(out))

    def active(x: Value) -> Value:
        if activation is Activation.RELU6:
            return s("minimum", s("relu", x), s.constant(6.0))
        return x if activation is Activation.NONE else s(activation.value, x)

    x = s.input(samples, 24, size * stride, size * stride)
    for step in (stride, 1):
        strided = replace(across, stride=(step, step))
        y = conv(strided, s("relu", conv(point, x, 9, 1)), 9, 3)
        y = conv(point, s("relu", y), 24, 1)
        other = x if step == 1 else conv(replace(point, stride=(step, step)), x, 24, 1)
        x = active(s("add", y, other))
    return s.finish(conv(across, x, 5, 3))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize(
    ("size", "stride", "samples"), [(28, 1, 1), (14, 2, 1), (7, 1, 2), (3, 1, 16), (4, 2, 4)]
)
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU6, Activation.TANH])
def test_products_of_positions_add(
    isa: str, density: float, size: int, stride: int, samples: int, activation: Activation
) -> None:
    """Short images too, whose positions lie side by side."""
    graph = run_passes(bottlenecks(size, density, activation, stride, samples))
    assert not {"add", activation.value} & set(kinds(graph))
    assert sum(map(adds_operand, graph.nodes)) == 2
    assert not {"add", "chain"} & set(kernels_of(graph, isa))
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("size", [14, 28])
def test_a_sum_takes_the_memory_of_what_it_adds(size: int, density: float) -> None:
    """The second block's: its operand is read here last, and lies as the result does."""
    graph = run_passes(bottlenecks(size, density, Activation.RELU))
    lowered = lower_model(graph, ModelOptions(Target.named("avx512")))
    first, second = (step for step in lowered.steps if len(step.reads) == 2)
    places = lowered.memory.offsets
    assert isinstance(first.reads[1].buffer, InputBuffer)
    assert second.reads[1].buffer is first.writes[0].buffer is not second.writes[0].buffer
    assert places[second.writes[0].buffer] == places[second.reads[1].buffer]


@pytest.mark.parametrize("isa", ISAS)
def test_a_sum_leaves_what_is_read_later(isa: str) -> None:
    s = Sketch()
    op = Convolution((1, 1), (0, 0), (1, 1))
    y = s("relu", s(op, s.input(1, 8, 14, 14), s.weight(8, 8, 1, 1)))
    total = s("add", s(op, y, s.weight(8, 8, 1, 1)), y)
    graph = run_passes(s.finish(s("mul", s("tanh", y), s("tanh", total))))
    assert sum(map(adds_operand, graph.nodes)) == 1
    lowered = lower_model(graph, ModelOptions(Target.named("avx512")))
    (step,) = (step for step in lowered.steps if step.in_place == 1)
    assert len({lowered.memory.offsets[v.buffer] for v in (step.reads[1], step.writes[0])}) == 2
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_panels_that_overlap_never_add_to_what_they_wrote(isa: str) -> None:
    """196 columns without padding: the last panel computes some a second time."""
    weights = SparseMatrix(block_weights((24, 16), 0.1, 1))
    for pitch, is_safe in ((None, False), (208, True)):
        layer = MatMul(MatVec(24, 16), 196, Layout.FEATURE_MAJOR, pitch, added_pitch=pitch or 196)
        planner = LayerPlanner(Target.named(isa), "panels")
        row = planner.plan(layer, weights).chosen.template
        assert adds_in_place(row, layer, planner.target) is is_safe


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU])
def test_products_of_gathered_columns_add(isa: str, activation: Activation) -> None:
    s = Sketch()
    op = Convolution((3, 3), (1, 1), (1, 1), activation=activation)
    operands = s.input(1, 3, 20, 20), s.weight(5, 3, 3, 3), s.weight(5), s.weight(1, 5, 7, 7)
    graph = s.finish(s(op, *operands))
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU6])
@pytest.mark.parametrize("size", [1, 6])
def test_operands_that_products_cannot_add_are_added_afterwards(
    isa: str, activation: Activation, size: int
) -> None:
    """One position is a product of a vector; what is turned has no rows of positions."""
    s = Sketch()
    op = Convolution((1, 1), (0, 0), (1, 1), activation=activation)
    x = s.input(1, 5, size, size)
    turned = s(Permute((0, 1, 3, 2)), x)
    graph = s.finish(s(op, x, s.weight(5, 5, 1, 1), s.weight(5), turned))
    assert len(kernels_of(graph, isa)) == 2
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


def test_a_product_of_one_position_is_no_place_for_a_sum() -> None:
    s = Sketch()
    x = s.input(1, 4, 1, 1)
    conv = s(Convolution((1, 1), (0, 0), (1, 1)), x, s.weight(4, 4, 1, 1))
    graph = s.finish(s("add", conv, x))
    assert fuse_residuals(graph) is graph


def test_only_what_nobody_else_reads_and_has_no_activation_adds() -> None:
    s = Sketch()
    x, op = s.input(1, 4, 9, 9), Convolution((1, 1), (1, 1), (1, 1))
    read_twice = s(op, x, s.weight(4, 4, 3, 3))
    graph = s.finish(s("add", read_twice, x), read_twice)
    assert fuse_residuals(graph) is graph
    s = Sketch()
    x = s.input(1, 4, 9, 9)
    active = Convolution((1, 1), (1, 1), (1, 1), activation=Activation.RELU)
    graph = s.finish(s("add", s(active, x, s.weight(4, 4, 3, 3)), x))
    assert fuse_residuals(graph) is graph


def test_a_sum_moves_into_the_later_of_two_convolutions() -> None:
    s = Sketch()
    x, op = s.input(1, 4, 9, 9), Convolution((1, 1), (1, 1), (1, 1))
    first, second = s(op, x, s.weight(4, 4, 3, 3)), s(op, x, s.weight(4, 4, 3, 3))
    after = applied(fuse_residuals, s.finish(s("add", first, second)))
    assert kinds(after) == ["Convolution", "Convolution"]
    assert [adds_operand(node) for node in after.nodes] == [False, True]


def test_a_clamp_to_six_moves_into_its_product() -> None:
    s = Sketch()
    conv = s(Convolution((1, 1), (0, 0), (1, 1)), s.input(1, 4, 9, 9), s.weight(4, 4, 1, 1))
    graph = run_passes(s.finish(s("minimum", s("maximum", conv, s.constant(0.0)), s.constant(6.0))))
    (node,) = graph.nodes
    assert isinstance(node.op, Convolution) and node.op.activation is Activation.RELU6


def test_rows_of_other_samples_are_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images of 24 positions side by side: a channel is as long as a padded one, 48 floats."""
    monkeypatch.setattr(convolutions, "joined_layer", lambda *given: None)
    s = Sketch()
    point, across = Convolution((1,), (0,), (1,)), Convolution((1,), (1,), (1,))
    x = s(across, s.input(2, 8, 24), s.weight(8, 8, 3), s.weight(8))
    side_by_side = s(Permute((1, 0, 2)), s.input(9, 2, 24))
    y = s(point, x, s.weight(9, 8, 1), s.weight(9), side_by_side)
    assert spread_pitch(24) == 48
    graph = s.finish(s(across, y, s.weight(3, 9, 3), s.weight(3)))
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    for isa in LEVELS:
        check_graph(graph, inputs, Target.named(isa), TOLERANCE)
