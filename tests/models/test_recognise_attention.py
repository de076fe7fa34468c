"""Attention written by hand becomes one operator, where that means the same."""

from collections.abc import Callable

import numpy as np
import pytest
from sketch import Sketch, applied, kinds, node_of

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.products import Attention, Bmm, CachedAttention
from sparsejit.ir.ops.row_chains import LEAST_SCORE, LEAST_TOTAL, safe_softmax, softmax
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.values import Element, Value
from sparsejit.passes.default import run_passes

STACK, QUERIES, KEYS, DEPTH = (2, 3), 5, 7, 4
ALLOWED = np.arange(KEYS) <= np.arange(QUERIES)[:, None] + 1
LOWEST = float(np.finfo(np.float32).min)
# The functions of scores before the softmax.
Layers = Callable[[Sketch, Value], Value]


def written(layers: Layers, is_safe: bool = False, transposed: bool = True) -> Graph:
    """softmax(layers(Q K^T)) V."""
    s = Sketch()
    q, v = s.input(*STACK, QUERIES, DEPTH), s.input(*STACK, KEYS, 6)
    k = s.input(*STACK, KEYS, DEPTH)
    k = k if transposed else s(Permute((0, 1, 3, 2)), k)
    x = layers(s, s(Bmm(transposed=transposed), q, k))
    if is_safe:
        numbers = (s.constant(np.float32(number)) for number in (LEAST_SCORE, LEAST_TOTAL))
        weights = s(safe_softmax(x.shape), x, *numbers)
    else:
        weights = s(softmax(x.shape), x)
    return s.finish(s(Bmm(), weights, v))


def adds(mask: np.ndarray) -> Layers:
    return lambda s, x: s("add", x, s.constant(mask.astype(np.float32)))


def forbids(number: float, mask: np.ndarray = ALLOWED) -> Layers:
    return adds(np.where(mask, 0, number))


def chooses(number: float) -> Layers:
    return lambda s, x: s("where", s.constant(ALLOWED), x, s.constant(np.float32(number)))


def fills(number: float) -> Layers:
    return lambda s, x: s("where", s.constant(~ALLOWED), s.constant(np.float32(number)), x)


def scales(number: float, kind: str = "mul") -> Layers:
    return lambda s, x: s(kind, x, s.constant(np.float32(number)))


def both(first: Layers, second: Layers) -> Layers:
    return lambda s, x: second(s, first(s, x))


NOTHING_SEEN = ALLOWED & (np.arange(QUERIES) != 2)[:, None]
OF_HEADS = np.stack([np.roll(ALLOWED, head, axis=1) for head in range(3)])
OF_SAMPLES = np.stack([np.roll(ALLOWED, sample, axis=1) for sample in range(2)])[:, None]


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(
    ("layers", "scale", "mask"),
    [
        (lambda s, x: x, 1, None),
        (scales(0.3), 0.3, None),
        (scales(3, "div"), 1 / 3, None),
        (both(scales(0.5), forbids(-np.inf)), 0.5, ALLOWED),
        (both(forbids(-np.inf), scales(3, "div")), 1 / 3, ALLOWED),
        (lambda s, x: s("add", s.constant(np.where(ALLOWED, 0, -np.inf)), x), 1, ALLOWED),
        (forbids(LOWEST), 1, ALLOWED),
        (forbids(-1e9), 1, ALLOWED),
        (chooses(-np.inf), 1, ALLOWED),
        (chooses(LOWEST), 1, ALLOWED),
        (fills(-np.inf), 1, ALLOWED),
        (fills(-1e9), 1, ALLOWED),
        (both(forbids(-np.inf), chooses(-1e9)), 1, ALLOWED),
        (forbids(-np.inf, OF_HEADS), 1, OF_HEADS),
        (forbids(-np.inf, OF_SAMPLES), 1, OF_SAMPLES),
        (forbids(-np.inf, ALLOWED[:1]), 1, np.repeat(ALLOWED[:1], QUERIES, axis=0)),
        (forbids(-np.inf, np.broadcast_to(ALLOWED, (2, 3, 5, 7))), 1, ALLOWED),
    ],
    ids=lambda x: f"{x:.3g}" if isinstance(x, int | float) else "",
)
def test_scores_that_are_only_scaled_and_masked_are_attention(
    layers: Layers, scale: float, mask: np.ndarray | None, transposed: bool
) -> None:
    after = applied(run_passes, written(layers, transposed=transposed))
    assert kinds(after) == ["Attention"]
    (node,) = after.nodes
    assert node.op.scale == pytest.approx(scale)
    masks = [after.constants[value] for value in node.inputs[3:]]
    assert [each.tolist() for each in masks] == ([] if mask is None else [mask.tolist()])


