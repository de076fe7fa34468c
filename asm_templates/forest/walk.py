"""Walks down the trees of a forest by gathers: trees as lanes, or rows as lanes.

    walk_layout     trees as records that a walk from root to leaf gathers, level by level
    emit_tree_walk  a walk for one row of x after another: trees as lanes
    emit_row_walk   a walk for all rows of x together: rows as lanes, tree after tree

A record is a threshold, and the slot that it is compared with, beside the place of a pair of
records, counted from the tree's first: 8 bytes, or 16 where x is float64. The left child is the
first of the pair, the right child the second; a node with several parents is a record with each. A
leaf leads to itself: it compares the slot of zero with infinity.

    records of a tree:  root, unused | left, right | left, right | ...

Trees as lanes; the step repeats for each level of the highest tree in the four vectors:

    16 trees      threshold  <- records[state]          8 at a time with AVX2;
                  meta       <- records[state] + 4      four such vectors in turn, so that
                  value      <- slots[meta & ...]       the gathers of one hide the
                  state       = first + (meta >> ...)   latency of the others
                                + (value > threshold)

Rows as lanes:

    slots of all rows, each row's beside the other's
    for each four vectors of rows, for each tree:
        for each level of the tree            threshold, meta <- the tree's records[state]
                                              value           <- slots[row, meta & ...]
        sums of the output += leaves found    in float64, one for each row

A tree's records stay in near caches for all rows, however large the forest is.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.leaf_sums import LeafSums, emit_leaf_sums
from sparsejit.asm_templates.forest.slots import Slots, emit_slots, gather
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
    ymm,
    zmm,
)

_MOST_RECORDS = 1 << 26  # 20 bytes of each must lie in reach of an address


@dataclass(frozen=True, eq=False)
class WalkLayout:
    """A forest as records, one for each node and leaf, of all trees in the order of `order`.

    By record: `thresholds` (as x), `meta` (uint32: its slot, and the pair of its children) and
    `leaf` (int64, -1 for no leaf). By tree: `first` record and `heights`. The first two records are
    a leaf without a number.
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
    owner, nodes = level_order(trees, order)
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


def level_order(trees: Trees, order: Array) -> tuple[Array, Array]:
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


GROUPS = 4  # vectors of trees in turn
_FLOAT, _DOUBLE = 4, 8
_NOT_LESS_EQUAL = 6
_EVEN_WORDS, _MIDDLE_SWAPPED = 0x88, 0xD8
_STATES = 4  # first of the registers 4 to 7, which hold states


@dataclass(frozen=True, eq=False)
class TreeWalk:
    """A kernel that walks `rows` rows of x, one after another, through trees as lanes."""

    layout: WalkLayout
    rows: int

    def found_bytes(self, lanes: int) -> int:
        block = lanes * GROUPS
        return _FLOAT * round_up(len(self.layout.order), block)

    def scratch_bytes(self, lanes: int) -> int:
        return self.layout.slots.row_bytes(lanes) + self.found_bytes(lanes)


def emit_tree_walk(asm: Assembler, walk: TreeWalk) -> None:
    """Append the kernel that walks one row after another, with trees as lanes.

    rdi: x; rsi: y; rdx: scratch. Clobbers these, rax, rcx, r8 to r11.
    """
    layout, lanes = walk.layout, asm.target.lanes
    sums = LeafSums.of(layout.trees, layout.order)
    tables = _Tables(asm, layout, sums)
    again = asm.label("next row")
    asm.emit("mov", r10, walk.rows)
    asm.emit("push", r10)
    asm.bind(again)
    emit_slots(asm, layout.slots, rdi, rdx)
    asm.emit("lea", r9, Memory(rdx, layout.slots.row_bytes(lanes)))
    tables.walk(asm)
    asm.emit("lea", r10, Memory(rdx, layout.slots.row_bytes(lanes)))
    emit_leaf_sums(asm, sums, r10, rsi)
    asm.emit("add", rdi, layout.trees.x_bytes * layout.trees.features)
    asm.emit("add", rsi, layout.trees.y_bytes * layout.trees.outputs)
    asm.emit("pop", r10)
    asm.emit("sub", r10, 1)
    asm.emit("push", r10)
    asm.jump("jnz", again)
    asm.emit("pop", r10)


