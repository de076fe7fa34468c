"""A gather kernel cut into pieces: one batch of outputs in one window of inputs each.

    registers of x hold     window 0       window 1       window 2
    batch 0                 piece 0        piece 2        piece 4        the sums of a batch are
    batch 1                 piece 1        piece 3        piece 5        in y between windows

A piece is code that runs `fold` times, each time for other outputs (`row_order`). `reads` is the
data of its runs, which depends on the kind of elements.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.lowered import Counts
from sparsejit.asm_templates.scheduling.covering import Windows
from sparsejit.asm_templates.scheduling.interleaving import Steps
from sparsejit.asm_templates.scheduling.row_order import RowPanel
from sparsejit.asm_templates.shared.location import Location
from sparsejit.ir.spec import MatVec

_Words = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.integer]
_Values = TypeVar("_Values", bound=np.generic)


class Reads(Protocol):
    """The data that the runs of a piece read, in order of reading."""

    @property
    def streamed_bytes(self) -> int:
        """Bytes that all runs read in order; the stride padding of the pool depends on them."""
        ...


ReadsT = TypeVar("ReadsT", bound=Reads)


@dataclass(frozen=True, eq=False)
class Piece(Generic[ReadsT]):
    """The code of one batch of outputs in one window of inputs: steps, registers, and data.

    `accumulators`: for each vector of outputs, the numbers of the registers that its steps add to
    in turn; in the end the first one gets their sum. `stages` stages of exchanges put the sums in
    the order of y.
    """

    panel: RowPanel
    batch: int
    window: int
    stages: int
    steps: Steps
    accumulators: list[_Numbers]
    reads: ReadsT

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.steps.region)

    @property
    def accumulator_of_step(self) -> _Numbers:
        """The accumulator of each step; the accumulators of a vector take turns."""
        ways = np.array([len(registers) for registers in self.accumulators])
        starts = np.cumsum(ways) - ways
        vector, turn = self.steps.vector, self.steps.turn
        numbers: _Numbers = np.concatenate(self.accumulators)[starts[vector] + turn % ways[vector]]
        return numbers


@dataclass(frozen=True, eq=False)
class GatherLayout(Generic[ReadsT]):
    """The pieces of a kernel in order of execution, window by window."""

    windows: Windows
    pieces: list[Piece[ReadsT]]

    @property
    def steps(self) -> int:
        """Number of executed steps."""
        return sum(piece.count * piece.panel.fold for piece in self.pieces)

    @property
    def runs_of_code(self) -> float:
        """Average number of times that the code of a step runs in a call."""
        return max(self.steps, 1) / max(sum(piece.count for piece in self.pieces), 1)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights and indices that a call reads in order."""
        return sum(piece.reads.streamed_bytes for piece in self.pieces)

    def pieces_of(self, window: int) -> list[Piece[ReadsT]]:
        """Return the pieces of a window: all in the first and the last, else pieces with steps."""
        ends = (0, self.windows.number - 1)
        pieces = (piece for piece in self.pieces if piece.window == window)
        return [piece for piece in pieces if piece.count or window in ends]


LayoutT = TypeVar("LayoutT", bound="GatherLayout")


@dataclass(frozen=True)
class KeptInputs:
    """Memory that keeps a window of inputs as registers hold it, for kernels of the same x.

    The first of the kernels writes it, the others read it instead of x.
    """

    place: Location
    is_first: bool


@dataclass(frozen=True, eq=False)
class LoweredGather(Generic[LayoutT]):
    """A layer laid out for a gather kernel; only int8 layers with a single window have `kept`."""

    spec: MatVec
    layout: LayoutT
    counts: Counts
    kept: KeptInputs | None = None


@dataclass(frozen=True, eq=False)
class HeldPanel:
    """The row in every lane of a panel of equal batches, after rows were swapped.

    `rows`: (batches, fold, accumulators, lanes); numbers from out_features on mean none.
    `sharing_rows` rows share their indices. `stages` of exchanges restore the order of y.
    """

    panel: RowPanel
    rows: _Numbers
    stages: int
    sharing_rows: int = 1

    @property
    def by_fold_group(self) -> _Numbers:
        """The panel's rows as one array, fold group (vectors that share steps) after fold group."""
        return self.rows.swapaxes(1, 2).ravel()


def pieces_of_panel(
    held: HeldPanel,
    steps: Steps,
    windows: Windows,
    accumulators: Callable[[_Numbers], list[_Numbers]],
    reads: Callable[[HeldPanel, Steps, int, int], ReadsT],
) -> list[Piece[ReadsT]]:
    """Return the pieces of a panel, window by window.

    `accumulators` takes the number of steps of each vector of a batch, and returns
    `Piece.accumulators`. `reads` takes a panel, the steps of a batch in a window, the window's
    number and the batch's number, and returns the data of the runs.
    """
    panel, pieces = held.panel, []
    for window in range(windows.number):
        for batch in range(panel.batches):
            region = steps.of_region(window * panel.batches + batch)
            counts = np.bincount(region.vector, minlength=panel.accumulators)
            piece = Piece(
                *(panel, batch, window, held.stages, region, accumulators(counts)),
                reads=reads(held, region, window, batch),
            )
            pieces.append(piece)
    return pieces


def in_order(pieces: list[Piece[ReadsT]]) -> list[Piece[ReadsT]]:
    """Return the pieces of all panels in order of execution."""
    return sorted(pieces, key=lambda piece: piece.window)


def padded_rows(
    weights: npt.NDArray[_Values], rows: _Numbers, windows: Windows, register_inputs: int
) -> npt.NDArray[_Values]:
    """Return the weights of these rows, whole windows wide; zeros for rows that do not exist."""
    out_features, in_features = weights.shape
    width = windows.number * windows.width * register_inputs
    padded = np.zeros((len(rows), width), weights.dtype)
    real = rows < out_features
    padded[real, :in_features] = weights[rows[real]]
    return padded


def by_lane(values: npt.NDArray[np.generic], rows: _Numbers) -> _Words:
    """Return the value of each lane's row, four bytes; zero where there is no row."""
    padded = np.append(values, np.zeros(1, values.dtype))
    chosen: _Words = padded[np.minimum(rows, len(values))].view(np.uint32)
    return chosen
