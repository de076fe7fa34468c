"""The weights of a batch kernel that loops over data: compressed rows, cut into blocks.

A *block* is so many rows by so many inputs. Its nonzero weights lie row by row, and rows with
equally many follow each other (a *group*), so that a loop over them has no branch that is hard to
predict.
A row with more than `MOST` weights in a block is cut into several *segments*.

    quad    four offsets of inputs, 16 bits each, and four weights, float32      24 bytes
    segment its quads; the first one lacks what is missing to a whole number of quads
    group   int32: weights of a segment, segments, bytes of a segment             12 bytes
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.sparse_matrix import SparseMatrix

MOST = 64  # weights in a segment: the code has a place for each
QUAD = np.dtype([("offset", "<u2", 4), ("weight", "<f4", 4)])
OFFSET_UNIT = 8  # bytes
GROUP_BYTES = 12

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CsrBlocks:
    """How a matrix is cut: `rows` by `inputs` a block, the last of each smaller."""

    out_features: int
    in_features: int
    rows: int
    inputs: int

    def places(self) -> Iterator[tuple[slice, slice]]:
        """Rows and inputs of every block, in the order in which they are multiplied."""
        for row in range(0, self.out_features, self.rows):
            for column in range(0, self.in_features, self.inputs):
                yield slice(row, row + self.rows), slice(column, column + self.inputs)


@dataclass(frozen=True, eq=False)
class CsrStream:
    """`groups` (groups, 3) int32, those of a block end with zeros; `rows` (segments,) int32, the
    row of each segment within its block; `quads` (quads,) of QUAD, whose offsets are inputs within
    the block.
    """

    groups: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    quads: npt.NDArray[np.void]


def segment_counts(weights_a_row: _IntArray) -> _IntArray:
    """Into how many segments rows with so many weights in a block are cut."""
    return -(-weights_a_row // MOST)


def weights_by_block(matrix: SparseMatrix, blocks: CsrBlocks) -> _IntArray:
    """The nonzero weights of each row in each block of inputs, (out_features, blocks)."""
    starts = np.arange(0, blocks.in_features, blocks.inputs)
    return np.add.reduceat(matrix.dense != 0, starts, axis=1, dtype=np.int64)


def csr_stream(matrix: SparseMatrix, blocks: CsrBlocks) -> CsrStream:
    """The weights in the order in which they are read."""
    parts = [_block(matrix.dense[place]) for place in blocks.places()]
    return CsrStream(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _block(
    dense: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.void]]:
    row, column = np.nonzero(dense)
    in_row = np.bincount(row, minlength=len(dense))
    rows, lengths = _segments(in_row)
    order = np.argsort(lengths, kind="stable")
    quads_of = -(-lengths // 4)
    # Where a segment's last weight ends, in slots of quads, when segments are in that order.
    ends = np.empty(len(order), np.int64)
    ends[order] = 4 * np.cumsum(quads_of[order])
    segment = np.repeat(np.arange(len(lengths)), lengths)
    from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(row))
    slot = ends[segment] - from_end
    quads = np.zeros(int(quads_of.sum()), QUAD)
    quads["offset"][slot // 4, slot % 4] = column
    quads["weight"][slot // 4, slot % 4] = dense[row, column]
    length, segments = np.unique(lengths, return_counts=True)
    groups = np.stack([length, segments, -(-length // 4) * QUAD.itemsize], axis=1)
    return (
        np.append(groups, np.zeros((1, 3)), axis=0).astype(np.int32),
        rows[order].astype(np.int32),
        quads,
    )


def _segments(in_row: _IntArray) -> tuple[_IntArray, _IntArray]:
    """The row and the length of every segment: those of a row differ by one at most."""
    cut = segment_counts(in_row)
    rows = np.repeat(np.arange(len(in_row)), cut)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(cut) - cut, cut)
    whole, rest = np.divmod(in_row[rows], cut[rows])
    return rows, whole + (number < rest)
