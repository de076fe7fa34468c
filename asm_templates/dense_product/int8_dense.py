"""int8 for dense weights: four inputs in all lanes, times their weights in every block row.

A block row is sixteen outputs. x becomes unsigned bytes on the stack, in its own order:

    vpbroadcastd zmm0, [rdx+4*quad]              four inputs in all lanes
    vpdpbusd zmm16, zmm0, [rcx+64*0]             lane += its four products; zmm17, ... in the next
    vpdpbusd zmm17, zmm0, [rcx+64*1]             block rows of the group

A group is at most sixteen block rows. Block rows of a small group have several sums each, which
successive quads use in turn, because a sum waits for its last product. Weights of all inputs are
stored, zeros included, in the order of use, and no indices: the stream is as short as the matrix.
docs/kernels/dense.md has measurements.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import (
    LANES,
    finish_block_rows,
    output_scales,
    quantised_rows,
    start_sums,
    store_unsigned,
)
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Literal, Memory, r8, rcx, rdx, rsp, zmm
from sparsejit.x86.routines import reserve

KIND = "int8-dense"
MOST_INPUTS = 1 << 18  # bytes of the stack
_SUMS = 16  # registers of sums
_TURN_STEPS = 64  # about, in the code of a turn

_QUAD, _RECIPROCAL, _SCALE, _FIRST_SUM = zmm(0), zmm(14), zmm(15), 16
_FREE = [zmm(number) for number in range(14)]
_INPUTS, _WEIGHTS, _COUNTER = rdx, rcx, r8

_Int8s = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class DenseBytes:
    """A layer for the dense int8 kernel: the groups' weights, and the factors of sums.

    `weights` are (block rows, 16, inputs), both ends padded with zeros.
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
        """Return the weights of these block rows in order of use, (quads, rows, 16, 4)."""
        own = self.weights[rows.start : rows.stop]
        quads = own.reshape(len(rows), LANES, self.quads, PRODUCTS)
        return np.ascontiguousarray(quads.transpose(2, 0, 1, 3))


def groups_of(block_rows: int) -> list[range]:
    """Return the block rows of each group: as few groups as possible, of nearly equal size."""
    count = ceil_div(block_rows, _SUMS)
    ends = [block_rows * number // count for number in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(ends)]


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts, which follow from the shape alone."""
    block_rows, prices = ceil_div(matrix.out_features, LANES), target.core.layouts
    steps = ceil_div(matrix.in_features, PRODUCTS) * block_rows
    rest = 20 + ceil_div(matrix.in_features, LANES)
    rest += prices.staged_group * len(groups_of(block_rows))
    pool_bytes = steps * CACHE_LINE_BYTES + 12 * matrix.out_features
    return Counts.of(matrix, target, DType.INT8, Work(KIND, steps + rest), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> DenseBytes:
    """Quantise the weights."""
    integers, scales = quantised_rows(matrix)
    rows, inputs = (-matrix.out_features % LANES, -matrix.in_features % PRODUCTS)
    weights = np.pad(integers, ((0, rows), (0, inputs)))
    factors = np.pad(output_scales(spec, scales), (0, rows))
    counts = expect(spec, matrix, target)
    return DenseBytes(spec, weights.reshape(-1, LANES, weights.shape[1]), factors, counts)


def emit(asm: Assembler, lowered: DenseBytes) -> None:
    """Append the kernel; needs VNNI. x and y must not overlap; see `families`."""
    spec = lowered.spec
    room = round_up(spec.in_features, LANES)
    asm.count(steps=lowered.quads * len(lowered.weights))
    reserve(asm, room)
    store_unsigned(asm, spec, rsp, _RECIPROCAL, _SCALE, _FREE)
    groups = groups_of(len(lowered.weights))
    weights = [lowered.group(rows).reshape(-1) for rows in groups]
    asm.emit("lea", _WEIGHTS, Literal(asm.literal(np.concatenate(weights))))
    for rows in groups:
        _sum(asm, lowered, rows)
    asm.emit("add", rsp, room)


def _sum(asm: Assembler, lowered: DenseBytes, rows: range) -> None:
    """Compute and store the outputs of a group."""
    quads, count = lowered.quads, len(rows)
    chains = min(_SUMS // count, quads)
    start_sums(asm, lowered.weights[rows.start : rows.stop], chains, _FIRST_SUM)
    turn = chains * max(1, _TURN_STEPS // (chains * count))
    asm.emit("mov", _INPUTS, rsp)
    repeat(asm, quads // turn, _COUNTER, lambda: _turn(asm, turn, count, chains))
    _turn(asm, quads % turn, count, chains)
    finish_block_rows(
        asm, lowered.spec, lowered.scales, np.arange(rows.start, rows.stop), chains,
        _FIRST_SUM, _SCALE, _FREE,
    )  # fmt: skip


def _turn(asm: Assembler, quads: int, count: int, chains: int) -> None:
    """Multiply some quads by their weights, and advance both pointers behind them."""
    for quad in range(quads):
        asm.emit("vpbroadcastd", _QUAD, Memory(_INPUTS, PRODUCTS * quad))
        row = np.arange(count)
        place = Memory(_WEIGHTS, CACHE_LINE_BYTES * (quad * count + row))
        first = _FIRST_SUM + count * (quad % chains)
        asm.stamp(count, [line("vpdpbusd", zmm(first + row), _QUAD, place)])
    if quads:
        asm.emit("add", _INPUTS, PRODUCTS * quads)
        asm.emit("add", _WEIGHTS, CACHE_LINE_BYTES * quads * count)
