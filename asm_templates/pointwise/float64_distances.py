"""Distances in float64 between rows of x and known rows, whose elements lie side by side.

    for each four rows of x, for each few vectors of known rows     (a lane is a known row)
        for each feature                                            d = x[feature] - known[feature]
            sum += d^2, or |d|, or d != 0; or max with |d|; or sum += x[feature] * known[feature]

Differences lose nothing where x is near a known row, as |x|^2 - 2 x y + |y|^2 would. Four rows of x
share what is loaded of the known rows.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask, set_tail_mask
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.ir.ops.columns import Measure
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, k, r8, r9, r10, r11, rax, rdi, rsi, ymm

_FLOAT, _DOUBLE = 4, 8
_ROWS = 4  # of x that share loads of known rows
_SUMS = {"avx2": 8, "avx512": 16}  # independent accumulators
_VECTORS = 4  # of known rows, at most
_NOT_EQUAL = 4  # predicate of vcmppd
_MAGNITUDE = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class DistanceSpec:
    """Distances (rows, known rows) of x (rows, features), with elements of `x_bytes`: 4 or 8."""

    measure: Measure
    rows: int
    x_bytes: int
    known: Array


def emit_distances(asm: Assembler, spec: DistanceSpec) -> None:
    """Append code for distances. rdi: x; rsi: y. Clobbers these, rax, r8 to r11, vectors and k1."""
    together = _ROWS if spec.rows >= _ROWS else 1
    vectors = min(_VECTORS, _SUMS[asm.target.isa] // together)
    table = _Table.of(asm, spec.known, vectors)
    groups, rest = divmod(spec.rows, together)
    for rows, turns in ((together, groups), (1, rest)):
        if turns:
            repeat(asm, turns, r10, _RowsOfX(asm, spec, table, rows).emit)


@dataclass(frozen=True)
class _Table:
    """The known rows: blocks of `vectors` vectors, feature after feature; `rest` rows behind."""

    place: int
    vectors: int
    whole: int
    rest: int

    @classmethod
    def of(cls, asm: Assembler, known: Array, vectors: int) -> "_Table":
        """Append the known rows to the pool of literals."""
        lanes = asm.target.vector_bytes // _DOUBLE
        step = vectors * lanes
        whole, rest = divmod(len(known), step)
        parts = [known[first : first + step].T for first in range(0, whole * step, step)]
        if rest:
            last = np.zeros((known.shape[1], ceil_div(rest, lanes) * lanes))
            last[:, :rest] = known[whole * step :].T
            parts.append(last)
        place = asm.literal(np.concatenate([np.ravel(part) for part in parts]))
        return cls(place, vectors, whole, rest)


class _RowsOfX:
    """Code for one row of x, or for a few rows, and all known rows."""

    def __init__(self, asm: Assembler, spec: DistanceSpec, table: _Table, rows: int) -> None:
        self.asm, self.spec, self.table, self.rows = asm, spec, table, rows
        self.lanes = asm.target.vector_bytes // _DOUBLE
        self.x_pitch = spec.x_bytes * spec.known.shape[1]
        self.y_pitch = _DOUBLE * len(spec.known)
        free = iter(range(rows * table.vectors, asm.target.vector_registers))
        self.known = [next(free) for _ in range(table.vectors if rows > 1 else 0)]
        self.x, self.d, self.mask = (next(free) for _ in range(3))

    def emit(self) -> None:
        asm, table = self.asm, self.table
        asm.emit("lea", r8, Literal(table.place))
        if self.spec.measure in _OPERANDS:
            pattern = _OPERANDS[self.spec.measure]
            operand = np.full(self.lanes, pattern)
            asm.emit("vmovups", vector(asm, self.mask), Literal(asm.literal(operand)))

        def whole() -> None:
            self._block(table.vectors, table.vectors * self.lanes)

        repeat(asm, table.whole, r11, whole)
        if table.rest:
            self._block(ceil_div(table.rest, self.lanes), table.rest)
        asm.emit("add", rdi, self.rows * self.x_pitch)
        if self.rows > 1:
            asm.emit("add", rsi, (self.rows - 1) * self.y_pitch)

    def _block(self, vectors: int, count: int) -> None:
        """Append code for distances to the next `count` known rows; r8 and rsi move behind them."""
        asm = self.asm
        for number in range(self.rows * vectors):
            zero(asm, vector(asm, number))
        asm.emit("mov", r9, rdi)

        def feature() -> None:
            for number, register in enumerate(self.known[:vectors]):
                asm.emit("vmovupd", vector(asm, register), self._place(number))
            for row in range(self.rows):
                self._broadcast(row)
                for number in range(vectors):
                    self._add(row * vectors + number, number)
            asm.emit("add", r8, vectors * self.lanes * _DOUBLE)
            asm.emit("add", r9, self.spec.x_bytes)

        repeat(asm, self.spec.known.shape[1], rax, feature)
        for row in range(self.rows):
            for number in range(vectors):
                left = min(self.lanes, count - number * self.lanes)
                offset = row * self.y_pitch + number * self.lanes * _DOUBLE
                self._store(row * vectors + number, Memory(rsi, offset), left)
        asm.emit("add", rsi, count * _DOUBLE)

    def _place(self, number: int) -> Memory:
        return Memory(r8, number * self.lanes * _DOUBLE)

    def _broadcast(self, row: int) -> None:
        asm, x, place = self.asm, vector(self.asm, self.x), Memory(r9, row * self.x_pitch)
        if self.spec.x_bytes == _DOUBLE:
            asm.emit("vbroadcastsd", x, place)
            return
        asm.emit("vbroadcastss", half_vector(asm, self.x), place)
        asm.emit("vcvtps2pd", x, half_vector(asm, self.x))

    def _add(self, total_number: int, number: int) -> None:
        """Append code that adds a feature of one row of x and of vector `number` to a sum."""
        asm, measure = self.asm, self.spec.measure
        total, d, x = (vector(asm, each) for each in (total_number, self.d, self.x))
        mask = vector(asm, self.mask)
        known = vector(asm, self.known[number]) if self.known else self._place(number)
        if measure is Measure.PRODUCT:
            asm.emit("vfmadd231pd", total, x, known)
        elif measure is Measure.SQUARED:
            asm.emit("vsubpd", d, x, known)
            asm.emit("vfmadd231pd", total, d, d)
        elif measure is Measure.UNEQUAL and asm.target.isa == "avx512":
            asm.emit("vcmppd", k(1), x, known, _NOT_EQUAL)
            asm.emit("vaddpd", total.masked(k(1)), total, mask)
        elif measure is Measure.UNEQUAL:
            asm.emit("vcmppd", d, x, known, _NOT_EQUAL)
            asm.emit("vandps", d, d, mask)
            asm.emit("vaddpd", total, total, d)
        else:
            asm.emit("vsubpd", d, x, known)
            asm.emit("vandps", d, d, mask)
            # The second source is the result where either is NaN.
            asm.emit("vmaxpd" if measure is Measure.LARGEST else "vaddpd", total, total, d)

    def _store(self, number: int, place: Memory, count: int) -> None:
        asm = self.asm
        register = vector(asm, number)
        if count == self.lanes:
            asm.emit("vmovupd", place, register)
        elif asm.target.isa == "avx512":
            set_tail_mask(asm, count, k(1))
            asm.emit("vmovupd", place.masked(k(1)), register)
        else:
            mask = ymm(self.d)
            asm.emit("vmovups", mask, lane_mask(asm, count, self.lanes, _DOUBLE))
            asm.emit("vmaskmovpd", place, mask, register)


# The operand in `mask`: the bits of a magnitude, or the number that a feature adds if it differs.
_OPERANDS = {
    **dict.fromkeys((Measure.ABSOLUTE, Measure.LARGEST), np.int64(_MAGNITUDE)),
    Measure.UNEQUAL: np.float64(1.0),
}
