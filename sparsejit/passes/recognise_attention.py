"""Recognises attention and layer norms that are written out.

    recognise_attention   two products with a softmax between them, as attention
    recognise_norms       a layer norm, written out as in ONNX below opset 17, as one chain

`recognise_attention`:

    s = bmm[transposed](q, k)         y = attention[scale](q, k, v, allowed)
    m = mul(s, scale)
    a = add(m, mask)             ->
    w = softmax(a)
    y = bmm(w, v)

A constant mask becomes one of bools if it only allows and forbids keys: it adds 0 or -infinity, or
`where` replaces scores by it. A finite number forbids where its power is exactly 0 in float32. That
holds below `_FORBIDDING` unless scores themselves differ by nearly as much, and only in rows that
have another key; masks with less negative numbers are left as they are. Where softmax would return
NaN for a row without any key, nothing is replaced. A mask of a call that is a line of keys, as the
filled places of a cache are, makes `cachedattention`, which adds it. A row without any key has
equal shares where a finite number forbids, as the library has it.

`recognise_norms`:

    c = sub(x, mean(x))
    v = mean(square(c))                                  y = layer_norm(x, w, b)
    y = add(mul(div(c, sqrt(add(v, epsilon))), w), b)    ->
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Attention, Bmm, CachedAttention
from sparsejit.ir.ops.views import Expand, Permute, Reshape
from sparsejit.ir.spec import LARGEST_SCALE
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite
from sparsejit.passes.simplify_pointwise import kind_of

# Added to a score, or put in its place: 2^-149, the least float32, is e^-103.3.
_FORBIDDING = -1e8

BoolArray = npt.NDArray[np.bool_]


class _MaskedScores(NamedTuple):
    """The product Q K^T, its scale, and its masks, true where a key is allowed.

    `is_infinite`: all masks forbid by -infinity, so that a row may see no key.
    """

    product: Node
    scale: float
    masks: tuple[BoolArray, ...]
    is_infinite: bool


class _BetweenStep(NamedTuple):
    """A node between the scores `inner` and their softmax: a factor, or a mask.

    `allowed` is true where a key is allowed; `least` is the number that forbids most weakly.
    """

    inner: Value
    factor: float = 1.0
    allowed: BoolArray | None = None
    least: float = -np.inf


def recognise_attention(graph: Graph) -> Graph:
    """The graph with attention as one operator where nothing else reads the values between."""
    return rewrite(graph, lambda site: _attention(site) or _cached(site))


def _attention(site: Site) -> Sequence[Value] | None:
    if not isinstance(site.op, Bmm) or site.op.scale != 1:
        return None
    weights, value = site.inputs
    softmax = _softmax(site, weights)
    scores = None if softmax is None else _scores(site, softmax[0])
    if softmax is None or scores is None:
        return None
    allowed = reduce(np.logical_and, scores.masks, np.ones((1, 1), bool))
    is_safe = softmax[1] and scores.is_infinite
    mask = _mask(allowed, weights.shape)
    if mask is None or not (is_safe or mask.any(axis=-1).all()):
        return None
    op = scores.product.op
    assert isinstance(op, Bmm)
    (query, first), (key, second) = (_unscaled(site, x) for x in scores.product.inputs)
    scale = scores.scale * first * second
    if abs(scale) > LARGEST_SCALE:
        return None
    operands = [query, key if op.transposed else _swapped(site, key)]
    stack = scores.product.output.shape[:-2]
    if stack != weights.shape[:-2]:
        if any(operand.shape[:-2] != stack for operand in operands):
            return None
        shapes = [(*weights.shape[:-2], *operand.shape[-2:]) for operand in operands]
        pairs = zip(operands, shapes, strict=True)
        operands = [site.one(Reshape(shape), operand) for operand, shape in pairs]
    operands.append(_swapped(site, value) if site.op.transposed else value)
    masks = [] if mask.all() else [site.constant(mask)]
    return (site.one(Attention(scale), *operands, *masks),)


# Queries of a cache: beyond these, products of whole matrices are faster.
_MOST_QUERIES = 8
_LEAST = float(np.finfo(np.float32).min)


def _cached(site: Site) -> Sequence[Value] | None:
    """Attention to a cache under a mask of a call, (keys,) for all queries, as one operator."""
    if site.op != Bmm():
        return None
    weights, value = site.inputs
    softmax = _softmax(site, weights)
    found = None if softmax is None else _scores_of_cache(site, softmax[0])
    if softmax is None or found is None:
        return None
    op, (query, key) = found.product.op, found.product.inputs
    if not isinstance(op, Bmm) or abs(found.scale) > LARGEST_SCALE:
        return None
    if not op.transposed:
        turned = site.producer(key)
        is_turned = turned is not None and turned.op == Permute(_turns(key))
        key = turned.inputs[0] if turned is not None and is_turned else _swapped(site, key)
    (own_key, repeats), (own_value, others) = (_before_repeats(site, x) for x in (key, value))
    if repeats == others and repeats * query.shape[-2] <= _MOST_QUERIES:
        key, value = own_key, own_value
        grouped = (*key.shape[:-2], repeats * query.shape[-2], query.shape[-1])
        query = query if repeats == 1 else site.one(Reshape(grouped), query)
    is_whole = key.shape[-1] % 8 == value.shape[-1] % 8 == key.shape[-2] % 16 == 0
    stacks = {each.shape[:-2] for each in (query, key, value)}
    if len(stacks) > 1 or not is_whole or query.shape[-2] > _MOST_QUERIES:
        return None
    line, shape = found.mask.line(site), site.output.shape
    made = site.one(CachedAttention(found.scale, softmax[1]), query, key, value, line)
    return (made if made.shape == shape else site.one(Reshape(shape), made),)


def _before_repeats(site: Site, x: Value) -> tuple[Value, int]:
    """Keys or values before each head of theirs is repeated for several of queries; how often."""
    node = site.producer(x)
    expand = site.producer(node.inputs[0]) if node and isinstance(node.op, Reshape) else None
    if expand is None or not isinstance(expand.op, Expand) or len(expand.op.shape) < 4:
        return x, 1
    (source,), (*stack, heads, repeats, keys, each) = expand.inputs, expand.op.shape
    before, after = (*stack, heads, 1, keys, each), (*stack, heads * repeats, keys, each)
    if source.shape != before or x.shape != after:
        return x, 1
    return site.one(Reshape((*stack, heads, keys, each)), source), repeats


class _LineMask(NamedTuple):
    """A mask of a call, a line for all queries.

    It is added, or forbids by `other` where it is false, or, if `is_turned`, true.
    """

    mask: Value
    other: float = 0.0
    is_turned: bool = False

    def line(self, site: Site) -> Value:
        """Return the numbers that are added to the scores, (keys,).

        A number in the place of scores makes all shares equal in a row of it alone; so does the
        least one where it is added.
        """
        line = site.one(Reshape(self.mask.shape[-1:]), self.mask)
        if not self.other:
            return line
        other = self.other if self.other == -np.inf else _LEAST
        sides = [site.constant(np.asarray(number, np.float32)) for number in (0.0, other)]
        return site.one(Pointwise("where"), line, *(sides[::-1] if self.is_turned else sides))


class _CacheScores(NamedTuple):
    """The product Q K^T, its scale, and its mask."""

    product: Node
    scale: float
    mask: _LineMask


def _scores_of_cache(site: Site, x: Value) -> _CacheScores | None:
    """The product before a softmax, if only factors and one mask of a call lie between."""
    node = site.producer(x)
    found = None if node is None else _line_mask(site, node)
    if found is None or not site.is_used_once(x):
        return None
    (scores, mask), scale = found, 1.0
    while (node := site.producer(scores)) is not None and site.is_used_once(scores):
        if isinstance(node.op, Bmm):
            return _CacheScores(node, scale * node.op.scale, mask)
        step = _between(site, node)
        if step is None or step.allowed is not None or isinstance(node.op, Reshape):
            return None
        scores, scale = step.inner, scale * step.factor
    return None


def _line_mask(site: Site, node: Node) -> tuple[Value, _LineMask] | None:
    """The scores that a node masks by a line of keys, and the mask, else None."""
    kind, inputs = kind_of(node), node.inputs
    if kind == "add":
        for scores, line in (inputs, inputs[::-1]):
            if _is_line(site, line, scores):
                return scores, _LineMask(line)
    if kind == "where":
        line, first, second = inputs
        for scores, other, is_turned in ((first, second, False), (second, first, True)):
            number = site.number(other)
            if number is not None and number <= _FORBIDDING and _is_line(site, line, scores):
                return scores, _LineMask(line, number, is_turned)
    return None


def _is_line(site: Site, mask: Value, scores: Value) -> bool:
    """Whether a mask of a call has one element for each key, the same for all queries."""
    keys = scores.shape[-1:]
    return (
        mask.shape[-1:] == keys != (1,)
        and prod(mask.shape) == keys[0]
        and not site.is_constant(mask)
        and len(mask.shape) <= len(scores.shape)
    )


def _softmax(site: Site, weights: Value) -> tuple[Value, bool] | None:
    """The operand of the softmax that makes `weights`; whether rows of -infinity become zeros."""
    node, uses = site.producer(weights), 1
    if node is not None and kind_of(node) == "where":
        condition, zero, inner = node.inputs
        test = site.producer(condition)
        is_nan = test is not None and kind_of(test) == "not_equal" and test.inputs == (inner, inner)
        if not is_nan or site.number(zero) != 0 or not site.is_used_once(weights):
            return None
        weights, node, uses = inner, site.producer(inner), 3
    if node is None or site.uses(weights) != uses:
        return None
    if node.op == row_chains.softmax(weights.shape):
        return node.inputs[0], uses > 1
    if node.op != row_chains.safe_softmax(weights.shape):
        return None
    least = [site.number(value) for value in node.inputs[1:]]
    known = [np.float32(x) for x in (row_chains.LEAST_SCORE, row_chains.LEAST_TOTAL)]
    return (node.inputs[0], True) if least == known else None


def _scores(site: Site, x: Value) -> _MaskedScores | None:
    """The product before a softmax, if only factors and masks lie between, else None."""
    factor, masks, is_infinite, stack = 1.0, list[BoolArray](), True, x.shape[:-2]
    while (node := site.producer(x)) is not None and site.is_used_once(x):
        if isinstance(node.op, Bmm):
            return _MaskedScores(node, factor * node.op.scale, tuple(masks), is_infinite)
        layer = _between(site, node)
        if layer is None or factor * layer.least > _FORBIDDING:
            return None
        if layer.allowed is not None:
            if x.shape[:-2] != stack and prod(layer.allowed.shape[:-2]) > 1:
                return None  # a Reshape behind it changes its stack
            masks.append(layer.allowed)
            is_infinite = is_infinite and layer.least == -np.inf
        x, factor = layer.inner, factor * layer.factor
    return None


def _between(site: Site, node: Node) -> _BetweenStep | None:
    """A node as a factor or a mask of scores; None for any other node."""
    kind, inputs = kind_of(node), node.inputs
    if isinstance(node.op, Reshape):
        same = inputs[0].shape[-2:] == node.output.shape[-2:]
        return _BetweenStep(inputs[0]) if same else None
    if kind in ("mul", "div"):
        number = site.number(inputs[1])
        if not number or inputs[0].shape != node.output.shape:
            return None
        return _BetweenStep(inputs[0], number if kind == "mul" else 1 / number)
    layer = _sum(site, inputs) if kind == "add" else None
    layer = _choice(site, inputs) if kind == "where" else layer
    return layer if layer is not None and layer.inner.shape == node.output.shape else None


def _sum(site: Site, inputs: Sequence[Value]) -> _BetweenStep | None:
    """Read x + constant as a mask of x that allows where 0 is added; None for any other sum."""
    for inner, other in (inputs, inputs[::-1]):
        mask = site.array(other)
        if mask is not None and not site.is_constant(inner):
            forbidding = mask[mask != 0]
            # The largest number besides 0 must forbid; NaN does not.
            least = forbidding.max(initial=-np.inf)
            return None if np.isnan(least) else _BetweenStep(inner, 1.0, mask == 0, float(least))
    return None


def _choice(site: Site, inputs: Sequence[Value]) -> _BetweenStep | None:
    """Read where(constant, x, number) or where(constant, number, x) as a mask of x, else None."""
    condition, first, second = inputs
    allowed = site.array(condition)
    if allowed is None:
        return None
    for inner, other, own in ((first, second, allowed), (second, first, ~allowed)):
        number = site.number(other)
        if number is not None and not site.is_constant(inner):
            return _BetweenStep(inner, 1.0, own, number)
    return None


def _mask(allowed: BoolArray, shape: tuple[int, ...]) -> BoolArray | None:
    """A mask in the shape that `Attention` takes, for attention weights of `shape`.

    None where it varies along several axes besides queries and keys.
    """
    whole = allowed.reshape((1,) * (len(shape) - allowed.ndim) + allowed.shape)
    for axis in range(len(shape) - 2):
        first = whole.take([0], axis)
        if np.array_equal(whole, np.broadcast_to(first, whole.shape)):
            whole = first
    if sum(length > 1 for length in whole.shape[:-2]) > 1:
        return None
    while whole.ndim > 2 and whole.shape[0] == 1:
        whole = whole[0]
    return np.ascontiguousarray(np.broadcast_to(whole, (*whole.shape[:-2], *shape[-2:])))


def _unscaled(site: Site, x: Value) -> tuple[Value, float]:
    """x before multiplications by single numbers (and views after them); the numbers' product."""
    node = site.producer(x)
    if node is None or not site.is_used_once(x):
        return x, 1.0
    if isinstance(node.op, Permute | Reshape):
        inner, factor = _unscaled(site, node.inputs[0])
        return (x, 1.0) if factor == 1 else (site.one(node.op, inner), factor)
    number = site.number(node.inputs[1]) if kind_of(node) in ("mul", "div") else None
    if not number or node.inputs[0].shape != x.shape:
        return x, 1.0
    inner, factor = _unscaled(site, node.inputs[0])
    return inner, factor * number if kind_of(node) == "mul" else factor / number


