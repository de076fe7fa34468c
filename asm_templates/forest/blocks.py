"""Four levels of all trees at once: two trees a vector of nodes, then 32 trees as lanes.

    for each pair of trees     bits  = rank(x)[slots of the block] > ranks of the block
    for each 32 trees          place = 2 place + bit place of bits, four times
                               block = after[block, place], or the leaf found there

A tree that has ended waits; in place of a block it has the complement of the exit where it ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sparsejit.asm_templates.forest.block_layout import EXITS, BlockLayout, emit_ranks
from sparsejit.asm_templates.forest.leaf_sums import LeafSums, emit_leaf_sums
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
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
    ymm,
    zmm,
)

GROUP = 32  # trees
_RANK_BYTES = 192
_GREATER, _NOT_LESS = 6, 5
_OR_AND = 0xF8  # a | (b & c), for vpternlogd
_LINE, _FLOAT, _WORD = 64, 4, 2
_PAIRS_IN_TURN = 4
# Registers of the row's ranks, and of constants in every lane, words or dwords.
_RANKS, _MORE_RANKS, _ONE, _TWO, _ZERO, _MINUS_ONE = map(zmm, range(31, 25, -1))


@dataclass(frozen=True, eq=False)
class BlockWalk:
    """A kernel that passes `rows` rows of x, one after another, through a forest's blocks."""

    layout: BlockLayout
    rows: int

    @property
    def groups(self) -> int:
        """Number of groups of 32 trees; empty trees fill the last group."""
        return ceil_div(len(self.layout.order), GROUP)

    @property
    def group_steps(self) -> list[int]:
        """For each group of 32 trees, the most blocks that a row passes in one of them."""
        steps = self.layout.steps
        return [int(steps[g * GROUP : (g + 1) * GROUP].max()) for g in range(self.groups)]

    @property
    def bits_at(self) -> int:
        """Offset in the scratch of the comparison bits, behind the ranks."""
        return _RANK_BYTES

    @property
    def places_at(self) -> int:
        """Byte offset in the scratch, by tree, of 16 times the number of the block it is at.

        It is 0 for a tree that waits, because it has ended.
        """
        return self.bits_at + self.groups * GROUP * _WORD

    @property
    def found_at(self) -> int:
        """Byte offset in the scratch of each tree's state; at the end, of the leaf it found.

        The state is 16 times its block's number or, for a tree that has ended, the complement of
        its exit.
        """
        return self.places_at + self.groups * GROUP * _FLOAT

    @property
    def scratch_bytes(self) -> int:
        return self.found_at + self.groups * GROUP * _FLOAT


def emit_block_walk(asm: Assembler, walk: BlockWalk) -> None:
    """Append the kernel of a forest as blocks, from rows of x to outputs.

    rdi: x; rsi: y; rdx: scratch. Clobbers these, rax, rcx, r8 to r11.
    """
    layout = walk.layout
    sums = LeafSums.of(layout.trees, layout.order)
    steps = _ForestSteps(asm, walk, sums)
    with counted_down(asm, r10, walk.rows):
        asm.emit("push", r10)
        emit_ranks(asm, layout, rdi, rdx)
        steps.emit(asm)
        asm.emit("lea", r10, Memory(rdx, walk.found_at))
        emit_leaf_sums(asm, sums, r10, rsi)
        asm.emit("add", rdi, layout.trees.x_bytes * layout.trees.features)
        asm.emit("add", rsi, layout.trees.y_bytes * layout.trees.outputs)
        asm.emit("pop", r10)


