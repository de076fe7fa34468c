"""The chunk of each weight in a look-up kernel, and the order in which chunks are stored.

A window of `WINDOW` inputs slides over x by `SLIDE` inputs at a time. At each position, any group
of sixteen rows may add chunks of `STEPS` weights a row, as long as their inputs are in the window.
Weights whose inputs slide out next must be used; a chunk's other places are filled with the row's
following weights. Every row is used in the order of its columns, and a group adds a chunk only when
one of its rows must, which gives the fewest chunks that such an order allows.

    inputs    | leaving next |      |      | just come |
    row 0        w  w w        w      w                     must add 3, may add 5
    row 1              w          w     w       w           must add 1, may add 4
    chunk        all four lanes of row 0 busy, and of row 1
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div, round_up

LANES = 16
SLIDE = 32
WINDOW = 128
STEPS = 4

_Numbers = npt.NDArray[np.integer]
_Floats = npt.NDArray[np.float32]
# Position, group, and each lane's first weight and limit, numbered within the row.
_Part = tuple[_Numbers, _Numbers, _Numbers, _Numbers]


@dataclass(frozen=True, eq=False)
class Chunks:
    """All chunks in order of execution, by position of the window.

    `position` (the block of inputs that has come last) and `group`: shape (chunks,). `weights`
    and `inputs` (column of x, less than `WINDOW` before the window's end): (chunks, STEPS, LANES).
    """

    position: _Numbers
    group: _Numbers
    weights: _Floats
    inputs: _Numbers


def paired_order(matrix: SparseMatrix) -> _Numbers:
    """Return the row in every lane; the fuller half of each 32 rows share the first of two vectors.

    Numbers from out_features on stand for no row; they stay last.
    """
    vectors = ceil_div(matrix.out_features, LANES)
    counts = np.full(vectors * LANES, -1)
    counts[: matrix.out_features] = matrix.row_counts
    order = np.arange(len(counts))
    paired = vectors // 2 * 2 * LANES
    fullest_first = np.argsort(-counts[:paired].reshape(-1, 2 * LANES), axis=1, kind="stable")
    order[:paired] = (fullest_first + order[: paired : 2 * LANES, None]).ravel()
    return order


def chunk_count(matrix: SparseMatrix) -> int:
    """Return the number of chunks that `chunks_of` makes of a matrix in paired order."""
    order, counts = paired_order(matrix), matrix.counts_by_inputs(SLIDE)
    in_lanes = np.zeros((len(order), counts.shape[1]), np.uint16)
    real = order < matrix.out_features
    in_lanes[real] = counts[order[real]]
    return sum(len(group) for _, group, _, _ in _walk(_weights_before(in_lanes)))


def chunks_of(matrix: SparseMatrix, order: _Numbers) -> Chunks:
    """Schedule the rows; `order` is the row in every lane."""
    dense = _in_lanes(matrix, order)
    used = dense != 0
    ends = _weights_before(used.reshape(len(used), -1, SLIDE).sum(axis=2, dtype=np.uint16))
    position, group, base, limit = (np.concatenate(part) for part in zip(*_walk(ends), strict=True))
    rows = np.arange(len(order)).reshape(-1, LANES)[group]
    number = base[:, None] + np.arange(STEPS)[:, None]
    busy = number < limit[:, None]
    starts = np.cumsum(ends[-1]) - ends[-1]
    number = np.where(busy, number + starts[rows][:, None], 0)
    weights = np.append(dense[used], np.float32(0))[number]
    columns = np.append(np.nonzero(used)[1], 0)[number]
    unused = used.reshape(len(order), -1, SLIDE).argmin(axis=2)
    spare = SLIDE * position[:, None] + unused[rows, position[:, None]]
    weights[~busy] = 0
    return Chunks(position, group, weights, np.where(busy, columns, spare[:, None]))


def _in_lanes(matrix: SparseMatrix, order: _Numbers) -> _Floats:
    """Return the rows in order, zeros where there is none, whole slides wide."""
    width = round_up(matrix.in_features, SLIDE)
    dense = np.zeros((len(order), width), np.float32)
    real = order < matrix.out_features
    dense[real, : matrix.in_features] = matrix.dense[order[real]]
    return dense


def _weights_before(counts: npt.NDArray[np.uint16]) -> _Numbers:
    """Return the number of each row's weights before each slide of inputs, (slides + 1, rows).

    `counts`: each row's weights in each slide, (rows, slides).
    """
    ends = np.zeros((counts.shape[1] + 1, len(counts)), np.int32)
    np.cumsum(counts.T, axis=0, out=ends[1:])
    return ends


def _walk(ends: _Numbers) -> list[_Part]:
    """Return the chunks at each position of the window; `ends` as from `_weights_before`."""
    blocks, rows = len(ends) - 1, np.arange(ends.shape[1]).reshape(-1, LANES)
    slides = WINDOW // SLIDE
    done = np.zeros(rows.size, np.int32)
    parts: list[_Part] = []
    for position in range(min(slides, blocks) - 1, blocks):
        due = ends[blocks if position == blocks - 1 else position - slides + 2]
        needed = np.maximum(ceil_div((due - done)[rows].max(axis=1), STEPS), 0)
        turn, group = np.nonzero(np.arange(needed.max())[:, None] < needed)
        limit = ends[position + 1]
        base = done[rows[group]] + STEPS * turn[:, None]
        parts.append((np.full(len(group), position), group, base, limit[rows[group]]))
        done = np.minimum(done + np.repeat(STEPS * needed, LANES), limit).astype(np.int32)
    return parts
