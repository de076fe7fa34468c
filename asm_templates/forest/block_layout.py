"""Trees as blocks of four levels, a cache line each, in which thresholds are ranks.

    block:  slots of nodes 1 to 15 (16-bit), ranks of their thresholds (16-bit); 0 is unused
            nodes in heap order: the children of p are 2 p and 2 p + 1; 16 to 31 are its exits

The rank of a threshold is its place among all thresholds of its slot; the rank of x is the number
of thresholds below x. So x <= threshold where rank(x) <= rank(threshold). Where a tree ends within
a block, a rank that none exceeds leads on to the left.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparsejit.asm_templates.forest.slots import Slots
from sparsejit.asm_templates.forest.walk_layout import tree_order
from sparsejit.errors import CompileError
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array

EXITS = 16
MOST_SLOTS = 64  # words of two registers
MISSING = 0xFFFF
_MOST_RANKS = MISSING - 1
_MOST_BLOCKS = 1 << 22
_NONE = -1 << 40  # no child: a leaf without a number


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """All blocks, of which the first leads nowhere.

    words: uint16 (blocks, 2, 16); after: int64 (blocks, 16), the block behind each exit or -1;
    leaf: int64 (blocks, 16), the leaf there or -1. By tree in `order`: `roots`, its first block,
    and `steps`, the most blocks that a row passes. `thresholds`: by slot, ascending.
    """

    trees: Trees
    slots: Slots
    order: Array
    words: Array
    after: Array
    leaf: Array
    roots: Array
    steps: Array
    thresholds: tuple[Array, ...]


def block_layout(trees: Trees) -> BlockLayout:
    """Lay trees out as blocks.

    Raises CompileError where slots, thresholds or blocks are too many for their indices.
    """
    slots = Slots.of(trees)
    ranks, thresholds = _ranks(trees, slots)
    if len(slots) > MOST_SLOTS or max(map(len, thresholds), default=0) > _MOST_RANKS:
        raise CompileError(
            f"the forest compares {len(slots)} features; blocks read at most {MOST_SLOTS}"
        )
    order = tree_order(trees)
    heaps, block_of = _heaps(trees, trees.trees[order, 0])
    inner = heaps[:, :EXITS] >= 0
    node = np.where(inner, heaps[:, :EXITS], 0)
    words = np.zeros((len(heaps), 2, EXITS), np.uint16)
    if len(trees.nodes):
        words[:, 0] = np.where(inner, slots.of_node[node], 0)
        words[:, 1] = np.where(inner, ranks[node], MISSING)
    else:
        words[:, 1] = MISSING
    exits = heaps[:, EXITS:]
    after = np.where(exits >= 0, block_of[np.maximum(exits, -1)], -1)
    leaf = np.where((exits < 0) & (exits > _NONE), ~exits, -1)
    steps = _steps(after)
    roots = np.flatnonzero(np.arange(len(heaps)) > 0)[: len(order)]
    return BlockLayout(
        trees, slots, order, words, after, leaf, roots, steps[roots], tuple(thresholds)
    )


def _ranks(trees: Trees, slots: Slots) -> tuple[Array, list[Array]]:
    """Return the rank of each node's threshold, and the thresholds of each slot."""
    ranks, thresholds = np.zeros(len(trees.nodes), np.int64), []
    by_slot = np.argsort(slots.of_node, kind="stable")
    ends = np.searchsorted(slots.of_node[by_slot], np.arange(len(slots) + 1))
    for first, end in pairwise(ends):
        nodes = by_slot[first:end]
        unique, ranks[nodes] = np.unique(trees.thresholds[nodes], return_inverse=True)
        thresholds.append(unique)
    return ranks, thresholds


def _heaps(trees: Trees, roots: Array) -> tuple[Array, Array]:
    """Return the content of each place of every block, a node or ~leaf; and each node's block.

    Block 0 is empty; then come the roots' blocks in order, then the blocks behind them, level by
    level.
    """
    # By node: the block that begins with it, or -1; the last entry stands for all leaves.
    block_of = np.full(len(trees.nodes) + 1, -1)
    heaps = [np.full((1, 2 * EXITS), _NONE)]
    count, first = 1, roots
    block_of[roots[roots >= 0]] = 1 + np.flatnonzero(roots >= 0)
    while len(first):
        heap = np.full((len(first), 2 * EXITS), _NONE)
        heap[:, 1] = first
        for place in range(1, EXITS):
            inner = heap[:, place] >= 0
            for side in (0, 1):
                child = heap[:, place].copy()
                child[inner] = trees.nodes[child[inner], 1 + side]
                heap[:, 2 * place + side] = child
        heaps.append(heap)
        count += len(first)
        if count > _MOST_BLOCKS:
            raise CompileError(f"the forest has more than {_MOST_BLOCKS:,} blocks of nodes")
        exits = np.unique(heap[:, EXITS:])
        exits = exits[exits >= 0]
        first = exits[block_of[exits] < 0]
        block_of[first] = count + np.arange(len(first))
    return np.concatenate(heaps), block_of


def _steps(after: Array) -> Array:
    """Return for each block the most blocks that a row passes from there on."""
    steps = np.ones(len(after), np.int64)
    while True:
        longer = 1 + np.where(after >= 0, steps[after], 0).max(axis=1)
        if np.array_equal(longer, steps):
            return steps
        steps = longer
