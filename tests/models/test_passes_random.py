"""Every pass, alone and all together, keeps what random graphs compute."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import GraphCase, graph_cases

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.passes.default import PASSES, Pass, run_passes


def check(case: GraphCase, after: Graph) -> None:
    """Types and outputs are kept, but for weights rounded to float32 once more."""
    before = case.graph
    assert [v.type for v in after.inputs] == [v.type for v in before.inputs]
    assert [v.type for v in after.outputs] == [v.type for v in before.outputs]
    for value, array in after.constants.items():
        assert (value.shape, value.type.element.value) == (array.shape, array.dtype.name)
    pairs = zip(before.evaluate(case.inputs), after.evaluate(case.inputs), strict=True)
    for wanted, found in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * case.largest)


@settings(max_examples=150)
@given(graph_cases())
def test_all_passes_keep_what_a_graph_computes(case: GraphCase) -> None:
    after = run_passes(case.graph)
    check(case, after)
    assert not any(isinstance(node.op, Pointwise) for node in after.nodes)
    assert run_passes(after) is after


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda step: step.__name__)
@settings(max_examples=40)
@given(case=graph_cases(6))
def test_one_pass_keeps_what_a_graph_computes(step: Pass, case: GraphCase) -> None:
    check(case, step(case.graph))
