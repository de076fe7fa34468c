"""Graphs whose methods all begin with products of X, without these products.

    x W^T + b, f(x V^T), ...     ->     p M^T + b, f(p N^T), ...   of p = x R^T

The rows of R are the rows of W, V, ... that differ by more than their sign; M and N have a 1 or -1
for each. For counts of texts p is summed over the counts that are not zero, so that a vocabulary
of any size costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.columns import DoubleProduct
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.values import Array, Element, TensorType, Value

_Rows = dict[bytes, int]


@dataclass(frozen=True, eq=False)
class LeadingProducts:
    """The weights (features, products) float64, and the graphs of the products by method."""

    weights: Array
    graphs: Mapping[str, Graph]


def products_of(graphs: Mapping[str, Graph]) -> LeadingProducts | None:
    """The products with which the graphs of all methods begin; None unless all do."""
    if not all(map(_begins_with_products, graphs.values())):
        return None
    features = next(iter(graphs.values())).inputs[0].shape[1]
    rows: _Rows = {}
    maps = {name: _maps_of(graph, rows) for name, graph in graphs.items()}
    found = [np.frombuffer(row, np.float64) for row in rows]
    weights = np.stack(found, axis=1) if found else np.zeros((features, 1))
    made = {name: _without(graph, maps[name], weights.shape[1]) for name, graph in graphs.items()}
    return LeadingProducts(weights, made)


def _begins_with_products(graph: Graph) -> bool:
    (x,) = graph.inputs
    readers = [node for node in graph.nodes if x in node.inputs]
    return x not in graph.outputs and all(
        isinstance(node.op, DoubleProduct | Linear)
        and node.inputs[0] is x
        and node.inputs[1] in graph.constants
        for node in readers
    )


def _maps_of(graph: Graph, rows: _Rows) -> dict[Node, tuple[Array, Array]]:
    """For each product of x, the row of R of each of its rows, and the sign: 1, -1, or 0."""
    found = {}
    for node in graph.nodes:
        if node.inputs[0] is not graph.inputs[0]:
            continue
        weights = graph.constants[node.inputs[1]].astype(np.float64) + 0.0  # no -0.0
        signs = np.zeros(len(weights))
        places = np.zeros(len(weights), np.int64)
        for number, row in enumerate(weights):
            if not row.any():
                continue
            signs[number] = np.sign(row[np.flatnonzero(row)[0]])
            own = (row * signs[number] + 0.0).tobytes()
            places[number] = rows.setdefault(own, len(rows))
        found[node] = places, signs
    return found


def _without(graph: Graph, maps: Mapping[Node, tuple[Array, Array]], products: int) -> Graph:
    """The graph of p (batch, products), float64."""
    (x,) = graph.inputs
    p = Value(TensorType((x.shape[0], products), Element.FLOAT64), x.origin)
    constants, nodes = dict(graph.constants), []

    def constant(array: Array, element: Element) -> Value:
        value = Value(TensorType(array.shape, element), x.origin)
        constants[value] = array.astype(element.value)
        return value

    short = Value(TensorType(p.shape), x.origin)
    if any(isinstance(node.op, Linear) for node in maps):
        unchanged = [np.eye(products), np.zeros(products)]
        operands = [constant(each, Element.FLOAT64) for each in unchanged]
        nodes.append(Node(DoubleProduct(), (p, *operands), (short,)))
    for node in graph.nodes:
        if node in maps:
            places, signs = maps[node]
            taken = np.zeros((len(places), products))
            taken[np.arange(len(places)), places] = signs
            rest = node.inputs[2:]
            if isinstance(node.op, DoubleProduct):
                op = replace(node.op, element=Element.FLOAT64)
                node = Node(op, (p, constant(taken, Element.FLOAT64), *rest), node.outputs)
            else:
                node = Node(node.op, (short, constant(taken, Element.FLOAT32), *rest), node.outputs)
        nodes.append(node)
    used = {value for node in nodes for value in node.inputs}
    kept = {value: array for value, array in constants.items() if value in used}
    note = f"X: {products} products of weights and the counts that are not zero"
    notes = (*graph.notes, note)
    return replace(graph, inputs=(p,), nodes=tuple(nodes), constants=kept, notes=notes)
