"""int8 for dense weights: four inputs in all lanes, times their weights in every block row.

A block row is a vector of outputs. x becomes bytes on the stack, in its own order:

    vpbroadcastd zmm0, [rdx+4*quad]              four inputs in all lanes
    vpdpbusd zmm16, zmm0, [rcx+64*0]             lane += its four products; zmm17, ... in the next
    vpdpbusd zmm17, zmm0, [rcx+64*1]             block rows of the group

AVX-VNNI does so with ymm. Without `vpdpbusd` x keeps its sign:

    vpbroadcastd ymm0, [rdx+4*quad]              four inputs, -128 to 127
    vpabsb       ymm1, ymm0                      their magnitudes
    vpxor        ymm3, ymm3, ymm3
    vpcmpgtb     ymm0, ymm3, ymm0                all ones where an input is negative
    vpxor        ymm3, ymm0, [rcx+32*0]          w, or -w - 1 there
    vpmaddubsw   ymm3, ymm1, ymm3                at most 2 * 128 * 128, which 16 bits hold
    vpmaddwd     ymm3, ymm3, ymm2                times ones
    vpaddd       ymm4, ymm4, ymm3                the four products, less negative magnitudes

Sums start at the sum of all negative magnitudes, which is the same for every output.

Block rows of a small group have several sums each, which successive quads use in turn, because a
sum waits for its last product. Weights of all inputs are stored, zeros included, in the order of
use, and no indices: the stream is as short as the matrix. docs/kernels/dense.md has measurements.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import (
    OFFSET,
    finish_block_rows,
    output_scales,
    over_lanes,
    quantised_rows,
    start_sums,
    store_quantised,
)
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, r8, rcx, rdx, rsp, xmm
from sparsejit.x86.routines import call_routine, reserve, slots

KIND = "int8-dense"
MOST_INPUTS = 1 << 18  # bytes of the stack
_TURN_STEPS = 64  # about, in the code of a turn
# While x is quantised; the registers before them are free.
_NEGATIVE, _NONE, _SPARE, _RECIPROCAL, _SCALE = range(11, 16)
_QUAD, _MAGNITUDES, _ONES, _PRODUCTS = range(4)
_INPUTS, _WEIGHTS, _COUNTER = rdx, rcx, r8


@dataclass(frozen=True)
class _ByteForm:
    """Registers and arithmetic of a level.

    multiply: the instruction that adds four products to a sum; empty where four do so.
    first_sum, sums: numbers of the registers of sums.
    finishing: the register of the scale while sums become outputs; the ones before it are free.
    vector, quad: steps to quantise a vector of x, and to load four inputs for a group.
    """

    multiply: str
    first_sum: int
    sums: int
    finishing: int
    vector: float
    quad: int

    @property
    def offset(self) -> int:
        """The offset of bytes of x."""
        return OFFSET if self.multiply else 0


_WIDE = _ByteForm("vpdpbusd", 16, 16, _SCALE, 1.0, 0)
VEX = _ByteForm("{vex} vpdpbusd", 4, 12, _PRODUCTS, 2.0, 0)
_SIGNED = _ByteForm("", 4, 12, _PRODUCTS, 2.5, 1)


def _form_of(target: Target) -> _ByteForm:
    if target.isa == "avx512":
        return _WIDE
    return VEX if target.has("avx_vnni") else _SIGNED


_Int8s = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class DenseBytes:
    """A layer for the dense int8 kernel: the groups' weights, and the factors of sums.

    `weights` are (block rows, lanes, inputs), both ends padded with zeros.
    """

    spec: MatVec
    weights: _Int8s
    scales: npt.NDArray[np.float32]
    counts: Counts

    @property
    def quads(self) -> int:
        """Number of quads of inputs."""
        return self.weights.shape[2] // PRODUCTS

    def group(self, rows: range) -> _Int8s:
        """Return the weights of these block rows in order of use, (quads, rows, lanes, 4)."""
        own = self.weights[rows.start : rows.stop]
        quads = own.reshape(len(rows), -1, self.quads, PRODUCTS)
        return np.ascontiguousarray(quads.transpose(2, 0, 1, 3))


def groups_of(block_rows: int, sums: int) -> list[range]:
    """Return the block rows of each group: as few groups as possible, of nearly equal size.

    A group has at most `sums` block rows.
    """
    count = ceil_div(block_rows, sums)
    ends = [block_rows * number // count for number in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(ends)]


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts, which follow from the shape alone."""
    form, quads = _form_of(target), ceil_div(matrix.in_features, PRODUCTS)
    block_rows = ceil_div(matrix.out_features, target.lanes)
    groups, steps = len(groups_of(block_rows, form.sums)), quads * block_rows
    vectors = ceil_div(matrix.in_features, target.lanes)
    rest = 20 + int(form.vector * vectors) + groups * form.quad * quads
    rest += groups * target.core.layouts.dense_group[target.isa]
    pool_bytes = steps * target.vector_bytes + 12 * matrix.out_features
    return Counts.of(matrix, target, DType.INT8, Work(KIND, steps + rest), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> DenseBytes:
    """Quantise the weights."""
    integers, scales = quantised_rows(matrix)
    rows, inputs = (-matrix.out_features % target.lanes, -matrix.in_features % PRODUCTS)
    weights = np.pad(integers, ((0, rows), (0, inputs)))
    factors = np.pad(output_scales(spec, scales), (0, rows))
    counts = expect(spec, matrix, target)
    return DenseBytes(spec, weights.reshape(-1, target.lanes, weights.shape[1]), factors, counts)


def emit(asm: Assembler, lowered: DenseBytes) -> None:
    """Append the kernel. x and y must not overlap; see `families`."""
    _Emitter(asm, lowered).emit()


class _Emitter:
    """Code of a layer at the level of `asm`."""

    def __init__(self, asm: Assembler, lowered: DenseBytes) -> None:
        self.asm, self.lowered, self.spec = asm, lowered, lowered.spec
        self.form = _form_of(asm.target)
        # Behind x on the stack: what registers of sums have no room for.
        size = asm.target.vector_bytes
        first = round_up(self.spec.in_features, asm.target.lanes)
        self.scale_place, self.start_place = slots(rsp, 2, first, size)
        self.room = first + (0 if self.form is _WIDE else 2 * size)
        self.scale_waits = self.spec.x_steps is None and self.form is not _WIDE

    def emit(self) -> None:
        asm, lowered = self.asm, self.lowered
        asm.count(steps=lowered.quads * len(lowered.weights))
        reserve(asm, self.room)
        self._store_inputs()
        groups = groups_of(len(lowered.weights), self.form.sums)
        weights = [lowered.group(rows).reshape(-1) for rows in groups]
        asm.emit("lea", _WEIGHTS, Literal(asm.literal(np.concatenate(weights))))
        for rows in groups:
            self._sum(rows)
        asm.emit("add", rsp, self.room)

    def _store_inputs(self) -> None:
        """Quantise x to the stack, and write the scale and the start of sums behind it."""
        asm, signed = self.asm, not self.form.multiply
        total, nothing, spare = (vector(asm, at) for at in (_NEGATIVE, _NONE, _SPARE))
        reciprocal, scale = vector(asm, _RECIPROCAL), vector(asm, _SCALE)
        free = [vector(asm, number) for number in range(_NEGATIVE)]

        def count_negative(integers: Register, count: int) -> None:
            read = [spare, integers, nothing]
            if count <= asm.target.lanes // 2:  # the last quad; x past it is not multiplied
                read = [xmm(each.number) for each in read]
            asm.emit("vpminsd", *read)
            asm.emit("vpsubd", total, total, spare)

        if signed:
            zero(asm, total)
            zero(asm, nothing)
        store_quantised(
            asm, self.spec, rsp, reciprocal, scale, free, self.form.offset,
            count_negative if signed else None,
        )  # fmt: skip
        if self.scale_waits:
            asm.emit("vmovups", self.scale_place, scale)
        if signed:
            over_lanes(asm, "vpaddd", [total, nothing])
            asm.emit("vmovups", self.start_place, total)

    def _sum(self, rows: range) -> None:
        """Compute and store the outputs of a group."""
        asm, form, count = self.asm, self.form, len(rows)
        chains = min(form.sums // count, self.lowered.quads)
        self._start(rows, chains)
        asm.emit("mov", _INPUTS, rsp)
        key = KIND, count, chains, self.lowered.quads
        call_routine(asm, key, lambda _: self._products(count, chains))
        scale = vector(asm, form.finishing)
        if self.scale_waits:
            asm.emit("vmovups", scale, self.scale_place)
        finish_block_rows(
            asm, self.spec, self.lowered.scales, np.arange(rows.start, rows.stop), chains,
            form.first_sum, scale, [vector(asm, number) for number in range(form.finishing)],
        )  # fmt: skip

    def _start(self, rows: range, chains: int) -> None:
        asm, first, count = self.asm, self.form.first_sum, len(rows)
        if self.form.multiply:
            start_sums(asm, self.lowered.weights[rows.start : rows.stop], chains, first)
            return
        for position in range(count):
            asm.emit("vmovups", vector(asm, first + position), self.start_place)
        for position in range(count, chains * count):
            zero(asm, vector(asm, first + position))

    def _products(self, count: int, chains: int) -> None:
        """Add the products of a group of `count` block rows to its sums."""
        if not self.form.multiply:
            ones = Literal(self.asm.literal(np.array([1], np.int16), 2))
            self.asm.emit("vpbroadcastw", vector(self.asm, _ONES), ones)
        quads = self.lowered.quads
        turn = chains * max(1, _TURN_STEPS // (chains * count))
        repeat(self.asm, quads // turn, _COUNTER, lambda: self._turn(turn, count, chains))
        self._turn(quads % turn, count, chains)

    def _turn(self, quads: int, count: int, chains: int) -> None:
        """Multiply some quads by their weights, and advance both pointers behind them."""
        asm, form, step = self.asm, self.form, self.asm.target.vector_bytes
        quad, magnitudes, products = (vector(asm, at) for at in (_QUAD, _MAGNITUDES, _PRODUCTS))
        for number in range(quads):
            asm.emit("vpbroadcastd", quad, Memory(_INPUTS, PRODUCTS * number))
            if not form.multiply:
                asm.emit("vpabsb", magnitudes, quad)
                zero(asm, products)
                asm.emit("vpcmpgtb", quad, products, quad)
            row = np.arange(count)
            place = Memory(_WEIGHTS, step * (number * count + row))
            total = vector(asm, form.first_sum + count * (number % chains) + row)
            asm.stamp(count, self._step(total, place))
        if quads:
            asm.emit("add", _INPUTS, PRODUCTS * quads)
            asm.emit("add", _WEIGHTS, step * quads * count)

    def _step(self, total: Register, weights: Memory) -> list[Line]:
        """total += four products of the inputs in `_QUAD` with `weights`, in each lane."""
        quad, magnitudes, ones, products = (
            vector(self.asm, number) for number in (_QUAD, _MAGNITUDES, _ONES, _PRODUCTS)
        )
        if self.form is _WIDE:
            return [line(self.form.multiply, total, quad, weights)]
        if self.form.multiply:
            load = line("vmovdqu", products, weights)
            return [load, line(self.form.multiply, total, quad, products)]
        return [
            line("vpxor", products, quad, weights),
            line("vpmaddubsw", products, magnitudes, products),
            line("vpmaddwd", products, products, ones),
            line("vpaddd", total, total, products),
        ]