class _ForestSteps:
    """Code that walks one row through all blocks, and the tables that it reads from the pool."""

    def __init__(self, asm: Assembler, walk: BlockWalk, sums: LeafSums) -> None:
        layout = walk.layout
        self.walk, self.steps = walk, walk.group_steps
        self.has_second = len(layout.slots) > GROUP
        self.words = asm.literal(layout.words)
        own = np.arange(layout.after.size, dtype=np.int32).reshape(layout.after.shape) + EXITS
        after = np.where(layout.after >= 0, EXITS * layout.after, ~own)
        self.after = asm.literal(after)
        self.found = asm.literal(sums.found_of(layout.leaf))
        roots = np.zeros(walk.groups * GROUP, np.int64)
        roots[: len(layout.roots)] = layout.roots
        self.roots = asm.literal((EXITS * roots).astype(np.int32))
        self.top = asm.literal(_pairs(layout.words, roots))

    def emit(self, asm: Assembler) -> None:
        """Append all steps of a row, each from every tree's block to the next.

        rdx: scratch, which begins with ranks. Clobbers rax, rcx, r8 to r11.
        """
        asm.emit("vmovups", _RANKS, Memory(rdx))
        if self.has_second:
            asm.emit("vmovups", _MORE_RANKS, Memory(rdx, _LINE))
        for register, value in ((_ONE, 1), (_TWO, 2)):
            words = np.full(GROUP, value, np.uint16)
            asm.emit("vmovups", register, Literal(asm.literal(words)))
        asm.emit("vpxord", _ZERO, _ZERO, _ZERO)
        asm.emit("vpternlogd", _MINUS_ONE, _MINUS_ONE, _MINUS_ONE, 0xFF)
        for step in range(max(self.steps)):
            for first, end in _runs([s > step for s in self.steps]):
                self._compare(asm, step, first, end - first)
            for first, end in _runs([s > step + 1 for s in self.steps]):
                self._follow(asm, step, first, end - first, is_last=False)
            for first, end in _runs([s == step + 1 for s in self.steps]):
                self._follow(asm, step, first, end - first, is_last=True)

    def _compare(self, asm: Assembler, step: int, first: int, groups: int) -> None:
        """Append the comparisons of `groups` groups; trees that only fill the last are left out."""
        asm.emit("lea", r11, Memory(rdx, self.walk.bits_at + first * GROUP * _WORD))
        if step == 0:
            asm.emit("lea", r10, Literal(self.top + first * GROUP * _LINE))
            ahead = 2 * _LINE
        else:
            asm.emit("lea", r10, Memory(rdx, self.walk.places_at + first * GROUP * _FLOAT))
            asm.emit("lea", rcx, Literal(self.words))
            ahead = 2 * _FLOAT

        def pairs() -> None:
            for pair in range(_PAIRS_IN_TURN):
                (_load_top if step == 0 else _load_pair)(asm, pair)
                slots, ranks = zmm(2 * pair), zmm(2 * pair + 1)
                if self.has_second:
                    asm.emit("vpermi2w", slots, _RANKS, _MORE_RANKS)
                else:
                    asm.emit("vpermw", slots, slots, _RANKS)
                asm.emit("vpcmpuw", k(1), slots, ranks, _GREATER)
                asm.emit("kmovd", Memory(r11, _FLOAT * pair), k(1))
            asm.emit("add", r10, ahead * _PAIRS_IN_TURN)
            asm.emit("add", r11, _FLOAT * _PAIRS_IN_TURN)

        trees = min(groups * GROUP, len(self.walk.layout.order) - first * GROUP)
        repeat(asm, ceil_div(trees, 2 * _PAIRS_IN_TURN), rax, pairs)

    def _follow(self, asm: Assembler, step: int, first: int, groups: int, is_last: bool) -> None:
        """Move trees on to their next blocks, or in the last step replace exits by found leaves."""
        walk = self.walk
        asm.emit("lea", r11, Memory(rdx, walk.bits_at + first * GROUP * _WORD))
        asm.emit("lea", r10, Memory(rdx, walk.places_at + first * GROUP * _FLOAT))
        asm.emit("lea", rcx, Literal(self.found if is_last else self.after))
        if step == 0:
            asm.emit("lea", r8, Literal(self.roots + first * GROUP * _FLOAT))
        else:
            asm.emit("lea", r8, Memory(rdx, walk.found_at + first * GROUP * _FLOAT))
        asm.emit("lea", r9, Memory(rdx, walk.found_at + first * GROUP * _FLOAT))
        follow: Callable[[Assembler, int], None] = _find if is_last else _go_on

        def group() -> None:
            _descend(asm)
            for half in range(2):
                follow(asm, half)
            asm.emit("add", r11, GROUP * _WORD)
            for register in (r8, r9, r10):
                asm.emit("add", register, GROUP * _FLOAT)

        repeat(asm, groups, rax, group)


