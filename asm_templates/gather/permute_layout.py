"""Layout of a permute kernel: from a matrix to the vectors of weights that the kernel streams.

    stored       weights as vectors of the pool
    with_index   weights whose lowest bits hold the index
    RowPlan      the cutting of a matrix into panels and windows, before its rows are ordered
    layout_of    a matrix ordered, cut and scheduled

`row_order` chooses the row in each lane, and `covering` the weights of each step; here steps are
put in order of execution, given their accumulators, and packed into the pool.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.permute_machine import Machine
from sparsejit.asm_templates.gather.pieces import (
    GatherLayout,
    HeldPanel,
    Piece,
    by_lane,
    in_order,
    padded_rows,
    pieces_of_panel,
)
from sparsejit.asm_templates.scheduling.covering import Demand, Windows
from sparsejit.asm_templates.scheduling.grouping import SWEEPS, StepShape, exchange_indices
from sparsejit.asm_templates.scheduling.interleaving import Steps, accumulators_of
from sparsejit.asm_templates.scheduling.row_order import (
    Prices,
    RowOrder,
    RowPanel,
    by_window,
    row_order,
    row_panels,
)
from sparsejit.asm_templates.shared.padding import StridePadding
from sparsejit.asm_templates.shared.storage import bfloat16_bits, rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.whole_numbers import ceil_div

_Words = npt.NDArray[np.uint32]
_Floats = npt.NDArray[np.float32]


def stored(weights: _Floats, dtype: DType) -> _Words:
    """Return weights (steps, fold, lanes) as vectors of the pool; short ones, two steps a vector.

    float16: one step after the other. bfloat16: an even step's weight is the lower half of a
    lane, an odd step's the upper, so that a shift or a mask makes either a float32.
    """
    if dtype is DType.FLOAT32:
        return weights.view(np.uint32)
    steps, fold, lanes = weights.shape
    even: _Floats = np.zeros((steps + steps % 2, fold, lanes), np.float32)
    even[:steps] = weights
    in_turn = dtype is DType.FLOAT16
    halves = even.astype(np.float16).view(np.uint16) if in_turn else bfloat16_bits(even)
    pairs = halves.reshape(-1, 2, fold, lanes).transpose((0, 2, 1, 3) if in_turn else (0, 2, 3, 1))
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1, fold, lanes)


def with_index(weights: _Floats, index: npt.NDArray[np.integer], bits: int) -> _Words:
    """Return the floats nearest to the weights whose lowest `bits` bits are the index.

    A weight changes by at most 2**(bits - 24) of itself. Zeros, and weights hardly above the
    denormals, become exact zeros: their index is lost, so they multiply an arbitrary input.
    """
    period = 1 << bits
    words = weights.view(np.uint32).astype(np.int64)
    nearest = (words - index + period // 2) // period * period + index
    finite = np.where(nearest & 0x7F800000 == 0x7F800000, nearest - period, nearest)
    normal = np.abs(weights) >= 2 * np.finfo(np.float32).tiny
    return np.where(normal, finite, 0).astype(np.uint32)


# Steps after swaps, relative to the bound before any swap: 0.93 to 1.0.
_SWAPPED = 0.96


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The cutting of a matrix into panels of rows and windows of inputs, before ordering rows."""

    matrix: SparseMatrix
    machine: Machine

    @property
    def windows(self) -> Windows:
        machine = self.machine
        return Windows.of(self.matrix.in_features, machine.lanes, machine.inputs)

    @property
    def panels(self) -> list[RowPanel]:
        machine, fold = self.machine, self.machine.fold_for(self.matrix)
        return row_panels(self.matrix.out_features, machine.lanes, machine.accumulators, fold)

    @property
    def runs_of_code(self) -> float:
        """Average number of runs of a kernel's code, over the vectors of outputs."""
        panels = self.panels
        return sum(part.vectors for part in panels) / sum(part.fold_groups for part in panels)

    @property
    def expected_steps(self) -> int:
        """Approximate number of a kernel's steps, with its exchanges counted in steps."""
        saved = _SWAPPED if self.machine.most_stages else 1
        return int(self._prices.of(self.order(sweeps=0)) * saved) + 1

    def order(self, sweeps: int = SWEEPS) -> RowOrder:
        """Return the row in every lane, after `sweeps` sweeps of swaps; see `row_order`."""
        machine = self.machine
        counts = by_window(self.matrix.counts_by_inputs(machine.lanes), self.windows)
        stages = range(machine.most_stages + 1)
        return row_order(counts, machine.lanes, self.panels, stages, self._prices, sweeps)

    @property
    def _prices(self) -> Prices:
        machine = self.machine
        return Prices(machine.least_steps, machine.exchange_steps, StepShape(machine.sources))


