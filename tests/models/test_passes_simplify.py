"""Algebra on functions of elements and on views, on small graphs."""

from collections.abc import Callable

import numpy as np
import pytest
from sketch import Sketch, applied, kinds

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.values import Value
from sparsejit.passes.default import run_passes
from sparsejit.passes.merge_views import merge_views, move_views, simplify_views
from sparsejit.passes.simplify_pointwise import simplify_pointwise

Write = Callable[[Sketch, Value], Value]


def simplified(graph: Graph) -> Graph:
    before: Graph | None = None
    while graph is not before:
        before, graph = graph, simplify_views(simplify_pointwise(graph))
    return graph


POINTWISE: dict[str, tuple[Write, list[str]]] = {
    "x + 0": (lambda s, x: s("add", x, s.constant(0.0)), []),
    "0 + x": (lambda s, x: s("add", s.constant(0.0), x), []),
    "x - 0": (lambda s, x: s("sub", x, s.constant([0.0] * 6)), []),
    "x * 1": (lambda s, x: s("mul", x, s.constant(1.0)), []),
    "x / 1": (lambda s, x: s("div", x, s.constant(1.0)), []),
    "x + 0 that repeats": (lambda s, x: s("add", x, s.constant(np.zeros((3, 4, 6)))), ["Expand"]),
    "- -x": (lambda s, x: s("neg", s("neg", x)), []),
    "0 - x": (lambda s, x: s("sub", s.constant(0.0), x), ["neg"]),
    "x * -1": (lambda s, x: s("mul", x, s.constant(-1.0)), ["neg"]),
    "x + -y": (lambda s, x: s("add", x, s("neg", s("exp", x))), ["exp", "sub"]),
    "-y + x": (lambda s, x: s("add", s("neg", s("exp", x)), x), ["exp", "sub"]),
    "x - -y": (lambda s, x: s("sub", x, s("neg", s("exp", x))), ["exp", "add"]),
    "x - c": (lambda s, x: s("sub", x, s.constant(3.0)), ["add"]),
    "x / 4": (lambda s, x: s("div", x, s.constant(4.0)), ["mul"]),
    "x / 3": (lambda s, x: s("div", x, s.constant(3.0)), ["div"]),
    "1 / x": (lambda s, x: s("div", s.constant(1.0), s("exp", x)), ["exp", "reciprocal"]),
    "1 / sqrt": (lambda s, x: s("reciprocal", s("sqrt", s("exp", x))), ["exp", "rsqrt"]),
    "x * x": (lambda s, x: s("mul", x, x), ["square"]),
    "max(x, 0)": (lambda s, x: s("maximum", x, s.constant(0.0)), ["relu"]),
    "max(max(x, 1), -2)": (
        lambda s, x: s("maximum", s("maximum", x, s.constant(1.0)), s.constant(-2.0)),
        ["maximum"],
    ),
    "relu(max(x, -1))": (lambda s, x: s("relu", s("maximum", x, s.constant(-1.0))), ["relu"]),
    "clamp": (
        lambda s, x: s("minimum", s("maximum", x, s.constant(0.0)), s.constant(0.7)),
        ["relu", "minimum"],
    ),
    "where(true, x, y)": (
        lambda s, x: s("where", s.constant(np.ones((4, 1), bool)), x, s("exp", x)),
        [],
    ),
    "expanded operand": (
        lambda s, x: s("add", x, s(Expand((4, 6)), s.weight(6))),
        ["add"],
    ),
    "expanded x": (
        lambda s, x: s("exp", s(Expand((3, 4, 6)), x)),
        ["exp", "Expand"],
    ),
}


@pytest.mark.parametrize("case", POINTWISE)
def test_functions_are_simplified(case: str) -> None:
    write, expected = POINTWISE[case]
    s = Sketch()
    x = s.input(4, 6)
    graph = s.finish(write(s, x))
    after = applied(simplified, graph)
    assert kinds(after) == expected
    assert simplified(after) is after


def test_constants_lose_what_repeats_in_them() -> None:
    s = Sketch()
    x = s.input(4, 6)
    after = applied(simplified, s.finish(s("mul", x, s.constant(np.full((4, 6), 3.0)))))
    assert [array.shape for array in after.constants.values()] == [(1, 1)]


