"""Dead code, equal code, constants, and the loop over all passes, on small graphs."""

import numpy as np
import pytest
from sketch import Sketch, applied, kinds, node_of

from sparsejit.ir.ops.pointwise import Cast
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Expand, Permute
from sparsejit.ir.values import Element
from sparsejit.passes.common_subexpressions import merge_common_subexpressions
from sparsejit.passes.default import run_passes
from sparsejit.passes.fold_constants import MOST_EXPANDED_BYTES, fold_constants
from sparsejit.passes.rewriter import remove_dead_code


def test_unread_nodes_and_constants_go_and_inputs_stay() -> None:
    s = Sketch()
    x, unread = s.input(3, 4), s.input(2)
    s("relu", s("mul", x, s.weight(4)))
    graph = s.finish(s("tanh", x))
    after = applied(remove_dead_code, graph)
    assert kinds(after) == ["tanh"]
    assert after.inputs == (x, unread)
    assert remove_dead_code(after) is after


def test_equal_nodes_and_equal_constants_become_one() -> None:
    s = Sketch()
    x, one, same = s.input(3, 4), s.constant([1.0] * 4), s.constant([1.0] * 4)
    graph = s.finish(s("sub", s("add", x, one), s("add", same, x)))
    after = applied(merge_common_subexpressions, graph)
    assert kinds(after) == ["add", "sub"]
    assert len(after.constants) == 1
    assert merge_common_subexpressions(after) is after


def test_constants_that_differ_in_the_sign_of_zero_stay_apart() -> None:
    s = Sketch()
    x = s.input(2)
    graph = s.finish(s("div", x, s.constant([0.0, 1])), s("div", x, s.constant([-0.0, 1])))
    assert merge_common_subexpressions(graph) is graph


def test_masks_and_transposes_of_weights_are_folded_with_one_rounding() -> None:
    s = Sketch()
    x, v, g, third = s.input(2, 6), s.weight(6, 5), s.weight(6, 5), s.constant(np.float32(1 / 3))
    weights = s(Permute((1, 0)), s("mul", s("mul", v, g), third))
    graph = s.finish(s(Linear(), x, weights))
    after = applied(fold_constants, graph)
    assert kinds(after) == ["Linear"]
    exact = [graph.constants[value].astype(np.float64) for value in (v, g, third)]
    folded = after.constants[node_of(after, Linear).inputs[1]]
    np.testing.assert_array_equal(folded, np.float32(exact[0] * exact[1] * exact[2]).T)


def test_operands_of_steps_are_rounded_first() -> None:
    """0.7 * 10 is 7 in float32, just below it in float64."""
    s = Sketch()
    seven = s("mul", s.constant([np.float32(0.7)]), s.constant([np.float32(10)]))
    above = s("greater_equal", seven, s.constant([7.0]))
    results = s("floor", seven), s(Cast(Element.INT64), seven), above
    after = fold_constants(s.finish(*results))
    assert [after.constants[value].item() for value in after.outputs] == [7.0, 7, True]


def test_a_constant_is_not_expanded_to_much_more() -> None:
    s = Sketch()
    x = s.input(MOST_EXPANDED_BYTES, 4)
    graph = s.finish(s("add", x, s(Expand(x.shape), s.weight(4))))
    assert fold_constants(graph) is graph


def test_debug_output_names_the_passes_that_changed_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    s = Sketch()
    x = s.input(2, 6)
    graph = s.finish(s("relu", s(Linear(), x, s.weight(3, 6))))
    monkeypatch.setenv("SPARSEJIT_DEBUG", "3")
    run_passes(graph)
    shown = capsys.readouterr().err
    assert "after fuse_activations:" in shown
    assert "fold_constants" not in shown
