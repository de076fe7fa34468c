"""Every kernel for forests against the reference: any trees, any rows, between guard pages."""

from dataclasses import replace

import numpy as np
import pytest
from forest_cases import Shape, chain, expected, in_float64, random_rows, random_trees
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsejit.asm_templates.forest.block_layout import MISSING, block_layout
from sparsejit.asm_templates.forest.kernels import FOREST_KERNELS, ForestKernel
from sparsejit.asm_templates.forest.slots import Slots
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.forest import Trees, longest_paths
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.planner.forest_plan import plan_forest
from sparsejit.runtime.native_timing import aligned, call_native
from sparsejit.runtime.program import build

MACHINE = Target.detect()
CASES = [
    pytest.param(
        kernel,
        isa,
        id=f"{kernel.name}-{isa}",
        marks=pytest.mark.skipif(
            not Target.named(isa).runs_on(MACHINE), reason=f"this machine lacks {isa}"
        ),
    )
    for kernel in FOREST_KERNELS
    for isa in kernel.levels
]
SHAPES = st.builds(
    Shape,
    features=st.sampled_from([1, 2, 7, 16, 33, 1000]),
    trees=st.integers(1, 70),
    depth=st.integers(0, 7),
    outputs=st.sampled_from([1, 2, 3, 8, 17]),
    branching=st.sampled_from([0.3, 0.8, 1.0]),
    leaf_of_all=st.booleans(),
    missing=st.booleans(),
)


