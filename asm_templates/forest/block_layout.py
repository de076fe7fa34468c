"""Trees as blocks of four levels, a cache line each, and the search for ranks that they compare.

    block_layout   trees as blocks, in which thresholds are ranks
    emit_ranks     the rank of x among the thresholds of each slot

A block:

    block:  slots of nodes 1 to 15 (16-bit), ranks of their thresholds (16-bit); 0 is unused
            nodes in heap order: the children of p are 2 p and 2 p + 1; 16 to 31 are its exits

The rank of a threshold is its place among all thresholds of its slot; the rank of x is the number
of thresholds below x. So x <= threshold where rank(x) <= rank(threshold). Where a tree ends within
a block, a rank that none exceeds leads on to the left.

The search for the rank of x divides by sixteen:

    x in all lanes > 16 pivots      count of lanes: number of the next block of pivots or thresholds
    ...
    x in all lanes > 16 thresholds  rank = 16 block + count

A missing value that goes left is above no threshold; one that goes right counts as infinity, or if
there is an infinite threshold, takes a rank above all others.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparsejit.asm_templates.forest.slots import Slots
from sparsejit.asm_templates.forest.walk import tree_order
from sparsejit.errors import CompileError
from sparsejit.ir.ops.forest import Trees, longest_paths
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, r8, r9, rax, xmm, zmm

EXITS = 16
MOST_SLOTS = 64  # words of two registers
MISSING = 0xFFFF
_MOST_RANKS = MISSING - 1
_MOST_BLOCKS = 1 << 22
_NONE = -1 << 31  # no child: a leaf without a number


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """A forest as blocks of four levels of a tree; block 0 is empty and leads nowhere.

    words: uint16 (blocks, 2, 16): slots of a block's nodes, and ranks of their thresholds.
    after: int32 (blocks, 16), the block behind each exit or -1.
    leaf: int32 (blocks, 16), the leaf behind each exit or -1.
    roots, steps: by tree in `order`, its first block, and the most blocks that a row passes.
    thresholds: by slot, ascending.
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
    node, exits = np.maximum(heaps[:, :EXITS], -1), heaps[:, EXITS:]
    words = np.empty((len(heaps), 2, EXITS), np.uint16)
    # The last entry of each table is of no node.
    words[:, 0] = np.append(slots.of_node, 0).astype(np.uint16)[node]
    words[:, 1] = np.append(ranks, MISSING).astype(np.uint16)[node]
    after = block_of[np.maximum(exits, -1)]
    leaf = np.where((exits < 0) & (exits > _NONE), ~exits, -1)
    steps = longest_paths(after)  # the most blocks that a row passes from each block on
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
    """Return the content of each place of every block, a node or ~leaf; and the block of each node.

    A node's block is the one that begins with it, or -1. Block 0 is empty; then come the roots'
    blocks in order, then the blocks behind them, level by level.
    """
    # By node: the block that begins with it, or -1; the last entry stands for all leaves.
    block_of = np.full(len(trees.nodes) + 1, -1, np.int32)
    heaps = [np.full((1, 2 * EXITS), _NONE, np.int32)]
    children = np.ascontiguousarray(trees.nodes[:, 1:3].astype(np.int32))
    count, first = 1, roots
    block_of[roots[roots >= 0]] = 1 + np.flatnonzero(roots >= 0)
    while len(first):
        heap = np.full((len(first), 2 * EXITS), _NONE, np.int32)
        heap[:, 1] = first
        for place in range(1, EXITS):
            heap[:, 2 * place : 2 * place + 2] = heap[:, [place]]
            inner = np.flatnonzero(heap[:, place] >= 0)
            heap[inner, 2 * place : 2 * place + 2] = children[heap[inner, place]]
        heaps.append(heap)
        count += len(first)
        if count > _MOST_BLOCKS:
            raise CompileError(f"the forest has more than {_MOST_BLOCKS:,} blocks of nodes")
        exits = heap[:, EXITS:]
        first = np.unique(exits[exits >= 0])
        first = first[block_of[first] < 0]
        block_of[first] = count + np.arange(len(first))
    return np.concatenate(heaps), block_of


_WORD, _BLOCK = 2, 16
_GREATER = 30  # ordered, quiet


