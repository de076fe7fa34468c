"""Columns of x, shifted and scaled in float64, clipped, compared with categories.

    four columns   x         read side by side, or gathered; float32 widened
                   d         x - centre, or one where x == centre
                   y         clip(scale d + shift, low, high), or a given value where x is NaN;
                             rounded to float32 if asked

Operations that no column needs are left out. The last columns of a row, fewer than four, are
gathered and stored under a mask.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, MISSING, SCALE, SHIFT
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, r8, r9, r10, rax, rdi, rsi, xmm, ymm

LANES = 4
_FLOAT, _DOUBLE = 4, 8
_EQUAL, _UNORDERED = 0, 3


@dataclass(frozen=True, eq=False)
class ColumnScaling:
    """Sizes and numbers of `ScaledColumns`: `rows` of x have `features` elements of `x_bytes`.

    An element of y has `y_bytes`.
    """

    rows: int
    features: int
    x_bytes: int
    y_bytes: int
    columns: Array
    numbers: Array

    @property
    def outputs(self) -> int:
        return len(self.columns)

    @property
    def is_gathered(self) -> bool:
        """Whether the columns differ from the first ones of x in order."""
        return not np.array_equal(self.columns, np.arange(self.outputs))

    def asks_for(self, row: int, otherwise: float) -> bool:
        """Whether `row` of the numbers differs from `otherwise`, which has no effect."""
        return bool(np.any(self.numbers[row] != otherwise))


def emit_scaled_columns(asm: Assembler, scaling: ColumnScaling) -> None:
    """Append the scaling of all rows. rdi: x; rsi: y. Clobbers these, rax, r8 to r10, vectors."""
    writer = _ColumnWriter(asm, scaling)
    whole, rest = divmod(scaling.outputs, LANES)

    def row() -> None:
        asm.emit("lea", r8, Literal(writer.table))
        asm.emit("mov", r9, rdi)

        def whole_vector() -> None:
            writer.columns(LANES, scaling.is_gathered)
            asm.emit("add", r8, writer.chunk_bytes)
            if not scaling.is_gathered:
                asm.emit("add", r9, LANES * scaling.x_bytes)
            asm.emit("add", rsi, LANES * scaling.y_bytes)

        repeat(asm, whole, rax, whole_vector)
        if rest:
            asm.emit("mov", r9, rdi)
            writer.columns(rest, is_gathered=True)
            asm.emit("add", rsi, rest * scaling.y_bytes)
        asm.emit("add", rdi, scaling.features * scaling.x_bytes)

    repeat(asm, scaling.rows, r10, row)


class _ColumnWriter:
    """The code of four columns, with their numbers in the pool, four by four."""

    def __init__(self, asm: Assembler, scaling: ColumnScaling) -> None:
        self.asm, self.scaling = asm, scaling
        self.has_categories = scaling.asks_for(IS_CATEGORY, 0)
        self.is_scaled = scaling.asks_for(SCALE, 1) or scaling.asks_for(SHIFT, 0)
        wanted = {
            CENTRE: self.has_categories or scaling.asks_for(CENTRE, 0),
            IS_CATEGORY: self.has_categories,
            SCALE: self.is_scaled,
            SHIFT: self.is_scaled,
            LOW: scaling.asks_for(LOW, -np.inf),
            HIGH: scaling.asks_for(HIGH, np.inf),
            MISSING: len(scaling.numbers) > MISSING,
        }
        self.used = [number for number, is_used in wanted.items() if is_used]
        chunks = ceil_div(scaling.outputs, LANES)
        index = np.zeros(chunks * LANES, np.int32)
        index[: scaling.outputs] = scaling.columns
        numbers = np.zeros((len(self.used), chunks * LANES))
        numbers[:, : scaling.outputs] = scaling.numbers[self.used]
        if self.has_categories:
            at = self.used.index(IS_CATEGORY)
            numbers[at] = np.where(numbers[at] != 0, -1, 0).astype(np.int64).view(np.float64)
        parts = [index, *numbers]
        table = [part.reshape(chunks, LANES).view(np.uint8) for part in parts]
        self.table = asm.literal(np.concatenate(table, axis=1))
        self.chunk_bytes = LANES * (_FLOAT + _DOUBLE * len(self.used))

    def place(self, number: int) -> Memory:
        """The operand with the next four of row `number` of the numbers."""
        return Memory(r8, LANES * (_FLOAT + _DOUBLE * self.used.index(number)))

    def columns(self, count: int, is_gathered: bool) -> None:
        """Append the next `count` columns. r8: their part of the table; r9: x."""
        asm, value = self.asm, ymm(0)
        number, is_category, is_missing = ymm(1), ymm(2), ymm(3)
        is_centre = number
        self._load(value, is_gathered)
        if MISSING in self.used:
            asm.emit("vcmppd", is_missing, value, value, _UNORDERED)
        if self.has_categories:
            asm.emit("vcmppd", is_centre, value, self.place(CENTRE), _EQUAL)
            asm.emit("vandpd", is_centre, is_centre, Literal(asm.literal(np.ones(LANES), 32)))
            asm.emit("vmovupd", is_category, self.place(IS_CATEGORY))
        if CENTRE in self.used:
            asm.emit("vsubpd", value, value, self.place(CENTRE))
        if self.has_categories:
            asm.emit("vblendvpd", value, value, is_centre, is_category)
        if self.is_scaled:
            asm.emit("vmovupd", number, self.place(SCALE))
            asm.emit("vfmadd213pd", value, number, self.place(SHIFT))
        for bound, mnemonic in ((LOW, "vmaxpd"), (HIGH, "vminpd")):
            if bound in self.used:  # max and min return the second source, where it is NaN
                asm.emit("vmovupd", number, self.place(bound))
                asm.emit(mnemonic, value, number, value)
        if MISSING in self.used:
            asm.emit("vblendvpd", value, value, self.place(MISSING), is_missing)
        self._store(value, count)

    def _store(self, value: Register, count: int) -> None:
        asm, is_double = self.asm, self.scaling.y_bytes == _DOUBLE
        result, mask = (value, ymm(1)) if is_double else (xmm(0), xmm(1))
        if not is_double:
            asm.emit("vcvtpd2ps", result, value)
        if count == LANES:
            asm.emit("vmovups", Memory(rsi), result)
            return
        asm.emit("vmovups", mask, lane_mask(asm, count, LANES, self.scaling.y_bytes))
        asm.emit("vmaskmovpd" if is_double else "vmaskmovps", Memory(rsi), mask, result)

    def _load(self, value: Register, is_gathered: bool) -> None:
        asm, is_double = self.asm, self.scaling.x_bytes == _DOUBLE
        if not is_gathered:
            asm.emit("vmovupd" if is_double else "vcvtps2pd", value, Memory(r9))
            return
        asm.emit("vmovups", xmm(1), Memory(r8))
        asm.emit("vpcmpeqd", ymm(2), ymm(2), ymm(2))
        if is_double:
            asm.emit("vgatherdpd", value, Memory(r9, 0, xmm(1), _DOUBLE), ymm(2))
        else:
            asm.emit("vpgatherdd", xmm(0), Memory(r9, 0, xmm(1), _FLOAT), xmm(2))
            asm.emit("vcvtps2pd", value, xmm(0))
