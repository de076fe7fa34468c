"""The leaves that one row reaches, summed in float64, and rounded once if y is float32.

    width 1:     y[c] = base[c] + scale * (found[a] + ... + found[b - 1])     trees as lanes
    all outputs: y    = base    + scale * (leaves[found[0]] + ...)            outputs as lanes

`found` holds for each tree a float32, or the offset of its leaf's row, in elements.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, set_tail_mask
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.ir.ops.forest import Trees
from sparsejit.ir.values import Array
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    rax,
    rcx,
    xmm,
    ymm,
    zmm,
)

_FLOAT, _DOUBLE = 4, 8
_UNROLLED = 4


@dataclass(frozen=True, eq=False)
class LeafSums:
    """The way from leaves to outputs: y = base + scale * the sum of the leaves that a row reaches.

    `leaves` are (leaves, outputs), or one number each. `columns` are the outputs to which trees
    add, in their order, ascending. A number of y takes `y_bytes`.
    """

    leaves: Array
    base: Array
    scale: float
    columns: Array
    y_bytes: int

    @classmethod
    def of(cls, trees: Trees, order: Array) -> "LeafSums":
        return cls(trees.leaves, trees.base, trees.scale, trees.trees[order, 1], trees.y_bytes)

    @property
    def per_output(self) -> bool:
        """Whether a tree adds to one output alone."""
        return bool(self.leaves.shape[1] == 1)

    def found_of(self, leaf: Array) -> Array:
        """Return the entry of `found`, 32 bits, for each leaf number; -1 is a leaf of zeros."""
        if self.per_output:
            values = np.append(self.leaves[:, 0], np.float32(0)).astype(np.float32)
            return values[leaf].view(np.int32)
        rows = np.where(leaf < 0, len(self.leaves), leaf)
        return (rows * self.leaves.shape[1]).astype(np.int32)

    def table(self) -> Array:
        """Return the leaves' rows, then a row of zeros, with room for a vector to read beyond."""
        width = self.leaves.shape[1]
        return np.append(self.leaves.astype(np.float32), np.zeros(width + 16, np.float32))


def emit_leaf_sums(asm: Assembler, sums: LeafSums, found: Register, y: Register) -> None:
    """Append code that adds up the leaves that one row found, at `found`, into its outputs at `y`.

    It keeps both addresses. Clobbers rax, rcx, r8, r9, vectors and k1.
    """
    (_emit_by_output if sums.per_output else _emit_rows)(asm, sums, found, y)


