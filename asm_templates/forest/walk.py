"""A walk down the trees by gathers: trees as lanes for one row.

    16 trees      threshold  <- records[state]          8 at a time with AVX2;
                  meta       <- records[state] + 4      four such vectors in turn, so that
                  value      <- slots[meta & ...]       the gathers of one hide the
                  state       = first + (meta >> ...)   latency of the others
                                + (value > threshold)

The step repeats for each level of the highest tree in the four vectors.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.leaf_sums import LeafSums, emit_leaf_sums
from sparsejit.asm_templates.forest.slots import emit_slots, gather, gather_doubles
from sparsejit.asm_templates.forest.walk_layout import WalkLayout
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import half_vector, vector
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
)

GROUPS = 4  # vectors of trees in turn
_FLOAT, _DOUBLE = 4, 8
_NOT_LESS_EQUAL = 6
_EVEN_WORDS, _MIDDLE_SWAPPED = 0x88, 0xD8
_STATES = 4  # first of the registers 4 to 7, which hold states


@dataclass(frozen=True, eq=False)
class TreeWalk:
    """A walk by one row of x after another."""

    layout: WalkLayout
    rows: int

    def found_bytes(self, lanes: int) -> int:
        block = lanes * GROUPS
        return _FLOAT * round_up(len(self.layout.order), block)

    def scratch_bytes(self, lanes: int) -> int:
        return self.layout.slots.row_bytes(lanes) + self.found_bytes(lanes)


def emit_tree_walk(asm: Assembler, walk: TreeWalk) -> None:
    """Append the walk. rdi: x; rsi: y; rdx: scratch. Clobbers these, rax, rcx, r8 to r11."""
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
    """Append rax levels, for a vector of states for each entry of the lists.

    rcx: records; rdx: slots. Entries that are not None are added: `firsts` to the number of a pair,
    `rows` to the number of a slot.
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

    Each half of the lanes at a time. Clobbers vectors 0, 2 and 3, 14 and 15, `records`, k2 and k3.
    """
    avx512 = asm.target.isa == "avx512"
    threshold, value, mask = vector(asm, 0), vector(asm, 2), vector(asm, 3)
    upper = [half_vector(asm, 14), half_vector(asm, 15)]
    lower = [half_vector(asm, records.number), half_vector(asm, slots.number)]
    for half, both in zip(upper, (records, slots), strict=True):
        asm.emit("vextracti64x4" if avx512 else "vextracti128", half, both, 1)
    found = [k(2), k(3)] if avx512 else [records, vector(asm, 14)]
    for (record, slot), answer in zip((lower, upper), found, strict=True):
        gather_doubles(asm, threshold, Memory(rcx, 0, record, _DOUBLE), mask)
        gather_doubles(asm, value, Memory(rdx, 0, slot, _DOUBLE), mask)
        asm.emit("vcmppd", answer, value, threshold, _NOT_LESS_EQUAL)
    if avx512:
        asm.emit("kunpckbw", k(1), k(3), k(2))
    else:
        asm.emit("vshufps", mask, *found, _EVEN_WORDS)
        asm.emit("vpermq", mask, mask, _MIDDLE_SWAPPED)
