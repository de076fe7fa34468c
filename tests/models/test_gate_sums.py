"""A GRU's gates add up what they alone read."""

import numpy as np
import pytest
from guard import EDGES, Edge
from native import run_tiles
from runnable import ISAS

from sparsejit.ir import reference
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.sampling import GruStep
from sparsejit.ir.spec import GruUpdate
from sparsejit.ir.values import Array, Element, Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

NAME = Origin("x")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("hidden", [1, 8, 33, 136])
@pytest.mark.parametrize("number_first", [False, True])
def test_gates_add_a_column_as_an_elementwise_step_does(
    isa: str, edge: Edge, hidden: int, number_first: bool
) -> None:
    """To the bit; where somebody else reads the sum, it is a step of its own."""
    ran = []
    for apart in (False, True):
        graph, given = column_and_gates(hidden, number_first, apart)
        steps = lower_model(graph, ModelOptions(Target.named(isa))).steps
        assert len(steps) == 1 + apart
        ran.append(run_tiles(graph, [array[None] for array in given], Target.named(isa), edge))
    np.testing.assert_array_equal(ran[0].outputs[0], ran[1].outputs[0])
    column, rest, recurrent, state, number = (array.astype(np.float64) for array in given)
    wanted = reference.gru_update(GruUpdate(hidden), number * column + rest, recurrent, state)
    np.testing.assert_allclose(ran[0].outputs[0][0], wanted, atol=1e-6)


def column_and_gates(hidden: int, number_first: bool, apart: bool) -> tuple[Graph, list[Array]]:
    """A GRU whose input gates are a column times a number, plus a vector."""
    random = np.random.default_rng(hidden)
    given: list[Array] = [random.standard_normal(3 * hidden).astype(np.float32) for _ in range(3)]
    given += [np.tanh(random.standard_normal(hidden)).astype(np.float32), np.array(0.7, np.float32)]
    builder = GraphBuilder()
    kinds = [TensorType(array.shape, Element(array.dtype.name)) for array in given]
    column, rest, recurrent, state, number = (builder.input(kind, NAME) for kind in kinds)
    factors = (number, column) if number_first else (column, number)
    gates = builder.one(Pointwise("fma"), *factors, rest, origin=NAME)
    new = builder.one(GruStep(), gates, recurrent, state, origin=NAME)
    return run_passes(builder.finish((new, gates) if apart else (new,))), given
