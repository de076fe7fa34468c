"""Distances in float64 between rows of x and known rows, whose elements lie side by side.

    for each row of x, for each four vectors of known rows      (a lane is a known row)
        for each feature                                        d = x[feature] - known[feature]
            sum += d^2, or |d|, or d != 0; or max with |d|; or sum += x[feature] * known[feature]

Differences lose nothing where x is near a known row, as |x|^2 - 2 x y + |y|^2 would.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask, set_tail_mask
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.ir.ops.columns import Measure
from sparsejit.ir.values import Array
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, k, r8, r9, r10, r11, rax, rdi, rsi, ymm

_FLOAT, _DOUBLE = 4, 8
_VECTORS = 4  # of known rows, whose sums are independent
_D = _VECTORS  # registers of differences, behind the sums
_X = 2 * _VECTORS
_MASK = _X + 1
_NOT_EQUAL = 4  # predicate of vcmppd
_MAGNITUDE = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class DistanceSpec:
    """Distances (rows, known rows) of x (rows, features), of elements of `x_bytes`: 4 or 8."""

    measure: Measure
    rows: int
    x_bytes: int
    known: Array


def emit_distances(asm: Assembler, spec: DistanceSpec) -> None:
    """Append the distances. rdi: x; rsi: y. Clobbers these, rax, r8 to r11, vectors and k1."""
    writer = _BlockOfRows(asm, spec)

    def row() -> None:
        asm.emit("lea", r8, Literal(writer.table))

        def whole() -> None:
            writer.emit(_VECTORS, _VECTORS * writer.lanes)

        repeat(asm, writer.whole, r11, whole)
        if writer.rest:
            writer.emit(-(-writer.rest // writer.lanes), writer.rest)
        asm.emit("add", rdi, spec.x_bytes * spec.known.shape[1])

    repeat(asm, spec.rows, r10, row)


class _BlockOfRows:
    """Code for up to four vectors of known rows, and the table of their elements."""

    def __init__(self, asm: Assembler, spec: DistanceSpec) -> None:
        self.asm, self.spec = asm, spec
        self.lanes = asm.target.vector_bytes // _DOUBLE
        count, features = spec.known.shape
        self.features = features
        step = _VECTORS * self.lanes
        self.whole, self.rest = divmod(count, step)
        parts = [spec.known[first : first + step].T for first in range(0, self.whole * step, step)]
        if self.rest:
            vectors = -(-self.rest // self.lanes)
            last = np.zeros((features, vectors * self.lanes))
            last[:, : self.rest] = spec.known[self.whole * step :].T
            parts.append(last)
        self.table = asm.literal(np.concatenate([np.ravel(part) for part in parts]))

    def emit(self, vectors: int, count: int) -> None:
        """Append the sums of `count` rows, in vectors; r8: their elements, which it passes."""
        asm = self.asm
        sums = [vector(asm, number) for number in range(vectors)]
        for register in sums:
            zero(asm, register)
        if self.spec.measure in (Measure.ABSOLUTE, Measure.LARGEST):
            pattern = np.full(self.lanes, _MAGNITUDE, np.int64)
            asm.emit("vmovups", vector(asm, _MASK), Literal(asm.literal(pattern)))
        if self.spec.measure is Measure.UNEQUAL:
            ones = Literal(asm.literal(np.ones(self.lanes)))
            asm.emit("vmovups", vector(asm, _MASK), ones)
        asm.emit("mov", r9, rdi)

        def feature() -> None:
            self._broadcast()
            for number in range(vectors):
                self._add(number)
            asm.emit("add", r8, vectors * self.lanes * _DOUBLE)
            asm.emit("add", r9, self.spec.x_bytes)

        repeat(asm, self.features, rax, feature)
        for number, register in enumerate(sums):
            left = min(self.lanes, count - number * self.lanes)
            self._store(int(register.number), Memory(rsi, number * self.lanes * _DOUBLE), left)
        asm.emit("add", rsi, count * _DOUBLE)

    def _broadcast(self) -> None:
        asm, x = self.asm, vector(self.asm, _X)
        if self.spec.x_bytes == _DOUBLE:
            asm.emit("vbroadcastsd", x, Memory(r9))
            return
        asm.emit("vbroadcastss", half_vector(asm, _X), Memory(r9))
        asm.emit("vcvtps2pd", x, half_vector(asm, _X))

    def _add(self, number: int) -> None:
        asm, measure = self.asm, self.spec.measure
        total, d, x = vector(asm, number), vector(asm, _D + number), vector(asm, _X)
        known, mask = Memory(r8, number * self.lanes * _DOUBLE), vector(asm, _MASK)
        if measure is Measure.PRODUCT:
            asm.emit("vfmadd231pd", total, x, known)
        elif measure is Measure.SQUARED:
            asm.emit("vsubpd", d, x, known)
            asm.emit("vfmadd231pd", total, d, d)
        elif measure is Measure.UNEQUAL:
            if asm.target.isa == "avx512":
                asm.emit("vcmppd", k(1), x, known, _NOT_EQUAL)
                asm.emit("vaddpd", total.masked(k(1)), total, mask)
                return
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
            mask = ymm(_D)
            asm.emit("vmovups", mask, lane_mask(asm, count, self.lanes, _DOUBLE))
            asm.emit("vmaskmovpd", place, mask, register)

