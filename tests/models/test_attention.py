"""Attention, of all keys and under masks: tables, and both ways to compute it between guards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph, kernels_of, run_graph
from runnable import ISAS

from sparsejit.asm_templates.attention.tables import AttentionTiles, Pitches
from sparsejit.attention_masks import causal, strided
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.products import Attention, CachedAttention, Linear
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.row_groups import row_groups
from sparsejit.ir.values import Origin, TensorType
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import FORMS, ONE_KERNEL
from sparsejit.planner.cheapest_row import preferring

HERE = Origin("attention")
TOLERANCE = 1e-4


def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.uniform(-1, 1, shape).astype(np.float32)


def attention_graph(
    shapes: list[tuple[int, ...]], mask: np.ndarray | None, scale: float
) -> Graph:
    build = GraphBuilder()
    operands = [build.input(TensorType(shape), HERE) for shape in shapes]
    masks = [] if mask is None else [build.constant(mask, HERE)]
    return build.finish(build.add(Attention(scale), *operands, *masks, origin=HERE))


@pytest.mark.parametrize("form", [row.name for row in FORMS])
@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=4)
@given(
    queries=st.sampled_from([1, 7, 16, 17, 32, 33, 50, 64]),
    keys=st.sampled_from([1, 8, 9, 40, 65]),
    depth=st.sampled_from([1, 5, 16, 31, 32, 33, 72]),
    values=st.sampled_from([1, 3, 8, 16, 28, 29, 40, 65]),
    stack=st.sampled_from([(), (1,), (3,), (2, 3)]),
    own_masks=st.integers(0, 2),
    stride=st.sampled_from([0, 3, 10]),
    density=st.sampled_from([0.0, 0.02, 0.2, 0.9, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size_and_mask(
    isa: str,
    form: str,
    queries: int,
    keys: int,
    depth: int,
    values: int,
    stack: tuple[int, ...],
    own_masks: int,
    stride: int,
    density: float,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    shapes = [(*stack, queries, depth), (*stack[-1:], keys, depth), (*stack, keys, values)]
    # A mask of the last axis, of the one before it, or one for all.
    heads = {0: (), 1: stack[-1:], 2: (*stack[-2:-1], 1)}[own_masks if stack else 0]
    mask = generator.random((*heads, queries, keys)) < density
    row, column = np.ogrid[:queries, :keys]
    if stride:  # one tile adds to another
        mask |= (abs(row - column) < 3) | ((row - column) % stride == 0)
    graph = attention_graph(shapes, mask, 1.5)
    with preferring(form):
        check_graph(graph, [uniform(generator, s) for s in shapes], Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", [row.name for row in FORMS])
@pytest.mark.parametrize("queries", [5, 40, 64])
@pytest.mark.parametrize(("keys", "values"), [(24, 64), (33, 130)])
def test_without_a_mask(
    isa: str, form: str, queries: int, keys: int, values: int
) -> None:
    """Also where rows lie far apart, so that values are copied first."""
    generator, build = np.random.default_rng(queries), GraphBuilder()
    shapes = [(2, queries, 3, 9), (2, keys, 3, 9), (2, keys, 3, values)]
    inputs = [build.input(TensorType(shape), HERE) for shape in shapes]
    heads = [build.one(Permute((0, 2, 1, 3)), x, origin=HERE) for x in inputs]
    graph = build.finish([build.one(Attention(-0.4), *heads, origin=HERE)])
    with preferring(form):
        arrays = [uniform(generator, shape) for shape in shapes]
        check_graph(graph, arrays, Target.named(isa), TOLERANCE)


def test_tiles_of_all_queries_share_their_keys() -> None:
    target, pitches = Target.named("avx512"), Pitches(64, 64, 64, 64)
    whole = AttentionTiles.of(np.ones((1, 128, 96), bool), pitches, target)
    assert (whole.tiles, whole.width, whole.all_see_all) == (4, 2, True)
    groups = 96 // 8
    assert whole.numbers.nbytes == 4 * whole.header_bytes + groups * whole.group_bytes
    assert AttentionTiles.of(np.ones((1, 48, 96), bool), pitches, target).width == 1
    assert not AttentionTiles.of(np.ones((1, 32, 9), bool), pitches, target).all_see_all


@pytest.mark.parametrize("queries", [2, 64])
def test_the_cheaper_way_is_taken(queries: int) -> None:
    shapes = [(4, queries, 32), (4, 64, 32), (4, 64, 32)]
    kernels = kernels_of(attention_graph(shapes, None, 1.0), "avx512")
    apart = ["dense product", "softmax", "dense product"]
    assert kernels == (apart if queries == 2 else ["attention"])


@pytest.mark.parametrize("isa", ISAS)
def test_forbidden_keys_do_not_count(isa: str) -> None:
    generator = np.random.default_rng(3)
    mask = generator.random((40, 40)) < 0.2
    mask[7] = False  # sees nothing: zeros
    mask[:, 11] = False  # seen by nobody: never read
    arrays = [uniform(generator, (40, 8)) for _ in range(3)]
    graph = attention_graph([(40, 8)] * 3, mask, 1.0)
    with preferring(ONE_KERNEL):
        (plain,) = run_graph(graph, arrays, Target.named(isa))
        for array in arrays[1:]:
            array[11] = np.nan
        (spoiled,) = run_graph(graph, arrays, Target.named(isa))
    assert not plain[7].any()
    assert plain.tobytes() == spoiled.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_do_not_overflow(isa: str) -> None:
    generator = np.random.default_rng(4)
    arrays = [uniform(generator, (33, 16)) * 100 for _ in range(3)]
    mask = np.tril(np.ones((33, 33), bool))
    graph = attention_graph([(33, 16)] * 3, mask, 1.0)
    with preferring(ONE_KERNEL):
        check_graph(graph, arrays, Target.named(isa), 2e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_heads_are_read_and_written_where_they_lie(isa: str) -> None:
    generator, build = np.random.default_rng(5), GraphBuilder()
    inputs = [build.input(TensorType((2, 20, 3, 9)), HERE) for _ in range(3)]
    heads = [build.one(Permute((0, 2, 1, 3)), x, origin=HERE) for x in inputs]
    mask = build.constant(generator.random((3, 20, 20)) < 0.3, HERE)
    y = build.one(Attention(0.3), *heads, mask, origin=HERE)
    graph = build.finish([build.one(Permute((0, 2, 1, 3)), y, origin=HERE)])
    with preferring(ONE_KERNEL):
        assert kernels_of(graph, isa) == ["masked attention", "copy"]  # of the output
        arrays = [uniform(generator, (2, 20, 3, 9)) for _ in range(3)]
        check_graph(graph, arrays, Target.named(isa), TOLERANCE)


def test_operands_that_do_not_fit_are_refused() -> None:
    stacks = [(3, 4, 5), (2, 1, 4, 5)]
    masks = [np.ones(shape, bool) for shape in ((4, 6), *stacks)]
    for mask in (*masks, np.ones((4, 5), np.float32)):
        with pytest.raises(InvalidInput, match="a mask"):
            attention_graph([(2, 4, 8), (2, 5, 8), (2, 5, 8)], mask, 1.0)


@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    size=st.sampled_from([1, 8, 16]),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_groups_hold_each_row_once_and_all_it_sees(
    queries: int, keys: int, size: int, density: float, seed: int
) -> None:
    mask = np.random.default_rng(seed).random((queries, keys)) < density
    groups = row_groups(mask, size)
    begun = np.concatenate([group.rows for group in groups if not group.adds])
    assert sorted(begun) == list(range(queries))
    seen = np.zeros(mask.shape, int)
    for group in groups:
        assert 0 < len(set(group.rows)) == len(group.rows) <= size
        seen[np.ix_(group.rows, group.keys)] += group.allowed.T
    assert np.array_equal(seen, mask)
    assert sum(group.adds for group in groups) <= queries


def test_a_band_and_a_stride_are_grouped_apart() -> None:
    row, column = np.ogrid[:256, :256]
    mask = (abs(row - column) < 16) | ((row - column) % 16 == 0)
    groups = row_groups(mask, 16)
    assert {group.adds for group in groups} == {False, True}
    assert sum(len(g.keys) for g in groups) * 16 < 2 * mask.sum()


def test_rows_of_a_stride_share_their_keys() -> None:
    row, column = np.ogrid[:128, :128]
    assert sum(len(g.keys) for g in row_groups((row - column) % 8 == 0, 16)) == 8 * 16
    assert sum(len(g.keys) for g in row_groups(abs(row - column) < 8, 16)) <= 8 * 30


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", [row.name for row in FORMS])
def test_heads_are_written_behind_their_tokens(isa: str, form: str) -> None:
    """The projection after them reads them as one row, without a copy."""
    generator, build = np.random.default_rng(6), GraphBuilder()
    q, k, v = (build.input(TensorType((2, 3, 20, 8)), HERE) for _ in range(3))
    heads = build.one(Attention(), q, k, v, origin=HERE)
    tokens = build.one(Permute((0, 2, 1, 3)), heads, origin=HERE)
    rows = build.one(Reshape((40, 24)), tokens, origin=HERE)
    weights = build.constant(uniform(generator, (5, 24)), HERE)
    graph = build.finish([build.one(Linear(), rows, weights, origin=HERE)])
    with preferring(form):
        assert "copy" not in kernels_of(graph, isa)
        arrays = [uniform(generator, (2, 3, 20, 8)) for _ in range(3)]
        check_graph(graph, arrays, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["of the outer axis", "a band and a stride"])
def test_tiles_of_several_masks_and_tiles_that_add(isa: str, kind: str) -> None:
    generator = np.random.default_rng(7)
    shapes = [(2, 3, 256, 8)] * 3
    mask = strided(256, 16, is_causal=False)
    if kind == "of the outer axis":
        mask = np.stack([mask, causal(256)])[:, None]
    else:
        assert any(group.adds for group in row_groups(mask, Target.named(isa).lanes))
    graph = attention_graph(shapes, mask, 1.0)
    with preferring(ONE_KERNEL):
        arrays = [uniform(generator, shape) for shape in shapes]
        check_graph(graph, arrays, Target.named(isa), TOLERANCE)


# Masks of 48 keys: filled up to a place, with holes, the last one only, none, all.
FILLED = {
    "one": np.arange(48) < 1,
    "a part": np.arange(48) < 17,
    "with holes": (np.arange(48) < 40) & (np.arange(48) % 3 > 0),
    "the last": np.arange(48) == 47,
    "none": np.zeros(48, bool),
    "all": np.ones(48, bool),
}


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("number", "is_safe"), [(-np.inf, True), (-np.inf, False), (LOWEST, True), (-1e30, False)]
)
@pytest.mark.parametrize("mask", FILLED)
@pytest.mark.parametrize(
    ("stack", "queries", "depth", "values"),
    [((), 1, 8, 8), ((1, 4), 2, 8, 16), ((3,), 1, 64, 64), ((2,), 3, 24, 136)],
)
def test_keys_behind_the_last_allowed_one_are_not_read(
    isa: str,
    mask: str,
    number: float,
    is_safe: bool,
    stack: tuple[int, ...],
    queries: int,
    depth: int,
    values: int,
) -> None:
    """They are NaN; a key that is read and forbidden changes nothing however large its score."""
    build, generator, allowed = GraphBuilder(), np.random.default_rng(3), FILLED[mask]
    shapes = [(*stack, queries, depth), (*stack, 48, depth), (*stack, 48, values)]
    given = [build.input(TensorType(shape), HERE) for shape in shapes]
    given.append(build.input(TensorType((48,)), HERE))
    op = CachedAttention(0.4, is_safe)
    graph = build.finish(build.add(op, *given, origin=HERE))
    query, key, value = (4 * uniform(generator, shape) for shape in shapes)
    key[..., ~allowed, :] *= 100
    line = np.where(allowed, 0, number).astype(np.float32)
    expected = op.reference(*(x.astype(float) for x in (query, key, value, line)))[0]
    if allowed.any():
        end = -(-(int(allowed.nonzero()[0].max()) + 1) // 16) * 16
        key[..., end:, :] = value[..., end:, :] = np.nan
    found = run_graph(graph, [query, key, value, line], Target.named(isa))[0]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
