"""A walk down the trees by gathers: rows as lanes, tree after tree.

    slots of all rows, each row's beside the other's
    for each four vectors of rows, for each tree:
        for each level of the tree            threshold, meta <- the tree's records[state]
                                              value           <- slots[row, meta & ...]
        sums of the output += leaves found    in float64, one for each row

A tree's records stay in near caches for all rows, however large the forest is.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.forest.leaf_sums import LeafSums
from sparsejit.asm_templates.forest.slots import emit_slots, gather
from sparsejit.asm_templates.forest.walk import (
    GROUPS,
    emit_levels,
    load_slot_mask,
    records_of,
    state,
)
from sparsejit.asm_templates.forest.walk_layout import WalkLayout
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
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

_FLOAT, _DOUBLE = 4, 8
_TREE_BYTES = 16


@dataclass(frozen=True, eq=False)
class RowWalk:
    """A walk by all rows of x together."""

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
    """Append the walk. rdi: x; rsi: y; rdx: scratch. Clobbers these, rax, rcx, r8 to r11."""
    writer = _RowWriter(asm, walk)
    writer.fill_slots()
    writer.clear_sums()
    for first in range(0, walk.vectors(asm.target.lanes), GROUPS):
        writer.walk(first)
    writer.finish()


class _RowWriter:
    """The parts of a walk, and their tables in the pool."""

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
        """Append all trees for the next vectors of rows, at most GROUPS, from `first` on."""
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
        """Add the lanes of a vector of floats to the sums of a group."""
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