def records_of(layout: WalkLayout) -> Array:
    """Return thresholds and meta side by side, as 32-bit words."""
    words = layout.trees.x_bytes // _FLOAT
    records = np.zeros((len(layout.meta), 2 * words), np.uint32)
    records[:, :words] = layout.thresholds.view(np.uint32).reshape(-1, words)
    records[:, words] = layout.meta
    return records


class _Tables:
    """The walk of all trees, and its tables in the pool."""

    def __init__(self, asm: Assembler, layout: WalkLayout, sums: LeafSums) -> None:
        block = asm.target.lanes * GROUPS
        self.layout, self.blocks = layout, ceil_div(len(layout.order), block)
        self.records = asm.literal(records_of(layout))
        self.found = asm.literal(sums.found_of(layout.leaf))
        first = np.zeros((self.blocks, block), np.int32)
        first.reshape(-1)[: len(layout.order)] = layout.first
        heights = np.zeros((self.blocks, block), np.int32)
        heights.reshape(-1)[: len(layout.order)] = layout.heights
        highest = heights.max(axis=1, initial=0)[:, None]
        padding = np.zeros((self.blocks, asm.target.lanes - 1), np.int32)
        table = np.concatenate([first, highest.astype(np.int32), padding], axis=1)
        self.blocks_table, self.height_at = asm.literal(table), _FLOAT * block
        self.block_bytes = table.shape[1] * _FLOAT

    def walk(self, asm: Assembler) -> None:
        """Append the walk of one row. rdx: slots; r9: the results, 32 bits a tree.

        Clobbers rax, rcx, r8, r10 and r11.
        """
        lanes, vector_bytes = asm.target.lanes, asm.target.vector_bytes
        asm.emit("lea", rcx, Literal(self.records))
        asm.emit("lea", r8, Literal(self.blocks_table))
        asm.emit("lea", r11, Literal(self.found))
        load_slot_mask(asm, self.layout)
        with counted_down(asm, dword(r10), self.blocks):
            for group in range(GROUPS):
                asm.emit("vmovups", state(asm, group), Memory(r8, group * vector_bytes))
            firsts: list[Memory | None] = [
                Memory(r8, group * vector_bytes) for group in range(GROUPS)
            ]
            asm.emit("mov", dword(rax), Memory(r8, self.height_at))
            emit_levels(asm, self.layout, firsts, [None] * GROUPS)
            for group in range(GROUPS):
                numbers = vector(asm, 0)
                gather(asm, numbers, Memory(r11, 0, state(asm, group), _FLOAT), vector(asm, 1))
                asm.emit("vmovups", Memory(r9, group * vector_bytes), numbers)
            asm.emit("add", r8, self.block_bytes)
            asm.emit("add", r9, GROUPS * lanes * _FLOAT)


def state(asm: Assembler, group: int) -> Register:
    """Return the register of a group's states: the number of each lane's record."""
    return vector(asm, _STATES + group)


def load_slot_mask(asm: Assembler, layout: WalkLayout) -> None:
    """Vector 8 = the bits of meta that name a slot; AVX-512: vector 9 = 1 in every lane."""
    masks = np.full(asm.target.lanes, (1 << layout.slot_bits) - 1, np.int32)
    asm.emit("vmovups", vector(asm, 8), Literal(asm.literal(masks)))
    if asm.target.isa == "avx512":
        ones = np.ones(asm.target.lanes, np.int32)
        asm.emit("vmovups", vector(asm, 9), Literal(asm.literal(ones)))


def emit_levels(
    asm: Assembler,
    layout: WalkLayout,
    firsts: list[Memory | None],
    rows: list[Literal | None],
) -> None:
    """Append a loop that takes every state down rax levels of its tree.

    There is a vector of states for each entry of the lists. rcx: records; rdx: slots. Entries that
    are not None are added: `firsts` to the number of a pair, `rows` to the number of a slot.
    """
    done = asm.label("at the leaves")
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jz", done)
    with counted_down(asm, dword(rax)):
        for group, (first, row) in enumerate(zip(firsts, rows, strict=True)):
            _emit_level(asm, layout, state(asm, group), first, row)
    asm.bind(done)