def emit_ranks(asm: Assembler, layout: BlockLayout, x: Register, into: Register) -> None:
    """Append code that writes the uint16 rank of each slot, and 2 bytes beyond, to `into`.

    Clobbers rax, r8, r9, vectors 0 to 2, k1 and k2.
    """
    size = layout.trees.x_bytes
    form = _FORMS[size]
    levels = [_levels(thresholds) for thresholds in layout.thresholds]
    flat = [level for slot in levels for level in slot]
    if not flat:
        return
    starts = np.cumsum([0, *(level.nbytes for level in flat)])
    asm.emit("lea", r8, Literal(asm.literal(np.concatenate(flat))))
    infinity = Literal(asm.literal(np.full(64 // size, np.inf, layout.trees.thresholds.dtype)))
    asm.emit("vmovups", zmm(2), infinity)
    number = 0
    for slot, own in enumerate(levels):
        value, goes_left = zmm(slot % 2), bool(layout.slots.goes_left[slot])
        place = Memory(x, size * int(layout.slots.features[slot]))
        asm.emit(form.broadcast, value, place)
        if not goes_left:  # min returns the second source, infinity, if x is NaN
            asm.emit(form.least, value, value, zmm(2))
        _search(asm, form, value, [int(start) for start in starts[number : number + len(own)]])
        number += len(own)
        if not goes_left and np.isinf(layout.thresholds[slot][-1]):
            _mark_missing(asm, form, place)
        asm.emit("mov", Memory(into, _WORD * slot), dword(r9))


@dataclass(frozen=True)
class _Forms:
    """Instructions that compare elements of x, float32 or float64.

    `block_shift` is log2 of the bytes of 16 elements.
    """

    broadcast: str
    least: str
    compare: str
    load: str
    compare_one: str
    block_shift: int


_FORMS = {
    4: _Forms("vbroadcastss", "vminps", "vcmpps", "vmovss", "vucomiss", 6),
    8: _Forms("vbroadcastsd", "vminpd", "vcmppd", "vmovsd", "vucomisd", 7),
}


def _search(asm: Assembler, form: _Forms, value: Register, starts: list[int]) -> None:
    """r9 = the rank of a value; tables of pivots, then of thresholds, lie at r8 + `starts`."""
    count, shift = dword(rax), form.block_shift
    for depth, start in enumerate(starts):
        index = (r9,) if depth else ()
        asm.emit(form.compare, k(1), value, Memory(r8, start, *index), _GREATER)
        if form.compare == "vcmppd":  # 16 doubles are two vectors
            asm.emit(form.compare, k(2), value, Memory(r8, start + 64, *index), _GREATER)
            asm.emit("kunpckbw", k(1), k(2), k(1))
        last = depth == len(starts) - 1
        if depth == 0:
            asm.emit("kmovw", dword(r9), k(1))
            asm.emit("popcnt", dword(r9), dword(r9))
        else:
            asm.emit("kmovw", count, k(1))
            asm.emit("popcnt", count, count)
            # r9 is the offset of the block, in bytes.
            asm.emit("shr" if last else "shl", dword(r9), shift - 4 if last else 4)
            if not last:
                asm.emit("shl", count, shift)
            asm.emit("add", dword(r9), count)
        if depth == 0 and not last:
            asm.emit("shl", dword(r9), shift)


def _mark_missing(asm: Assembler, form: _Forms, place: Memory) -> None:
    """r9 = MISSING if the value at `place` is NaN."""
    known = asm.label("not missing")
    asm.emit(form.load, xmm(0), place)
    asm.emit(form.compare_one, xmm(0), xmm(0))
    asm.jump("jnp", known)
    asm.emit("mov", dword(r9), MISSING)
    asm.bind(known)


def _levels(thresholds: Array) -> list[Array]:
    """Return the levels of a search, coarsest first, thresholds last.

    A pivot is the last number of a block of 16 in the next level; infinity pads each level.
    """
    level = np.full(_BLOCK * (len(thresholds) // _BLOCK + 1), np.inf, thresholds.dtype)
    level[: len(thresholds)] = thresholds
    levels = [level]
    while len(level) > _BLOCK:
        pivots = level[_BLOCK - 1 :: _BLOCK]
        level = np.full(round_up(len(pivots), _BLOCK), np.inf, thresholds.dtype)
        level[: len(pivots)] = pivots
        levels.insert(0, level)
    return levels
