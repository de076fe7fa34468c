"""Lets a GRU's gates add the rows of tables that are their input.

g = sum_of_rows(indices, tables, rest)
h' = gru_step(g, recurrent, h)                ->  h' = gru_step_of_rows(..., recurrent, h)

The same sums in the same order. Afterwards the sum's name is gone, so this comes behind what goes
by names.
"""

from sparsejit.ir.graph import Graph, Value
from sparsejit.ir.ops.sampling import GruStep, GruStepOfRows, SumOfRows
from sparsejit.passes.rewriter import Site, rewrite

_MOST_TABLES = 3
_UNITS = 16


def fuse_gate_rows(graph: Graph) -> Graph:
    """The graph with sums of up to three rows inside GRUs of 16 n units that alone read them."""
    return rewrite(graph, _fuse)


def _fuse(site: Site) -> tuple[Value, ...] | None:
    rows = site.producer(site.inputs[0]) if isinstance(site.op, GruStep) else None
    if rows is None or not isinstance(rows.op, SumOfRows) or not site.is_used_once(rows.output):
        return None
    _, recurrent, state = site.inputs
    if len(rows.inputs) // 2 > _MOST_TABLES or state.shape[0] % _UNITS:
        return None
    return site.add(GruStepOfRows(rows.op), *rows.inputs, recurrent, state)
