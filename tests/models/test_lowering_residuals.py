"""Sums with another image inside convolutions, and ReLU6, against their float64 reference."""

import pytest
from native import check_graph, kernels_of, random_input
from runnable import ISAS
from sketch import Sketch, applied, kinds

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, adds_operand
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.fuse_residuals import fuse_residuals

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


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", Activation)
def test_products_of_gathered_columns_add_afterwards(isa: str, activation: Activation) -> None:
    s = Sketch()
    op = Convolution((3, 3), (1, 1), (1, 1), activation=activation)
    operands = s.input(1, 3, 20, 20), s.weight(5, 3, 3, 3), s.weight(5), s.weight(1, 5, 7, 7)
    graph = s.finish(s(op, *operands))
    check_graph(graph, [random_input(graph)], Target.named(isa), TOLERANCE)


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
