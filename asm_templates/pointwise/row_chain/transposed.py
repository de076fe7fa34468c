"""Copies of float32 where source and destination are dense along different axes.

    source (.., rows, columns dense)      squares of lanes x lanes, transposed in registers
    destination (.., columns, rows dense)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain.lanes import is_wide
from sparsejit.asm_templates.pointwise.row_chain.layout import ChainAxis, IterationSpace
from sparsejit.asm_templates.shared.interleave import transposed
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, set_tail_mask, store_masked
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, k, rax, rdi, rsi, rsp

SOURCE, DESTINATION = rdi, rsi
_LEAST = 4  # rows and columns at least: below, copying element by element is no slower
_WIDTH_MASK, _HEIGHT_MASK = k(7), k(6)
_WORD = 8


@dataclass(frozen=True)
class TransposedCopy:
    """A copy of float32 whose source is dense along `columns`, its destination along `rows`.

    `loops` are the other axes.
    """

    loops: tuple[ChainAxis, ...]
    rows: ChainAxis
    columns: ChainAxis

    @classmethod
    def of(cls, space: IterationSpace) -> TransposedCopy | None:
        """Return the copy for a space of one operand and one result; None if not worth it."""
        axes = [*space.loops, space.row]
        columns = [axis for axis in axes if axis.strides[0] == 4]
        rows = [axis for axis in axes if axis.strides[1] == 4]
        if len(columns) != 1 or len(rows) != 1 or columns == rows:
            return None
        if min(columns[0].length, rows[0].length) < _LEAST:
            return None
        loops = tuple(axis for axis in axes if axis not in (columns[0], rows[0]))
        return cls(loops, rows[0], columns[0])


def emit_transposed_copy(asm: Assembler, copy: TransposedCopy) -> None:
    """Append the copy from rdi to rsi. Clobbers them, rax and all vectors; uses the stack."""
    frame = _WORD * (len(copy.loops) + 2)
    asm.emit("sub", rsp, frame)
    _Squares(asm, copy).run()
    asm.emit("add", rsp, frame)


class _Squares:
    def __init__(self, asm: Assembler, copy: TransposedCopy) -> None:
        self.asm, self.copy = asm, copy
        self.lanes = asm.target.lanes
        lengths = (copy.columns.length % self.lanes, copy.rows.length % self.lanes)
        if is_wide(asm):
            for mask, length in zip((_WIDTH_MASK, _HEIGHT_MASK), lengths, strict=True):
                set_tail_mask(asm, length, mask)
        else:
            self.masks = [lane_mask(asm, length) for length in lengths]

    def run(self) -> None:
        """All loops, outermost first."""
        self._loop(0)

    def _loop(self, depth: int) -> None:
        if depth == len(self.copy.loops):
            self._bands(depth)
            return
        axis = self.copy.loops[depth]
        self._repeat(depth, axis.length, axis.strides, lambda: self._loop(depth + 1))

    def _bands(self, depth: int) -> None:
        """Append the loop over bands of as many rows as a vector has lanes, then the rows left."""
        rows, columns = self.copy.rows, self.copy.columns

        def band(height: int) -> None:
            count, left = divmod(columns.length, self.lanes)
            step = [self.lanes * stride for stride in columns.strides]
            last = (lambda: self._square(height, left)) if left else None
            self._repeat(depth + 1, count, step, lambda: self._square(height, self.lanes), last)

        count, left = divmod(rows.length, self.lanes)
        step = [self.lanes * stride for stride in rows.strides]
        last = (lambda: band(left)) if left else None
        self._repeat(depth, count, step, lambda: band(self.lanes), last)

    def _repeat(
        self,
        depth: int,
        turns: int,
        step: tuple[int, ...] | list[int],
        body: Callable[[], None],
        last: Callable[[], None] | None = None,
    ) -> None:
        """Append `body` `turns` times, then `last` behind them; pointers return to their start."""
        asm, counter = self.asm, Memory(rsp, _WORD * depth)
        if turns:
            asm.emit("mov", dword(rax), turns)
            with counted_down(asm, rax):
                asm.emit("mov", counter, rax)
                body()
                self._advance(step, 1)
                asm.emit("mov", rax, counter)
        if last is not None:
            last()
        self._advance(step, -turns)

    def _advance(self, step: tuple[int, ...] | list[int], times: int) -> None:
        for pointer, stride in zip((SOURCE, DESTINATION), step, strict=True):
            if stride * times:
                self.asm.emit("add", pointer, stride * times)

    def _square(self, height: int, width: int) -> None:
        asm, lanes = self.asm, self.lanes
        registers = [vector(asm, number) for number in range(lanes)]
        mask = vector(asm, lanes + 1)
        if width < lanes and not is_wide(asm):
            asm.emit("vmovups", mask, self.masks[0])
        for row, register in enumerate(registers):
            place = Memory(SOURCE, row * self.copy.rows.strides[0])
            if row >= height:
                zero(asm, register)
            elif width == lanes:
                asm.emit("vmovups", register, place)
            else:
                load_masked(asm, register, _WIDTH_MASK if is_wide(asm) else mask, place)
        columns = transposed(asm, registers, vector(asm, lanes))
        if height < lanes and not is_wide(asm):
            asm.emit("vmovups", mask, self.masks[1])
        for column in range(width):
            place = Memory(DESTINATION, column * self.copy.columns.strides[1])
            self._store(place, columns[column], height == lanes, mask)

    def _store(self, place: Memory, register: Register, whole: bool, mask: Register) -> None:
        if whole:
            self.asm.emit("vmovups", place, register)
        else:
            store_masked(self.asm, place, _HEIGHT_MASK if is_wide(self.asm) else mask, register)