def _emit_by_output(asm: Assembler, sums: LeafSums, found: Register, y: Register) -> None:
    lanes = asm.target.vector_bytes // _DOUBLE
    for output, base in enumerate(sums.base):
        first, end = np.searchsorted(sums.columns, [output, output + 1])
        whole, rest = divmod(int(end - first), lanes)
        totals = [vector(asm, number) for number in range(_UNROLLED)]
        for total in totals:
            zero(asm, total)
        asm.emit("lea", r8, Memory(found, _FLOAT * int(first)))

        def add(count: int, totals: list[Register] = totals) -> None:
            for number, total in enumerate(totals[:count]):
                numbers = vector(asm, _UNROLLED + number)
                asm.emit("vcvtps2pd", numbers, Memory(r8, _FLOAT * lanes * number))
                asm.emit("vaddpd", total, total, numbers)
            asm.emit("add", r8, _FLOAT * lanes * count)

        repeat(asm, whole // _UNROLLED, rax, lambda add=add: add(_UNROLLED))  # type: ignore[misc]
        add(whole % _UNROLLED)
        if rest:
            _add_rest(asm, totals[0], rest)
        for half in (2, 1):
            for number in range(half):
                asm.emit("vaddpd", totals[number], totals[number], totals[number + half])
        _finish_output(asm, sums, (output, float(base)), y)


def _add_rest(asm: Assembler, total: Register, count: int) -> None:
    """total += the next `count` numbers at r8."""
    numbers = vector(asm, _UNROLLED)
    if asm.target.isa == "avx512":
        set_tail_mask(asm, count, k(1))
        asm.emit("vcvtps2pd", numbers.masked(k(1), zeroing=True), Memory(r8))
    else:
        mask, low = xmm(_UNROLLED + 1), xmm(_UNROLLED)
        asm.emit("vmovups", mask, lane_mask(asm, count, 4))
        load_masked(asm, low, mask, Memory(r8))
        asm.emit("vcvtps2pd", numbers, low)
    asm.emit("vaddpd", total, total, numbers)


def _finish_output(
    asm: Assembler, sums: LeafSums, output: tuple[int, float], y: Register
) -> None:
    """y[number] = base + scale * the sum of vector 0's lanes; `output` is (number, base)."""
    number, base = output
    if asm.target.isa == "avx512":
        asm.emit("vextracti64x4", ymm(1), zmm(0), 1)
        asm.emit("vaddpd", ymm(0), ymm(0), ymm(1))
    asm.emit("vextractf128", xmm(1), ymm(0), 1)
    asm.emit("vaddpd", xmm(0), xmm(0), xmm(1))
    asm.emit("vhaddpd", xmm(0), xmm(0), xmm(0))
    numbers = Literal(asm.literal(np.array([sums.scale, base]), 16))
    asm.emit("vmovupd", xmm(2), numbers)
    asm.emit("vpermilpd", xmm(1), xmm(2), 1)
    asm.emit("vfmadd213sd", xmm(0), xmm(2), xmm(1))
    if sums.y_bytes == _FLOAT:
        asm.emit("vcvtsd2ss", xmm(0), xmm(0), xmm(0))
    move = "vmovss" if sums.y_bytes == _FLOAT else "vmovsd"
    asm.emit(move, Memory(y, sums.y_bytes * number), xmm(0))


def _emit_rows(asm: Assembler, sums: LeafSums, found: Register, y: Register) -> None:
    lanes = asm.target.vector_bytes // _DOUBLE
    outputs, trees = len(sums.base), len(sums.columns)
    table = asm.literal(sums.table())
    for first in range(0, outputs, lanes):
        totals = [vector(asm, number) for number in range(_UNROLLED)]
        for total in totals:
            zero(asm, total)
        asm.emit("lea", rcx, Literal(table + _FLOAT * first))
        asm.emit("mov", r8, found)

        def add(count: int, totals: list[Register] = totals) -> None:
            for number, total in enumerate(totals[:count]):
                numbers = vector(asm, _UNROLLED + number)
                asm.emit("mov", dword(r9), Memory(r8, _FLOAT * number))
                asm.emit("vcvtps2pd", numbers, Memory(rcx, 0, r9, _FLOAT))
                asm.emit("vaddpd", total, total, numbers)
            asm.emit("add", r8, _FLOAT * count)

        repeat(asm, trees // _UNROLLED, rax, lambda add=add: add(_UNROLLED))  # type: ignore[misc]
        add(trees % _UNROLLED)
        for pair in (2, 1):
            for number in range(pair):
                asm.emit("vaddpd", totals[number], totals[number], totals[number + pair])
        base = np.zeros(lanes)
        base[: outputs - first] = sums.base[first : first + lanes]
        asm.emit("vmovupd", vector(asm, 1), Literal(asm.literal(np.full(lanes, sums.scale))))
        asm.emit("vmovupd", vector(asm, 2), Literal(asm.literal(base)))
        asm.emit("vfmadd213pd", vector(asm, 0), vector(asm, 1), vector(asm, 2))
        values = vector(asm, 0)
        if sums.y_bytes == _FLOAT:
            values = half_vector(asm, 0)
            asm.emit("vcvtpd2ps", values, vector(asm, 0))
        _store(asm, values, y, (first, outputs), sums.y_bytes)


def _store(
    asm: Assembler, values: Register, y: Register, places: tuple[int, int], y_bytes: int
) -> None:
    """y[first : first + lanes] = values, up to the last output; `places` is (first, outputs)."""
    first, outputs = places
    lanes = asm.target.vector_bytes // _DOUBLE
    count = min(lanes, outputs - first)
    place, is_double = Memory(y, y_bytes * first), y_bytes == _DOUBLE
    move = "vmovupd" if is_double else "vmovups"
    if count == lanes:
        asm.emit(move, place, values)
    elif asm.target.isa == "avx512":
        set_tail_mask(asm, count, k(1))
        asm.emit(move, place.masked(k(1)), values)
    else:
        mask = (ymm if is_double else xmm)(1)
        asm.emit("vmovups", mask, lane_mask(asm, count, 4, y_bytes))
        asm.emit("vmaskmovpd" if is_double else "vmaskmovps", place, mask, values)
