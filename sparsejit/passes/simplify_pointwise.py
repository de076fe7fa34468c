"""Algebra on functions of single elements; every rule is exact, except for the sign of zero.

    y = mul(x, 1)                     z = relu(x)
    z = maximum(0, expand(y))    ->   w = expand(z)

Constants move to the right, x - constant becomes a sum, expanded operands are read unexpanded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.views import Expand
from sparsejit.ir.values import Array, Value
from sparsejit.passes.common_subexpressions import COMMUTATIVE
from sparsejit.passes.rewriter import Rule, Site, rewrite

Found = Sequence[Value] | None

# By function, the right operand that leaves the left one as it is.
NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
# (outer, inner) and the function that equals outer(inner(x)); empty for x itself.
UNARY_PAIRS = {
    ("neg", "neg"): "",
    ("relu", "relu"): "relu",
    ("abs", "neg"): "abs",
    ("abs", "abs"): "abs",
    ("square", "neg"): "square",
    ("square", "abs"): "square",
    ("reciprocal", "sqrt"): "rsqrt",
}
# The function of x and y that equals the function of x and -y.
NEGATED_RIGHT = {"add": "sub", "sub": "add"}
BOUNDS: dict[str, Callable[[float, float], float]] = {"maximum": max, "minimum": min}


def simplify_pointwise(graph: Graph) -> Graph:
    """The graph after one walk with the rules of this file."""
    return rewrite(graph, _elementwise, _narrow)


def _elementwise(site: Site) -> Found:
    if not isinstance(site.op, Pointwise):
        return None
    return next((made for rule in RULES if (made := rule(site)) is not None), None)


def kind_of(node: Node | None) -> str:
    """The function of a Pointwise node, else an empty string."""
    return node.op.kind if node is not None and isinstance(node.op, Pointwise) else ""


def _kind(site: Site) -> str:
    assert isinstance(site.op, Pointwise)
    return site.op.kind


def _narrow(site: Site) -> Found:
    """f(expand(x), constant) becomes expand(f(x, constant)); without the expand if shapes agree.

    Constants lose elements that only repeat.
    """
    if not isinstance(site.op, Pointwise | Chain):
        return None
    sources = tuple(_narrowed(site, value) for value in site.inputs)
    if sources == site.inputs:
        return None
    types = site.op.infer(*(value.type for value in sources))
    if types == tuple(value.type for value in site.outputs):
        return site.add(site.op, *sources)
    if isinstance(site.op, Chain):
        return None
    return site.expanded(site.one(site.op, *sources))


def _narrowed(site: Site, value: Value) -> Value:
    node = site.producer(value)
    if node is not None and isinstance(node.op, Expand):
        return node.inputs[0]
    array = site.array(value)
    if array is None or array.size <= 1:
        return value
    small = _without_repeats(array)
    return value if small.shape == array.shape else site.constant(small, value.origin, value)


def _without_repeats(array: Array) -> Array:
    """The array with one element along every axis along which it does not change."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and np.array_equal(array, np.broadcast_to(first, array.shape)):
            array = first
    return array


def _constants_right(site: Site) -> Found:
    if _kind(site) not in COMMUTATIVE:
        return None
    left, right, *rest = site.inputs
    same_element = left.type.element is right.type.element
    if same_element and site.is_constant(left) and not site.is_constant(right):
        return site.add(site.op, right, left, *rest)
    return None


def _neutral(site: Site) -> Found:
    kind = _kind(site)
    if kind in NEUTRAL and site.number(site.inputs[1]) == NEUTRAL[kind]:
        return site.expanded(site.inputs[0])
    return None


def _unary_pair(site: Site) -> Found:
    inner = site.producer(site.inputs[0])
    made = UNARY_PAIRS.get((_kind(site), kind_of(inner)))
    if made is None or inner is None or (made == "rsqrt" and not site.is_float):
        return None
    return (site.one(Pointwise(made), *inner.inputs) if made else inner.inputs[0],)


