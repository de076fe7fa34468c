"""Layout of an int8 permute kernel: from a matrix to the streams of weights and indices.

Eight vectors of outputs (128 rows) are summed at a time: a run. `fold` runs share one piece of
code and so one schedule, and rows are swapped within a run, as in `row_order`.

Rows that use the same inputs, as in blocks of 1x8 or 1x16, form an index-sharing group and are
swapped together: a step of a vector then reads one, two or sixteen indices (of four bytes, one for
each product):

    rows a group    indices a step    lanes 0 1 2 3 ... belong to group
    16              1                 0 0 0 0 ...     vpbroadcastd
    8               2                 0 1 0 1 ...     vpbroadcastq
    1               16                0 1 2 3 ...     vmovups
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import (
    LANES,
    OFFSET,
    output_scales,
    quantised_rows,
)
from sparsejit.asm_templates.gather.pieces import (
    GatherLayout,
    HeldPanel,
    LoweredGather,
    Piece,
    by_lane,
    in_order,
    padded_rows,
    pieces_of_panel,
)
from sparsejit.asm_templates.scheduling.covering import (
    Covering,
    Demand,
    Windows,
    registers_in_turn,
)
from sparsejit.asm_templates.scheduling.grouping import StepShape, exchange_indices
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS, quad_schedule
from sparsejit.asm_templates.scheduling.interleaving import Steps, accumulators_of
from sparsejit.asm_templates.scheduling.row_order import (
    Prices,
    RowOrder,
    RowPanel,
    row_order,
    row_panels,
    wanted_counts,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.whole_numbers import ceil_div, round_up

ACCUMULATORS = 8
MOST_STAGES = 3  # of exchanges among the sums of a run: 2**3 vectors
RUN_ROWS = ACCUMULATORS * LANES
REGISTER_INPUTS = 64  # bytes of a register
MOST_REGISTERS = 20  # that hold x
REGISTERS = 32
FIRST_FREE = ACCUMULATORS + 4  # from here on, registers without x hold further accumulators
# Sweeps of swaps, by sources; more gain nothing: docs/kernels/gather.md
_SWEEPS = {1: 4, 2: 1}
# Scheduled steps over their bound before any swaps, by sources: in 27 layers of 3 to 30 % nonzero
# weights, 0.82 to 1.00 and 0.96 to 1.11.
_OF_BOUND = {1: 0.94, 2: 1.02}
# Steps between two additions to one accumulator, which `accumulators_of` rounds up: a vpdpbusd
# takes four cycles.
_APART = 3

_Words = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Int8Form:
    """Parameters of a layer's int8 permute kernel.

    fold: the number of 128-row runs that share one piece of code and one schedule.
    sharing_rows: rows with the same inputs, which share indices.
    sources: registers of x that a step picks from.
    exchange: price, in steps, of exchanging the sums of two vectors (`grouping`).
    tries: the number of schedules tried where `sources` is 2; the best is kept.
    """

    fold: int
    sharing_rows: int
    sources: int
    exchange: float
    tries: int

    def least_steps(self, wants: npt.NDArray[np.uint16]) -> _Numbers:
        """Return a lower bound of a schedule's steps for each fold group and window.

        `wants` (fold groups, lanes, windows, registers): the nonzeros of each lane that read from
        each register of inputs. The method is a `row_order.Bound`.
        """
        fullest_lane = ceil_div(wants.sum(axis=3, dtype=np.int64).max(axis=1), PRODUCTS)
        by_register = ceil_div(wants.max(axis=1).astype(np.int64), PRODUCTS).sum(axis=2)
        least: _Numbers = np.maximum(fullest_lane, ceil_div(by_register, self.sources))
        return least

    def schedule(self, demand: Demand) -> Covering:
        """Return the steps that serve every nonzero of a panel's problems."""
        if self.sources == 1:
            return registers_in_turn(demand, PRODUCTS)
        return quad_schedule(demand, self.tries)


def byte_of_input() -> _Numbers:
    """Return the places of inputs 0..63 after `vpackssdw` and `vpacksswb` of four vectors."""
    vector, lane = np.divmod(np.arange(REGISTER_INPUTS), LANES)
    return lane // 4 * 16 + vector * 4 + lane % 4


