"""`permute-inline` on AVX2: a vector has any eight rows, and x is read from memory.

    vmovups     ymm13, [rdx+32*8]         eight weights, an index in the lowest bits of each
    vpermps     ymm14, ymm13, [rdi+32*3]  reads only the low 3 bits of a lane
    vfmadd231ps ymm0, ymm14, ymm13

If only one port permutes, the number of steps decides. Two things make it smaller than in
`permute`: code runs once, so that no vectors share a schedule, and any rows of a panel may share a
vector. So sums come in any order; each panel keeps them on the stack and moves them to y one by
one, which takes no permutes. There are no windows of x, so thirteen registers hold sums. x and y
must not overlap.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.permute_layout import weights_and_indices, with_index
from sparsejit.asm_templates.gather.pieces import by_lane, padded_rows
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.scheduling.covering import Demand, Windows, registers_in_turn
from sparsejit.asm_templates.scheduling.row_order import (
    PANEL_VECTORS,
    rows_anywhere,
    wanted_counts,
)
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.storage import Stream, rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, dword, r8, rax, rdi, rdx, rsi, rsp, ymm
from sparsejit.x86.routines import reserve

KIND = "permute-inline"
_LANES, _VECTOR_BYTES, _INDEX_BITS = 8, 32, 3
_SUMS, _WEIGHTS, _PICKED, _LAST_INPUTS = 13, ymm(13), ymm(14), ymm(15)
_AT_ONCE = 8  # sums that an activation takes; the other registers are its own
_POOL, _INPUTS = rdx, r8
_REACH = 4  # vectors to either side that a one-byte displacement reaches

_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class SummedRows:
    """A batch: vectors of eight outputs that are summed at once, and their steps in order.

    `first` is the number of the first vector in the panel. `registers` (steps,) are vectors of x,
    `vectors` (steps,) are vectors of the batch. `weights`: uint32 (steps, lanes), an index in each;
    `bias`: uint32 (vectors or 0, lanes).
    """

    first: int
    registers: _Numbers
    vectors: _Numbers
    weights: npt.NDArray[np.uint32]
    bias: npt.NDArray[np.uint32]
    size: int


@dataclass(frozen=True, eq=False)
class LoweredAnywhere:
    """A layer as panels: for each, the row in every lane, and batches that are summed at once."""

    spec: MatVec
    panels: list[tuple[_Numbers, list[SummedRows]]]
    counts: Counts

    @property
    def pool(self) -> npt.NDArray[np.uint32]:
        """Biases and weights in order of reading: (vectors, lanes)."""
        parts = (b for _, batches in self.panels for b in batches)
        return np.concatenate([part for b in parts for part in (b.bias, b.weights)])


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the counts expected from the steps of one panel, or of both if there are two."""
    starts = range(0, matrix.out_features, PANEL_VECTORS * _LANES)
    sampled = starts if len(starts) < 3 else starts[1:2]
    steps = covered = 0
    for start in sampled:
        used = matrix.dense[start : start + PANEL_VECTORS * _LANES] != 0
        steps += _steps(used.shape, np.packbits(used).tobytes())
        covered += len(used)
    return _counts(matrix, target, steps * matrix.out_features // covered)


@lru_cache(maxsize=64)
def _steps(shape: tuple[int, int], bits: bytes) -> int:
    """Return the number of steps of a panel, from the packed bits of its mask of nonzeros.

    It is cached, as a layer's kernels share it.
    """
    used = np.unpackbits(np.frombuffer(bits, np.uint8), count=math.prod(shape)).reshape(shape) != 0
    (held,) = rows_anywhere(used, _LANES)
    wants = wanted_counts(used, _windows(shape[1]), _LANES)
    wants = np.concatenate([wants, np.zeros((held.size - len(wants), *wants.shape[1:]), int)])
    return int(wants[held].max(axis=1).sum())


def _windows(in_features: int) -> Windows:
    """Return one window of all inputs."""
    return Windows.of(in_features, _LANES, in_features)


def _counts(matrix: SparseMatrix, target: Target, steps: int) -> Counts:
    moves = target.core.layouts.move * ceil_div(matrix.out_features, _LANES)
    work = Work(KIND, steps + moves)
    return Counts.of(matrix, target, DType.FLOAT32, work, steps * _VECTOR_BYTES)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LoweredAnywhere:
    """Lower a layer: group rows, schedule steps, and put its index into every weight.

    Weights of any dtype become float32.
    """
    weights = rounded(matrix.dense, spec.dtype)
    windows = _windows(matrix.in_features)
    panels = []
    for held in rows_anywhere(weights != 0, _LANES):
        dense = padded_rows(weights, held.ravel(), windows, _LANES)
        panels.append((held, list(_batches(spec, held, dense))))
    steps = sum(len(batch.registers) for _, batches in panels for batch in batches)
    return LoweredAnywhere(spec, panels, _counts(matrix, target, steps))


def _batches(spec: MatVec, held: _Numbers, dense: npt.NDArray[np.float32]) -> Iterator[SummedRows]:
    """Yield the batches of a panel; `dense`: its rows (vectors * lanes, inputs)."""
    registers = dense.shape[1] // _LANES
    steps = registers_in_turn(Demand.of(dense != 0, _LANES, _LANES, registers), 1)
    weights, indices = weights_and_indices(
        dense.reshape(len(held), _LANES, registers, _LANES),
        steps.taken[..., 0], steps.problem, steps.first, steps.first,
    )  # fmt: skip
    words = with_index(weights, indices, _INDEX_BITS)
    turn = _turns(steps.problem.astype(np.int64) * registers + steps.first)
    for vectors in np.array_split(np.arange(len(held)), ceil_div(len(held), _SUMS)):
        own = np.flatnonzero((steps.problem >= vectors[0]) & (steps.problem <= vectors[-1]))
        # Register after register of x, each sum in turn.
        own = own[np.lexsort((steps.problem[own], turn[own], steps.first[own]))]
        bias = np.zeros((0, _LANES), np.uint32)
        if spec.bias is not None:
            bias = by_lane(spec.bias, held[vectors])
        first = int(vectors[0])
        yield SummedRows(
            *(first, steps.first[own], steps.problem[own] - first, words[own], bias, len(vectors))
        )


def _turns(cell: _Numbers) -> _Numbers:
    """Return each step's number in its cell, a vector of outputs by a register of x.

    `cell`, by step, ascends.
    """
    turns: _Numbers = np.arange(len(cell)) - np.searchsorted(cell, cell)
    return turns


def emit(asm: Assembler, lowered: LoweredAnywhere) -> None:
    """Append the kernel of `permute-inline` on AVX2. x and y must not overlap; see `families`."""
    spec = lowered.spec
    whole, rest = divmod(spec.in_features, _LANES)
    if rest:
        rows.load(asm, _LAST_INPUTS, rdi, whole * _LANES, spec.in_features, _PICKED)
    stream = Stream(asm, _POOL, _VECTOR_BYTES, _REACH)
    stream.point(asm.literal(lowered.pool))
    most = max(len(held) for held, _ in lowered.panels)
    reserve(asm, most * _VECTOR_BYTES)
    for held, batches in lowered.panels:
        asm.count(steps=sum(len(batch.registers) for batch in batches))
        for batch in batches:
            _sum(asm, stream, batch, whole)
        _apply(asm, spec, len(held))
        _move(asm, held.ravel(), spec.out_features)
    asm.emit("add", rsp, most * _VECTOR_BYTES)


def _sum(asm: Assembler, stream: Stream, batch: SummedRows, whole: int) -> None:
    """Compute the sums of a batch and store them on the stack; x has `whole` whole vectors."""
    sums = [ymm(number) for number in range(batch.size)]
    for number, register in enumerate(sums):
        if len(batch.bias):
            asm.emit("vmovups", register, stream.next_at(number))
        else:
            rows.zero(asm, register)
    places = len(batch.bias) + np.arange(len(batch.registers))
    span, place = np.divmod(batch.registers, 2 * _REACH)
    last = batch.registers == whole
    inputs = Memory(_INPUTS, (place - _REACH) * _VECTOR_BYTES)
    middle = Memory(rdi, (span * 2 + 1) * _REACH * _VECTOR_BYTES)
    asm.stamp(
        len(places),
        [
            fetch_redirects(len(places), asm.target),
            stream.move(places),
            line("lea", _INPUTS, middle, when=np.diff(span, prepend=-1) != 0),
            line("vmovups", _WEIGHTS, stream.at(places)),
            line("vpermps", _PICKED, _WEIGHTS, inputs, when=~last),
            line("vpermps", _PICKED, _WEIGHTS, _LAST_INPUTS, when=last),
            line("vfmadd231ps", ymm(batch.vectors), _PICKED, _WEIGHTS),
        ],
    )
    stream.leave(len(batch.bias) + len(batch.registers))
    for number, register in enumerate(sums):
        asm.emit("vmovups", _on_stack(batch.first + number), register)


def _apply(asm: Assembler, spec: MatVec, vectors: int) -> None:
    """Apply the activation to the sums of a panel on the stack."""
    if spec.activation is Activation.NONE:
        return
    registers = [ymm(number) for number in range(15)]
    for first in range(0, vectors, _AT_ONCE):
        sums = registers[: min(_AT_ONCE, vectors - first)]
        for number, register in enumerate(sums):
            asm.emit("vmovups", register, _on_stack(first + number))
        apply_activation(asm, spec.activation, sums, registers[_AT_ONCE:])
        for number, register in enumerate(sums):
            asm.emit("vmovups", _on_stack(first + number), register)


def _move(asm: Assembler, held: _Numbers, out_features: int) -> None:
    """Copy sums to y from the stack, where the sum of row `held[i]` is the i-th."""
    source = np.argsort(held)
    target = held[source]
    source, target = source[target < out_features], target[target < out_features]
    element = dword(rax)
    asm.stamp(
        len(source),
        [
            line("mov", element, Memory(rsp, 4 * source)),
            line("mov", Memory(rsi, 4 * target), element),
        ],
    )


def _on_stack(vector: int) -> Memory:
    return Memory(rsp, vector * _VECTOR_BYTES)
