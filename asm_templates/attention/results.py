"""The second half of a tile: values, weighted by their powers, added up and written."""

import numpy as np

from sparsejit.asm_templates.attention.frame import (
    BASE,
    BLOCK_SLOT,
    FLOAT,
    FRAME,
    KEY_ROWS,
    RESULT_SLOT,
    SCORES,
    TABLE,
    VALUE_SLOT,
    AttentionCode,
    packed_pitch,
)
from sparsejit.asm_templates.attention.tables import KEYS, IntArray
from sparsejit.asm_templates.shared.loops import counted_up, repeat
from sparsejit.asm_templates.shared.masks import load_masked, tail_mask
from sparsejit.asm_templates.shared.rows import load, store, vector, zero
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import line
from sparsejit.x86.operands import Memory, Register, dword, rax, rcx, rdx, rsi

# Vectors of a value that are in registers at once, by level; sums of rows take the other registers.
_AT_ONCE = {"avx512": 4, "avx2": 2}


def readings(rows: int, values: int, target: Target) -> int:
    """Return the number of times that a tile of `rows` rows reads each of its values."""
    return rows // _rows_at_once(rows, len(_parts(values, target)[0]), target)


def emit_packing(code: AttentionCode) -> None:
    """Copy the values, which are read many times, to rows side by side."""
    asm, values = code.asm, code.stack.values
    asm.emit("mov", rcx, Memory(FRAME, VALUE_SLOT))
    asm.emit("lea", rdx, Memory(FRAME, code.places.values))

    def row() -> None:
        for number, first in enumerate(range(0, values, code.lanes)):
            register = vector(asm, number % 4)
            load(asm, register, rcx, first, values, vector(asm, 4))
            asm.emit("vmovups", Memory(rdx, number * code.vector_bytes), register)
        asm.emit("add", rcx, code.stack.packed_from)
        asm.emit("add", rdx, packed_pitch(values, asm.target))

    repeat(asm, code.stack.keys, rsi, row)


def emit_results(code: AttentionCode, adds: bool) -> None:
    """Append the results of a tile; with `adds` earlier results are weighted and added."""
    asm, rows, place = code.asm, code.tiles.rows, Memory(FRAME, BLOCK_SLOT)
    for part in _parts(code.stack.values, asm.target):
        block = _ResultBlock(code, int(part[0]), len(part))
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", place, rax)
        if block.rows == rows:
            block.emit(adds)
            continue
        with counted_up(asm, place, FLOAT * block.rows, FLOAT * rows):
            block.emit(adds)


def _parts(values: int, target: Target) -> list[IntArray]:
    """Return the vectors of a value, in parts that are in registers at once."""
    vectors = ceil_div(values, target.lanes)
    return np.array_split(np.arange(vectors), ceil_div(vectors, _AT_ONCE[target.isa]))


def _rows_at_once(rows: int, vectors: int, target: Target) -> int:
    """Return the largest divisor of `rows` for whose sums there are registers."""
    most = (target.vector_registers - 3 - vectors) // vectors
    return max(count for count in range(1, most + 1) if rows % count == 0)


class _ResultBlock:
    """Results of a tile's rows, from the offset in BLOCK_SLOT on, in some vectors of the values."""

    def __init__(self, code: AttentionCode, first: int, vectors: int) -> None:
        self.code, self.asm, self.first, self.vectors = code, code.asm, first, vectors
        self.rows = _rows_at_once(code.tiles.rows, vectors, code.asm.target)
        sums = self.vectors * self.rows
        free = [vector(self.asm, number) for number in range(sums, sums + self.vectors + 3)]
        self.values, self.share, self.mask, self.spare = free[3:], *free[:3]
        self.tail = self.mask
        beyond = (self.first + self.vectors) * code.lanes - code.stack.values
        self.last_lanes = code.lanes - (0 if code.stack.packed_from else max(0, beyond))

    def emit(self, adds: bool) -> None:
        code, asm = self.code, self.asm
        code.start_groups(VALUE_SLOT)
        asm.emit("add", SCORES, Memory(FRAME, BLOCK_SLOT))
        for number in range(self.vectors * self.rows):
            zero(asm, vector(asm, number))
        if self.last_lanes < code.lanes:
            self.tail = tail_mask(asm, self.last_lanes, self.mask)
        with code.each_group():
            code.point(FLOAT * KEYS)
            for key, row in enumerate(KEY_ROWS):
                self._key(key, row)
        self._write(adds)

    def _key(self, key: int, row: Register) -> None:
        code, asm, number = self.code, self.asm, np.arange(self.rows)
        for place, value in enumerate(self.values):
            source = Memory(row, (self.first + place) * code.vector_bytes)
            if place < self.vectors - 1 or self.last_lanes == code.lanes:
                asm.emit("vmovups", value, source)
            else:
                load_masked(asm, value, self.tail, source)
        share = Memory(SCORES, key * code.row_bytes + FLOAT * number)
        lines = [line("vbroadcastss", self.share, share)]
        for place, value in enumerate(self.values):
            total = vector(asm, number * self.vectors + place)
            lines.append(line("vfmadd231ps", total, self.share, value))
        asm.stamp(self.rows, lines)

    def _write(self, adds: bool) -> None:
        code, asm, places = self.code, self.asm, self.code.places
        code.start(RESULT_SLOT)
        asm.emit("mov", SCORES, FRAME)
        for register in (TABLE, SCORES):
            asm.emit("add", register, Memory(FRAME, BLOCK_SLOT))
        old, old_share = self.values[0], self.mask
        for row in range(self.rows):
            code.point_row(rcx, row, 1)
            asm.emit("add", rcx, BASE)
            asm.emit("vbroadcastss", self.share, Memory(SCORES, places.share + FLOAT * row))
            if adds:
                place = Memory(SCORES, places.old_total + FLOAT * row)
                asm.emit("vbroadcastss", old_share, place)
            for number in range(self.vectors):
                total = vector(asm, row * self.vectors + number)
                first = (self.first + number) * code.lanes
                asm.emit("vmulps", total, total, self.share)
                if adds:
                    load(asm, old, rcx, first, code.stack.values, self.spare)
                    asm.emit("vfmadd231ps", total, old, old_share)
                store(asm, total, rcx, first, code.stack.values, self.spare)
