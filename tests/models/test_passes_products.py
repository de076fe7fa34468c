"""Nodes that products take over: scales, shifts, orders of features, recurrent biases."""

import numpy as np
import pytest
from sketch import Sketch, applied, kinds, node_of

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.views import Concat, Permute, Reshape, Slice
from sparsejit.ir.spec import Activation, DType
from sparsejit.ir.values import Value
from sparsejit.passes.default import run_passes
from sparsejit.passes.fold_affine import fold_affine, fold_recurrent_bias
from sparsejit.passes.permute_columns import permute_columns
from sparsejit.passes.weight_products import sort_products


def until_stable(graph: Graph) -> Graph:
    before: Graph | None = None
    while graph is not before:
        before, graph = graph, fold_affine(graph)
    return graph


def batch_norm(s: Sketch, x: Value, *shape: int) -> Value:
    """By its formula: (x - mean) / deviation * weight + bias."""
    centred = s("sub", x, s.weight(*shape))
    scaled = s("div", centred, s.constant(1 + np.abs(s.random.standard_normal(shape))))
    return s("fma", scaled, s.weight(*shape), s.weight(*shape))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_norm_behind_a_linear_is_folded_and_zeros_stay(has_bias: bool) -> None:
    s = Sketch()
    weights = s.constant(s.random.standard_normal((5, 8)) * (s.random.random((5, 8)) < 0.2))
    bias = [s.weight(5)] if has_bias else []
    graph = s.finish(batch_norm(s, s(Linear(), s.input(3, 8), weights, *bias), 5))
    after = applied(until_stable, graph)
    assert kinds(after) == ["Linear"]
    folded = after.constants[after.nodes[0].inputs[1]]
    np.testing.assert_array_equal(folded == 0, graph.constants[weights] == 0)


CONVOLUTIONS = {
    "plain": (Convolution((1, 1), (1, 1), (1, 1)), (6, 4, 3, 3)),
    "grouped": (Convolution((1, 1), (0, 0), (1, 1), groups=2), (6, 2, 3, 3)),
    "transposed": (
        Convolution((2, 2), (0, 0), (1, 1), groups=2, transposed=True),
        (4, 3, 3, 3),
    ),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_norm_behind_a_convolution_is_folded(kind: str) -> None:
    op, shape = CONVOLUTIONS[kind]
    s = Sketch()
    y = s(op, s.input(2, 4, 5, 5), s.weight(*shape), s.weight(6))
    after = applied(until_stable, s.finish(batch_norm(s, y, 1, 6, 1, 1)))
    assert kinds(after) == ["Convolution"]


def test_a_norm_before_a_product_is_folded() -> None:
    s = Sketch()
    y = s(Linear(), batch_norm(s, s.input(3, 8), 8), s.weight(5, 8))
    valid = Convolution((1,), (0,), (1,), groups=2)
    z = s(valid, batch_norm(s, s.input(2, 4, 7), 4, 1), s.weight(6, 2, 3))
    after = applied(until_stable, s.finish(y, z))
    assert kinds(after) == ["Linear", "Convolution"]


def test_only_scales_pass_zeros_of_padding() -> None:
    s = Sketch()
    padded = Convolution((1,), (1,), (1,))
    scaled, shifted = (s(kind, s.input(2, 4, 7), s.weight(4, 1)) for kind in ("mul", "add"))
    graph = s.finish(*(s(padded, x, s.weight(6, 4, 3)) for x in (scaled, shifted)))
    assert kinds(applied(until_stable, graph)) == ["add", "Convolution", "Convolution"]


def test_scales_stay_where_folding_would_change_the_model() -> None:
    s = Sketch()
    x, weights = s.input(3, 8), s.weight(5, 8)
    int8 = s(Linear(dtype=DType.INT8), s("mul", x, s.weight(8)), weights)
    active = s("mul", s(Linear(Activation.RELU), x, weights), s.weight(5))
    by_row = s("mul", s(Linear(), x, weights), s.weight(3, 1))
    repeated = s("mul", s(Linear(), s.input(1, 8), weights), s.weight(4, 5))
    overflow = s("mul", s(Linear(), x, s.constant(np.full((5, 8), 1e30))), s.constant(1e30))
    graph = s.finish(int8, active, by_row, repeated)
    assert fold_affine(graph) is graph
    graph = s.finish(overflow)
    assert kinds(fold_affine(graph))[-1] == "mul"


def test_products_with_a_constant_matrix_are_linear() -> None:
    s = Sketch()
    x = s.input(2, 3, 8)
    plain, turned = Bmm(scale=0.5), Bmm(transposed=True)
    graph = s.finish(s(plain, x, s.weight(8, 5)), s(turned, x, s.weight(1, 5, 8)))
    assert kinds(applied(sort_products, graph)) == ["Linear", "Linear"]
    stack = s.finish(s(Bmm(), x, s.weight(2, 8, 5)))
    assert not any(isinstance(node.op, Linear) for node in sort_products(stack).nodes[-1:])


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)])
def test_linear_by_an_activation_is_a_product_of_two(shape: tuple[int, ...]) -> None:
    s = Sketch()
    graph = s.finish(s(Linear(Activation.TANH), s.input(*shape), s.input(5, 8), s.input(5)))
    after = applied(sort_products, graph)
    assert [name for name in kinds(after) if name != "Reshape"] == ["Bmm", "add", "tanh"]


