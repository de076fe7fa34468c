"""Activations inside products, and chains of elementwise work, on small graphs."""

import numpy as np
import pytest
import torch
from runnable import LEVELS
from sketch import Sketch, applied, kinds, node_of

import sparsejit
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.row_chains import layer_norm, softmax
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Element, Value
from sparsejit.passes.exact_probabilities import exact_probabilities
from sparsejit.passes.fuse_activations import FUSED, fuse_activations
from sparsejit.passes.fuse_chains import MOST_OPERANDS, MOST_STEPS, fuse_chains


@pytest.mark.parametrize("kind", FUSED)
def test_an_activation_moves_into_its_product(kind: str) -> None:
    s = Sketch()
    y = s(Linear(), s.input(2, 6), s.weight(3, 6))
    conv = s(Convolution((1,), (0,), (1,)), s.input(1, 2, 6), s.weight(3, 2, 3), s.weight(3))
    after = applied(fuse_activations, s.finish(s(kind, y), s(kind, conv)))
    assert kinds(after) == ["Linear", "Convolution"]
    for node in after.nodes:
        assert isinstance(node.op, Linear | Convolution)
        assert node.op.activation is FUSED[kind]


def test_an_activation_stays_where_the_product_is_read_twice_or_has_one() -> None:
    s = Sketch()
    x, weights = s.input(2, 6), s.weight(3, 6)
    read_twice, has_one = s(Linear(), x, weights), s(Linear(Activation.TANH), x, weights)
    graph = s.finish(s("relu", read_twice), read_twice, s("relu", has_one))
    assert fuse_activations(graph) is graph


def test_elementwise_work_becomes_one_chain_with_fma() -> None:
    s = Sketch()
    x, y = s.input(4, 8), s.input(4, 8)
    graph = s.finish(s("tanh", s("add", s("mul", x, s.weight(8)), y)))
    after = applied(fuse_chains, graph)
    assert kinds(after) == ["mul+add+tanh"]
    chain = after.nodes[0].op
    assert isinstance(chain, Chain)
    assert [step.kind for step in chain.steps] == ["fma", "tanh"]
    assert fuse_chains(after) is after


def test_scale_mask_and_softmax_become_one_chain() -> None:
    s = Sketch()
    x, mask = s.input(2, 3, 8, 8), s.input(2, 1, 8, 8)
    scaled = s("add", s("mul", x, s.constant(0.125)), mask)
    after = applied(fuse_chains, s.finish(s(softmax(x.shape), scaled)))
    assert kinds(after) == ["mul+add+softmax"]


def test_a_residual_sum_read_elsewhere_is_a_second_result_of_its_norm() -> None:
    s = Sketch()
    x, y, weights = s.input(4, 8), s.input(4, 8), s.weight(8, 8)
    total = s("add", x, y)
    normed = s(layer_norm(x.shape, True, True), total, *numbers(s), s.weight(8), s.weight(8))
    graph = s.finish(s("add", s(Linear(), normed, weights), total))
    after = applied(fuse_chains, graph)
    assert kinds(after) == ["add+layer_norm", "Linear", "add"]
    assert len(after.nodes[0].outputs) == 2


def numbers(s: Sketch) -> list[Value]:
    return [s.constant(1 / 8), s.constant(1e-5)]


def test_work_on_row_reductions_joins_the_rows() -> None:
    s = Sketch()
    x = s.input(4, 8)
    mean = s("mul", s(row_sum(4, 8), x), s.constant(1 / 8))
    graph = s.finish(s("sub", x, mean), mean)
    after = applied(fuse_chains, graph)
    assert len(after.nodes) == 1
    assert [v.shape for v in after.outputs] == [(4, 8), (4, 1)]


def row_sum(*shape: int) -> Chain:
    return Chain(shape, 1, (ChainStep("row_sum", (0,)),), (1,), "sum")


