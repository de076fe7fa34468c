"""The kernels of forests between which a planner chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sparsejit.asm_templates.forest.block_layout import block_layout
from sparsejit.asm_templates.forest.blocks import GROUP, BlockWalk, emit_block_walk
from sparsejit.asm_templates.forest.walk import (
    GROUPS,
    RowWalk,
    TreeWalk,
    WalkLayout,
    emit_row_walk,
    emit_tree_walk,
    walk_layout,
)
from sparsejit.ir.ops.forest import Trees
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler

_BLOCK_BYTES = 192


@dataclass(frozen=True)
class ForestCounts:
    """Counts of a forest kernel's work for all rows, which `ForestPrices` turns into time.

    `data_bytes`: bytes of all trees. `near_bytes`: bytes that are read again before any others.
    """

    rows: int
    data_bytes: int
    near_bytes: int
    gathers: float = 0
    ranks: float = 0
    first_pairs: int = 0
    pairs: int = 0
    groups: int = 0
    leaves: int = 0


@dataclass(frozen=True, eq=False)
class LoweredForest:
    """A kernel for certain trees. `emit` takes x in rdi, y in rsi, scratch in rdx.

    It clobbers these, rax, rcx, r8 to r11, vectors and k1.
    """

    counts: ForestCounts
    scratch_bytes: int
    emit: Callable[[Assembler], None]


@dataclass(frozen=True)
class ForestKernel:
    """One way to evaluate forests: its name, its levels, and the function that lowers trees to it.

    `lower` raises CompileError for trees that the kernel cannot hold.
    """

    name: str
    about: str
    levels: tuple[str, ...]
    lower: Callable[[Trees, int, Target], LoweredForest]


def _lower_blocks(trees: Trees, rows: int, target: Target) -> LoweredForest:
    walk = BlockWalk(block_layout(trees), rows)
    searches = sum(_search_steps(len(thresholds)) for thresholds in walk.layout.thresholds)
    groups = sum(walk.group_steps)
    data = len(walk.layout.words) * _BLOCK_BYTES
    counts = ForestCounts(
        rows,
        data,
        data,
        ranks=rows * searches * target.core.forest.search[trees.x_bytes],
        first_pairs=rows * len(walk.layout.order) // 2,
        pairs=rows * (groups - walk.groups) * GROUP // 2,
        groups=rows * groups,
        leaves=rows * _leaf_vectors(trees, target),
    )
    return LoweredForest(counts, walk.scratch_bytes, partial(emit_block_walk, walk=walk))


def _leaf_vectors(trees: Trees, target: Target) -> int:
    """Return the vectors of outputs in the leaves of one row; 0 where a leaf is one number."""
    lanes = target.lanes // 2
    return len(trees.trees) * ceil_div(trees.outputs, lanes) if trees.width > 1 else 0


def _search_steps(thresholds: int) -> int:
    """Return the levels of a search for a rank that divides by sixteen."""
    steps, blocks = 1, thresholds // 16 + 1
    while blocks > 1:
        steps, blocks = steps + 1, ceil_div(blocks, 16)
    return steps


def _lower_trees(trees: Trees, rows: int, target: Target) -> LoweredForest:
    layout, block = walk_layout(trees), GROUPS * target.lanes
    highest = [int(layout.heights[i : i + block].max()) for i in range(0, len(layout.order), block)]
    slots = layout.slots.pitch(target.lanes) // target.lanes
    each = target.core.forest.level_gathers[trees.x_bytes]
    gathers = slots + GROUPS * sum(each * levels + 1 for levels in highest)
    data = layout.data_bytes
    leaves = rows * _leaf_vectors(trees, target)
    counts = ForestCounts(rows, data, data, gathers=rows * gathers, leaves=leaves)
    scratch = TreeWalk(layout, rows)
    return LoweredForest(
        counts, scratch.scratch_bytes(target.lanes), partial(emit_tree_walk, walk=scratch)
    )


def _lower_rows(trees: Trees, rows: int, target: Target) -> LoweredForest:
    layout: WalkLayout = walk_layout(trees)
    walk = RowWalk(layout, rows)
    vectors, found = walk.vectors(target.lanes), 1 if trees.width == 1 else 1 + trees.outputs
    each = target.core.forest.level_gathers[trees.x_bytes]
    levels = each * int(layout.heights.sum()) + found * len(layout.order)
    slots = rows * layout.slots.pitch(target.lanes) // target.lanes
    data = layout.data_bytes
    near = data // max(len(layout.order), 1) + walk.slot_bytes(target.lanes)
    counts = ForestCounts(rows, data, near, gathers=vectors * levels + slots)
    return LoweredForest(
        counts, walk.scratch_bytes(target.lanes), partial(emit_row_walk, walk=walk)
    )


FOREST_KERNELS = (
    ForestKernel("forest-blocks", "four levels of all trees at once", ("avx512",), _lower_blocks),
    ForestKernel("forest-trees", "trees as lanes", ("avx512", "avx2"), _lower_trees),
    ForestKernel("forest-rows", "rows as lanes", ("avx512", "avx2"), _lower_rows),
)