def shuffled(s: Sketch, x: Value, groups: int) -> Value:
    """Channel shuffle of the last axis."""
    rows, features = x.shape
    split = s(Reshape((rows, groups, features // groups)), x)
    return s(Reshape((rows, features)), s(Permute((0, 2, 1)), split))


def test_a_shuffle_behind_a_linear_moves_its_rows() -> None:
    s = Sketch()
    y = s(Linear(Activation.RELU), s.input(3, 8), s.weight(6, 8), s.weight(6))
    after = applied(run_passes, s.finish(shuffled(s, y, 2)))
    assert kinds(after) == ["Linear"]


def test_a_part_of_a_linear_is_all_that_is_computed() -> None:
    s = Sketch()
    y = s(Linear(), s.input(3, 8), s.weight(6, 8), s.weight(6))
    after = applied(run_passes, s.finish(s(Slice(1, 1, 6, 2), y)))
    assert kinds(after) == ["Linear"]
    assert after.nodes[0].inputs[1].shape == (3, 8)


def test_parts_of_a_linear_that_are_all_read_stay_one_product() -> None:
    s = Sketch()
    y = s(Linear(), s.input(3, 8), s.weight(6, 8))
    graph = s.finish(s(Slice(1, 0, 3), y), s(Slice(1, 3, 6), y))
    assert permute_columns(graph) is graph


def test_a_shuffle_before_a_linear_moves_its_columns() -> None:
    s = Sketch()
    graph = s.finish(s(Linear(), shuffled(s, s.input(3, 6), 2), s.weight(4, 6)))
    assert kinds(applied(run_passes, graph)) == ["Linear"]


def test_channels_last_before_a_flat_linear_costs_nothing() -> None:
    s = Sketch()
    x = s.input(2, 3, 4, 5)
    flat = s(Reshape((2, 60)), s(Permute((0, 2, 3, 1)), x))
    after = applied(run_passes, s.finish(s(Linear(), flat, s.weight(7, 60))))
    assert kinds(after) == ["Reshape", "Linear"]


def test_a_shuffle_of_channels_between_convolutions_is_folded() -> None:
    s = Sketch()
    op = Convolution((1,), (1,), (1,))
    x = s("exp", s.input(2, 6, 5))
    split = s(Permute((0, 2, 1, 3)), s(Reshape((2, 3, 2, 5)), x))
    graph = s.finish(s(op, s(Reshape((2, 6, 5)), split), s.weight(4, 6, 3)))
    assert kinds(applied(run_passes, graph)) == ["exp", "Convolution"]


def test_views_that_mix_rows_stay() -> None:
    s = Sketch()
    graph = s.finish(s(Linear(), s(Permute((1, 0)), s.input(6, 3)), s.weight(4, 6)))
    assert permute_columns(graph) is graph


def test_constant_features_go_into_the_bias() -> None:
    s = Sketch()
    rows = s.constant(np.tile(s.random.standard_normal(2), (3, 1)))
    x = s(Concat(-1), s.input(3, 4), rows, s.input(3, 1))
    after = applied(permute_columns, s.finish(s(Linear(), x, s.weight(5, 7))))
    assert node_of(after, Linear).inputs[1].shape == (5, 5)
    assert len(node_of(after, Linear).inputs) == 3


@pytest.mark.parametrize("cell", list(RecurrentCell))
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_recurrent_bias_is_added_before_the_loop(cell: RecurrentCell, has_bias: bool) -> None:
    s, hidden = Sketch(), 3
    rows = cell.gates * hidden
    bias = [s.weight(rows)] if has_bias else []
    gates = s(Linear(), s.input(4, 2, 5), s.weight(rows, 5), *bias)
    states = [s.input(2, hidden) for _ in range(cell.states)]
    second = s.weight(rows)
    graph = s.finish(s(Recurrence(cell), gates, *states, s.weight(rows, hidden), second))
    after = applied(fold_recurrent_bias, graph)
    left = after.constants[node_of(after, Recurrence).inputs[-1]]
    folded = 2 * hidden if cell is RecurrentCell.GRU else rows
    assert not left[:folded].any()
    np.testing.assert_array_equal(left[folded:], graph.constants[second][folded:])
    assert fold_recurrent_bias(after) is after


def test_a_constant_that_repeats_the_features_is_added_afterwards() -> None:
    s = Sketch()
    y = s(Linear(), s.input(1, 2, 2), s.weight(1, 2), s.weight(1))
    graph = s.finish(s("add", s.weight(1, 2), y))
    assert fold_affine(graph) is graph


def test_a_number_that_constants_spread_over_features_is_added_before() -> None:
    s = Sketch()
    graph = s.finish(s(Linear(), s("add", s.input(), s.weight(3, 8)), s.weight(5, 8)))
    assert fold_affine(graph) is graph
