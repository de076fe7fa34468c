"""Kernels in float64 over columns of x: products with weights, scaling, comparisons.

    emit_double_product   a product with weights: outputs in fours, inputs as lanes
    emit_scaled_columns   columns shifted and scaled, clipped, compared with categories

The product:

    for each row, for each four outputs     sum[o] += x[8 inputs] * W[o, 8 inputs]
                                            y[o] = bias[o] + the lanes of sum[o]

If fewer than a quarter of the inputs have a nonzero weight, these are gathered; else all are read.

Scaled columns:

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
from sparsejit.asm_templates.shared.masks import lane_mask, set_tail_mask
from sparsejit.asm_templates.shared.rows import half_vector, vector, zero
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, MISSING, SCALE, SHIFT
from sparsejit.ir.values import Array
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    k,
    r8,
    r9,
    r10,
    rax,
    rdi,
    rsi,
    xmm,
    ymm,
    zmm,
)

_FLOAT, _DOUBLE = 4, 8
_OUTPUTS = 4
_SUMS = 8  # independent accumulators, which hide the latency of a multiply-add
_GATHERED_BELOW = 0.25  # share of inputs with a nonzero weight


@dataclass(frozen=True, eq=False)
class DoubleProductSpec:
    """A product in float64: y = x (rows, in) times weights (out, in), transposed, plus bias (out,).

    Elements of x and y have `x_bytes` and `y_bytes`: 4 or 8.
    """

    rows: int
    x_bytes: int
    weights: Array
    bias: Array
    y_bytes: int = _FLOAT

    @property
    def used(self) -> Array:
        """The inputs that are read: the ones with a nonzero weight if they are few, else all."""
        used = np.flatnonzero(self.weights.any(axis=0))
        every = np.arange(self.weights.shape[1])
        return used if len(used) < _GATHERED_BELOW * len(every) else every


def emit_double_product(asm: Assembler, spec: DoubleProductSpec) -> None:
    """Append the product's code. rdi: x; rsi: y. Clobbers these, rax, r8 to r10, vectors and k1."""
    blocks = range(0, len(spec.bias), _OUTPUTS)
    writers = [_OutputsOfRow(asm, spec, slice(first, first + _OUTPUTS)) for first in blocks]

    def row() -> None:
        for block in writers:
            block.emit()
        asm.emit("add", rdi, spec.x_bytes * spec.weights.shape[1])
        asm.emit("add", rsi, spec.y_bytes * len(spec.bias))

    repeat(asm, spec.rows, r10, row)


