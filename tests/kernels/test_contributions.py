"""SHAP values of trees against their games, which the reference walks through leaf by leaf."""

from dataclasses import replace

import numpy as np
import pytest
from forest_cases import Shape, chain, in_float64, random_rows, random_trees
from guard import EDGES, GuardedArray, run_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import LEVELS

from sparsejit.asm_templates.forest.contributions import (
    ContributionTrees,
    ContributionWalk,
    contribution_layout,
    emit_contributions,
)
from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.forest import Contributions, Trees
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.runtime.native_timing import aligned, call_native
from sparsejit.runtime.program import build


def games(trees: Trees, columns: int, seed: int) -> ContributionTrees:
    """Players, shares of samples and leaves in float64 for trees; some shares are 0 or 1."""
    generator = np.random.default_rng(seed)
    left = generator.random(len(trees.nodes))
    left[generator.random(len(left)) < 0.1] = 0.0
    left[generator.random(len(left)) < 0.1] = 1.0
    players = generator.integers(max(columns - 1, 1), size=len(trees.nodes))
    leaves = generator.standard_normal(len(trees.leaves))
    base = generator.standard_normal(trees.outputs)
    shares = np.stack([left, 1 - left], axis=1)
    return ContributionTrees(trees, players, leaves, base, shares, columns)


def emitted(given: ContributionTrees, rows: int, isa: str) -> tuple[int, ContributionWalk]:
    """The address of the kernel, and what it is made from; the program stays."""
    target = Target.named(isa)
    walk = ContributionWalk.of(contribution_layout(given), rows, target)
    program = build("contributions", target, lambda asm: emit_contributions(asm, walk))
    _PROGRAMS.append(program)
    return program.memory.address, walk


_PROGRAMS: list[object] = []


def found(given: ContributionTrees, x: Array, isa: str) -> Array:
    """y (rows, outputs, columns), its scratch full of ones' bits."""
    address, walk = emitted(given, len(x), isa)
    y = np.full((len(x), len(given.base), given.columns), np.nan)
    count = walk.scratch_bytes(Target.named(isa).lanes) // 4
    scratch = aligned(np.full(count + 1, -1, np.int32).view(np.float32))
    call_native(address, (x.ctypes.data, y.ctypes.data, scratch.ctypes.data))
    return y


def wanted(given: ContributionTrees, x: Array) -> Array:
    trees = given.trees
    nodes = np.column_stack([trees.nodes, given.players])
    operands = trees.thresholds, nodes, given.leaves, trees.trees, given.base, given.shares
    (y,) = Contributions(given.columns).reference(x.astype(np.float64), *operands)
    return y


def check(given: ContributionTrees, x: Array, isa: str) -> None:
    right = wanted(given, x)
    y = found(given, x, isa)
    assert np.abs(y - right).max() <= 1e-13 * max(1.0, np.abs(given.leaves).sum())


@pytest.mark.parametrize("isa", LEVELS)
@settings(max_examples=40)
@given(
    features=st.sampled_from([1, 3, 17]),
    trees=st.integers(1, 5),
    depth=st.integers(0, 6),
    outputs=st.sampled_from([1, 3]),
    columns=st.sampled_from([2, 4, 20]),
    branching=st.sampled_from([0.6, 1.0]),
    rows=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_trees(
    isa: str,
    features: int,
    trees: int,
    depth: int,
    outputs: int,
    columns: int,
    branching: float,
    rows: int,
    seed: int,
) -> None:
    shape = Shape(features, trees, depth, outputs, branching, shared=0.0)
    forest = random_trees(shape, seed)
    x = random_rows(forest, rows, seed)
    given = games(forest, columns, seed)
    check(given, x, isa)
    forest, x = in_float64(forest, x, seed)
    check(replace(given, trees=forest), x, isa)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize(("height", "columns"), [(9, 30), (30, 12), (60, 61)])
def test_deep_chains(isa: str, height: int, columns: int) -> None:
    """Paths of more players than a register has points."""
    forest = chain(height, 7)
    given = games(forest, columns, 3)
    if columns > height:
        given = replace(given, players=np.arange(height))
    check(given, random_rows(forest, 4, 1), isa)


@pytest.mark.parametrize("isa", LEVELS)
def test_rows_sum_to_the_leaves_that_x_reaches(isa: str) -> None:
    forest = random_trees(Shape(5, 30, 7, 2, 0.9, shared=0.0), 1)
    given, x = games(forest, 6, 2), random_rows(forest, 9, 3)
    sums = found(given, x, isa).sum(axis=2)
    right = np.zeros((9, 2)) + given.base
    for root, output in forest.trees:
        for row in range(9):
            state = root
            while state >= 0:
                feature, left, right_child, missing_left = forest.nodes[state]
                value = x[row, feature]
                goes = missing_left if np.isnan(value) else value <= forest.thresholds[state]
                state = left if goes else right_child
            right[row, output] += given.leaves[~state]
    np.testing.assert_allclose(sums, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("isa", LEVELS)
def test_nothing_beyond_the_operands_is_touched(isa: str) -> None:
    forest = random_trees(Shape(5, 6, 5, 2, 0.9, shared=0.0), 4)
    given, x = games(forest, 6, 2), random_rows(forest, 3, 3)
    address, walk = emitted(given, 3, isa)
    numbers = walk.scratch_bytes(Target.named(isa).lanes) // 4
    right = wanted(given, x)

    def try_at(edge: str) -> None:
        arrays = x.reshape(-1), np.zeros(2 * right.size, np.float32), np.zeros(numbers, np.float32)
        each = [GuardedArray(array, edge) for array in arrays]  # type: ignore[arg-type]
        call_native(address, tuple(array.address for array in each))
        y = each[1].values.view(np.float64).reshape(right.shape)
        np.testing.assert_allclose(y, right, rtol=1e-9, atol=1e-12)
        assert all(array.surroundings_intact() for array in each)

    run_in_child([(edge, lambda edge=edge: try_at(edge)) for edge in EDGES]).assert_clean()  # type: ignore[misc]


def test_trees_that_are_none_are_refused() -> None:
    forest = chain(3, 2)
    given = games(forest, 4, 0)
    with pytest.raises(InvalidInput, match="has player 3; give numbers from 0 to 2"):
        replace(given, players=np.array([0, 3, 1]))
    twice = forest.nodes.copy()
    twice[1, 1:3] = ~0
    shared = replace_trees(forest, nodes=twice)
    with pytest.raises(InvalidInput, match="several parents"):
        replace(given, trees=shared)


def replace_trees(trees: Trees, **changes: Array) -> Trees:
    names = ("features", "scale", "thresholds", "nodes", "leaves", "trees", "base")
    return Trees(**{name: getattr(trees, name) for name in names} | changes)