VIEWS: dict[str, tuple[Write, list[Operator]]] = {
    "same shape": (lambda s, x: s(Reshape((4, 1, 6)), x), []),
    "same order": (lambda s, x: s(Permute((0, 1, 2)), x), []),
    "all of it": (lambda s, x: s(Slice(0, 0, 4), x), []),
    "expand to itself": (lambda s, x: s(Expand((4, 1, 6)), x), []),
    "concat of one": (lambda s, x: s(Concat(-1), x), []),
    "no padding": (lambda s, x: s(Pad(((0, 0),) * 3), x), []),
    "reshape twice": (lambda s, x: s(Reshape((2, 12)), s(Reshape((24,)), x)), [Reshape((2, 12))]),
    "there and back": (lambda s, x: s(Permute((2, 0, 1)), s(Permute((1, 2, 0)), x)), []),
    "moves ones only": (lambda s, x: s(Permute((1, 0, 2)), x), [Reshape((1, 4, 6))]),
    "slice twice": (lambda s, x: s(Slice(2, 1, 3), s(Slice(2, 1, 6, 2), x)), [Slice(2, 3, 6, 2)]),
    "pad twice": (
        lambda s, x: s(Pad(((0, 1),) * 3), s(Pad(((1, 0),) * 3), x)),
        [Pad(((1, 1),) * 3)],
    ),
    "slice of concat": (
        lambda s, x: s(Slice(-1, 7, 9), s(Concat(-1), x, s.input(4, 1, 3))),
        [Slice(2, 1, 3)],
    ),
    "cut and joined": (
        lambda s, x: s(Concat(-1), s(Slice(-1, 0, 2), x), s(Slice(-1, 2, 5), x)),
        [Slice(2, 0, 5)],
    ),
    "concat of concat": (
        lambda s, x: s(Concat(0), s(Concat(0), x, s.input(4, 1, 6)), s.input(4, 1, 6)),
        [Concat(0)],
    ),
}


@pytest.mark.parametrize("case", VIEWS)
def test_views_are_simplified(case: str) -> None:
    write, expected = VIEWS[case]
    s = Sketch()
    after = applied(simplified, s.finish(write(s, s.input(4, 1, 6))))
    assert [node.op for node in after.nodes] == expected


def moved(graph: Graph) -> Graph:
    before: Graph | None = None
    while graph is not before:
        before, graph = graph, simplify_views(move_views(graph))
    return graph


def test_views_move_behind_what_computes() -> None:
    s = Sketch()
    y = s(Linear(), s(Reshape((6, 8)), s.input(2, 3, 8)), s.weight(5, 8))
    turned = s(Permute((1, 0)), s(Reshape((3, 10)), y))
    after = applied(moved, s.finish(s("tanh", s("mul", turned, s.constant(0.5)))))
    assert kinds(after) == ["Linear", "mul", "tanh", "Reshape", "Permute"]


def test_chains_move_where_their_rows_stay() -> None:
    s = Sketch()
    rows, others = (s(Reshape(shape), s.input(2, 3, 8)) for shape in ((6, 8), (3, 16)))
    graph = s.finish(s(softmax((6, 8)), rows), s(softmax((3, 16)), others))
    assert kinds(applied(moved, graph)) == ["Reshape", "softmax", "Reshape", "softmax"]


def test_views_stay_before_vectors_that_follow_their_axes() -> None:
    s = Sketch()
    graph = s.finish(s("mul", s(Permute((1, 0)), s.input(4, 6)), s.weight(4)))
    assert move_views(graph) is graph


def test_a_view_of_no_elements_stays_before_what_broadcasts() -> None:
    s = Sketch()
    view = s(Reshape((1, 5, 0, 0)), s.input(5, 1, 0, 0))
    graph = s.finish(s("div", view, s.constant(np.ones((1, 5, 1, 0)))))
    assert move_views(graph) is graph


def test_layers_over_rows_and_over_batches_need_no_reshapes() -> None:
    s = Sketch()
    y = s(Linear(), s(Reshape((6, 8)), s.input(2, 3, 8)), s.weight(5, 8))
    y = s("relu", s(Reshape((2, 3, 5)), y))
    y = s(Linear(), s(Reshape((6, 5)), y), s.weight(8, 5))
    after = applied(run_passes, s.finish(s(Reshape((2, 3, 8)), y)))
    assert kinds(after) == ["Linear", "Linear"]


def test_two_permutes_with_a_reshape_between_become_one() -> None:
    s = Sketch()
    y = s(Permute((1, 0, 2)), s(Reshape((6, 8, 16)), s.input(6, 2, 64)))
    y = s(Permute((0, 2, 1, 3)), s(Reshape((2, 4, 6, 16)), y))
    after = applied(run_passes, s.finish(y))
    assert [node.op for node in after.nodes] == [Reshape((6, 2, 4, 16)), Permute((1, 0, 2, 3))]


def test_parts_are_cut_out_before_they_are_turned() -> None:
    s = Sketch()
    split = s(Permute((2, 1, 0, 3)), s(Reshape((6, 2, 3, 16)), s.input(6, 2, 48)))
    y = s(Reshape((2, 6, 16)), s(Slice(0, 1, 2), split))
    after = applied(run_passes, s.finish(s(Bmm(), y, s.input(2, 16, 3))))
    assert kinds(after) == ["Slice", "Permute", "Bmm"]
    assert after.nodes[0].op == Slice(2, 16, 32)


def test_permutes_that_no_single_one_can_replace_stay() -> None:
    s = Sketch()
    y = s(Permute((1, 0)), s(Reshape((4, 6)), s(Permute((1, 0)), s.input(4, 6))))
    graph = s.finish(y)
    assert merge_views(graph) is graph
