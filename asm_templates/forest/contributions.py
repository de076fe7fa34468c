"""SHAP values of trees in float64: a tree down and up, points of an integral as lanes.

A player takes part in the game of a leaf with z + t (o - z): o is 1 where x passes the player's
nodes above the leaf, else 0, and z is the share of samples that pass them. Gauss-Legendre
quadrature is exact for the integral over t, whose integrand is a polynomial, with half as many
points as a path has players. With F = t + z (1 - t) of the node's player above the node, where x
passes that, and `hot` and `cold` for the child to which x goes and the other one:

    down   above[hot]  = above (1 - (1 - share[hot]) B)      above: the product of the parts of
           above[cold] = above share[cold] B                 all players, times the weights
    up     gain  = (1 - share[hot]) value[hot] - share[cold] value[cold]
           value = value[hot] - B gain                       B = z (1 - t) / F
           sums[player] += above K gain                      K = z / F^2

Where x does not pass the player's nodes above, B is 1 and K is 0, with the left child as hot. The
paths are never listed, and a node takes as long below any number of players. A node and its
children are entries of one table, whose place of `above` the value takes on the way up.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.slots import Slots, emit_slots
from sparsejit.asm_templates.forest.walk import level_order
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Number,
    Register,
    dword,
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

_INT, _DOUBLE = 4, 8
# A record of a node, in bytes: the slot of x; the state of the player above; the entries of its
# left, right and left child; the states of the left and the right child; the row of B and K; the
# sums of its player; the threshold; then, each first for a hot left child and for a hot right one,
# 1 - share[hot] and share[cold].
_SLOT, _ABOVE, _CHILDREN, _STATES, _ROW, _SUMS = 0, 4, 8, 20, 28, 32
_THRESHOLD, _HOT, _COLD, _RECORD_BYTES = 40, 48, 64, 80
_TREE_BYTES = 8  # the nodes of a tree, and the bytes of their entries
_LESS_EQUAL = 2  # predicate of comparisons
_KEPT = 6  # addresses and counters in scratch memory
_MOST_BYTES = 1 << 31


@dataclass(frozen=True, eq=False)
class ContributionTrees:
    """The constant operands of a `Contributions`, of `columns` columns.

    Raises InvalidInput as `Trees` does, for a player without a column, and for a node or leaf with
    several parents.
    """

    trees: Trees
    players: Array
    leaves: Array
    base: Array
    shares: Array
    columns: int

    def __post_init__(self) -> None:
        wrong = self.players[(self.players < 0) | (self.players >= self.columns - 1)]
        if wrong.size:
            raise InvalidInput(
                f"a tree has player {wrong[0]}; give numbers from 0 to {self.columns - 2}"
            )
        below = np.append(self.trees.nodes[:, 1:3].ravel(), self.trees.trees[:, 0])
        if len(np.unique(below)) < len(below):
            raise InvalidInput("a node or leaf of a tree has several parents; copy it for each")


@dataclass(frozen=True, eq=False)
class ContributionLayout:
    """Trees as the kernel reads them, and the points of the integral.

    `nodes` are all nodes, tree after tree, parents first; `counts` says how many each tree has. A
    tree's entries are its nodes, then its leaves, of which `leaf` lists all trees' in their order.
    By node: the entries of its `children`; `above`, the entry of the highest node below the last
    node above with the same player, 0 for none; `row`, the row of its player's share there among
    `shares`, where 0 is for players that do not pass; `pair`, the place of y among `pairs`.
    `means` are base plus the mean of the leaves of each output.
    """

    given: ContributionTrees
    slots: Slots
    nodes: Array
    counts: Array
    leaf: Array
    children: Array
    above: Array
    row: Array
    shares: Array
    pair: Array
    pairs: Array
    means: Array
    points: Array
    weights: Array


def contribution_layout(given: ContributionTrees) -> ContributionLayout:
    """Lay trees out for the kernel."""
    trees = given.trees
    owner, nodes = level_order(trees, np.arange(len(trees.trees)))
    counts = np.bincount(owner, minlength=len(trees.trees))
    first = (np.cumsum(counts) - counts)[owner]
    below = trees.nodes[nodes, 1:3]
    is_inner, place = below >= 0, np.zeros(len(trees.nodes), np.int64)
    place[nodes] = every = np.arange(len(nodes))
    parent, share = np.full(len(nodes), -1), np.ones(len(nodes))
    parent[place[below[is_inner]]] = np.repeat(every, 2)[is_inner.ravel()]
    share[place[below[is_inner]]] = given.shares[nodes][is_inner]
    player = given.players[nodes]
    above = _above(parent, player)
    reached, z, players = _downwards(parent, above, share)
    # A tree has one leaf more than nodes; those before it are counted with its nodes before.
    leaf_number = np.cumsum(~is_inner.ravel()).reshape(below.shape) - 1
    entry_of_leaf = leaf_number - (first + np.cumsum(counts > 0)[owner] - 1)[:, None]
    entry_of_leaf += counts[owner][:, None]
    children = np.where(is_inner, place[np.maximum(below, 0)] - first[:, None], entry_of_leaf)
    shares, row = np.unique(z, return_inverse=True)
    pairs, pair = np.unique(trees.trees[owner, 1] * given.columns + player, return_inverse=True)
    most = int((players + (above < 0)).max(initial=1))
    points, weights = np.polynomial.legendre.leggauss(ceil_div(most, 2))
    return ContributionLayout(
        *(given, Slots.of(trees), nodes, counts, ~below[~is_inner], children),
        *(np.where(above < 0, 0, above - first), row + 1, shares, pair, pairs),
        *(_means(given, owner, nodes, reached), (1 + points) / 2, weights / 2),
    )


def _above(parent: Array, player: Array) -> Array:
    """The highest node below the last node above with the same player, by place, or -1."""
    found = np.full(len(parent), -1)
    waiting = np.arange(len(parent))
    below = waiting
    while waiting.size:
        above = parent[below]
        same = (above >= 0) & (player[above] == player[waiting])
        found[waiting[same]] = below[same]
        left = (above >= 0) & ~same
        waiting, below = waiting[left], above[left]
    return found


def _downwards(parent: Array, above: Array, share: Array) -> tuple[Array, Array, Array]:
    """Products down to each node: the share of all samples, and the share of its own player.

    The third array is the number of players above.
    """
    reached, z = np.ones(len(parent)), np.ones(len(parent))
    players = np.zeros(len(parent), np.int64)
    for own in _levels(parent):
        up = parent[own]
        reached[own] = reached[up] * share[own]
        players[own] = players[up] + (above[up] < 0)
        again = own[above[own] >= 0]
        z[again] = share[above[again]] * z[parent[above[again]]]
    return reached, z, players


def _levels(parent: Array) -> list[Array]:
    """The places of nodes one below a root, two below, and so on."""
    depth, level, up = np.zeros(len(parent), np.int64), np.flatnonzero(parent >= 0), parent
    while level.size:
        depth[level] += 1
        level, up = level[parent[up[level]] >= 0], np.where(up < 0, up, parent[up])
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]


def _means(given: ContributionTrees, owner: Array, nodes: Array, reached: Array) -> Array:
    """base plus the mean of the leaves of each output, by the shares of samples."""
    means = given.base.astype(np.float64)
    roots, outputs = given.trees.trees.T
    np.add.at(means, outputs[roots < 0], given.leaves[~roots[roots < 0]])
    below = given.trees.nodes[nodes, 1:3]
    parts, is_leaf = reached[:, None] * given.shares[nodes], below < 0
    output = np.broadcast_to(outputs[owner][:, None], below.shape)
    np.add.at(means, output[is_leaf], parts[is_leaf] * given.leaves[~below[is_leaf]])
    return means


@dataclass(frozen=True, eq=False)
class ContributionWalk:
    """The kernel for `rows` rows of x, with registers of `lanes` points."""

    layout: ContributionLayout
    rows: int
    lanes: int

    @classmethod
    def of(cls, layout: ContributionLayout, rows: int, target: Target) -> "ContributionWalk":
        """Raises CompileError for trees beyond 32-bit addresses."""
        few = target.isa != "avx512" or len(layout.points) <= 4
        walk = cls(layout, rows, 4 if few else 8)
        if max(walk.scratch_bytes(target.lanes), walk.table_bytes) >= _MOST_BYTES:
            raise CompileError(
                f"the contributions of {len(layout.nodes):,} nodes take more than 2 GB; give fewer "
                "or smaller trees"
            )
        return walk

    @property
    def vectors(self) -> int:
        """Vectors of all points."""
        return ceil_div(len(self.layout.points), self.lanes)

    @property
    def entry_bytes(self) -> int:
        return self.vectors * self.lanes * _DOUBLE

    @property
    def entries(self) -> int:
        """Nodes and leaves of the largest tree."""
        return 2 * int(self.layout.counts.max(initial=0)) + 1

    @property
    def table_bytes(self) -> int:
        """Bytes of constants."""
        rows = 2 * self.entry_bytes * (len(self.layout.shares) + 1)
        return rows + (_RECORD_BYTES + _DOUBLE) * len(self.layout.nodes)

    @property
    def instructions(self) -> int:
        """Instructions of a row."""
        return len(self.layout.nodes) * (32 + 14 * self.vectors) + 10 * len(self.layout.pairs)

    def places(self, lanes: int) -> list[int]:
        """Offsets in scratch memory: entries, states, nodes, sums, slots, kept addresses; its end.

        `lanes` are the target's, of float32.
        """
        nodes = int(self.layout.counts.max(initial=0))
        sizes = (
            self.entries * self.entry_bytes,
            round_up(self.entries * _INT, _DOUBLE),
            nodes * _DOUBLE,
            len(self.layout.pairs) * self.entry_bytes,
            self.layout.slots.row_bytes(lanes),
            _KEPT * _DOUBLE,
        )
        return [0, *np.cumsum(sizes).tolist()]

    def scratch_bytes(self, lanes: int) -> int:
        return self.places(lanes)[-1]

    def records(self) -> Array:
        """The records of all nodes, bytes (nodes, 80)."""
        layout, size = self.layout, self.entry_bytes
        trees, nodes = layout.given.trees, layout.nodes
        left, right = layout.children.T
        thresholds = np.zeros((len(nodes), _DOUBLE // trees.x_bytes), trees.thresholds.dtype)
        thresholds[:, 0] = trees.thresholds[nodes]
        shares = layout.given.shares[nodes]
        found = np.zeros((len(nodes), _RECORD_BYTES), np.uint8)
        for place, numbers, dtype in (
            (_SLOT, trees.x_bytes * layout.slots.of_node[nodes], np.int32),
            (_ABOVE, _INT * layout.above, np.int32),
            (_CHILDREN, size * np.stack([left, right, left], axis=1), np.int32),
            (_STATES, _INT * layout.children, np.int32),
            (_ROW, 2 * size * layout.row, np.int32),
            (_SUMS, size * layout.pair, np.int32),
            (_THRESHOLD, thresholds, thresholds.dtype),
            (_HOT, 1 - shares, np.float64),
            (_COLD, shares[:, ::-1], np.float64),
        ):
            whole = numbers if numbers.ndim > 1 else numbers[:, None]
            part = np.ascontiguousarray(whole.astype(dtype)).view(np.uint8)
            found[:, place : place + part.shape[1]] = part
        return found

    def lane_rows(self) -> Array:
        """B and K of each row, (rows, 2, points); the first is of players that do not pass."""
        t = np.full(self.vectors * self.lanes, 0.5)
        t[: len(self.layout.points)] = self.layout.points
        z = self.layout.shares[:, None]
        part = t + z * (1 - t)
        numbers = np.stack([z * (1 - t) / part, z / part**2], axis=1)
        nothing = np.stack([np.ones_like(t), np.zeros_like(t)])[None]
        return np.concatenate([nothing, numbers])

    def lane_weights(self) -> Array:
        weights = np.zeros(self.vectors * self.lanes)
        weights[: len(self.layout.weights)] = self.layout.weights
        return weights


def emit_contributions(asm: Assembler, walk: ContributionWalk) -> None:
    """Append the kernel. rdi: x; rsi: y; rdx: scratch.

    Clobbers these, rax, rcx, r8 to r11, vectors and k1.
    """
    writer = _ContributionWriter(asm, walk)
    repeat(asm, walk.rows, writer.left, writer.row)


class _ContributionWriter:
    """The code of one row, and its tables in the pool."""

    def __init__(self, asm: Assembler, walk: ContributionWalk) -> None:
        self.asm, self.walk, layout = asm, walk, walk.layout
        _, self.states, self.nodes, self.sums, self.slots, kept, _ = walk.places(asm.target.lanes)
        places = (Memory(rdx, kept + _DOUBLE * number) for number in range(_KEPT))
        self.left, self.x, self.y, self.tree, self.leaf, self.behind = places
        self.size = walk.entry_bytes
        given, counts = layout.given, layout.counts[layout.counts > 0]
        self.records = asm.literal(walk.records())
        self.rows = asm.literal(walk.lane_rows())
        self.weights = asm.literal(walk.lane_weights())
        self.leaves = asm.literal(np.append(given.leaves[layout.leaf], 0.0))
        trees = np.append(np.stack([counts, counts * self.size], axis=1), [[0, 0]], axis=0)
        self.trees = asm.literal(trees.astype(np.int32))
        self.pairs = asm.literal(np.append(_DOUBLE * layout.pairs, 0).astype(np.int32))
        start = np.zeros((len(given.base), given.columns))
        start[:, -1] = layout.means
        self.numbers, self.start = start.size, asm.literal(start)

    def vector(self, number: Number) -> Register:
        """A register of the points' lanes."""
        return zmm(number) if self.walk.lanes == 8 else ymm(number)

    def entry(self) -> range:
        """Offsets of the vectors of an entry."""
        return range(0, self.size, self.walk.lanes * _DOUBLE)

    def row(self) -> None:
        """Append the code of a row; it moves rdi and rsi to the next."""
        asm, trees = self.asm, self.walk.layout.given.trees
        asm.emit("lea", r11, Memory(rdx, self.slots))
        emit_slots(asm, self.walk.layout.slots, rdi, r11)
        self._clear()
        asm.emit("mov", self.x, rdi)
        asm.emit("mov", self.y, rsi)
        asm.emit("lea", r8, Literal(self.records))
        asm.emit("lea", r9, Literal(self.rows))
        for place, literal in ((self.tree, self.trees), (self.leaf, self.leaves)):
            asm.emit("lea", rax, Literal(literal))
            asm.emit("mov", place, rax)
        self._all_trees()
        asm.emit("mov", rdi, self.x)
        asm.emit("mov", rsi, self.y)
        self._finish()
        asm.emit("add", rdi, trees.x_bytes * trees.features)
        asm.emit("add", rsi, _DOUBLE * self.numbers)

    def _clear(self) -> None:
        asm, nothing = self.asm, self.vector(0)
        zero(asm, nothing)
        asm.emit("lea", r8, Memory(rdx, self.sums))

        def clear() -> None:
            for place in self.entry():
                asm.emit("vmovupd", Memory(r8, place), nothing)
            asm.emit("add", r8, self.size)

        repeat(asm, len(self.walk.layout.pairs), r11, clear)

    def _all_trees(self) -> None:
        asm = self.asm
        again, done = asm.label("next tree"), asm.label("behind the last tree")
        asm.bind(again)
        asm.emit("mov", rax, self.tree)
        asm.emit("mov", dword(r11), Memory(rax))
        asm.emit("test", dword(r11), dword(r11))
        asm.jump("jz", done)
        self._down()
        self._fill()
        self._up()
        asm.emit("mov", rax, self.tree)
        asm.emit("add", rax, _TREE_BYTES)
        asm.emit("mov", self.tree, rax)
        asm.jump("jmp", again)
        asm.bind(done)

    def _down(self) -> None:
        """Append the way down a tree of r11 nodes; it takes r8 and rsi behind their last."""
        asm = self.asm
        for place in self.entry():
            asm.emit("vmovupd", self.vector(0), Literal(self.weights + place))
            asm.emit("vmovupd", Memory(rdx, place), self.vector(0))
        asm.emit("mov", dword(rax), 1)
        asm.emit("mov", Memory(rdx, self.states), dword(rax))
        asm.emit("mov", rsi, rdx)
        asm.emit("lea", r10, Memory(rdx, self.nodes))
        with counted_down(asm, dword(r11)):
            self._compare()
            self._load_shares()
            asm.emit("mov", dword(rcx), Memory(r8, _CHILDREN, rax, _INT))
            asm.emit("mov", dword(rax), Memory(r8, _CHILDREN + _INT, rax, _INT))
            above, part, other = (self.vector(number) for number in (0, 3, 4))
            for place in self.entry():
                asm.emit("vmovupd", above, Memory(rsi, place))
                asm.emit("vmulpd", part, above, Memory(r9, place, rdi))
                asm.emit("vmulpd", other, part, self.vector(2))
                asm.emit("vfnmadd231pd", above, part, self.vector(1))
                asm.emit("vmovupd", Memory(rdx, place, rax), other)
                asm.emit("vmovupd", Memory(rdx, place, rcx), above)
            asm.emit("add", r8, _RECORD_BYTES)
            asm.emit("add", r10, _DOUBLE)
            asm.emit("add", rsi, self.size)

    def _compare(self) -> None:
        """eax = 1 where the right child is hot, else 0; edi = the row of B and K; at r10 both.

        Sets the states of the children: whether x passes the player's nodes down to them.
        """
        asm, is_double = self.asm, self.walk.layout.given.trees.x_bytes == _DOUBLE
        value, threshold = xmm(0), xmm(1)
        suffix = "d" if is_double else "s"
        asm.emit("mov", dword(rax), Memory(r8, _SLOT))
        asm.emit(f"vmovs{suffix}", value, Memory(rdx, self.slots, rax))
        asm.emit(f"vmovs{suffix}", threshold, Memory(r8, _THRESHOLD))
        asm.emit(f"vcmpp{suffix}", value, value, threshold, _LESS_EQUAL)
        asm.emit(f"vmovmskp{suffix}", dword(rcx), value)
        asm.emit("mov", dword(rax), Memory(r8, _ABOVE))
        asm.emit("mov", dword(rax), Memory(rdx, self.states, rax))
        asm.emit("xor", dword(rdi), dword(rdi))
        asm.emit("sub", dword(rdi), dword(rax))
        asm.emit("and", dword(rdi), Memory(r8, _ROW))
        asm.emit("and", dword(rcx), dword(rax))
        asm.emit("sub", dword(rax), dword(rcx))
        asm.emit("mov", Memory(r10), dword(rax))
        asm.emit("mov", Memory(r10, _INT), dword(rdi))
        for number, state in enumerate((rcx, rax)):
            asm.emit("mov", dword(rdi), Memory(r8, _STATES + _INT * number))
            asm.emit("mov", Memory(rdx, self.states, rdi), dword(state))
        asm.emit("mov", dword(rdi), Memory(r10, _INT))

    def _load_shares(self) -> None:
        """Vector 1 = 1 - share[hot], vector 2 = share[cold], by the hot child in rax."""
        for number, place in ((1, _HOT), (2, _COLD)):
            place_of = Memory(r8, place, rax, _DOUBLE)
            self.asm.emit("vbroadcastsd", self.vector(number), place_of)

    def _fill(self) -> None:
        """Append a loop that puts the leaves of a tree behind its nodes, from rsi on."""
        asm, value = self.asm, self.vector(0)
        asm.emit("mov", rax, self.tree)
        asm.emit("mov", dword(r11), Memory(rax))
        asm.emit("add", r11, 1)
        asm.emit("mov", rcx, self.leaf)
        with counted_down(asm, dword(r11)):
            asm.emit("vbroadcastsd", value, Memory(rcx))
            for place in self.entry():
                asm.emit("vmovupd", Memory(rsi, place), value)
            asm.emit("add", rcx, _DOUBLE)
            asm.emit("add", rsi, self.size)
        asm.emit("mov", self.leaf, rcx)

    def _up(self) -> None:
        """Append the way up a tree; it keeps r8, which is behind the tree's records."""
        asm = self.asm
        asm.emit("mov", self.behind, r8)
        asm.emit("mov", rax, self.tree)
        asm.emit("mov", dword(rax), Memory(rax, _INT))
        asm.emit("lea", rsi, Memory(rdx, 0, rax))
        again = asm.label("next node")
        asm.bind(again)
        asm.emit("sub", r8, _RECORD_BYTES)
        asm.emit("sub", r10, _DOUBLE)
        asm.emit("sub", rsi, self.size)
        asm.emit("mov", dword(rax), Memory(r10))
        asm.emit("mov", dword(rdi), Memory(r10, _INT))
        self._load_shares()
        asm.emit("mov", dword(rcx), Memory(r8, _CHILDREN, rax, _INT))
        asm.emit("mov", dword(rax), Memory(r8, _CHILDREN + _INT, rax, _INT))
        asm.emit("mov", dword(r11), Memory(r8, _SUMS))
        value, gain = self.vector(0), self.vector(3)
        for place in self.entry():
            asm.emit("vmovupd", value, Memory(rdx, place, rcx))
            asm.emit("vmulpd", gain, value, self.vector(1))
            asm.emit("vfnmadd231pd", gain, self.vector(2), Memory(rdx, place, rax))
            asm.emit("vfnmadd231pd", value, gain, Memory(r9, place, rdi))
            asm.emit("vmulpd", gain, gain, Memory(rsi, place))
            asm.emit("vmovupd", Memory(rsi, place), value)
            asm.emit("vmulpd", gain, gain, Memory(r9, self.size + place, rdi))
            asm.emit("vaddpd", gain, gain, Memory(rdx, self.sums + place, r11))
            asm.emit("vmovupd", Memory(rdx, self.sums + place, r11), gain)
        asm.emit("cmp", rsi, rdx)
        asm.jump("jne", again)
        asm.emit("mov", r8, self.behind)

    def _finish(self) -> None:
        """Append the row of y, at rsi: the means, and the sums of the players' entries."""
        asm = self.asm
        asm.emit("lea", r8, Literal(self.start))
        asm.emit("mov", r9, rsi)

        def copy() -> None:
            asm.emit("mov", rax, Memory(r8))
            asm.emit("mov", Memory(r9), rax)
            asm.emit("add", r8, _DOUBLE)
            asm.emit("add", r9, _DOUBLE)

        repeat(asm, self.numbers, r11, copy)
        asm.emit("lea", r8, Literal(self.pairs))
        asm.emit("lea", r9, Memory(rdx, self.sums))
        repeat(asm, len(self.walk.layout.pairs), r11, self._sum)

    def _sum(self) -> None:
        """Append code that stores the sum of the entry at r9 at its place of y."""
        asm, (first, *others) = self.asm, self.entry()
        asm.emit("vmovupd", self.vector(0), Memory(r9, first))
        for place in others:
            asm.emit("vaddpd", self.vector(0), self.vector(0), Memory(r9, place))
        if self.walk.lanes == 8:
            asm.emit("vextracti64x4", ymm(1), zmm(0), 1)
            asm.emit("vaddpd", ymm(0), ymm(0), ymm(1))
        asm.emit("vextractf128", xmm(1), ymm(0), 1)
        asm.emit("vaddpd", xmm(0), xmm(0), xmm(1))
        asm.emit("vhaddpd", xmm(0), xmm(0), xmm(0))
        asm.emit("mov", dword(rax), Memory(r8))
        asm.emit("vmovsd", Memory(rsi, 0, rax), xmm(0))
        asm.emit("add", r8, _INT)
        asm.emit("add", r9, self.size)