def test_rows_of_one_element_are_not_summed_over_more() -> None:
    s = Sketch()
    x, y = s.input(4, 1), s.input(4, 8)
    after = applied(fuse_chains, s.finish(s("add", y, s(row_sum(4, 1), x))))
    assert len(after.nodes) == 2


def test_work_that_broadcasts_over_rows_is_not_repeated_for_each() -> None:
    s = Sketch()
    x, y = s.input(8), s.input(4, 8)
    after = applied(fuse_chains, s.finish(s("mul", y, s("exp", x))))
    assert kinds(after) == ["exp", "mul"]


def test_a_value_that_reaches_its_reader_through_another_node_is_not_moved() -> None:
    s = Sketch()
    x = s.input(4, 8)
    a = s("exp", x)
    graph = s.finish(s("add", s(Linear(), a, s.weight(8, 8)), a))
    assert kinds(applied(fuse_chains, graph)) == ["exp", "Linear", "add"]


def test_readers_that_came_before_the_merged_chain_come_after_it() -> None:
    s = Sketch()
    x = s.input(4, 8)
    a = s("exp", x)
    early = s(Linear(), a, s.weight(8, 8))
    graph = s.finish(early, s("tanh", a))
    assert kinds(applied(fuse_chains, graph)) == ["exp+tanh", "Linear"]


def long_chain(count: int, operands: int) -> Graph:
    s = Sketch()
    others = [s.input(4, 8) for _ in range(operands)]
    x = s.input(4, 8)
    for number in range(count):
        x = s("sub", s("sin", x), others[number % operands])
    return s.finish(x)


@pytest.mark.parametrize(("count", "operands"), [(MOST_STEPS, 1), (12, 12)])
def test_chains_keep_to_the_limits(count: int, operands: int) -> None:
    after = applied(fuse_chains, long_chain(count, operands))
    assert 1 < len(after.nodes) <= 4
    for node in after.nodes:
        assert isinstance(node.op, Chain)
        assert len(node.op.steps) <= MOST_STEPS
        assert len(node.inputs) <= MOST_OPERANDS


def test_whole_numbers_keep_to_themselves() -> None:
    s = Sketch()
    indices, x = s.input(4, element=Element.INT64), s.input(4)
    two = s.constant(np.int64(2))
    even = s("equal", s("mul", indices, two), two)
    graph = s.finish(s("where", even, x, s("neg", x)))
    assert len(applied(fuse_chains, graph).nodes) == 2


def test_products_between_chains_keep_them_apart() -> None:
    s = Sketch()
    x = s.input(2, 4, 4)
    graph = s.finish(s("neg", s(Bmm(), s("exp", x), s("sin", x))))
    assert kinds(applied(fuse_chains, graph))[-2:] == ["Bmm", "neg"]
    assert node_of(graph, Bmm)


def test_probabilities_that_are_returned_are_right_to_their_last_places() -> None:
    s = Sketch()
    x, weights = s.input(2, 6), s.weight(3, 6)
    hidden = s("sigmoid", s(Linear(), x, weights))
    shown = s("sigmoid", s(Linear(), hidden, s.weight(6, 3)))
    graph = s.finish(s(Reshape((12,)), s("mul", shown, s.constant(0.5))))
    after = applied(exact_probabilities, graph)
    assert kinds(after) == ["Linear", "sigmoid", "Linear", "sigmoid", "mul", "Reshape"]
    assert isinstance(after.nodes[1].op, Pointwise) and isinstance(after.nodes[3].op, Chain)
    assert exact_probabilities(after) is after


@pytest.mark.parametrize("target", LEVELS)
def test_a_small_probability_is_right(target: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid()).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    x = torch.tensor([[-85.0, -20.0, -7.5, 30.0]])
    found = sparsejit.compile(model, (x,), target=target, exact=True)(x.numpy())
    wanted = 1 / (1 + np.exp(-np.float64(x.numpy())))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
