"""Trees as records that a walk from root to leaf gathers, level by level.

A record is a threshold, and the slot that it is compared with, beside the place of a pair of
records, counted from the tree's first: 8 bytes, or 16 where x is float64. The left child is the
first of the pair, the right child the second; a node with several parents is a record with each. A
leaf leads to itself: it compares the slot of zero with infinity.

    records of a tree:  root, unused | left, right | left, right | ...
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.slots import Slots
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array

_MOST_RECORDS = 1 << 26  # 20 bytes of each must lie in reach of an address


@dataclass(frozen=True, eq=False)
class WalkLayout:
    """The records of all trees, in the order of `order`.

    By record: `thresholds` (as x), `meta` (uint32) and `leaf` (int64, -1 for no leaf). By tree:
    `first` and `heights`. The first two records are a leaf without a number.
    """

    trees: Trees
    slots: Slots
    order: Array
    first: Array
    heights: Array
    thresholds: Array
    meta: Array
    leaf: Array

    @property
    def record_bytes(self) -> int:
        """Bytes of a record: a threshold, and meta in the same width."""
        return 2 * self.trees.x_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of all records and of the 4-byte result of each."""
        return len(self.meta) * (self.record_bytes + 4)

    @property
    def slot_bits(self) -> int:
        """Low bits of `meta` that hold the slot's number; the others hold the pair's."""
        return len(self.slots).bit_length()


def walk_layout(trees: Trees) -> WalkLayout:
    """Lay trees out as records; raises CompileError for trees too large for 32-bit indices."""
    slots, order = Slots.of(trees), tree_order(trees)
    owner, nodes = _level_order(trees, order)
    counts = np.bincount(owner, minlength=len(order))
    first = 2 + 2 * np.concatenate([[0], np.cumsum(counts + 1)])
    records, bits = int(first[-1]), len(slots).bit_length()
    if records > _MOST_RECORDS or 2 * int(counts.max(initial=0)) >> (31 - bits):
        raise CompileError(
            f"the forest has {len(trees.nodes):,} nodes; give fewer or smaller trees"
        )
    pair_of = np.zeros(len(trees.nodes), np.int64)
    begins = np.concatenate([[0], np.cumsum(counts)])[:-1]
    pair_of[nodes] = 2 * (np.arange(len(nodes)) - begins[owner] + 1)
    thresholds = np.full(records, np.inf, trees.thresholds.dtype)
    starts = np.append(0, first)
    own = np.arange(records) - np.repeat(starts[:-1], np.diff(starts))
    meta = len(slots) | own << bits
    leaf = np.full(records, -1)
    places = first[owner][:, None] + pair_of[nodes][:, None] + np.arange(2)
    what = np.concatenate([trees.nodes[nodes, 1:3].reshape(-1), trees.trees[order, 0]])
    where = np.concatenate([places.reshape(-1), first[:-1]])
    inner = what >= 0
    thresholds[where[inner]] = trees.thresholds[what[inner]]
    meta[where[inner]] = slots.of_node[what[inner]] | pair_of[what[inner]] << bits
    leaf[where[~inner]] = ~what[~inner]
    heights = trees.tree_heights[order]
    return WalkLayout(
        trees, slots, order, first[:-1], heights, thresholds, meta.astype(np.uint32), leaf
    )


def tree_order(trees: Trees) -> Array:
    """Return the order of trees by output, then by height, so that similar trees share vectors."""
    return np.lexsort((-trees.tree_heights, trees.trees[:, 1]))


def _level_order(trees: Trees, order: Array) -> tuple[Array, Array]:
    """Return the nodes of every tree, tree after tree, level by level.

    The first array is the place in `order` of each node's tree, the second the nodes.
    """
    roots = trees.trees[order, 0]
    owner, node = np.flatnonzero(roots >= 0), roots[roots >= 0]
    seen = np.full(len(trees.nodes), -1)
    owners, nodes = [owner[:0]], [node[:0]]
    while node.size:
        if np.any((seen[node] >= 0) & (seen[node] != owner)):
            raise InvalidInput("a node belongs to two trees of a forest; copy it for each tree")
        _, once = np.unique(node, return_index=True)
        once = np.sort(once[seen[node[once]] < 0])
        owner, node = owner[once], node[once]
        seen[node] = owner
        owners.append(owner)
        nodes.append(node)
        children = trees.nodes[node, 1:3].reshape(-1)
        owner, node = np.repeat(owner, 2)[children >= 0], children[children >= 0]
    owner, node = np.concatenate(owners), np.concatenate(nodes)
    stable = np.argsort(owner, kind="stable")
    return owner[stable], node[stable]
