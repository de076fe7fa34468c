"""Random forests as operands: any shape, shared nodes, infinite and equal thresholds."""

from dataclasses import dataclass, fields

import numpy as np

from sparsejit.ir.ops.forest import Forest, Trees
from sparsejit.ir.values import Array

_SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3.0e38], np.float32)


@dataclass(frozen=True)
class Shape:
    """`depth` bounds trees, but for nodes with two parents, which are a share of `shared`.

    Of inner places `branching` is the share that becomes a node.
    """

    features: int
    trees: int
    depth: int
    outputs: int = 1
    branching: float = 0.8
    leaf_of_all: bool = False
    missing: bool = True
    shared: float = 0.1


def random_trees(shape: Shape, seed: int) -> Trees:
    """Trees that grow node by node; at times a node has two parents, and a threshold many nodes."""
    generator = np.random.default_rng(seed)
    rows: list[list[int]] = []
    leaves = 0

    def grow(depth: int, may_share: list[int]) -> int:
        nonlocal leaves
        if depth == 0 or (depth < shape.depth and generator.random() > shape.branching):
            leaves += 1
            return ~(leaves - 1)
        if may_share and generator.random() < shape.shared:
            return int(generator.choice(may_share))
        own = len(rows)
        feature = int(generator.integers(shape.features))
        goes_left = int(generator.integers(2)) if shape.missing else 0
        rows.append([feature, 0, 0, goes_left])
        rows[own][1] = grow(depth - 1, may_share)
        rows[own][2] = grow(depth - 1, may_share)
        may_share.append(own)
        return own

    roots = [grow(shape.depth, []) for _ in range(shape.trees)]
    width = shape.outputs if shape.leaf_of_all else 1
    columns = np.zeros(len(roots), np.int64)
    if width == 1:
        columns = generator.integers(shape.outputs, size=len(roots))
    thresholds = np.round(generator.standard_normal(len(rows)), 1).astype(np.float32)
    special = generator.random(len(rows)) < 0.1
    thresholds[special] = generator.choice(_SPECIAL, special.sum())
    return Trees(
        shape.features,
        float(generator.uniform(0.1, 2)),
        thresholds,
        np.array(rows, np.int64).reshape(-1, 4),
        generator.standard_normal((leaves, width)).astype(np.float32),
        np.stack([np.array(roots, np.int64), columns], axis=1),
        generator.standard_normal(shape.outputs).astype(np.float32),
    )


def chain(height: int, features: int) -> Trees:
    """One tree in which every right child is a leaf."""
    numbers = np.arange(height)
    left = np.append(numbers[1:], ~np.int64(height))
    nodes = np.stack([numbers % features, left, ~numbers, numbers % 2], axis=1)
    thresholds = np.linspace(3, -3, height, dtype=np.float32)
    leaves = np.arange(height + 1, dtype=np.float32)[:, None]
    trees, base = np.zeros((1, 2), np.int64), np.zeros(1, np.float32)
    return Trees(features, 1.0, thresholds, nodes, leaves, trees, base)


def random_rows(trees: Trees, rows: int, seed: int) -> Array:
    """x with values missing, infinite, and equal to thresholds."""
    generator = np.random.default_rng(seed)
    x = np.round(generator.standard_normal((rows, trees.features)), 1).astype(np.float32)
    odd = generator.random(x.shape) < 0.2
    pool = np.append(_SPECIAL, np.full(3, np.nan, np.float32))
    x[odd] = generator.choice(pool, odd.sum())
    return x


def in_float64(trees: Trees, x: Array, seed: int) -> tuple[Trees, Array]:
    """Thresholds between float32 numbers, and x on them, one ulp beside, missing and infinite."""
    generator = np.random.default_rng(seed)
    finite = np.isfinite(trees.thresholds)
    moved = trees.thresholds.astype(np.float64)
    moved[finite] += generator.choice([0, 1e-9, 2e-9, -1e-9], finite.sum())
    parts = {each.name: getattr(trees, each.name) for each in fields(Trees) if each.init}
    found = x.astype(np.float64)
    for (feature, *_), threshold in zip(trees.nodes, moved, strict=True):
        row = generator.integers(len(x))
        beside = np.nextafter(threshold, generator.choice([-np.inf, np.inf, threshold]))
        found[row, feature] = beside
    odd = generator.random(x.shape) < 0.5
    return Trees(**{**parts, "thresholds": moved}), np.where(odd, x, found)


def expected(trees: Trees, x: Array) -> Array:
    """The reference's results, in float64."""
    operands = (trees.thresholds, trees.nodes, trees.leaves, trees.trees, trees.base)
    (y,) = Forest(trees.scale).reference(x.astype(np.float64), *operands)
    return y