# Steps between two additions to one accumulator: an FMA takes four cycles, a step 0.85, and one
# step is a margin.
_APART = 6

_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class PackedFloats:
    """The data that a run of a piece reads from the pool, in order of reading.

    First the vectors of `head` (the bias), then blocks of one vector of packed indices and the
    weights of the steps it serves, then `tail` (which puts the outputs back in order). `head`
    and `tail`: uint32 (fold, vectors, lanes).
    """

    machine: Machine
    steps: Steps
    head: _Words
    tail: _Words

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.steps.region)

    @property
    def blocks(self) -> int:
        """Number of vectors of packed indices that a run reads."""
        return 0 if self.machine.index_in_weight else ceil_div(self.count, self.machine.fields)

    @property
    def tail_start(self) -> int:
        weights = ceil_div(self.count, self.machine.steps_a_vector)
        return self.head.shape[1] + weights + self.blocks

    @property
    def vectors(self) -> int:
        """Vectors of the pool that one run reads: head, weights, indices and tail."""
        return self.tail_start + self.tail.shape[1]

    @property
    def streamed_bytes(self) -> int:
        """Bytes that all runs read."""
        fold, _, lanes = self.head.shape
        return 4 * fold * self.vectors * lanes

    @cached_property
    def weight_places(self) -> _Numbers:
        """The vector that holds each step's weights, counted from the start of a run."""
        step = np.arange(self.count)
        weights = step // self.machine.steps_a_vector
        indices = 0 if self.machine.index_in_weight else step // self.machine.fields + 1
        return self.head.shape[1] + weights + indices

    @cached_property
    def index_places(self) -> _Numbers:
        """The vector that holds each block's packed indices."""
        block_vectors = self.machine.fields // self.machine.steps_a_vector + 1
        return self.head.shape[1] + np.arange(self.blocks) * block_vectors

    def pool(self) -> _Words:
        """Return all data of the runs: uint32 (fold, vectors, lanes)."""
        fold, _, lanes = self.head.shape
        fields, shifts = self.machine.fields, self.machine.shifts
        pool: _Words = np.empty((fold, self.vectors, lanes), np.uint32)
        pool[:, : self.head.shape[1]] = self.head
        pool[:, self.tail_start :] = self.tail
        weights = self._stored_weights()
        pool[:, self.weight_places[:: self.machine.steps_a_vector]] = weights.swapaxes(0, 1)
        if self.blocks:
            indices = np.zeros((self.blocks * fields, fold, lanes), np.uint32)
            indices[: self.count] = self.steps.indices
            blocks = indices.reshape(self.blocks, fields, fold, lanes) << shifts[:, None, None]
            pool[:, self.index_places] = np.bitwise_or.reduce(blocks, axis=1).swapaxes(0, 1)
        return pool

    def _stored_weights(self) -> _Words:
        """Return vectors of weights: (vectors, fold, lanes)."""
        machine, weights = self.machine, self.steps.weights
        if not machine.index_in_weight:
            return stored(weights, machine.dtype)
        return with_index(weights, self.steps.indices, machine.index_bits)


@dataclass(frozen=True, eq=False)
class PermuteLayout(GatherLayout[PackedFloats]):
    """The pieces for a machine, and the order of their rows."""

    machine: Machine
    order: RowOrder

    def pool(self, padding: StridePadding) -> _Words:
        """Return the literal pool: every vector in the order in which it is read."""
        parts = [padding.spread(piece.reads.pool()) for piece in self.pieces]
        return np.concatenate([part.reshape(-1, self.machine.lanes) for part in parts])