def run(kernel: ForestKernel, trees: Trees, x: Array, target: Target) -> Array:
    """y (rows, outputs), its scratch full of ones' bits."""
    lowered = kernel.lower(trees, len(x), target)
    program = build(kernel.name, target, lowered.emit)
    y = np.full((len(x), trees.outputs), np.nan, f"f{trees.y_bytes}")
    scratch = aligned(np.full(lowered.scratch_bytes // 4 + 1, -1, np.int32).view(np.float32))
    call_native(program.memory.address, (x.ctypes.data, y.ctypes.data, scratch.ctypes.data))
    return y


def check(kernel: ForestKernel, isa: str, trees: Trees, x: Array) -> None:
    """In float32, and in float64 with thresholds that float32 cannot tell from x, y too."""
    check_one(kernel, isa, trees, x)
    check_one(kernel, isa, *in_float64(trees, x, 5))
    check_one(kernel, isa, replace(trees, y_bytes=8), x)


def check_one(kernel: ForestKernel, isa: str, trees: Trees, x: Array) -> None:
    found, wanted = run(kernel, trees, x, Target.named(isa)), expected(trees, x)
    size = trees.scale * np.abs(trees.leaves).sum() / max(len(trees.leaves), 1) + 1
    # Sums are of float64: what is rounded is the result, and it may have cancelled.
    rtol, atol = (1e-6, 1e-7) if trees.y_bytes == 4 else (1e-12, 1e-13)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol * size)


@pytest.mark.parametrize(("kernel", "isa"), CASES)
@settings(max_examples=12)
@given(shape=SHAPES, rows=st.sampled_from([1, 2, 9, 16, 40]), seed=st.integers(0, 2**32 - 1))
def test_any_forest(kernel: ForestKernel, isa: str, shape: Shape, rows: int, seed: int) -> None:
    trees = random_trees(shape, seed)
    try:
        check(kernel, isa, trees, random_rows(trees, rows, seed))
    except CompileError:
        assert kernel.name == "forest-blocks" and len(Slots.of(trees)) > 64


@pytest.mark.parametrize(("kernel", "isa"), CASES)
@pytest.mark.parametrize("features", [1, 9, 30])
def test_a_deep_chain(kernel: ForestKernel, isa: str, features: int) -> None:
    trees = chain(100, features)
    check(kernel, isa, trees, random_rows(trees, 20, 0))


@pytest.mark.parametrize(("kernel", "isa"), CASES)
@pytest.mark.parametrize("features", [1, 16, 32, 60])
def test_many_thresholds_of_a_feature(kernel: ForestKernel, isa: str, features: int) -> None:
    """A search among them has two levels, with more than 256 three, with more than 4096 four."""
    shape = Shape(features, 40, 8, branching=1.0, missing=features < 60, shared=0.0)
    trees = random_trees(shape, 3)
    spread = np.random.default_rng(1).standard_normal(len(trees.nodes)).astype(np.float32)
    finer = Trees(
        features, 1.0, spread, trees.nodes, trees.leaves, trees.trees, trees.base
    )
    x = random_rows(finer, 30, 2)
    x[::2, 0] = np.sort(spread)[:: len(spread) // 15][:15]
    check(kernel, isa, finer, x)


@pytest.mark.parametrize(("kernel", "isa"), CASES)
@pytest.mark.parametrize(("outputs", "leaf_of_all"), [(1, False), (5, False), (5, True)])
@pytest.mark.parametrize("is_double", [False, True])
def test_nothing_beyond_x_and_y_is_touched(
    kernel: ForestKernel, isa: str, outputs: int, leaf_of_all: bool, is_double: bool
) -> None:
    trees = random_trees(Shape(11, 37, 5, outputs, leaf_of_all=leaf_of_all), 4)
    target, rows = Target.named(isa), 5
    x = random_rows(trees, rows, 5)
    if is_double:
        trees, x = in_float64(trees, x, 6)
    lowered = kernel.lower(trees, rows, target)
    program = build(kernel.name, target, lowered.emit)
    scratch_floats = -(-lowered.scratch_bytes // 64) * 16
    wanted = expected(trees, x).reshape(-1).astype(np.float32)

    def try_at(edge: str) -> None:
        source = GuardedArray(x.reshape(-1).view(np.float32), edge)  # type: ignore[arg-type]
        result = GuardedArray(np.zeros(rows * outputs, np.float32), edge)  # type: ignore[arg-type]
        scratch = GuardedArray(np.zeros(scratch_floats, np.float32), edge)  # type: ignore[arg-type]
        call_native(program.memory.address, (source.address, result.address, scratch.address))
        np.testing.assert_allclose(result.values, wanted, rtol=1e-5, atol=1e-6)
        assert source.surroundings_intact() and result.surroundings_intact()
        assert scratch.surroundings_intact()

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]


@pytest.mark.parametrize(("kernel", "isa"), CASES)
def test_a_row_gives_the_same_bits_wherever_it_stands(kernel: ForestKernel, isa: str) -> None:
    trees = random_trees(Shape(12, 50, 6, 3), 6)
    x = random_rows(trees, 23, 7)
    x[:] = x[4]
    y = run(kernel, trees, x, Target.named(isa))
    assert np.unique(y.view(np.uint32), axis=0).shape[0] == 1


@pytest.mark.parametrize(("kernel", "isa"), CASES)
@pytest.mark.parametrize("width", [1, 3])
def test_leaves_are_added_in_float64(kernel: ForestKernel, isa: str, width: int) -> None:
    """Large ones that cancel leave the small ones whole."""
    trees, generator = 600, np.random.default_rng(0)
    leaves = generator.standard_normal((trees, width)).astype(np.float32)
    leaves[::2] += np.float32(2.0**20)
    leaves[1::2] -= np.float32(2.0**20)
    of_trees = np.stack([~np.arange(trees), np.zeros(trees, np.int64)], axis=1)
    none = np.zeros(0, np.float32), np.zeros((0, 4), np.int64)
    forest = Trees(4, 1.0, *none, leaves, of_trees, np.zeros(width, np.float32))
    found = run(kernel, forest, np.zeros((5, 4), np.float32), Target.named(isa))
    wanted = np.broadcast_to(leaves.astype(np.float64).sum(axis=0), found.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_blocks_hold_every_node_once() -> None:
    trees = random_trees(Shape(9, 5, 8, branching=1.0, missing=False, shared=0.0), 8)
    layout = block_layout(trees)
    assert (layout.words[:, 1] != MISSING).sum() == len(trees.nodes)
    assert layout.steps.max() == 2


def test_a_forest_of_many_features_takes_gathers() -> None:
    trees = random_trees(Shape(1000, 40, 6, branching=1.0), 9)
    plan = plan_forest(trees, 1, Target.named("avx512"))
    assert "forest-blocks" not in plan.prices
    assert plan.name == "forest-trees"
    assert plan_forest(trees, 64, Target.named("avx512")).name == "forest-rows"


def test_few_features_take_blocks() -> None:
    trees = random_trees(Shape(30, 100, 8, branching=1.0, missing=False), 9)
    for rows in (1, 64):
        assert plan_forest(trees, rows, Target.named("avx512")).name == "forest-blocks"
        assert plan_forest(trees, rows, Target.named("avx2")).name != "forest-blocks"


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [(0, 99, "feature 99"), (1, 10**6, "child 1000000"), (2, -(10**6), "child -1000000")],
)
def test_numbers_out_of_range_are_refused(column: int, value: int, message: str) -> None:
    trees = random_trees(Shape(5, 3, 4), 1)
    nodes = trees.nodes.copy()
    nodes[1, column] = value
    with pytest.raises(InvalidInput, match=message):
        Trees(5, 1.0, trees.thresholds, nodes, trees.leaves, trees.trees, trees.base)


def test_a_circle_is_refused() -> None:
    trees = chain(5, 2)
    nodes = trees.nodes.copy()
    nodes[4, 1] = 0
    with pytest.raises(InvalidInput, match="ancestor"):
        Trees(2, 1.0, trees.thresholds, nodes, trees.leaves, trees.trees, trees.base)


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_paths_of_nodes_with_several_parents(seed: int) -> None:
    """Nodes lead to later ones alone, so that a walk from the last node back knows all paths."""
    generator = np.random.default_rng(seed)
    count, ways = 60, 2 + seed
    children = np.arange(count)[:, None] + generator.integers(1, 9, (count, ways))
    children[(children >= count) | (generator.random(children.shape) < 0.2)] = -1 - seed
    wanted = np.ones(count, np.int64)
    for node in reversed(range(count)):
        below = children[node][children[node] >= 0]
        wanted[node] = 1 + wanted[below].max(initial=0)
    np.testing.assert_array_equal(longest_paths(children), wanted)


def test_nodes_on_a_cycle_and_above_it_have_no_longest_path() -> None:
    children = np.array([[1, -1], [2, 3], [1, -1], [-1, -1]])
    assert longest_paths(children).tolist() == [0, 0, 0, 1]
