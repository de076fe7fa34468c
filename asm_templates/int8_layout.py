"""Where every row and weight of an int8 permute kernel goes: from a matrix to what it streams.

Four vectors of outputs (64 rows) are summed at a time: a run. `fold` runs share one piece of code
and so one schedule, as in `permute_layout`. Within a run the rows lie in the order of their
number of weights, so that the lanes of a vector finish together.

Rows that use the same inputs, as in blocks of 1x8 or 1x16, form granules and share indices: a
step of a vector then reads one, two or sixteen indices (of four bytes, one for each product):

    rows a granule    indices a step    lanes 0 1 2 3 ... belong to granule
    16                1                 0 0 0 0 ...     vpbroadcastd
    8                 2                 0 1 0 1 ...     vpbroadcastq
    1                 16                0 1 2 3 ...     vmovups
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.int8_schedule import PRODUCTS, quad_schedule
from sparsejit.asm_templates.int8_weights import output_scales, quantised_rows
from sparsejit.asm_templates.schedule import Demand, Windows
from sparsejit.asm_templates.turns import turns
from sparsejit.matrix import SparseMatrix
from sparsejit.spec import MatVec

LANES = 16
ACCUMULATORS = 4
RUN_ROWS = ACCUMULATORS * LANES
REGISTER_INPUTS = 64  # bytes of a register
MOST_REGISTERS = 24  # that hold x
OFFSET = 128  # what is added to x to make it unsigned

_Words = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Strip:
    """`runs` runs of `abreast` vectors each, from vector number `first` on; see above."""

    first: int
    runs: int
    abreast: int
    fold: int
    granule: int

    @property
    def batches(self) -> int:
        return self.runs // self.fold

    @property
    def teams(self) -> int:
        """Schedules: one for each vector of a batch's first run, and its like in the others."""
        return self.batches * self.abreast

    @property
    def indices(self) -> int:
        """Indices a step: granules side by side in a vector."""
        return LANES // self.granule

    @property
    def ordered(self) -> bool:
        """Whether rows lie in another order than that of y."""
        return self.abreast == ACCUMULATORS and self.fold * self.indices > 1