def _negation(site: Site) -> Found:
    """0 - x and x * -1 become -x; x + -y and -y + x become x - y; x - -y becomes x + y.

    x - constant becomes x + (-constant).
    """
    kind = _kind(site)
    if not site.is_float or len(site.inputs) != 2:
        return None
    left, right = site.inputs
    if kind == "sub" and site.number(left) == 0 and right.shape == site.output.shape:
        return (site.one(Pointwise("neg"), right),)
    if kind == "mul" and site.number(right) == -1 and left.shape == site.output.shape:
        return (site.one(Pointwise("neg"), left),)
    node, other = site.producer(right), site.producer(left)
    if kind in NEGATED_RIGHT and node is not None and kind_of(node) == "neg":
        return (site.one(Pointwise(NEGATED_RIGHT[kind]), left, node.inputs[0]),)
    if kind == "add" and other is not None and kind_of(other) == "neg":
        return (site.one(Pointwise("sub"), right, other.inputs[0]),)
    array = site.array(right)
    if kind == "sub" and array is not None and not site.is_constant(left):
        return (site.one(Pointwise("add"), left, site.constant(-array, right.origin)),)
    return None


def _division(site: Site) -> Found:
    """Division by powers of two becomes a product, and 1 / x a reciprocal."""
    if _kind(site) != "div" or not site.is_float:
        return None
    left, right = site.inputs
    if site.number(left) == 1 and right.shape == site.output.shape:
        return (site.one(Pointwise("reciprocal"), right),)
    divisor = site.array(right)
    if divisor is None or not _are_powers_of_two(divisor):
        return None
    inverse = site.constant(1 / divisor, right.origin)
    return (site.one(Pointwise("mul"), left, inverse),)


def _are_powers_of_two(array: Array) -> bool:
    """Whether the reciprocals of all are exact, and normal float32 numbers."""
    mantissa, exponent = np.frexp(array)
    return bool(np.all((np.abs(mantissa) == 0.5) & (exponent > -120) & (exponent < 120)))


def _bound(site: Site) -> Found:
    """maximum(x, 0) is relu; of two bounds on the same side one remains."""
    bound = _bound_of(site, _kind(site), site.inputs)
    if bound is None or not site.is_float or site.inputs[0].shape != site.output.shape:
        return None
    side, limit = bound
    inner = site.producer(site.inputs[0])
    within = _bound_of(site, kind_of(inner), inner.inputs) if inner is not None else None
    if inner is not None and within is not None and within[0] == side:
        tighter = site.constant(np.asarray(BOUNDS[side](limit, within[1])))
        return site.expanded(site.one(Pointwise(side), inner.inputs[0], tighter))
    if _kind(site) == "maximum" and limit == 0:
        return (site.one(Pointwise("relu"), site.inputs[0]),)
    return None


def _bound_of(site: Site, kind: str, inputs: Sequence[Value]) -> tuple[str, float] | None:
    """The side ("maximum" or "minimum") and the number of a function that bounds x, else None."""
    limit = site.number(inputs[1]) if kind in BOUNDS else None
    if kind == "relu":
        return "maximum", 0.0
    return (kind, limit) if limit is not None else None


def _square(site: Site) -> Found:
    if _kind(site) == "mul" and site.inputs[0] is site.inputs[1] and site.is_float:
        return (site.one(Pointwise("square"), site.inputs[0]),)
    return None


def _known_choice(site: Site) -> Found:
    """where(condition, a, b) becomes a, or b, if the constant condition is the same throughout."""
    chosen = site.number(site.inputs[0]) if _kind(site) == "where" else None
    return None if chosen is None else site.expanded(site.inputs[1 if chosen else 2])


RULES: tuple[Rule, ...] = (
    *(_constants_right, _neutral, _unary_pair, _negation, _division, _bound, _square),
    _known_choice,
)
