"""A pruned weight matrix and what its zeros look like."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE

FloatArray = npt.NDArray[np.float32]

# How far a weight may be from a whole number of steps, in steps: what float32 leaves of 127 times
# a scale, divided by it again.
_OFF_STEP = 4e-5
_SAMPLE = 16  # weights of a row that are looked at before all are


@dataclass(frozen=True)
class BlockShape:
    """A block of `rows` outputs by `columns` inputs that is kept or dropped as one."""

    name: str
    rows: int
    columns: int


UNSTRUCTURED = BlockShape("unstructured", 1, 1)
# One input, eight (sixteen) consecutive outputs of weight[out, in].
BLOCK_1X8 = BlockShape("1x8", 8, 1)
BLOCK_1X16 = BlockShape("1x16", 16, 1)
# As 1x16, but in every row the input may be any other of the same sixteen.
LANE16 = BlockShape("lane16", 16, 1)


class SparseMatrix:
    """Weights of shape (out_features, in_features), float32, most of them zero.

    `dense` is a read-only copy. Negative zeros count as zeros.
    Raises InvalidInput for anything but a finite, non-empty 2-d array of real numbers.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        array = np.asarray(weights)
        if array.ndim != 2 or 0 in array.shape:
            raise InvalidInput(
                f"weights have shape {array.shape}; give a 2-d array (out_features, in_features) "
                "with both at least 1"
            )
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"weights have dtype {array.dtype}; give real numbers")
        with np.errstate(over="ignore"):
            dense = np.array(array, np.float32, order="C")
        bad = np.argwhere(~np.isfinite(dense))
        if len(bad):
            row, column = bad[0]
            raise InvalidInput(
                f"weights[{row}, {column}] is {array[row, column]} (of {len(bad)} values that "
                "float32 cannot hold); remove NaN and infinite weights before compiling"
            )
        dense.flags.writeable = False
        self.dense: FloatArray = dense

    def rows(self, first: int, end: int) -> "SparseMatrix":
        """The outputs `first` up to `end`, which share this matrix's memory."""
        part = SparseMatrix.__new__(SparseMatrix)
        part.dense = self.dense[first:end]
        return part

    @property
    def out_features(self) -> int:
        return int(self.dense.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.dense.shape[1])

    @cached_property
    def nnz(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.dense))

    @property
    def density(self) -> float:
        """Share of weights that are not zero, 0 to 1."""
        return self.nnz / self.dense.size

    @cached_property
    def row_counts(self) -> npt.NDArray[np.int64]:
        """Nonzeros of each output, shape (out_features,)."""
        return np.count_nonzero(self.dense, axis=1)

    @cached_property
    def int8_steps(self) -> FloatArray:
        """The step of each row as int8, (out_features,): at least its largest magnitude / 127.

        Rows that are whole numbers of a coarser step, as those of a network that was quantised with
        one scale for all, keep it.
        """
        largest = np.abs(self.dense).max(axis=1)
        steps = np.maximum(largest / np.float32(LARGEST_INT8), np.float32(SMALLEST_SCALE))
        others = ~_are_whole(self.dense, steps) & (steps > SMALLEST_SCALE)
        for row in np.flatnonzero(others):
            coarser = _coarser_step(self.dense[row], largest[row])
            if coarser is not None:
                steps[row] = coarser
        return steps

    @cached_property
    def is_whole_steps(self) -> bool:
        """Whether int8 holds all weights, but for rounding of float32."""
        return bool(_are_whole(self.dense, self.int8_steps).all())

    def block_mask(self, rows: int) -> npt.NDArray[np.bool_]:
        """Which (rows, 1) blocks hold a nonzero: shape (ceil(out / rows), in_features)."""
        padded = np.zeros((-(-self.out_features // rows) * rows, self.in_features), bool)
        padded[: self.out_features] = self.dense != 0
        return np.any(padded.reshape(-1, rows, self.in_features), axis=1)

    def block_fill(self, rows: int) -> float:
        """Share of nonzeros inside the (rows, 1) blocks that hold any; 1 where all are full."""
        blocks = int(self.block_mask(rows).sum())
        return self.nnz / (blocks * rows) if blocks else 1.0

    def statistics(self) -> dict[str, Any]:
        """Shape, nnz, density and block fill, for reports."""
        return {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "nnz": self.nnz,
            "density": self.density,
            "fill_1x8": self.block_fill(8),
            "fill_1x16": self.block_fill(16),
        }


def _are_whole(rows: FloatArray, steps: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows are whole numbers of their steps, (rows,)."""
    numbers = rows / steps[:, None]
    return np.asarray(np.abs(numbers - np.rint(numbers)).max(axis=1) < _OFF_STEP)


def _coarser_step(row: FloatArray, largest: np.float32) -> np.float32 | None:
    """The finest step of which all weights are whole numbers, at most 126; None where none is."""
    weights = row[row != 0]
    steps = largest / np.arange(LARGEST_INT8 - 1, 0, -1, dtype=np.float32)
    for part in (weights[:_SAMPLE], weights):
        steps = steps[_are_whole(np.broadcast_to(part, (len(steps), len(part))), steps)]
        if not len(steps):
            return None
    return np.float32(steps[0])
