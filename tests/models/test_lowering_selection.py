"""Rows by index, bags and the largest elements, against float64; wrong indices are reported."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph, run_graph, run_tiles
from registered_operators import graph_of
from runnable import ISAS

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.selection import ArgMax, BagKind, Embedding, EmbeddingBag, TopK
from sparsejit.ir.ops.views import Concat, Permute, Slice
from sparsejit.ir.values import Element, Origin, TensorType
from sparsejit.machine.target import Target

HERE = Origin("selection")
_WEIGHTED_SUMS = [(BagKind.SUM, False, True), (BagKind.SUM, True, True)]
FEATURES = st.sampled_from([1, 7, 8, 9, 16, 17, 33, 64, 130, 257])


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=5)
@given(
    shape=st.lists(st.integers(1, 4), max_size=2),
    rows=st.integers(1, 20),
    features=FEATURES,
    seed=st.integers(0, 2**32 - 1),
)
def test_embedding(isa: str, shape: list[int], rows: int, features: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    indices = np.asarray(generator.integers(0, rows, shape))
    table = generator.normal(size=(rows, features)).astype(np.float32)
    target = Target.named(isa)
    constant = graph_of(Embedding(), indices, table, constants=[1])
    np.testing.assert_array_equal(run_graph(constant, [indices], target)[0], table[indices])
    both = graph_of(Embedding(), indices, table)
    (got,) = run_tiles(both, [indices[None], table[None]], target, "end").outputs
    np.testing.assert_array_equal(got[0], table[indices])


@pytest.mark.parametrize("isa", ISAS)
def test_embeddings_side_by_side(isa: str) -> None:
    """Indices are columns of one input, and rows go straight to their part of the concat."""
    generator = np.random.default_rng(0)
    indices = generator.integers(0, 5, (6, 3))
    build = GraphBuilder()
    given_indices = build.input(TensorType((6, 3), Element.INT64), HERE)
    rows = []
    for column, features in enumerate((9, 16, 3)):
        own = build.one(Slice(1, column, column + 1), given_indices, origin=HERE)
        table = build.constant(generator.normal(size=(5, features)), HERE)
        rows.append(build.one(Embedding(), own, table, origin=HERE))
    graph = build.finish([build.one(Concat(2), *rows, origin=HERE)])
    check_graph(graph, [indices], Target.named(isa), 1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("wrong", [-1, 7, 2**31, 2**62, -(2**63)])
def test_an_index_out_of_range_is_reported(isa: str, wrong: int) -> None:
    table = np.ones((7, 5), np.float32)
    indices = np.array([3, wrong, 0])
    graph = graph_of(Embedding(), indices, table, constants=[1])
    for tiles in (np.stack([indices, indices * 0]), np.stack([indices * 0, indices])):
        assert run_tiles(graph, [tiles], Target.named(isa)).status == 1
    bag = graph_of(EmbeddingBag(BagKind.SUM), indices[None], table, constants=[1])
    assert run_tiles(bag, [indices[None, None]], Target.named(isa)).status == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kind", "with_offsets", "weighted"),
    [*itertools.product(BagKind, [False, True], [False]), *_WEIGHTED_SUMS],
)
@settings(max_examples=4)
@given(
    bags=st.integers(1, 5),
    features=FEATURES,
    seed=st.integers(0, 2**32 - 1),
)
def test_bags(
    isa: str,
    kind: BagKind,
    with_offsets: bool,
    weighted: bool,
    bags: int,
    features: int,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 12))
    shape = (count,) if with_offsets else (bags, count)
    indices = generator.integers(0, 6, shape)
    table = generator.normal(size=(6, features)).astype(np.float32)
    offsets = np.sort(generator.integers(0, count + 1, bags))
    offsets[0] = 0
    weights = generator.normal(size=shape).astype(np.float32)
    rest = [offsets] * with_offsets + [weights] * weighted
    arrays = [indices, table, *rest]
    graph = graph_of(EmbeddingBag(kind, with_offsets, weighted), *arrays)
    check_graph(graph, arrays, Target.named(isa), 1e-4, tiles=1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offsets", [[1, 2], [0, 5], [0, -1], [0, 2**40]])
def test_offsets_that_do_not_ascend_are_reported(isa: str, offsets: list[int]) -> None:
    indices, table = np.array([0, 1, 2, 3]), np.ones((7, 5), np.float32)
    op = EmbeddingBag(BagKind.MEAN, with_offsets=True)
    arrays = [indices, table, np.array(offsets)]
    graph = graph_of(op, *arrays)
    ran = run_tiles(graph, [array[None] for array in arrays], Target.named(isa), "end")
    assert ran.status == 1


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=5)
@given(
    rows=st.integers(1, 4),
    length=st.sampled_from([1, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 130, 300]),
    distinct=st.sampled_from([2, 1000]),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_largest(
    isa: str, rows: int, length: int, distinct: int, count: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    x = (generator.integers(-distinct, distinct, (rows, length)) / 8).astype(np.float32)
    x[generator.random(x.shape) < 0.1] = -np.inf
    x[generator.random(x.shape) < 0.1] = -0.0
    target = Target.named(isa)
    check_graph(graph_of(ArgMax(), x), [x], target, 0)
    for least in (False, True):
        check_graph(graph_of(TopK(min(count, length), least), x), [x], target, 0)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_counts_as_largest_as_in_torch(isa: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-3, 3, 40, dtype=np.float32)
    x[[4, 30]] = np.inf, np.nan
    x[17] = -np.float32(np.nan)
    target = Target.named(isa)
    (place,) = run_graph(graph_of(ArgMax(), x), [x], target)
    assert place == torch.from_numpy(x).argmax().item() == 17
    values, places = run_graph(graph_of(TopK(4), x), [x], target)
    assert list(places) == [17, 30, 4, 39]
    np.testing.assert_array_equal(values, x[places])
    x[20] = -np.inf
    values, places = run_graph(graph_of(TopK(40, least=True), x), [x], target)
    assert places[0] == 20 and list(places[-4:]) == [39, 4, 17, 30]
    np.testing.assert_array_equal(values, x[places])


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_of_a_column(isa: str) -> None:
    """The axis searched is not the inner one; places go on as indices."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    build = GraphBuilder()
    value = build.input(TensorType(x.shape), HERE)
    turned = build.one(Permute((1, 0)), value, origin=HERE)
    best = build.one(ArgMax(), turned, origin=HERE)
    table = build.constant(np.arange(100.0).reshape(20, 5), HERE)
    graph = build.finish([best, build.one(Embedding(), best, table, origin=HERE)])
    check_graph(graph, [x], Target.named(isa), 0)