class _OutputsOfRow:
    """Appends the code that computes up to four outputs of one row."""

    def __init__(self, asm: Assembler, spec: DoubleProductSpec, outputs: slice) -> None:
        self.asm, self.lanes = asm, asm.target.vector_bytes // _DOUBLE
        used, self.first, self.x_bytes = spec.used, outputs.start, spec.x_bytes
        self.y_bytes = spec.y_bytes
        self.bias = spec.bias[outputs]
        self.is_gathered = len(used) < spec.weights.shape[1]
        self.whole, self.rest = divmod(len(used), self.lanes)
        chunks = self.whole + (self.rest > 0)
        index = np.zeros(chunks * self.lanes, np.int32)
        index[: len(used)] = used
        weights = np.zeros((len(self.bias), chunks * self.lanes))
        weights[:, : len(used)] = spec.weights[outputs][:, used]
        parts = [index] if self.is_gathered else []
        table = [part.reshape(chunks, self.lanes).view(np.uint8) for part in (*parts, *weights)]
        self.table = asm.literal(np.concatenate(table, axis=1) if chunks else weights)
        self.weights_at = self.lanes * _FLOAT * len(parts)
        self.chunk_bytes = self.weights_at + self.lanes * _DOUBLE * len(self.bias)
        self.unrolled = max(1, _SUMS // len(self.bias))

    def emit(self) -> None:
        asm = self.asm
        width = len(self.bias)
        registers = [vector(asm, number) for number in range(width * self.unrolled)]
        for register in registers:
            zero(asm, register)
        sums = [registers[width * turn : width * (turn + 1)] for turn in range(self.unrolled)]
        asm.emit("lea", r8, Literal(self.table))
        asm.emit("mov", r9, rdi)

        def several() -> None:
            for number in range(self.unrolled):
                self._add(sums[number], number)
            self._on(self.unrolled)

        repeat(asm, self.whole // self.unrolled, rax, several)
        for number in range(self.whole % self.unrolled):
            self._add(sums[number], number)
        self._on(self.whole % self.unrolled)
        if self.rest:
            self._add(sums[0], 0, self.rest)
        for o, bias in enumerate(self.bias):
            self._finish([each[o] for each in sums], self.first + o, float(bias))

    def _on(self, chunks: int) -> None:
        if chunks:
            self.asm.emit("add", r8, chunks * self.chunk_bytes)
            if not self.is_gathered:
                self.asm.emit("add", r9, chunks * self.lanes * self.x_bytes)

    def _add(self, sums: list[Register], chunk: int, count: int = 0) -> None:
        """Add a vector's products to the sums; with `count`, only its first inputs exist."""
        asm, at = self.asm, chunk * self.chunk_bytes
        x, is_narrow = vector(asm, _SUMS), self.x_bytes == _FLOAT
        taken = half_vector(asm, _SUMS) if is_narrow else x
        if self.is_gathered:
            self._gather(taken, at)
        else:
            self._load(taken, chunk, count)
        if is_narrow:
            asm.emit("vcvtps2pd", x, taken)
        for number, total in enumerate(sums):
            place = at + self.weights_at + number * self.lanes * _DOUBLE
            asm.emit("vfmadd231pd", total, x, Memory(r8, place))

    def _gather(self, x: Register, at: int) -> None:
        """Gather inputs by number; input 0, with weights of 0, pads the last vector."""
        asm, is_narrow = self.asm, self.x_bytes == _FLOAT
        index, every = half_vector(asm, _SUMS + 1), (vector, half_vector)[is_narrow](asm, _SUMS + 2)
        gather = "vpgatherdd" if is_narrow else "vgatherdpd"
        place = Memory(r9, 0, index, self.x_bytes)
        asm.emit("vmovups", index, Memory(r8, at))
        if asm.target.isa == "avx512":
            asm.emit("kxnorw", k(1), k(1), k(1))
            asm.emit(gather, x.masked(k(1)), place)
        else:
            asm.emit("vpcmpeqd", every, every, every)
            asm.emit(gather, x, place, every)

    def _load(self, x: Register, chunk: int, count: int) -> None:
        asm, place = self.asm, Memory(r9, chunk * self.lanes * self.x_bytes)
        is_narrow = self.x_bytes == _FLOAT
        move = "vmovups" if is_narrow else "vmovupd"
        if not count:
            asm.emit(move, x, place)
        elif asm.target.isa == "avx512":
            set_tail_mask(asm, count, k(1))
            asm.emit(move, x.masked(k(1), zeroing=True), place)
        else:
            mask = (xmm if is_narrow else ymm)(_SUMS + 1)
            asm.emit("vmovups", mask, lane_mask(asm, count, self.lanes, self.x_bytes))
            asm.emit("vmaskmovps" if is_narrow else "vmaskmovpd", x, mask, place)

    def _finish(self, sums: list[Register], output: int, bias: float) -> None:
        """y[output] = bias + all lanes of all sums."""
        asm, (total, *others) = self.asm, sums
        for other in others:
            asm.emit("vaddpd", total, total, other)
        number, spare = int(total.number), _SUMS + 1
        if asm.target.isa == "avx512":
            asm.emit("vextracti64x4", ymm(spare), zmm(number), 1)
            asm.emit("vaddpd", ymm(number), ymm(number), ymm(spare))
        asm.emit("vextractf128", xmm(spare), ymm(number), 1)
        asm.emit("vaddpd", xmm(number), xmm(number), xmm(spare))
        asm.emit("vhaddpd", xmm(number), xmm(number), xmm(number))
        asm.emit("vmovsd", xmm(spare), Literal(asm.literal(np.array([bias]), 8)))
        asm.emit("vaddsd", xmm(number), xmm(number), xmm(spare))
        is_double = self.y_bytes == _DOUBLE
        if not is_double:
            asm.emit("vcvtsd2ss", xmm(number), xmm(number), xmm(number))
        place = Memory(rsi, self.y_bytes * output)
        asm.emit("vmovsd" if is_double else "vmovss", place, xmm(number))


LANES = 4
_EQUAL, _UNORDERED = 0, 3


@dataclass(frozen=True, eq=False)
class ColumnScaling:
    """Sizes of x and y, and the numbers by which each column is scaled, clipped or compared.

    `rows` of x have `features` elements of `x_bytes`, an element of y has `y_bytes`. `columns` are
    the columns of x that are used, `numbers` (kinds, columns) as in `ScaledColumns`. `y_gap` are
    the bytes between two rows of y.
    """

    rows: int
    features: int
    x_bytes: int
    y_bytes: int
    columns: Array
    numbers: Array
    y_gap: int = 0

    @property
    def outputs(self) -> int:
        return len(self.columns)

    @property
    def is_gathered(self) -> bool:
        """Whether the columns must be gathered: they are not the first columns of x, in order."""
        return not np.array_equal(self.columns, np.arange(self.outputs))

    def asks_for(self, row: int, otherwise: float) -> bool:
        """Whether any column needs an operation, such as clipping, whose numbers are in `row`.

        `otherwise` is the number that has no effect.
        """
        return bool(np.any(self.numbers[row] != otherwise))


def emit_scaled_columns(asm: Assembler, scaling: ColumnScaling) -> None:
    """Append code that scales all rows. rdi: x; rsi: y. Clobbers these, rax, r8 to r10, vectors."""
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
        if scaling.y_gap:
            asm.emit("add", rsi, scaling.y_gap)

    repeat(asm, scaling.rows, r10, row)


class _ColumnWriter:
    """Appends the code that scales four columns at a time; literals hold their numbers by fours."""

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
        """The operand with row `number` of the numbers for the next four columns."""
        return Memory(r8, LANES * (_FLOAT + _DOUBLE * self.used.index(number)))

    def columns(self, count: int, is_gathered: bool) -> None:
        """Append code that scales the next `count` columns. r8: their numbers; r9: x."""
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