def _emit_level(
    asm: Assembler,
    layout: WalkLayout,
    place: Register,
    first: Memory | None,
    row: Literal | None,
) -> None:
    threshold, slot, value, mask = (vector(asm, number) for number in range(4))
    avx512, is_double = asm.target.isa == "avx512", layout.trees.x_bytes == _DOUBLE
    doubled = vector(asm, 10 if avx512 else 9)
    if is_double:
        asm.emit("vpaddd", doubled, place, place)  # 16 bytes a record; addresses scale by 8
        gather(asm, slot, Memory(rcx, _DOUBLE, doubled, _DOUBLE), mask)
    else:
        gather(asm, threshold, Memory(rcx, 0, place, _DOUBLE), mask)
        gather(asm, slot, Memory(rcx, _FLOAT, place, _DOUBLE), mask)
    asm.emit("vpsrld", place, slot, layout.slot_bits)
    asm.emit("vpandd" if avx512 else "vpand", slot, slot, vector(asm, 8))
    if row is not None:
        asm.emit("vpaddd", slot, slot, row)
    if is_double:
        _compare_doubles(asm, doubled, slot)
    else:
        gather(asm, value, Memory(rdx, 0, slot, _FLOAT), mask)
        asm.emit("vcmpps", k(1) if avx512 else mask, value, threshold, _NOT_LESS_EQUAL)
    if first is not None:
        asm.emit("vpaddd", place, place, first)
    if avx512:
        asm.emit("vpaddd", place.masked(k(1)), place, vector(asm, 9))
    else:
        asm.emit("vpsubd", place, place, mask)


def _compare_doubles(asm: Assembler, records: Register, slots: Register) -> None:
    """k1, or with AVX2 vector 3, = whether the slot's value exceeds the record's threshold.

    The halves of the lanes are compared in turn. Clobbers vectors 0, 2, 3, 14 and 15, `records`, k2
    and k3.
    """
    avx512 = asm.target.isa == "avx512"
    threshold, value, mask = vector(asm, 0), vector(asm, 2), vector(asm, 3)
    upper = [half_vector(asm, 14), half_vector(asm, 15)]
    lower = [half_vector(asm, records.number), half_vector(asm, slots.number)]
    for half, both in zip(upper, (records, slots), strict=True):
        asm.emit("vextracti64x4" if avx512 else "vextracti128", half, both, 1)
    found = [k(2), k(3)] if avx512 else [records, vector(asm, 14)]
    for (record, slot), answer in zip((lower, upper), found, strict=True):
        gather(asm, threshold, Memory(rcx, 0, record, _DOUBLE), mask, is_double=True)
        gather(asm, value, Memory(rdx, 0, slot, _DOUBLE), mask, is_double=True)
        asm.emit("vcmppd", answer, value, threshold, _NOT_LESS_EQUAL)
    if avx512:
        asm.emit("kunpckbw", k(1), k(3), k(2))
    else:
        asm.emit("vshufps", mask, *found, _EVEN_WORDS)
        asm.emit("vpermq", mask, mask, _MIDDLE_SWAPPED)


_TREE_BYTES = 16


@dataclass(frozen=True, eq=False)
class RowWalk:
    """A kernel that walks all `rows` rows of x together, as lanes, through tree after tree."""

    layout: WalkLayout
    rows: int

    def vectors(self, lanes: int) -> int:
        return ceil_div(self.rows, lanes)

    def slot_bytes(self, lanes: int) -> int:
        return self.rows * self.layout.slots.row_bytes(lanes)

    def scratch_bytes(self, lanes: int) -> int:
        """Bytes of slots, then of sums by output, then of one output in the format of y."""
        trees, rows = self.layout.trees, self.vectors(lanes) * lanes
        return self.slot_bytes(lanes) + rows * (trees.outputs * _DOUBLE + trees.y_bytes)