def _load_top(asm: Assembler, pair: int) -> None:
    """Load the slots and the ranks of a pair of first blocks."""
    for half in range(2):
        asm.emit("vmovups", zmm(2 * pair + half), Memory(r10, (2 * pair + half) * _LINE))


def _load_pair(asm: Assembler, pair: int) -> None:
    """Load the slots and the ranks of any two blocks."""
    first, second = (r8, r9)
    asm.emit("mov", dword(first), Memory(r10, 2 * _FLOAT * pair))
    asm.emit("mov", dword(second), Memory(r10, 2 * _FLOAT * pair + _FLOAT))
    for half in range(2):
        words = zmm(2 * pair + half)
        at = half * _LINE // 2
        asm.emit("vmovups", ymm(2 * pair + half), Memory(rcx, at, first, 4))
        asm.emit("vinserti64x4", words, words, Memory(rcx, at, second, 4), 1)


def _descend(asm: Assembler) -> None:
    """zmm4, zmm5 = the exits, 16 to 31, by which 32 trees leave their blocks, as dwords."""
    bits, place, bit = zmm(0), zmm(1), zmm(2)
    asm.emit("vmovups", bits, Memory(r11))
    asm.emit("vmovups", place, _TWO)
    asm.emit("vpsrlw", bit, bits, 1)
    asm.emit("vpternlogd", place, bit, _ONE, _OR_AND)
    for _ in range(3):
        asm.emit("vpsrlvw", bit, bits, place)
        asm.emit("vpaddw", place, place, place)
        asm.emit("vpternlogd", place, bit, _ONE, _OR_AND)
    asm.emit("vextracti64x4", ymm(3), place, 1)
    asm.emit("vpmovzxwd", zmm(4), ymm(1))
    asm.emit("vpmovzxwd", zmm(5), ymm(3))


def _go_on(asm: Assembler, half: int) -> None:
    """Replace the blocks of 16 trees by the blocks behind their exits."""
    block, index, at = zmm(6 + half), zmm(4 + half), half * _LINE
    asm.emit("vmovups", block, Memory(r8, at))
    asm.emit("vpaddd", index, index, block)
    asm.emit("vpcmpd", k(1), block, _ZERO, _NOT_LESS)
    asm.emit("vpgatherdd", block.masked(k(1)), Memory(rcx, -_LINE, index, _FLOAT))
    asm.emit("vpmaxsd", index, block, _ZERO)
    asm.emit("vmovups", Memory(r9, at), block)
    asm.emit("vmovups", Memory(r10, at), index)


def _find(asm: Assembler, half: int) -> None:
    """Store the leaves that 16 trees found."""
    block, index, at = zmm(6 + half), zmm(4 + half), half * _LINE
    asm.emit("vmovups", block, Memory(r8, at))
    asm.emit("vpcmpd", k(1), block, _ZERO, _NOT_LESS)
    asm.emit("vpaddd", index, index, block)
    asm.emit("vpxord", block, block, _MINUS_ONE)
    asm.emit("vmovdqu32", block.masked(k(1)), index)
    asm.emit("kxnorw", k(1), k(1), k(1))
    asm.emit("vpgatherdd", index.masked(k(1)), Memory(rcx, -_LINE, block, _FLOAT))
    asm.emit("vmovups", Memory(r9, at), index)


def _pairs(words: Array, roots: Array) -> Array:
    """Return the first blocks two by two: the slots of both, then the ranks of both."""
    both = words[roots].reshape(-1, 2, 2, EXITS)
    return np.ascontiguousarray(both.swapaxes(1, 2))


def _runs(wanted: list[bool]) -> list[tuple[int, int]]:
    """Return the first place and the end of each run of True."""
    runs = []
    for is_wanted, stretch in groupby(enumerate(wanted), key=lambda item: item[1]):
        places = [number for number, _ in stretch]
        if is_wanted:
            runs.append((places[0], places[-1] + 1))
    return runs
