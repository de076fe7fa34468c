"""Every pass, alone and all together, keeps what random graphs compute."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import GraphCase, graph_cases
from random_operators import WITH_SEVERAL_RESULTS

import sparsejit.passes
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.passes.default import PASSES, Pass, run_passes
from sparsejit.passes.last_layers import LastLayers

SAMPLES = 3
# Arguments that functions take beside a graph.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("byte_layers", "byte_columns"), (lambda node: True,)),
    **dict.fromkeys(("with_scales", "in_float32", "with_rounded_sums"), ((),)),
    "last_layers": (SAMPLES, 4),
    "weights_behind": (4,),
    "rewrite": (lambda site: None,),
}


def functions_of_graphs() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function of sparsejit.passes whose first parameter alone is a graph.

    `step_graph` takes a model at two lengths; `test_steps` has random models for it.
    """
    for found in pkgutil.iter_modules(sparsejit.passes.__path__):
        module = import_module(f"sparsejit.passes.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            kinds = [each.annotation for each in inspect.signature(function).parameters.values()]
            is_own = function.__module__ == module.__name__ and not name.startswith("_")
            if is_own and kinds[:1] == ["Graph"] and "Graph" not in kinds[1:]:
                yield name, function


FUNCTIONS = dict(functions_of_graphs())


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


@settings(max_examples=150)
@given(graph_cases(operators=WITH_SEVERAL_RESULTS))
def test_all_passes_leave_nothing_to_change(case: GraphCase) -> None:
    after = run_passes(case.graph)
    assert run_passes(after) is after


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda step: step.__name__)
@settings(max_examples=40)
@given(case=graph_cases(6))
def test_one_pass_keeps_what_a_graph_computes(step: Pass, case: GraphCase) -> None:
    check(case, step(case.graph))


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25)
@given(case=graph_cases(6, WITH_SEVERAL_RESULTS))
def test_nodes_may_have_several_results(name: str, case: GraphCase) -> None:
    """As a model is written, and after all passes, which leave chains with several results."""
    for graph in (case.graph, run_passes(case.graph)):
        made = FUNCTIONS[name](graph, *_ARGUMENTS.get(name, ()))
        if isinstance(made, Graph):
            check(case, made)
        if isinstance(made, LastLayers):
            check_last(graph, made, case)


def check_last(graph: Graph, made: LastLayers, case: GraphCase) -> None:
    """Each of equal samples has the results of the single one."""
    trunk = Graph(graph.inputs, made.read, graph.nodes, graph.constants)
    read = [np.repeat(each, SAMPLES, axis=0) for each in trunk.evaluate(case.inputs)]
    wanted = graph.evaluate(case.inputs)
    for number, found in zip(made.outputs, made.graph.evaluate(read), strict=True):
        np.testing.assert_allclose(found, np.repeat(wanted[number], SAMPLES, axis=0), rtol=1e-6)
