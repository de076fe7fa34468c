"""Products of activations at any strides of stacks and rows, against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph
from runnable import ISAS

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.ops.views import Concat, Expand, Permute, Reshape, Slice
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target

HERE = Origin("product")
SIZES = st.sampled_from([1, 2, 7, 8, 9, 16, 17, 33, 65])
TOLERANCE = 1e-4


def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=6)
@given(
    rows=SIZES,
    columns=SIZES,
    depth=SIZES,
    stacks=st.sampled_from(
        [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3,), ()), ((), (2, 2))]
    ),
    scale=st.sampled_from([1.0, 0.25]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size_and_stack(
    isa: str,
    transposed: bool,
    rows: int,
    columns: int,
    depth: int,
    stacks: tuple[tuple[int, ...], tuple[int, ...]],
    scale: float,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    right = (columns, depth) if transposed else (depth, columns)
    arrays = [
        uniform(generator, (*stacks[0], rows, depth)),
        uniform(generator, (*stacks[1], *right)),
    ]
    build = GraphBuilder()
    operands = [build.input(TensorType(array.shape), HERE) for array in arrays]
    graph = build.finish(build.add(Bmm(transposed, scale), *operands, origin=HERE))
    check_graph(graph, arrays, Target.named(isa), TOLERANCE)


def heads(build: GraphBuilder, x: Value, part: int, count: int) -> Value:
    """A third of x (batch, tokens, 3 * count * features) as (batch, count, tokens, features)."""
    batch, tokens, wide = x.shape
    features = wide // 3 // count
    third = Slice(2, part * count * features, (part + 1) * count * features)
    own = build.one(third, x, origin=HERE)
    apart = build.one(Reshape((batch, tokens, count, features)), own, origin=HERE)
    return build.one(Permute((0, 2, 1, 3)), apart, origin=HERE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 17), (2, 5)])
def test_heads_of_attention_are_not_copied(isa: str, batch: int, tokens: int) -> None:
    build, count, features = GraphBuilder(), 3, 9
    x = build.input(TensorType((batch, tokens, 3 * count * features)), HERE)
    query, key, value = (heads(build, x, part, count) for part in range(3))
    scores = build.one(Bmm(transposed=True, scale=1 / 3), query, key, origin=HERE)
    graph = build.finish([build.one(Bmm(), scores, value, origin=HERE)])
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    assert [step.kernel for step in lowered.steps] == ["dense product"] * 2
    inputs = [uniform(np.random.default_rng(0), x.shape)]
    check_graph(graph, inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_a_transposed_view_is_not_copied(isa: str) -> None:
    """B^T of memory that holds B is B; with features apart there is a copy."""
    generator, build = np.random.default_rng(1), GraphBuilder()
    a = build.input(TensorType((2, 5, 18)), HERE)
    b = build.input(TensorType((2, 9, 18)), HERE)
    turned = build.one(Permute((0, 2, 1)), b, origin=HERE)
    spread = build.one(Slice(2, 0, 18, 2), a, origin=HERE)
    first = build.one(Bmm(), a, turned, origin=HERE)
    second = build.one(Bmm(), spread, b, origin=HERE)
    graph = build.finish([first, second])
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    assert [step.kernel for step in lowered.steps].count("dense product") == 2
    assert len(lowered.steps) == 3
    inputs = [uniform(generator, (2, 5, 18)), uniform(generator, (2, 9, 18))]
    check_graph(graph, inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_one_matrix_for_a_stack_and_results_side_by_side(isa: str) -> None:
    generator, build = np.random.default_rng(2), GraphBuilder()
    a = build.input(TensorType((4, 3, 8)), HERE)
    b = build.input(TensorType((8, 5)), HERE)
    row = build.input(TensorType((1, 8)), HERE)
    rows = build.one(Expand((6, 8)), row, origin=HERE)
    plain = build.one(Bmm(), a, b, origin=HERE)
    repeated = build.one(Bmm(transposed=True), a, rows, origin=HERE)
    graph = build.finish([build.one(Concat(2), plain, repeated, origin=HERE)])
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    assert lowered.steps[0].facts.reason == "1 dense products 12x8 by 8x5"
    inputs = [uniform(generator, shape) for shape in ((4, 3, 8), (8, 5), (1, 8))]
    check_graph(graph, inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("right_turned", [False, True])
@pytest.mark.parametrize(("rows", "depth"), [(17, 33), (1, 9), (9, 1), (64, 16)])
def test_a_left_matrix_may_lie_transposed(
    isa: str, right_turned: bool, rows: int, depth: int
) -> None:
    build, columns = GraphBuilder(), 21
    left = build.input(TensorType((3, depth, rows)), HERE)
    right = build.input(TensorType((3, columns, depth)), HERE)
    if not right_turned:
        right = build.one(Permute((0, 2, 1)), right, origin=HERE)
    turned = build.one(Permute((0, 2, 1)), left, origin=HERE)
    graph = build.finish([build.one(Bmm(right_turned, 0.5), turned, right, origin=HERE)])
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    assert [step.kernel for step in lowered.steps] == ["dense product"]
    generator = np.random.default_rng(1)
    arrays = [uniform(generator, value.shape) for value in graph.inputs]
    check_graph(graph, arrays, Target.named(isa), TOLERANCE)
