"""A gather kernel cut into pieces: one batch of outputs in one window of inputs each.

    registers of x hold     window 0       window 1       window 2
    batch 0                 piece 0        piece 2        piece 4        the sums of a batch wait
    batch 1                 piece 1        piece 3        piece 5        in y between windows

A piece is code that runs `fold` times, each time for other outputs (`row_order`). What its runs
read depends on the kind of elements: `reads`.
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
    """What the runs of a piece read, in order of reading."""

    @property
    def streamed_bytes(self) -> int:
        """Bytes of all runs, as far as they decide how the streams lie in the pool."""
        ...


ReadsT = TypeVar("ReadsT", bound=Reads)


@dataclass(frozen=True, eq=False)
class Piece(Generic[ReadsT]):
    """One batch in one window.

    `accumulators`: of each vector of outputs the numbers of the registers that sum it up, the
    first of which is the sum in the end. `stages` of exchanges put the sums in the order of y.
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
        """The accumulator of each step: those of a vector take turns."""
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
        """How many are executed."""
        return sum(piece.count * piece.panel.fold for piece in self.pieces)

    @property
    def runs_of_code(self) -> float:
        """How often a step's code runs, on average."""
        return max(self.steps, 1) / max(sum(piece.count for piece in self.pieces), 1)

    @property
    def streamed_bytes(self) -> int:
        """What a call reads in order."""
        return sum(piece.reads.streamed_bytes for piece in self.pieces)

    def pieces_of(self, window: int) -> list[Piece[ReadsT]]:
        """What is to be run in a window: all in the first and the last, else what has steps."""
        ends = (0, self.windows.number - 1)
        pieces = (piece for piece in self.pieces if piece.window == window)
        return [piece for piece in pieces if piece.count or window in ends]


LayoutT = TypeVar("LayoutT", bound="GatherLayout")


@dataclass(frozen=True)
class KeptInputs:
    """Where a window of inputs is kept as registers hold it, for kernels of the same x.

    The first of them writes it there, the others read it instead of x.
    """

    place: Location
    is_first: bool


@dataclass(frozen=True, eq=False)
class LoweredGather(Generic[LayoutT]):
    """A layer laid out for a gather kernel; int8 may have its only window of inputs kept."""

    spec: MatVec
    layout: LayoutT
    counts: Counts
    kept: KeptInputs | None = None


@dataclass(frozen=True, eq=False)
class HeldPanel:
    """A panel of batches, and the row in every lane: `rows`, (batches, fold, accumulators, lanes).

    Numbers of rows from out_features on mean none. `sharing_rows` rows share their indices. Sums
    come back into the order of y by `stages` of exchanges.
    """

    panel: RowPanel
    rows: _Numbers
    stages: int
    sharing_rows: int = 1

    @property
    def by_fold_group(self) -> _Numbers:
        """The rows, those of each fold group together: (rows of the panel,)."""
        return self.rows.swapaxes(1, 2).ravel()


def pieces_of_panel(
    held: HeldPanel,
    steps: Steps,
    windows: Windows,
    accumulators: Callable[[_Numbers], list[_Numbers]],
    reads: Callable[[HeldPanel, Steps, int, int], ReadsT],
) -> list[Piece[ReadsT]]:
    """The pieces of a panel, window by window.

    `accumulators`: from the steps of each vector of a batch to what `Piece` says. `reads`: what
    the runs of these steps read, in such a window, of such a batch.
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
    """Pieces of panel after panel in order of execution."""
    return sorted(pieces, key=lambda piece: piece.window)


def padded_rows(
    weights: npt.NDArray[_Values], rows: _Numbers, windows: Windows, register_inputs: int
) -> npt.NDArray[_Values]:
    """The weights of these rows, whole windows wide; zeros for rows that there are not."""
    out_features, in_features = weights.shape
    width = windows.number * windows.width * register_inputs
    padded = np.zeros((len(rows), width), weights.dtype)
    real = rows < out_features
    padded[real, :in_features] = weights[rows[real]]
    return padded


def by_lane(values: npt.NDArray[np.generic], rows: _Numbers) -> _Words:
    """What belongs to the row of each lane, four bytes; zero where there is no row."""
    padded = np.append(values, np.zeros(1, values.dtype))
    chosen: _Words = padded[np.minimum(rows, len(values))].view(np.uint32)
    return chosen
