"""int8 without VNNI: two inputs at a time, broadcast as 16-bit integers, in loops.

x is quantised to int16 on the stack. A step is two neighbouring inputs and a vector of outputs, at
least one of which has a weight there; the pair's place in x is a number in memory:

    again: mov          eax, [rdx+4*slot]         which pair of x
           vpbroadcastd zmm5, [rsp+4*rax]         both inputs in all lanes
           vpmovsxbw    zmm4, [rcx+32*slot]       two weights a lane, int8 to int16
           vpmaddwd     zmm4, zmm4, zmm5          exact: 2 * 128 * 127 fits 32 bits
           vpaddd       zmm0, zmm0, zmm4          zmm1, zmm2, zmm3 in the next slots
           ...

`vpmaddubsw` would take four bytes at once, but its 16-bit sums saturate.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import (
    SCALE_SCRATCH,
    emit_integers,
    emit_output,
    emit_scale,
    output_scales,
    quantised_nonzeros,
)
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Literal, Memory, Register, dword, r8, rax, rcx, rdx, rsi, rsp
from sparsejit.x86.routines import reserve

PAIR = 2
SLOTS = 4  # accumulators of a loop
_WEIGHT, _INPUT, _RECIPROCAL, _SCALE, _FIRST_FREE = 4, 5, 6, 7, 8
MOST_INPUTS = 1 << 18  # they take half a megabyte of stack


@dataclass(frozen=True, eq=False)
class Pairs:
    """A layer for the kernel of pairs: int8 weights (out, in), and the factors of their sums."""

    spec: MatVec
    weights: CompressedRows
    scales: npt.NDArray[np.float32]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts: pairs of inputs by vectors of outputs that hold a nonzero, and the rest.

    The rest is counted in pairs: 20 for the scale of x, one and a half for the end of a vector of
    outputs. A pair reads two weights a lane, and the place of its inputs.
    """
    vectors = ceil_div(matrix.out_features, target.lanes)
    steps = pairs_of(matrix, target.lanes) + 20 + 3 * vectors // 2
    pool_bytes = steps * (PAIR * target.lanes + 4)
    return Counts.of(matrix, target, DType.INT8, Work("int8-pairs", steps), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Pairs:
    """Quantise the weights."""
    weights, scales = quantised_nonzeros(matrix)
    return Pairs(spec, weights, output_scales(spec, scales), expect(spec, matrix, target))


def emit(asm: Assembler, lowered: Pairs) -> None:
    """Append the int8 kernel of pairs of inputs; see `families` for the contract."""
    spec, lanes = lowered.spec, asm.target.lanes
    stack_bytes = PAIR * _padded_inputs(asm, spec.in_features)
    reserve(asm, stack_bytes)
    _store_inputs(asm, spec)
    # Weights that come from beyond L2 are asked for ahead.
    is_far = lowered.counts.pool_bytes > asm.target.l2_bytes
    ahead = asm.target.core.prefetch_distance if is_far else 0
    for first in range(0, spec.out_features, lanes):
        _sum(asm, lowered.weights.some_rows(first, first + lanes), ahead)
        _finish(asm, spec, first, lowered.scales)
    asm.emit("add", rsp, stack_bytes)


def pairs_of(matrix: SparseMatrix, lanes: int) -> int:
    """Count the steps: pairs of inputs by vectors of outputs that hold a nonzero."""
    block_row, column = matrix.blocks(lanes)
    pairs = ceil_div(matrix.in_features, PAIR)
    return count_distinct(block_row * pairs + column // PAIR, matrix.size)


def _padded_inputs(asm: Assembler, in_features: int) -> int:
    block = PAIR * asm.target.lanes
    return round_up(in_features, block)


def _store_inputs(asm: Assembler, spec: MatVec) -> None:
    """Write x as int16 at rsp, in the order of `_place_of_pair`."""
    lanes, reciprocal = asm.target.lanes, vector(asm, _RECIPROCAL)
    free = [vector(asm, number) for number in range(_FIRST_FREE, 16)]
    emit_scale(asm, spec, reciprocal, vector(asm, _SCALE), free[:SCALE_SCRATCH])
    even, odd = vector(asm, 0), vector(asm, 1)
    lowest = asm.literal(np.full(PAIR * lanes, spec.least_integer, np.int16))
    for first in range(0, spec.in_features, PAIR * lanes):
        emit_integers(asm, spec, even, first, reciprocal)
        emit_integers(asm, spec, odd, first + lanes, reciprocal)
        asm.emit("vpackssdw", even, even, odd)
        if spec.x_steps is not None:
            asm.emit("vpmaxsw", even, even, Literal(lowest))
        asm.emit("vmovups", Memory(rsp, 2 * first), even)


def _place_of_pair(pair: npt.NDArray[np.intp], lanes: int) -> npt.NDArray[np.uint32]:
    """Return places of inputs 2 * pair and 2 * pair + 1 after `vpackssdw`, in units of 4 bytes."""
    block, within = np.divmod(pair, lanes)
    source, position = np.divmod(within, lanes // PAIR)
    place = block * lanes + position // 2 * 4 + source * 2 + position % 2
    return place.astype(np.uint32)


def _sum(asm: Assembler, weights: CompressedRows, ahead: int) -> None:
    """Register 0 = the int32 sums of one vector of outputs; weights (rows, in_features), int8."""
    lanes = asm.target.lanes
    used, pair = distinct(weights.columns // PAIR, ceil_div(weights.shape[1], PAIR))
    trips = ceil_div(len(used), SLOTS)
    slots = [vector(asm, number) for number in range(SLOTS)]
    for slot in slots:
        rows.zero(asm, slot)
    if trips:
        stored = np.zeros((trips * SLOTS, lanes, PAIR), np.int8)
        stored[pair, weights.rows, weights.columns % PAIR] = weights.values
        places = np.zeros(trips * SLOTS, np.uint32)
        places[: len(used)] = _place_of_pair(used, lanes)
        asm.emit("lea", rcx, Literal(asm.literal(stored)))
        asm.emit("lea", rdx, Literal(asm.literal(places)))
        _repeat(asm, trips, ahead)
    total, second, third, fourth = slots
    asm.emit("vpaddd", total, total, second)
    asm.emit("vpaddd", third, third, fourth)
    asm.emit("vpaddd", total, total, third)


def _repeat(asm: Assembler, trips: int, ahead: int) -> None:
    """Append the loop over four slots. `ahead`: bytes from weights to those asked for, or 0."""
    weight, x, slot = vector(asm, _WEIGHT), vector(asm, _INPUT), np.arange(SLOTS)
    step_bytes = PAIR * asm.target.lanes
    with counted_down(asm, r8, trips):
        accumulator = Register(x.kind, slot)
        asm.stamp(
            SLOTS,
            [
                line("mov", dword(rax), Memory(rdx, 4 * slot)),
                line("vpbroadcastd", x, Memory(rsp, 0, index=rax, scale=4)),
                line("vpmovsxbw", weight, Memory(rcx, step_bytes * slot)),
                line("vpmaddwd", weight, weight, x),
                line("vpaddd", accumulator, accumulator, weight),
            ],
        )
        if ahead:
            asm.emit("prefetcht1", Memory(rcx, ahead))
        asm.emit("add", rcx, SLOTS * step_bytes)
        asm.emit("add", rdx, SLOTS * 4)


def _finish(asm: Assembler, spec: MatVec, first: int, scales: npt.NDArray[np.float32]) -> None:
    """Append code that stores register 0, int32 sums, as outputs from `first` on."""
    lanes, total = asm.target.lanes, vector(asm, 0)
    parts = [scales] if spec.bias is None else [scales, spec.bias]
    vectors = np.zeros((len(parts), lanes), np.float32)
    for row, part in zip(vectors, parts, strict=True):
        chosen = part[first : first + lanes]
        row[: len(chosen)] = chosen
    operands = (Literal(asm.literal(row)) for row in vectors)
    scratch = vector(asm, _WEIGHT)
    emit_output(asm, spec, total, operands, vector(asm, _SCALE), scratch)
    free = [scratch, *(vector(asm, number) for number in range(_FIRST_FREE, 16))]
    apply_activation(asm, spec.activation, [total], free)
    rows.store(asm, total, rsi, first, spec.out_features, scratch)
