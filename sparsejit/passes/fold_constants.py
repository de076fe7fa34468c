"""Computes values of constants at compile time, such as masks of pruning and weight norm.

    M = mul(W, mask)                  y = linear(x, M)       (M a constant)
    y = linear(x, M)             ->

The operators' references compute in float64. Results are rounded to float32 once at the end, and
before functions that jump where operands hardly differ: 0.7 * 10 is just below 7 in float64, and 7
in float32.
"""

from dataclasses import replace

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.pointwise import FUNCTIONS, ROUNDINGS, Cast, Chain, Pointwise
from sparsejit.ir.ops.selection import ArgMax, TopK
from sparsejit.ir.ops.views import Expand, Permute, Reshape
from sparsejit.ir.values import Array, Origin, Value
from sparsejit.passes.rewriter import Site, rewrite

_STEPS = {
    *(name for name, function in FUNCTIONS.items() if function.to_bool),
    *("floor", "ceil", "round", "trunc", "sign", "copysign", *ROUNDINGS.values()),
}
# An Expand to more than this stays: chains broadcast their operands as they are.
MOST_EXPANDED_BYTES = 64 * 1024


def fold_constants(graph: Graph) -> Graph:
    """The graph without nodes that read only constants."""
    exact: dict[Value, Array] = {}

    def rule(site: Site) -> tuple[Value, ...] | None:
        if not all(map(site.is_constant, site.inputs)) or _grows_too_much(site):
            return None
        known = {} if _jumps(site.op) else exact
        operands = [known[v] if v in known else _widened(site, v) for v in site.inputs]
        results = site.op.reference(*operands)
        pairs = zip(results, site.outputs, strict=True)
        made = tuple(
            site.constant(_rounded(x, old), _origin(site, old), old) for x, old in pairs
        )
        exact.update(zip(made, results, strict=True))
        return made

    return rewrite(graph, rule)


def _origin(site: Site, result: Value) -> Origin:
    """The result's origin, with the weights of operands whose zeros it has (`Origin.weights`).

    Products, transposes and reshapes keep zeros.
    """
    is_product = isinstance(site.op, Pointwise) and site.op.kind == "mul"
    if not is_product and not isinstance(site.op, Permute | Reshape):
        return result.origin
    known = [value.origin for value in site.inputs]
    weights = tuple(dict.fromkeys(name for each in known for name in each.weights))
    is_computed = any(each.is_computed for each in known)
    return replace(result.origin, weights=weights, is_computed=is_computed)


def _jumps(op: Operator) -> bool:
    """Whether a small difference of operands may make a large difference of the result."""
    if isinstance(op, Chain):
        return any(step.kind in _STEPS for step in op.steps)
    return isinstance(op, Cast | ArgMax | TopK) or getattr(op, "kind", "") in _STEPS


def _grows_too_much(site: Site) -> bool:
    return isinstance(site.op, Expand) and site.output.type.bytes > MOST_EXPANDED_BYTES


def _widened(site: Site, value: Value) -> Array:
    array = site.array(value)
    assert array is not None
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _rounded(array: Array, value: Value) -> Array:
    """A copy of the result in the dtype of the value."""
    with np.errstate(over="ignore"):
        return np.array(array, value.type.element.value, order="C")