def emit_row_walk(asm: Assembler, walk: RowWalk) -> None:
    """Append the kernel that walks all rows together, with rows as lanes.

    rdi: x; rsi: y; rdx: scratch. Clobbers these, rax, rcx, r8 to r11.
    """
    writer = _RowWriter(asm, walk)
    writer.fill_slots()
    writer.clear_sums()
    for first in range(0, walk.vectors(asm.target.lanes), GROUPS):
        writer.walk(first)
    writer.finish()


class _RowWriter:
    """The code of a walk with rows as lanes: slots, trees, outputs; and its tables in the pool."""

    def __init__(self, asm: Assembler, walk: RowWalk) -> None:
        self.asm, self.walk_of, layout = asm, walk, walk.layout
        self.layout, lanes = layout, asm.target.lanes
        self.lanes, self.sums = lanes, LeafSums.of(layout.trees, layout.order)
        self.records = asm.literal(records_of(layout))
        self.found = asm.literal(self.sums.found_of(layout.leaf))
        self.leaves = asm.literal(self.sums.table())
        self.sums_at = walk.slot_bytes(lanes)
        self.row_doubles = walk.vectors(lanes) * lanes * _DOUBLE  # bytes of an output's sums
        self.floats_at = self.sums_at + self.row_doubles * layout.trees.outputs
        columns = self.sums.columns * self.row_doubles
        table = np.stack([layout.first, layout.heights, columns, 0 * columns], axis=1)
        self.trees = asm.literal(table.astype(np.int32))

    def fill_slots(self) -> None:
        """Fill the slots of every row; keeps rdx and rsi."""
        asm, trees = self.asm, self.layout.trees
        asm.emit("lea", r11, Memory(rdx))

        def row() -> None:
            emit_slots(asm, self.layout.slots, rdi, r11)
            asm.emit("add", rdi, trees.features * trees.x_bytes)
            asm.emit("add", r11, self.layout.slots.row_bytes(self.lanes))

        repeat(asm, self.walk_of.rows, r10, row)

    def clear_sums(self) -> None:
        asm, size = self.asm, asm_vector_bytes(self.asm)
        zero(asm, vector(asm, 0))
        asm.emit("lea", r8, Memory(rdx, self.sums_at))

        def clear() -> None:
            asm.emit("vmovups", Memory(r8), vector(asm, 0))
            asm.emit("add", r8, size)

        repeat(asm, (self.floats_at - self.sums_at) // size, rax, clear)

    def walk(self, first: int) -> None:
        """Append the walk of some vectors of rows, at most GROUPS from `first` on, by all trees."""
        asm, layout = self.asm, self.layout
        groups = min(GROUPS, self.walk_of.vectors(self.lanes) - first)
        # A lane without a row repeats the last row.
        rows = np.minimum(np.arange(groups * self.lanes) + first * self.lanes, self.last)
        slots = (rows * layout.slots.pitch(self.lanes)).astype(np.int32).reshape(groups, -1)
        places: list[Literal | None] = [Literal(asm.literal(each)) for each in slots]
        load_slot_mask(asm, layout)
        asm.emit("lea", r10, Literal(self.trees))

        def tree() -> None:
            asm.emit("mov", dword(rax), Memory(r10))
            asm.emit("lea", rcx, Literal(self.records))
            for _ in range(layout.record_bytes // _DOUBLE):
                asm.emit("lea", rcx, Memory(rcx, 0, rax, _DOUBLE))
            asm.emit("lea", r8, Literal(self.found))
            asm.emit("lea", r8, Memory(r8, 0, rax, _FLOAT))
            asm.emit("mov", dword(r9), Memory(r10, 2 * _FLOAT))
            asm.emit("lea", r9, Memory(r9, self._sums_of(first), rdx))
            for group in range(groups):
                zero(asm, state(asm, group))
            asm.emit("mov", dword(rax), Memory(r10, _FLOAT))
            emit_levels(asm, layout, [None] * groups, places)
            self._add_found(groups)
            asm.emit("add", r10, _TREE_BYTES)

        repeat(asm, len(layout.order), r11, tree)

    @property
    def last(self) -> int:
        return self.walk_of.rows - 1

    def _sums_of(self, first: int) -> int:
        return self.sums_at + first * self.lanes * _DOUBLE

    def _add_found(self, groups: int) -> None:
        """Add the leaves that the rows found to the sums at r9."""
        asm = self.asm
        for group in range(groups):
            place = Memory(r8, 0, state(asm, group), _FLOAT)
            gather(asm, vector(asm, 10 + group), place, vector(asm, 1))
        if self.sums.per_output:
            for group in range(groups):
                self._add(group, 10 + group)
            return
        asm.emit("lea", rcx, Literal(self.leaves))

        def output() -> None:
            for group in range(groups):
                place = Memory(rcx, 0, vector(asm, 10 + group), _FLOAT)
                gather(asm, vector(asm, 2), place, vector(asm, 1))
                self._add(group, 2)
            asm.emit("add", rcx, _FLOAT)
            asm.emit("add", r9, self.row_doubles)

        repeat(asm, self.layout.trees.outputs, rax, output)

    def _add(self, group: int, number: int) -> None:
        """Append code that adds vector `number`, floats, to the float64 sums of vector `group`."""
        asm, half = self.asm, asm_vector_bytes(self.asm)
        wide = asm.target.isa == "avx512"
        low = ymm if wide else xmm
        for part in range(2):
            source, place = low(number), Memory(r9, (2 * group + part) * half)
            if part:
                source = low(3)
                mnemonic = "vextracti64x4" if wide else "vextractf128"
                asm.emit(mnemonic, source, (zmm if wide else ymm)(number), 1)
            asm.emit("vcvtps2pd", vector(asm, 0), source)
            asm.emit("vaddpd", vector(asm, 0), vector(asm, 0), place)
            asm.emit("vmovupd", place, vector(asm, 0))

    def finish(self) -> None:
        """Append y = base + scale * sums, output by output."""
        asm, trees = self.asm, self.layout.trees
        base = trees.base.astype(np.float64)
        asm.emit("lea", r8, Memory(rdx, self.sums_at))
        asm.emit("lea", r9, Literal(asm.literal(base)))
        scale = Literal(asm.literal(np.full(self.lanes // 2, trees.scale)))
        asm.emit("vmovupd", vector(asm, 1), scale)

        def output() -> None:
            asm.emit("vbroadcastsd", vector(asm, 2), Memory(r9))
            asm.emit("lea", rdi, Memory(rdx, self.floats_at))
            repeat(asm, self.row_doubles // asm_vector_bytes(asm), rax, self._round)
            asm.emit("lea", rdi, Memory(rdx, self.floats_at))
            asm.emit("mov", rcx, rsi)
            repeat(asm, self.walk_of.rows, rax, self._copy)
            asm.emit("add", rsi, trees.y_bytes)
            asm.emit("add", r9, _DOUBLE)

        repeat(asm, trees.outputs, r10, output)

    def _round(self) -> None:
        """Convert the next vector of sums to numbers of y at rdi."""
        asm = self.asm
        asm.emit("vmovupd", vector(asm, 0), Memory(r8))
        asm.emit("vfmadd213pd", vector(asm, 0), vector(asm, 1), vector(asm, 2))
        y_bytes, values = self.layout.trees.y_bytes, vector(asm, 0)
        if y_bytes == _FLOAT:
            values = half_vector(asm, 0)
            asm.emit("vcvtpd2ps", values, vector(asm, 0))
        asm.emit("vmovups", Memory(rdi), values)
        asm.emit("add", r8, asm_vector_bytes(asm))
        asm.emit("add", rdi, asm_vector_bytes(asm) * y_bytes // _DOUBLE)

    def _copy(self) -> None:
        """Copy the next number to its row of y."""
        asm, y_bytes = self.asm, self.layout.trees.y_bytes
        number = r11 if y_bytes == _DOUBLE else dword(r11)
        asm.emit("mov", number, Memory(rdi))
        asm.emit("mov", Memory(rcx), number)
        asm.emit("add", rdi, y_bytes)
        asm.emit("add", rcx, y_bytes * self.layout.trees.outputs)


def asm_vector_bytes(asm: Assembler) -> int:
    """Bytes of one vector register."""
    return asm.target.vector_bytes
