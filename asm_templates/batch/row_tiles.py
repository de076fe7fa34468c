"""Tiles of rows that a batch kernel computes together, and the order of their weights.

Each row of a tile has an accumulator. An input that any row of the tile needs is loaded once a
tile, so rows that share inputs belong together. Rows of two tiles are then swapped as long as that
saves loads; docs/kernels/batch.md says how much.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div

# Cost of an input's uses, in loads: an input that a tile uses once is an operand of its product.
_FIRST_USE, _SECOND_USE = 0.6, 0.4
_FIFTH = 0.2
_SUMMED = 255 // 2  # savings of at most two fifths, whose sum is a byte
# Sweeps over all pairs of tiles: after eight, few rows are still swapped. A sweep multiplies
# matrices; `_MOST_PRODUCTS` limits the work for a layer. In large layers swaps save too few loads
# to be noticed, and take longer than all else that is done for them.
_SWEEPS, _MOST_PRODUCTS = 8, 1 << 25
_LEAST_GAIN = 1e-3  # more than rounding errors

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Products:
    """The nonzero weights of one tile in the order of use.

    `rows` (accumulators,) are the tile's rows of the matrix. The other arrays have an entry a
    weight: its accumulator, its column, its value, whether it is the first of its column, and
    whether it is the only one.
    """

    rows: IntArray
    accumulator: IntArray
    column: IntArray
    weight: npt.NDArray[np.generic]
    first: BoolArray
    alone: BoolArray

    def __len__(self) -> int:
        return len(self.weight)


# By the number of a group's uses of an input: none, one, two, more.
_COST = np.array([0, _FIRST_USE, _FIRST_USE + _SECOND_USE, _FIRST_USE + _SECOND_USE], np.float32)
_LOST = -np.diff(_COST, prepend=np.float32(0))
_GAINED = np.diff(_COST, append=_COST[-1])


def products(weights: CompressedRows, accumulators: int) -> list[Products]:
    """Return the tiles of a matrix, of at most `accumulators` rows each.

    Every other tile takes its columns from last to first, because the columns that the tile before
    used last are still in L1.
    """
    if weights.is_vast:
        groups = tile_rows(weights.shape[0], accumulators)
    else:
        used = weights.with_values(np.ones(len(weights), bool)).dense()
        groups = _trade(used, _group(used, accumulators))
    return [
        _in_order(weights, np.sort(rows), descending=number % 2 == 1)
        for number, rows in enumerate(groups)
    ]


def tile_rows(out_features: int, most: int) -> list[IntArray]:
    """Return the fewest tiles of at most `most` consecutive rows, of nearly equal size."""
    return np.array_split(np.arange(out_features), ceil_div(out_features, most))


def inputs_by_tile(matrix: SparseMatrix, most: int) -> int:
    """Return the loads of inputs in one pass: the inputs each tile uses, added up over the tiles.

    Tiles have at most `most` consecutive rows.
    """
    firsts = np.array([rows[0] for rows in tile_rows(matrix.out_features, most)])
    return matrix.memoised(("inputs by tile", most), lambda: matrix.count_inputs(firsts))


def _in_order(weights: CompressedRows, rows: IntArray, descending: bool) -> Products:
    counts = weights.starts[rows + 1] - weights.starts[rows]
    accumulator = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(accumulator)) - (np.cumsum(counts) - counts)[accumulator]
    number += weights.starts[rows][accumulator]
    column = weights.columns[number]
    order = np.argsort((-column if descending else column) * len(rows) + accumulator)
    column = column[order]
    first = np.diff(column, prepend=-1) != 0
    return Products(
        rows,
        accumulator[order].astype(np.int16),  # one a weight of the model
        column,
        weights.values[number[order]],
        first,
        first & np.append(first[1:], np.ones(min(len(first), 1), bool)),
    )


def _group(used: BoolArray, most: int) -> list[IntArray]:
    """Group rows that use the same inputs (`used`: rows by inputs) into tiles of at most `most`.

    A group begins with the emptiest row that is left. It then takes the row whose inputs cost least
    a weight, again and again: an input that the group has not used yet costs `_FIRST_USE`, one that
    it has used once `_SECOND_USE`. Costs are whole numbers of fifths of a load, so that equal costs
    stay equal.
    """
    first, second = (round(cost / _FIFTH) for cost in (_FIRST_USE, _SECOND_USE))
    in_features = used.shape[1]
    by_column = np.ascontiguousarray(used.T).view(np.uint8)
    # Saving of each row when the group uses an input: for the first time, the second, later.
    saved = np.zeros((2 * in_features + 1, len(used)), np.uint8)
    np.multiply(by_column, first - second, out=saved[:in_features])
    np.multiply(by_column, second, out=saved[in_features:-1])
    starts = [0, *np.cumsum(np.count_nonzero(used, axis=1)).tolist()]
    columns = np.nonzero(used)[1]
    counts = np.maximum(np.diff(starts), 1).astype(np.float32)
    left = counts.copy()  # infinite for rows that have a group
    groups = []
    for group in tile_rows(len(used), most):
        cost, place = first * left, np.arange(in_features)
        chosen = int(left.argmin())
        for position in range(len(group)):
            if position:
                chosen = int((cost / counts).argmin())
            group[position] = chosen
            cost[chosen] = left[chosen] = np.inf
            own = columns[starts[chosen] : starts[chosen + 1]]
            places = place[own]
            place[own] = places + in_features
            for part in range(0, len(own), _SUMMED):
                rows = saved.take(places[part : part + _SUMMED], axis=0, mode="clip")
                cost -= np.add.reduce(rows, axis=0, dtype=np.uint8)
        groups.append(group)
    return groups


def _trade(uses: BoolArray, groups: list[IntArray]) -> list[IntArray]:
    """Swap rows between every two groups as long as that saves loads, and return the groups."""
    sweeps = min(_SWEEPS, _MOST_PRODUCTS // max(1, len(uses) * uses.size // 2))
    if not sweeps:
        return groups
    used = uses.astype(np.float32)
    traders = [_Group.of(rows, used) for rows in groups]
    pairs = list(combinations(traders, 2))
    refused: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(sweeps):
        swaps = 0
        for a, b in pairs:
            pair, trades = (id(a), id(b)), (a.trades, b.trades)
            if refused.get(pair) == trades:  # neither has changed since
                continue
            if _swap(used, a, b):
                swaps += 1
            else:
                refused[pair] = trades
        if swaps == 0:
            break
    return [group.rows for group in traders]


@dataclass(eq=False)
class _Group:
    """A tile's rows while rows are swapped between tiles, and the cost of each input.

    `lost` and `gained`: the change of cost if one row fewer, or one more, uses an input.
    """

    rows: IntArray
    used: FloatArray
    lost: FloatArray
    gained: FloatArray
    trades: int = 0

    @classmethod
    def of(cls, rows: IntArray, used: FloatArray) -> "_Group":
        return cls(rows, used[rows], *_changes(used[rows]))

    def replace(self, place: int, row: int, used: FloatArray) -> None:
        self.rows[place] = row
        self.used[place] = used[row]
        self.lost, self.gained = _changes(self.used)
        self.trades += 1


def _swap(used: FloatArray, a: _Group, b: _Group) -> bool:
    """Swap the row of `a` and the row of `b` that save most; return False if no swap saves."""
    # An input that both rows use changes nothing, in either group.
    both = (a.used * (a.lost + a.gained + b.lost + b.gained)) @ b.used.T
    cost = (a.used @ (a.lost + b.gained))[:, None] + b.used @ (a.gained + b.lost) - both
    best = np.unravel_index(np.argmin(cost), cost.shape)
    if cost[best] > -_LEAST_GAIN:
        return False
    row_a, row_b = int(a.rows[best[0]]), int(b.rows[best[1]])
    a.replace(int(best[0]), row_b, used)
    b.replace(int(best[1]), row_a, used)
    return True


def _changes(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how a tile's cost changes, by input, if one row fewer uses it, and if one more does.

    `rows` (rows of the tile, inputs) is 1 where a row uses an input.
    """
    uses = np.minimum(rows.sum(axis=0), len(_LOST) - 1).astype(np.intp)
    return _LOST[uses], _GAINED[uses]
