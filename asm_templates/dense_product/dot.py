"""A matrix of few outputs by a vector: lanes over inputs, so that no lane waits for an output.

    vmovups     zmm0, [rdx]           16 inputs, once for all rows of a group
    vfmadd231ps zmm31, zmm0, [rcx]    16 weights of row 0
    vfmadd231ps zmm30, zmm0, [rcx+64] row 1 ...

A group has a row for each lane of a vector, the last group the rest; at its end the lanes of all
its sums are added at once (`lane_sums`). Few rows have several partial sums each.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.dense_product.lane_sums import InnerProducts, products_a_turn
from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import masked_load, tail_mask
from sparsejit.asm_templates.shared.rows import finish_rows, start_rows, vector
from sparsejit.asm_templates.shared.storage import BoolArray, ByteArray, FloatArray, Storage
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, rax, rcx, rdi, rdx, rsi

_AVX2_MASK = 4


@dataclass(frozen=True, eq=False)
class DotGroup:
    """Rows `first` to `first + rows - 1`, their weights in order of use."""

    first: int
    rows: int
    lines: ByteArray


@dataclass(frozen=True, eq=False)
class Dot:
    """A layer as groups of rows, one row for each lane of a vector, ready to emit."""

    spec: MatVec
    storage: Storage
    groups: list[DotGroup]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Expected counts: loads of x and weights, zeros included, and rows whose lanes are added."""
    vectors = ceil_div(matrix.in_features, target.lanes)
    products = matrix.out_features * vectors
    groups = ceil_div(matrix.out_features, target.lanes)
    ends = matrix.out_features + target.core.layouts.dot_end * groups
    work = Work("dot", products + groups * vectors), Work("dot-end", ends)
    pool_bytes = products * target.lanes * WEIGHT_BYTES[spec.dtype]
    return Counts.of(matrix, target, spec.dtype, work, pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Dot:
    """Lower a layer to groups of consecutive rows, as many as a vector has lanes."""
    storage, lanes = Storage(target, spec.dtype), target.lanes
    padded = np.pad(matrix.dense, ((0, 0), (0, -matrix.in_features % lanes)))
    groups = []
    for first in range(0, matrix.out_features, lanes):
        own = padded[first : first + lanes]
        vectors = own.reshape(len(own), -1, lanes).swapaxes(0, 1)
        in_order = _in_order(storage, np.ascontiguousarray(vectors))
        groups.append(DotGroup(first, len(own), storage.lines(in_order)))
    return Dot(spec, storage, groups, expect(spec, matrix, target))


def _in_order(storage: Storage, weights: FloatArray) -> FloatArray:
    """Return weights (vectors, rows, lanes) as vectors (any, lanes), turn after turn."""
    _, rows, lanes = weights.shape
    turn = products_a_turn(rows)
    whole = len(weights) // turn * turn
    turns = weights[:whole].reshape(-1, turn * rows, lanes)
    return np.concatenate([storage.in_trips(turns), weights[whole:].reshape(-1, lanes)])


def emit(asm: Assembler, lowered: Dot) -> None:
    """Append the kernel of inner products; see `families` for the contract."""
    vectors = ceil_div(lowered.spec.in_features, asm.target.lanes)
    for group in lowered.groups:
        sums = InnerProducts(asm, group.rows, vectors)
        asm.emit("lea", rcx, Literal(lowered.storage.literal(asm, group.lines)))
        asm.emit("mov", rdx, rdi)
        sums.start()
        lowered.storage.start(asm)
        _inputs(asm, lowered, sums)
        _finish(asm, lowered.spec, group.first, sums.finish())


def _inputs(asm: Assembler, lowered: Dot, sums: InnerProducts) -> None:
    in_features, lanes, vectors = lowered.spec.in_features, asm.target.lanes, sums.vectors
    turns, rest = divmod(ceil_div(in_features, lanes), vectors)
    is_partial = in_features % lanes != 0
    if is_partial and rest == 0:
        turns, rest = turns - 1, vectors

    def turn() -> None:
        _products(asm, lowered, sums, vectors)
        asm.emit("add", rcx, lowered.storage.trip_bytes(vectors * sums.rows))
        asm.emit("add", rdx, vectors * asm.target.vector_bytes)

    if turns > 1:
        with counted_down(asm, rax, turns):
            turn()
    elif turns:
        turn()
    if rest:
        _products(asm, lowered, sums, rest, is_partial)


def _products(
    asm: Assembler, lowered: Dot, sums: InnerProducts, vectors: int, is_partial: bool = False
) -> None:
    """Multiply `vectors` of x from rdx by weights from rcx; the last may be partial."""
    number = np.arange(vectors * sums.rows)
    step, row = np.divmod(number, sums.rows)
    storage = lowered.storage
    unpack, operand = storage.operand(
        asm, number, Memory(rcx, storage.place(number)), consecutive=True
    )
    x, place = vector(asm, 0), Memory(rdx, step * asm.target.vector_bytes)
    last = (step == vectors - 1) & is_partial
    loads = [line("vmovups", x, place, when=(row == 0) & ~last)]
    if is_partial:
        loads.append(_partial(asm, lowered.spec, x, place, (row == 0) & last))
    product = line("vfmadd231ps", sums.register(row, step), x, operand)
    asm.stamp(len(number), [*loads, *unpack, product])


def _partial(
    asm: Assembler, spec: MatVec, x: Register, place: Memory, when: BoolArray
) -> Line:
    """Return the load of the last inputs, with zeros behind them."""
    inputs = spec.in_features % asm.target.lanes
    mask = tail_mask(asm, inputs, vector(asm, _AVX2_MASK))
    return masked_load(x, mask, place, when)


def _finish(asm: Assembler, spec: MatVec, first: int, y: Register) -> None:
    """Add the bias, apply the activation, and store y from row `first` on."""
    if spec.bias is not None:
        bias = vector(asm, 0)
        start_rows(asm, spec, bias, first)
        asm.emit("vaddps", y, y, bias)
    free = [vector(asm, number) for number in range(1 + SCRATCH_PER_VECTOR)]
    finish_rows(asm, spec, [y], first, rsi, free)