@pytest.mark.parametrize(
    ("layers", "is_safe"),
    [
        (forbids(-1e7), False),  # scores might differ by that much
        (chooses(-1e7), False),
        (both(forbids(-1e9), scales(0.01)), False),
        (both(forbids(-np.inf), scales(-0.5)), False),
        (adds(np.where(ALLOWED, 0.5, -np.inf)), False),
        (adds(np.where(ALLOWED, 0, np.inf)), False),
        (forbids(-1e9, NOTHING_SEEN), False),  # softmax of scores that are forbidden alike
        (forbids(-1e9, NOTHING_SEEN), True),
        (forbids(-np.inf, OF_HEADS & OF_SAMPLES), False),  # on two axes
        (lambda s, x: s("mul", x, s.weight(QUERIES, KEYS)), False),
        (lambda s, x: s("maximum", x, s.constant(np.float32(-1.0))), False),
        (lambda s, x: s("add", x, s.input(QUERIES, KEYS)), False),
    ],
)
def test_ambiguous_products_are_left(layers: Layers, is_safe: bool) -> None:
    with np.errstate(all="ignore"):
        assert "Attention" not in kinds(run_passes(written(layers, is_safe)))


def test_a_row_that_sees_nothing_is_zeros_only_where_softmax_says_so() -> None:
    layers = forbids(-np.inf, NOTHING_SEEN)
    assert "Attention" not in kinds(run_passes(written(layers)))  # NaN
    assert kinds(applied(run_passes, written(layers, is_safe=True))) == ["Attention"]


@pytest.mark.parametrize("is_read", [False, True])
def test_nan_put_to_zero_behind_the_softmax_is_a_row_that_sees_nothing(is_read: bool) -> None:
    s = Sketch()
    q, k = s.input(QUERIES, DEPTH), s.input(KEYS, DEPTH)
    x = forbids(-np.inf, NOTHING_SEEN)(s, s(Bmm(transposed=True), q, k))
    weights = s(softmax(x.shape), x)
    is_nan = s("not_equal", weights, weights)
    safe = s("where", is_nan, s.constant(np.float32(0)), weights)
    outputs = [s(Bmm(), safe, s.input(KEYS, 6)), *([weights] if is_read else [])]
    after = run_passes(s.finish(*outputs))
    assert ("Attention" in kinds(after)) == (not is_read)
    if not is_read:
        x = [s.random.standard_normal(value.shape) for value in after.inputs]
        (y,) = after.evaluate(x)
        assert not y[2].any() and np.isfinite(y).all()


def test_weights_or_scores_that_others_read_are_computed_apart() -> None:
    for reads in ("weights", "scores"):
        s = Sketch()
        q, k, v = s.input(QUERIES, DEPTH), s.input(KEYS, DEPTH), s.input(KEYS, 6)
        scores = s(Bmm(transposed=True), q, k)
        weights = s(softmax(scores.shape), scores)
        seen = {"weights": weights, "scores": scores}[reads]
        after = applied(run_passes, s.finish(s(Bmm(), weights, v), seen))
        assert "Attention" not in kinds(after)


