"""Random small graphs over the operator table, with inputs for them, for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from growing import SIZES, Growing
from hypothesis import strategies as st
from random_operators import OPERATORS, Choice

from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array

MOST_RANK, MOST_OUTPUT = 4, 4096


class GraphCase:
    """A graph, float32 and int64 inputs for it, and the largest number that occurs on the way."""

    def __init__(self, graph: Graph, inputs: list[Array], largest: float) -> None:
        self.graph, self.inputs, self.largest = graph, inputs, largest

    def __repr__(self) -> str:
        return f"GraphCase, numbers up to {self.largest:.3g}:\n{self.graph}"


@st.composite
def graphs(draw: st.DrawFn, most: int = 10) -> tuple[Graph, list[Array]]:
    """(graph, inputs): up to `most` applications of OPERATORS, and one to four outputs."""
    case = draw(graph_cases(most))
    return case.graph, case.inputs


@st.composite
def graph_cases(
    draw: st.DrawFn, most: int = 10, operators: Sequence[Choice] = OPERATORS
) -> GraphCase:
    """As `graphs` over the operators that are given, with the facts of its numbers for tests.

    An output may be an input or a constant, and the same as another.
    """
    grow = Growing(draw)
    for rank in draw(st.lists(st.integers(0, MOST_RANK), min_size=1, max_size=2)):
        shape = tuple(grow.one(list(SIZES[: 9 if rank < 3 else 5])) for _ in range(rank))
        grow.pool.append(grow.input(np.asarray(grow.numbers(*shape), np.float32)))
    for _ in range(draw(st.integers(1, most))):
        grow.one(list(operators))(grow)
    anything = [value for value in grow.known if value.type.size <= MOST_OUTPUT]
    others = draw(st.lists(st.sampled_from([*grow.pool, *anything]), max_size=3))
    graph = grow.builder.finish([grow.pool[-1], *others])
    largest = max(
        float(np.abs(array.astype(np.float64)).max(initial=1)) for array in grow.known.values()
    )
    return GraphCase(graph, grow.inputs, largest)
