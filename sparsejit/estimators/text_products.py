"""Graphs whose methods all begin with products of X, without these products.

    x W^T + b, f(x V^T), ...     ->     p M^T + b, f(p N^T), ...   of p = x R^T

The rows of R are the rows of W, V, ... that differ by more than their sign; M and N have a 1 or -1
for each. For counts of texts p is summed over the counts that are not zero, so that a vocabulary
of any size costs nothing. Counts beside other columns of X are multiplied behind scales:

    scaled [X, counts] W^T + b             ->     scaled [X, p] M^T + b
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.columns import HIGH, LOW, MISSING, SCALE, DoubleProduct, ScaledColumns
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
    weights = _weights_of(rows, features)
    made = {name: _without(graph, maps[name], weights.shape[1]) for name, graph in graphs.items()}
    return LeadingProducts(weights, made)


def products_beside(graphs: Mapping[str, Graph], columns: range) -> LeadingProducts | None:
    """The products that read only `columns` of X behind scales; None unless all that read them do.

    In the graphs the products take the place of the columns.
    """
    if not all(_scales_before_products(graph, columns) for graph in graphs.values()):
        return None
    rows: _Rows = {}
    maps = {name: _maps_beside(graph, columns, rows) for name, graph in graphs.items()}
    weights = _weights_of(rows, len(columns))
    made = {
        name: _beside(graph, columns, maps[name], weights.shape[1])
        for name, graph in graphs.items()
    }
    return LeadingProducts(weights, made)


def _scales_before_products(graph: Graph, columns: range) -> bool:
    """Whether only scales, which keep zeros, and products behind them, read some columns of X."""
    (x,) = graph.inputs
    if x in graph.outputs:
        return False
    for node in [node for node in graph.nodes if x in node.inputs]:
        if not isinstance(node.op, ScaledColumns) or node.op.element is not Element.FLOAT64:
            return False
        own = _is_own(graph, node, columns)
        if not own.any():
            continue
        centre, scale, shift, low, high, is_category = graph.constants[node.inputs[2]][
            :MISSING, own
        ]
        is_clipped = (low != -np.inf) | (high != np.inf) | (is_category != 0)
        (y,) = node.outputs
        if is_clipped.any() or (shift - scale * centre).any() or y in graph.outputs:
            return False
        if not all(_is_product(graph, each, y) for each in graph.nodes if y in each.inputs):
            return False
    return True


def _is_own(graph: Graph, node: Node, columns: range) -> Array:
    """Whether each column that a node scales is one of `columns` of X."""
    places = graph.constants[node.inputs[1]]
    return (places >= columns.start) & (places < columns.stop)


def _maps_beside(graph: Graph, columns: range, rows: _Rows) -> dict[Node, tuple[Array, Array]]:
    """As `_maps_of`, for each product of scaled columns of which some are `columns` of X."""
    found = {}
    for node in [node for node in graph.nodes if graph.inputs[0] in node.inputs]:
        own = _is_own(graph, node, columns)
        if not own.any():
            continue
        places, numbers = (graph.constants[each] for each in node.inputs[1:3])
        for product in [each for each in graph.nodes if node.outputs[0] in each.inputs]:
            scaled = graph.constants[product.inputs[1]][:, own] * numbers[SCALE, own]
            weights = np.zeros((len(columns), len(scaled)))
            np.add.at(weights, places[own] - columns.start, scaled.T)
            found[product] = _placed(weights.T + 0.0, rows)
    return found


def _beside(
    graph: Graph, columns: range, maps: Mapping[Node, tuple[Array, Array]], products: int
) -> Graph:
    """The graph of X with products in the place of columns."""
    (x,) = graph.inputs
    width = x.shape[1] - len(columns) + products
    own_x = Value(TensorType((x.shape[0], width), Element.FLOAT64), x.origin)
    constants, nodes = dict(graph.constants), []
    kept_of: dict[Value, tuple[Value, Array]] = {}  # by the scaled columns before

    def constant(array: Array, element: Element) -> Value:
        value = Value(TensorType(array.shape, element), x.origin)
        constants[value] = array.astype(element.value)
        return value

    for node in graph.nodes:
        if x in node.inputs:
            own = _is_own(graph, node, columns)
            places, numbers = (graph.constants[each] for each in node.inputs[1:3])
            moved = places + (products - len(columns)) * (places >= columns.stop)
            if own.any():
                (y,) = node.outputs
                moved = np.append(moved[~own], columns.start + np.arange(products))
                same = np.zeros((len(numbers), products))
                same[SCALE], same[LOW], same[HIGH] = 1, -np.inf, np.inf
                numbers = np.concatenate([numbers[:, ~own], same], axis=1)
                made = Value(replace(y.type, shape=(y.shape[0], len(moved))), y.origin)
                kept_of[y] = made, ~own
            operands = constant(moved, Element.INT64), constant(numbers, Element.FLOAT64)
            outputs = (kept_of[node.outputs[0]][0],) if own.any() else node.outputs
            node = Node(node.op, (own_x, *operands), outputs)
        elif node in maps:
            y, weights, *rest = node.inputs
            made, kept = kept_of[y]
            taken = _taken(*maps[node], products)
            whole = np.concatenate([graph.constants[weights][:, kept], taken], axis=1)
            node = Node(node.op, (made, constant(whole, weights.type.element), *rest), node.outputs)
        nodes.append(node)
    return _finished(graph, own_x, nodes, constants, products)


def _begins_with_products(graph: Graph) -> bool:
    (x,) = graph.inputs
    readers = [node for node in graph.nodes if x in node.inputs]
    return x not in graph.outputs and all(_is_product(graph, node, x) for node in readers)


def _is_product(graph: Graph, node: Node, x: Value) -> bool:
    """Whether a node multiplies x by constants."""
    is_product = isinstance(node.op, DoubleProduct | Linear) and node.inputs[0] is x
    return is_product and node.inputs[1] in graph.constants and x not in node.inputs[1:]


def _maps_of(graph: Graph, rows: _Rows) -> dict[Node, tuple[Array, Array]]:
    """For each product of x, the row of R of each of its rows, and the sign: 1, -1, or 0."""
    found = {}
    for node in graph.nodes:
        if node.inputs[0] is not graph.inputs[0]:
            continue
        weights = graph.constants[node.inputs[1]].astype(np.float64) + 0.0  # no -0.0
        found[node] = _placed(weights, rows)
    return found


def _placed(weights: Array, rows: _Rows) -> tuple[Array, Array]:
    """The row of R of each row of weights, and the sign: 1, -1, or 0."""
    signs = np.zeros(len(weights))
    places = np.zeros(len(weights), np.int64)
    for number, row in enumerate(weights):
        if not row.any():
            continue
        signs[number] = np.sign(row[np.flatnonzero(row)[0]])
        own = (row * signs[number] + 0.0).tobytes()
        places[number] = rows.setdefault(own, len(rows))
    return places, signs


def _weights_of(rows: _Rows, features: int) -> Array:
    """The rows of R as weights (features, products)."""
    found = [np.frombuffer(row, np.float64) for row in rows]
    return np.stack(found, axis=1) if found else np.zeros((features, 1))


def _taken(places: Array, signs: Array, products: int) -> Array:
    """M (outputs, products): a sign in the place of each output."""
    taken = np.zeros((len(places), products))
    taken[np.arange(len(places)), places] = signs
    return taken


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
            taken, rest = _taken(*maps[node], products), node.inputs[2:]
            if isinstance(node.op, DoubleProduct):
                op = replace(node.op, element=Element.FLOAT64)
                node = Node(op, (p, constant(taken, Element.FLOAT64), *rest), node.outputs)
            else:
                node = Node(node.op, (short, constant(taken, Element.FLOAT32), *rest), node.outputs)
        nodes.append(node)
    return _finished(graph, p, nodes, constants, products)


def _finished(
    graph: Graph, x: Value, nodes: list[Node], constants: Mapping[Value, Array], products: int
) -> Graph:
    """The graph of other nodes of x, with the constants that they read."""
    used = {value for node in nodes for value in node.inputs}
    kept = {value: array for value, array in constants.items() if value in used}
    note = f"X: {products} products of weights and the counts that are not zero"
    notes = (*graph.notes, note)
    return replace(graph, inputs=(x,), nodes=tuple(nodes), constants=kept, notes=notes)