def test_factors_of_queries_and_keys_are_taken_over() -> None:
    s = Sketch()
    q, k, v = s.input(3, QUERIES, DEPTH), s.input(3, KEYS, DEPTH), s.input(3, 6, KEYS)
    q = s("mul", q, s.constant(np.float32(0.5)))
    k = s("div", s(Permute((0, 2, 1)), k), s.constant(np.float32(3)))
    scores = s(Bmm(), q, k)
    y = s(Bmm(transposed=True), s(softmax(scores.shape), scores), v)
    after = applied(run_passes, s.finish(y))
    assert node_of(after, Attention).op.scale == pytest.approx(1 / 6)
    assert sorted(kinds(after)) == ["Attention", "Permute"]  # of v


def test_a_stack_may_be_another_between_the_products() -> None:
    s = Sketch()
    q, k = s.input(6, QUERIES, DEPTH), s.input(6, KEYS, DEPTH)
    scores = s(Reshape((2, 3, QUERIES, KEYS)), s(Bmm(transposed=True), q, k))
    x = forbids(-np.inf, OF_HEADS)(s, scores)
    y = s(Bmm(), s(softmax(x.shape), x), s.input(2, 3, KEYS, 6))
    after = applied(run_passes, s.finish(y))
    assert node_of(after, Attention).output.shape == y.shape
    assert set(kinds(after)) == {"Attention", "Reshape"}


def test_masks_of_a_stack_that_is_another_later_are_left() -> None:
    s = Sketch()
    q, k = s.input(*STACK, QUERIES, DEPTH), s.input(*STACK, KEYS, DEPTH)
    x = forbids(-np.inf, OF_HEADS)(s, s(Bmm(transposed=True), q, k))
    x = s(Reshape((6, QUERIES, KEYS)), x)
    after = run_passes(s.finish(s(Bmm(), s(softmax(x.shape), x), s.input(6, KEYS, 6))))
    assert "Attention" not in kinds(after)


def cached(
    mask: tuple[int, ...] = (1, 32),
    queries: int = 2,
    depth: int = 8,
    keys: int = 32,
    number: float = -np.inf,
    key_stack: tuple[int, ...] = (1, 4),
    is_safe: bool = True,
) -> Graph:
    """Attention to a cache under a mask that is an input: bools, or with number 0 what is added."""
    s = Sketch()
    q, k = s.input(1, 4, queries, depth), s.input(*key_stack, keys, depth)
    v = s.input(1, 4, keys, 16)
    allowed = s.input(*mask, element=Element.BOOL if number else Element.FLOAT32)
    scores = s(Bmm(transposed=True, scale=0.25), q, k)
    scores = s("mul", scores, s.constant(np.float32(2)))
    if number:
        x = s("where", allowed, scores, s.constant(np.float32(number)))
    else:
        x = s("add", scores, allowed)
    if not is_safe:
        return s.finish(s(Bmm(), s(softmax(x.shape), x), v))
    numbers = (s.constant(np.float32(each)) for each in (LEAST_SCORE, LEAST_TOTAL))
    return s.finish(s(Bmm(), s(safe_softmax(x.shape), x, *numbers), v))


@pytest.mark.parametrize("is_safe", [True, False])
@pytest.mark.parametrize("number", [-np.inf, LOWEST, -1e9, 0])
@pytest.mark.parametrize("mask", [(32,), (1, 32), (1, 1, 1, 32)])
def test_attention_to_a_cache_is_one_operator(
    mask: tuple[int, ...], number: float, is_safe: bool
) -> None:
    before = cached(mask, number=number, is_safe=is_safe)
    after = applied(run_passes, before)
    assert node_of(after, CachedAttention).op == CachedAttention(0.5, is_safe)
    assert "Bmm" not in kinds(after)


@pytest.mark.parametrize(
    "graph",
    [
        cached(mask=(2, 32)),  # a mask for each query
        cached(mask=(4, 1, 32)),
        cached(mask=(1,)),
        cached(mask=(1,), number=0),
        cached(queries=9),
        cached(depth=12),
        cached(keys=24, mask=(24,)),
        cached(number=-1e4),  # adds to the powers of scores that are as low
        cached(key_stack=(1, 1)),  # one cache for all heads
    ],
)
def test_other_attention_under_a_mask_of_a_call_stays(graph: Graph) -> None:
    assert "CachedAttention" not in kinds(applied(run_passes, graph))