def _swapped(site: Site, x: Value) -> Value:
    """x with its last two axes exchanged."""
    return site.one(Permute(_turns(x)), x)


def _turns(x: Value) -> tuple[int, ...]:
    """The permutation that exchanges the last two axes of x."""
    *stack, row, column = range(len(x.shape))
    return (*stack, column, row)


def recognise_norms(graph: Graph) -> Graph:
    """The graph with layer norms as one chain each."""
    return rewrite(graph, _norm)


def _norm(site: Site) -> Sequence[Value] | None:
    node = Node(site.op, site.inputs, site.outputs)
    scaled = _by_vector(site, node, "add")
    divided = scaled and _by_vector(site, site.producer(scaled[0]), "mul")
    ratio = site.producer(divided[0]) if divided else None
    if scaled is None or not divided or ratio is None or kind_of(ratio) != "div":
        return None
    centred, root = map(site.producer, ratio.inputs)
    if root is None or kind_of(root) != "sqrt":
        return None
    total = _by_vector(site, site.producer(root.inputs[0]), "add")
    squares = _mean(site, total[0]) if total else None
    square = None if squares is None else site.producer(squares)
    if not total or square is None or kind_of(square) != "square":
        return None
    if square.inputs != ratio.inputs[:1] or centred is None or kind_of(centred) != "sub":
        return None
    x, mean = centred.inputs
    if _mean(site, mean) is not x or x.shape != site.output.shape:
        return None
    share, epsilon = _share(site, mean), total[1]
    if share is None or epsilon.type.size != 1:
        return None
    operands = x, share, epsilon, divided[1], scaled[1]
    return (site.one(row_chains.layer_norm(x.shape, True, True), *operands),)


def _by_vector(site: Site, node: Node | None, kind: str) -> tuple[Value, Value] | None:
    """The value and the constant that a function `kind` combines, else None.

    The constant is a number, or a vector by feature.
    """
    if node is None or kind_of(node) != kind:
        return None
    for first, second in (node.inputs, node.inputs[::-1]):
        array = site.array(second)
        if array is not None and array.size in (1, *first.shape[-1:]) and array.ndim <= 1:
            return first, second
    return None


def _mean(site: Site, value: Value) -> Value | None:
    """The operand of the mean over the last axis that makes a value, else None."""
    node = site.producer(value)
    if node is None or node.op != row_chains.mean(node.inputs[0].shape):
        return None
    length = node.inputs[0].shape[-1]
    share = site.number(node.inputs[1])
    return node.inputs[0] if share is not None and abs(share * length - 1) < 1e-6 else None


def _share(site: Site, mean: Value) -> Value | None:
    node = site.producer(mean)
    return None if node is None else node.inputs[1]