@dataclass(frozen=True, eq=False)
class Int8Reads:
    """The data that the runs of a piece read, in order of reading: two streams.

    The first has vectors `head` (start values of the sums), weights, `scales` (with biases in
    between) and `tail` (the indices of exchanges, in bytes), all uint32 (fold, vectors, lanes). The
    second has the indices of the steps.
    """

    steps: Steps
    head: _Words
    scales: _Words
    tail: _Words

    @property
    def indices_a_step(self) -> int:
        """Number of indices that a step reads: one for each index-sharing group of a vector.

        Each is four bytes.
        """
        return self.steps.indices.shape[2]

    @property
    def scales_start(self) -> int:
        return self.head.shape[1] + len(self.steps.region)

    @property
    def tail_start(self) -> int:
        return self.scales_start + self.scales.shape[1]

    @property
    def vectors(self) -> int:
        """Vectors that one run reads besides the indices."""
        return self.tail_start + self.tail.shape[1]

    @property
    def streamed_bytes(self) -> int:
        """Bytes of all weights and indices."""
        return self.steps.weights.nbytes + self.steps.indices.nbytes

    def pool(self) -> _Words:
        """Return the vectors of all runs: the first stream."""
        parts = (self.head, self.steps.weights.swapaxes(0, 1), self.scales, self.tail)
        return np.concatenate(parts, axis=1)

    def indices(self) -> _Words:
        """Return the indices of all runs: the second stream."""
        return self.steps.indices.swapaxes(0, 1)


@dataclass(frozen=True, eq=False)
class Int8Layout(GatherLayout[Int8Reads]):
    """The pieces of an int8 permute kernel; steps pick from `sources` registers of x."""

    sources: int


def layout_of(spec: MatVec, matrix: SparseMatrix, form: Int8Form) -> Int8Layout:
    """Quantise, order, cut and schedule a matrix."""
    cut, windows = _Int8Cut.of(spec, matrix, form), _windows_of(matrix)
    pieces: list[Piece[Int8Reads]] = []
    for panel in _panels_of(matrix, form):
        held = cut.held(panel)
        steps = cut.schedule(held)
        pieces += pieces_of_panel(held, steps, windows, cut.accumulators, cut.reads)
    return Int8Layout(windows, in_order(pieces), form.sources)


def expected_steps(spec: MatVec, matrix: SparseMatrix, form: Int8Form) -> int:
    """Return the approximate steps of `layout_of`, in a twentieth of its time."""
    cut = _Int8Cut.of(spec, matrix, form)
    return round(_OF_BOUND[form.sources] * sum(map(cut.least_steps, _panels_of(matrix, form))))


def _windows_of(matrix: SparseMatrix) -> Windows:
    return Windows.of(matrix.in_features, REGISTER_INPUTS, MOST_REGISTERS)


def _panels_of(matrix: SparseMatrix, form: Int8Form) -> Sequence[RowPanel]:
    return row_panels(matrix.out_features, LANES, ACCUMULATORS, form.fold)


def kept_input_bytes(lowered: object) -> int:
    """Return the bytes of a layer's quantised inputs that another kernel of the same x can reuse.

    0 if they cannot be kept. See `KeptInputs`.
    """
    if not isinstance(lowered, LoweredGather) or not isinstance(lowered.layout, Int8Layout):
        return 0
    windows = lowered.layout.windows
    one_scale = lowered.spec.x_steps is not None
    return REGISTER_INPUTS * windows.width if one_scale and windows.number == 1 else 0