def layout_of(spec: MatVec, matrix: SparseMatrix, machine: Machine) -> PermuteLayout:
    """Order, cut and schedule a matrix."""
    plan = RowPlan(matrix, machine)
    order, windows = plan.order(), plan.windows
    cut = _FloatCut(spec, rounded(matrix.dense, spec.dtype), machine, windows)
    pieces: list[Piece[PackedFloats]] = []
    for panel in plan.panels:
        held = HeldPanel(panel, panel.by_batch(order.rows, machine.lanes), order.stages)
        steps = cut.schedule(held)
        pieces += pieces_of_panel(held, steps, windows, cut.accumulators, cut.reads)
    return PermuteLayout(windows, in_order(pieces), machine, order)


@dataclass(frozen=True, eq=False)
class _FloatCut:
    """A matrix that is being cut into pieces."""

    spec: MatVec
    weights: _Floats
    machine: Machine
    windows: Windows

    def schedule(self, held: HeldPanel) -> Steps:
        """Return the steps of a panel in order of execution."""
        panel, lanes, width = held.panel, self.machine.lanes, self.windows.width
        dense = padded_rows(self.weights, held.by_fold_group, self.windows, lanes)
        schedule = self.machine.schedule(Demand.of(dense != 0, panel.fold * lanes, lanes, width))
        window, fold_group = np.divmod(schedule.problem, panel.fold_groups)
        left = window * width  # the window's first register
        weights, indices = weights_and_indices(
            dense.reshape(panel.fold_groups, panel.fold * lanes, -1, lanes),
            schedule.taken, fold_group, left + schedule.first, left + schedule.second,
        )  # fmt: skip
        shape = (len(fold_group), panel.fold, lanes)
        return Steps.of(panel, schedule, weights.reshape(shape), indices.reshape(shape))

    def accumulators(self, counts: _Numbers) -> list[_Numbers]:
        """Return the numbers of each sum's accumulators, consecutive from sum to sum.

        `counts` are the steps of each sum.
        """
        ways = accumulators_of(counts, self.machine.accumulators_beside(self.windows), _APART)
        return np.split(np.arange(ways.sum()), np.cumsum(ways)[:-1])

    def reads(self, held: HeldPanel, steps: Steps, window: int, batch: int) -> PackedFloats:
        """Return the data of one batch's runs in one window."""
        rows = held.rows[batch]
        head: _Words = np.zeros((held.panel.fold, 0, self.machine.lanes), np.uint32)
        tail: _Words = head
        if window == 0 and self.spec.bias is not None:
            head = by_lane(self.spec.bias, rows)
        if window == self.windows.number - 1:
            tail = exchange_indices(rows, held.stages).astype(np.uint32)
        return PackedFloats(self.machine, steps, head, tail)


def weights_and_indices(
    dense: _Floats, taken: _Numbers, fold_group: _Numbers, first: _Numbers, second: _Numbers
) -> tuple[_Floats, _Words]:
    """Return each lane's weight in each step, and the index of its input in two registers of x.

    The step's registers are `first` and `second`. `dense`: (fold groups, lanes of a group,
    registers, inputs of a register). An idle lane multiplies zero by an input that its row has no
    weight for, so that an infinite or NaN input spoils no output that it does not also spoil in the
    dense product.
    """
    width = dense.shape[3]
    used = dense != 0
    register, place = (np.append(part, 0)[taken] for part in np.nonzero(used)[2:])
    weights = np.append(dense[used], np.float32(0))[taken]
    index = place + width * (register != first[:, None])
    idle = taken < 0
    unused, full = used.argmin(axis=3), used.all(axis=3)
    in_first, in_second = unused[fold_group, :, first], unused[fold_group, :, second]
    spare = np.where(full[fold_group, :, first], width + in_second, in_first)
    weights[idle] = 0
    index[idle] = spare[idle]
    return weights, index.astype(np.uint32)
