"""Random small graphs through all passes to machine code, against their float64 reference."""

import numpy as np
import pytest
from guard import EDGES, Edge, run_in_child
from hypothesis import given, settings
from native import built_model, run_built
from random_graphs import GraphCase, graph_cases
from random_operators import WITH_SEVERAL_RESULTS
from runnable import ISAS

from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

TILES = 2
# A share of the largest element of a result: the cost of a kernel's order of sums and functions.
ROUNDING = 1e-6
# The multiple of one such error at every node by which outputs may be off.
MARGIN = 4


def disturbed(graph: Graph, inputs: list[Array], seed: int) -> list[Array]:
    """The outputs in float64 with an error as of float32 added to each node's result."""
    random = np.random.default_rng(seed)
    known = {value: _wide(array) for value, array in graph.constants.items()}
    known.update(zip(graph.inputs, map(_wide, inputs), strict=True))
    for node in graph.nodes:
        results = node.op.reference(*(known[value] for value in node.inputs))
        for value, result in zip(node.outputs, results, strict=True):
            known[value] = result
            if result.dtype.kind == "f":
                size = np.abs(result).max(initial=0)
                known[value] = result + ROUNDING * size * random.choice([-1, 1], result.shape)
    return [known[value] for value in graph.outputs]


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def check_native(case: GraphCase, target: Target) -> None:
    """Compare machine code's results for the graph with the graph's own, tile by tile."""
    built = built_model(lower_model(run_passes(case.graph), ModelOptions(target)))
    wanted = case.graph.evaluate(case.inputs)
    others = [disturbed(case.graph, case.inputs, seed) for seed in range(2)]
    inputs = [np.stack([array] * TILES) for array in case.inputs]

    def check(edge: Edge) -> None:
        ran = run_built(built, inputs, edge)
        assert ran.status == 0
        for number, (got, reference) in enumerate(zip(ran.outputs, wanted, strict=True)):
            spread = max(np.abs(_wide(o[number] * 1.0) - reference).max(initial=0) for o in others)
            bound = MARGIN * spread + ROUNDING * np.abs(reference * 1.0).max(initial=1e-3)
            for tile in got:
                np.testing.assert_allclose(tile * 1.0, reference * 1.0, rtol=0, atol=bound)

    run_in_child([(f"{edge} of memory", lambda e=edge: check(e)) for edge in EDGES]).assert_clean()


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60)
@given(case=graph_cases())
def test_machine_code_computes_what_a_random_graph_does(isa: str, case: GraphCase) -> None:
    check_native(case, Target.named(isa))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(case=graph_cases(8, WITH_SEVERAL_RESULTS))
def test_nodes_with_several_results(isa: str, case: GraphCase) -> None:
    check_native(case, Target.named(isa))