@dataclass(frozen=True, eq=False)
class _Int8Cut:
    """A quantised matrix that is being cut into pieces."""

    spec: MatVec
    weights: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    windows: Windows
    form: Int8Form

    @classmethod
    def of(cls, spec: MatVec, matrix: SparseMatrix, form: Int8Form) -> "_Int8Cut":
        weights, scales = quantised_rows(matrix)
        return cls(spec, weights, output_scales(spec, scales), _windows_of(matrix), form)

    def held(self, panel: RowPanel) -> HeldPanel:
        """Return the row in every lane of a panel, after rows were swapped to save steps.

        The lanes of two index-sharing groups in a vector alternate, so that their sums need an
        exchange: a vector without a partner for an exchange cannot have groups of eight.
        """
        order, sharing_rows = self._ordered(panel, _SWEEPS[self.form.sources])
        in_lanes = panel.by_batch(order.rows, LANES // sharing_rows)
        rows = in_lanes[..., None, :] * sharing_rows + np.arange(sharing_rows)[:, None]
        rows = rows.reshape(*in_lanes.shape[:3], LANES)
        return HeldPanel(panel, rows, order.stages, sharing_rows)

    def least_steps(self, panel: RowPanel) -> int:
        """Return the lower bound of a panel's steps, for its rows before any are swapped."""
        return self._ordered(panel, sweeps=0)[0].steps

    def _ordered(self, panel: RowPanel, sweeps: int) -> tuple[RowOrder, int]:
        """Return the order of a panel's index-sharing groups, and the number of rows of a group."""
        sharing_rows = self.form.sharing_rows
        if sharing_rows == LANES // 2 and panel.accumulators % 2:
            sharing_rows = 1
        indices = LANES // sharing_rows
        stages = range(int(indices == 2), MOST_STAGES + 1)
        whole = round_up(len(self.weights), sharing_rows)
        groups = self._padded(np.arange(whole)).reshape(whole // sharing_rows, sharing_rows, -1)
        used = np.bitwise_or.reduce(groups, axis=1) != 0
        counts = wanted_counts(used, self.windows, REGISTER_INPUTS)
        step = StepShape(self.form.sources, PRODUCTS)
        prices = Prices(self.form.least_steps, self.form.exchange, step)
        return row_order(counts, indices, [panel], stages, prices, sweeps), sharing_rows

    def schedule(self, held: HeldPanel) -> Steps:
        """Return the steps of a panel in order of execution."""
        panel, indices_a_step = held.panel, LANES // held.sharing_rows
        shape = (panel.fold_groups, panel.fold, held.sharing_rows, indices_a_step, -1)
        weights = self._padded(held.by_fold_group).reshape(shape)
        used = np.bitwise_or.reduce(weights, axis=2).reshape(-1, weights.shape[-1]) != 0
        lanes = panel.fold * indices_a_step
        demand = Demand.of(used, lanes, REGISTER_INPUTS, self.windows.width)
        schedule = self.form.schedule(demand)
        window, fold_group = np.divmod(schedule.problem, panel.fold_groups)
        column = np.append(np.nonzero(used)[1], 0)[schedule.taken]
        taken = schedule.taken >= 0
        left = (window * self.windows.width + schedule.first)[:, None, None]
        index = byte_of_input()[column % REGISTER_INPUTS]
        index += REGISTER_INPUTS * (column // REGISTER_INPUTS != left)
        indices = np.where(taken, index, 0).astype(np.int8)
        return Steps.of(
            panel,
            schedule,
            _bytes_as_words(_picked(weights, fold_group, column, taken)),
            _bytes_as_words(indices.reshape(len(fold_group), panel.fold, indices_a_step, PRODUCTS)),
        )

    @cached_property
    def starts(self) -> npt.NDArray[np.int32]:
        """Start value of each row's sum, which cancels the offset of x."""
        return (-OFFSET * self.weights.sum(axis=1, dtype=np.int64)).astype(np.int32)

    def accumulators(self, counts: _Numbers) -> list[_Numbers]:
        """Return each sum's accumulators: its first, and others in registers that x leaves free."""
        free = np.arange(FIRST_FREE, REGISTERS - self.windows.width)
        more = accumulators_of(counts, len(counts) + len(free), _APART) - 1
        others = np.split(free[: more.sum()], np.cumsum(more)[:-1])
        return [np.append(first, numbers) for first, numbers in enumerate(others)]

    def reads(self, held: HeldPanel, steps: Steps, window: int, batch: int) -> Int8Reads:
        """Return the data of one batch's runs in one window."""
        rows, fold = held.rows[batch], held.panel.fold
        head: _Words = np.zeros((fold, 0, LANES), np.uint32)
        scales = tail = head
        if window == 0:
            head = by_lane(self.starts, rows)
        if window == self.windows.number - 1:
            parts = [by_lane(self.scales, rows)]
            if self.spec.bias is not None:
                parts.append(by_lane(self.spec.bias, rows))
            scales = np.stack(parts, axis=2).reshape(fold, -1, LANES)
            tail = _as_bytes(exchange_indices(rows, held.stages))
        return Int8Reads(steps, head, scales, tail)

    def _padded(self, rows: _Numbers) -> npt.NDArray[np.int8]:
        return padded_rows(self.weights, rows, self.windows, REGISTER_INPUTS)


def _as_bytes(indices: _Numbers) -> _Words:
    """Return indices (fold, number, lanes) as bytes, four vectors of indices in one."""
    fold, number, lanes = indices.shape
    padded = np.zeros((fold, ceil_div(number, 4), lanes, 4), np.int8)
    padded.reshape(fold, -1, lanes)[:, :number] = indices
    return _bytes_as_words(padded)


def _picked(
    weights: npt.NDArray[np.int8],
    fold_group: _Numbers,
    column: _Numbers,
    taken: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int8]:
    """Return the weights of the columns that each sharing group takes, (steps, fold, lanes, 4).

    `weights`: (fold groups, fold, rows of a sharing group, sharing groups, inputs); `column`,
    `taken`: (steps, fold * sharing groups, 4).
    """
    _, fold, sharing_rows, sharing_groups, _ = weights.shape
    shape = (len(fold_group), fold, 1, sharing_groups, PRODUCTS)
    place = np.ix_(fold_group, np.arange(fold), np.arange(sharing_rows), np.arange(sharing_groups))
    picked = weights[(*(part[..., None] for part in place), column.reshape(shape))]
    picked *= taken.reshape(shape)
    return picked.reshape(len(fold_group), fold, sharing_rows * sharing_groups, PRODUCTS)


def _bytes_as_words(values: npt.NDArray[np.int8]) -> _Words:
    """Return (..., 4) bytes as (...) words."""
    words: _Words = np.ascontiguousarray(values).view(np.uint32)[..., 0]
    return words