def strips(out_features: int, fold: int, granule: int) -> list[Strip]:
    """As many whole runs as fill folded batches, then the other whole ones, then what is left."""
    whole, rest = divmod(out_features, RUN_ROWS)
    folded = whole - whole % fold
    parts = [
        Strip(0, folded, ACCUMULATORS, fold, granule),
        Strip(folded * ACCUMULATORS, whole - folded, ACCUMULATORS, 1, granule),
    ]
    if rest:
        last = Strip(
            whole * ACCUMULATORS, 1, -(-rest // LANES), 1, LANES if granule == LANES else 1
        )
        parts.append(last)
    return [part for part in parts if part.runs]


def byte_of_input() -> _Numbers:
    """Where inputs 0..63 of a register lie after `vpackssdw` and `vpacksswb` of four vectors."""
    vector, lane = np.divmod(np.arange(REGISTER_INPUTS), LANES)
    return lane // 4 * 16 + vector * 4 + lane % 4


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a strip in order of execution.

    `region` (window * batches + batch), `vector` of the batch, `turn` among the steps of that
    vector, `first`, `second`: shape (steps,).
    `weights`: uint32 (steps, fold, lanes), four signed bytes each; `indices`: uint32
    (steps, fold, indices), four numbers of inputs in 0 .. 127 each.
    """

    region: _Numbers
    vector: _Numbers
    turn: _Numbers
    first: _Numbers
    second: _Numbers
    weights: _Words
    indices: _Words

    def of_region(self, number: int) -> "Steps":
        """The steps of one batch in one window."""
        begin, end = np.searchsorted(self.region, (number, number + 1))
        return Steps(*(getattr(self, field.name)[begin:end] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class Piece:
    """One batch in one window: what a run of its code reads, in order of reading.

    Vectors `head` (start values of the sums), weights, `scales` (with biases in between), `order`
    (which outputs go where, one byte each). All uint32 (fold, vectors, lanes).
    """

    strip: Strip
    batch: int
    window: int
    steps: Steps
    head: _Words
    scales: _Words
    order: _Words

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.steps.region)

    @property
    def vectors(self) -> int:
        """Vectors that one run reads besides the indices."""
        return sum(part.shape[1] for part in (self.head, self.scales, self.order)) + self.count

    def pool(self) -> _Words:
        """Vectors of all runs."""
        parts = (self.head, self.steps.weights.swapaxes(0, 1), self.scales, self.order)
        return np.concatenate(parts, axis=1)

    def indices(self) -> _Words:
        """Indices of all runs."""
        return self.steps.indices.swapaxes(0, 1)


@dataclass(frozen=True, eq=False)
class Layout:
    """The pieces of a kernel in order of execution, window by window."""

    windows: Windows
    pieces: list[Piece]

    @property
    def steps(self) -> int:
        """How many are executed."""
        return sum(piece.count * piece.strip.fold for piece in self.pieces)

    @property
    def streamed_bytes(self) -> int:
        """What a call reads of weights and indices."""
        steps = (piece.steps for piece in self.pieces)
        return sum(step.weights.nbytes + step.indices.nbytes for step in steps)

    def pieces_of(self, window: int) -> list[Piece]:
        """What is to be run in a window: all in the first and the last, else what has steps."""
        ends = (0, self.windows.number - 1)
        pieces = (piece for piece in self.pieces if piece.window == window)
        return [piece for piece in pieces if piece.count or window in ends]


def layout_of(
    spec: MatVec, matrix: SparseMatrix, fold: int, granule: int, tries: int
) -> Layout:
    """Quantise, order, cut and schedule a matrix; `tries` as in `quad_schedule`."""
    windows = Windows.of(matrix.in_features, REGISTER_INPUTS, MOST_REGISTERS)
    weights, scales = quantised_rows(matrix)
    cut = _Cut(spec, weights, output_scales(spec, scales), windows, tries)
    pieces: list[Piece] = []
    for strip in strips(matrix.out_features, fold, granule):
        pieces += cut.pieces(strip)
    return Layout(windows, sorted(pieces, key=lambda piece: piece.window))


@dataclass(frozen=True, eq=False)
class _Cut:
    """A quantised matrix on its way to pieces."""

    spec: MatVec
    weights: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    windows: Windows
    tries: int

    @cached_property
    def counts(self) -> _Numbers:
        """Nonzeros of each row; the last entry stands for no row, which comes after all others."""
        return np.append(np.count_nonzero(self.weights, axis=1), -1)

    def pieces(self, strip: Strip) -> Iterator[Piece]:
        rows = self._rows(strip)
        steps = self._steps(strip, rows)
        for window in range(self.windows.number):
            for batch in range(strip.batches):
                part = rows[batch * strip.fold : (batch + 1) * strip.fold]
                region = steps.of_region(window * strip.batches + batch)
                yield self._piece(strip, part, region, window, batch)

    def _rows(self, strip: Strip) -> _Numbers:
        """The row in every lane, (runs, abreast, lanes); those past the end mean none."""
        first = strip.first * LANES
        rows = first + np.arange(strip.runs * strip.abreast * LANES).reshape(strip.runs, -1)
        if strip.ordered:
            granules = rows.reshape(strip.runs, -1, strip.granule)
            counts = self.counts[np.minimum(granules, self.spec.out_features)].max(axis=2)
            fullest = np.argsort(-counts, axis=1, kind="stable")
            rows = np.take_along_axis(granules, fullest[:, :, None], axis=1)
        shape = (strip.runs, strip.abreast, strip.indices, strip.granule)
        return rows.reshape(shape).swapaxes(2, 3).reshape(strip.runs, strip.abreast, LANES)

    def _steps(self, strip: Strip, rows: _Numbers) -> Steps:
        """The steps of a strip in order of execution."""
        batches = rows.reshape(strip.batches, strip.fold, strip.abreast, LANES).swapaxes(1, 2)
        shape = (strip.teams, strip.fold, strip.granule, strip.indices, -1)
        weights = self._padded(batches.ravel()).reshape(shape)
        used = np.bitwise_or.reduce(weights, axis=2).reshape(-1, weights.shape[-1]) != 0
        lanes = strip.fold * strip.indices
        demand = Demand.of(used, lanes, REGISTER_INPUTS, self.windows.width)
        schedule = quad_schedule(demand, self.tries)
        window, team = np.divmod(schedule.problem, strip.teams)
        turn, due = turns(schedule.problem)
        batch, position = np.divmod(team, strip.abreast)
        region = window * strip.batches + batch
        column = np.append(np.nonzero(used)[1], 0)[schedule.taken]
        taken = schedule.taken >= 0
        left = (window * self.windows.width + schedule.first)[:, None, None]
        index = byte_of_input()[column % REGISTER_INPUTS]
        index += REGISTER_INPUTS * (column // REGISTER_INPUTS != left)
        execution = np.lexsort((team, due, region))
        return Steps(
            region[execution],
            position[execution],
            turn[execution],
            schedule.first[execution],
            schedule.second[execution],
            _bytes_as_words(_picked(weights, team, column, taken)[execution]),
            _bytes_as_words(
                np.where(taken, index, 0)
                .astype(np.int8)
                .reshape(len(team), strip.fold, strip.indices, PRODUCTS)[execution]
            ),
        )

    def _padded(self, rows: _Numbers) -> npt.NDArray[np.int8]:
        """The weights of these rows, whole windows wide."""
        out_features, in_features = self.weights.shape
        width = self.windows.number * self.windows.width * REGISTER_INPUTS
        padded = np.zeros((len(rows), width), np.int8)
        real = rows < out_features
        padded[real, :in_features] = self.weights[rows[real]]
        return padded

    def _piece(
        self, strip: Strip, rows: _Numbers, steps: Steps, window: int, batch: int
    ) -> Piece:
        head: _Words = np.zeros((strip.fold, 0, LANES), np.uint32)
        scales = order = head
        if window == 0:
            starts = -OFFSET * self.weights.sum(axis=1, dtype=np.int64)
            head = _by_lane(starts.astype(np.int32), rows)
        if window == self.windows.number - 1:
            parts = [_by_lane(self.scales, rows)]
            if self.spec.bias is not None:
                parts.append(_by_lane(self.spec.bias, rows))
            scales = np.stack(parts, axis=2).reshape(strip.fold, -1, LANES)
            if strip.ordered:
                order = _order_of_outputs(rows)
        return Piece(strip, batch, window, steps, head, scales, order)


def _by_lane(values: npt.NDArray[np.generic], rows: _Numbers) -> _Words:
    """What belongs to the row of each lane; zero where there is no row."""
    padded = np.append(values, np.zeros(1, values.dtype))
    chosen: _Words = padded[np.minimum(rows, len(values))].view(np.uint32)
    return chosen


def _order_of_outputs(rows: _Numbers) -> _Words:
    """A vector a run (fold, 1, lanes): a byte for each output, which says where it comes from.

    Bits 0-4 are the lane within sums 0 and 1, or, where the sign bit is set, 2 and 3.
    """
    source = np.argsort(rows.reshape(len(rows), -1), axis=1)
    place = np.where(source < 2 * LANES, source, source - 2 * LANES - 128)
    return _bytes_as_words(place.astype(np.int8).reshape(len(rows), 1, LANES, 4))


def _picked(
    weights: npt.NDArray[np.int8], team: _Numbers, column: _Numbers, taken: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int8]:
    """Per step (steps, fold, lanes, 4): the weights of the columns that each granule takes.

    `weights`: (teams, fold, rows of a granule, granules, inputs); `column`, `taken`:
    (steps, fold * granules, 4).
    """
    _, fold, granule, granules, _ = weights.shape
    shape = (len(team), fold, 1, granules, PRODUCTS)
    place = np.ix_(team, np.arange(fold), np.arange(granule), np.arange(granules))
    picked = weights[(*(part[..., None] for part in place), column.reshape(shape))]
    picked *= taken.reshape(shape)
    return picked.reshape(len(team), fold, granule * granules, PRODUCTS)


def _bytes_as_words(values: npt.NDArray[np.int8]) -> _Words:
    """(..., 4) bytes to (...) words."""
    words: _Words = np.ascontiguousarray(values).view(np.uint32)[..., 0]
    return words
