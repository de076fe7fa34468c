"""Table that the attention kernel reads beside its operands: its tiles, then their keys.

    tile     byte offsets of its rows in Q, in the result and in the sums        3 * rows
             byte offset of its keys from the first tile on; number of groups    2, and 14 zeros
    group    byte offsets of 8 keys in K and in V                                8 + 8
             bits of the rows that see each key                                  8 a vector of rows

All are int32. A tile is `width` vectors of rows. A last tile of fewer rows repeats its last row, a
last group of fewer keys its last key, which then no row sees. Tiles with the same keys share them.
Tiles that add to the result of others come last; in these a repeated row sees nothing, and every
mask has the same number of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.row_groups import RowGroup, row_groups
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up

KEYS = 8  # keys of a group: their sums keep both multipliers busy
SUMS_BYTES = 8  # bytes of a row's largest score and the sum of its powers
_HEADER = 16

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Pitches:
    """Bytes from row to row of Q, K, V and the result."""

    query: int
    key: int
    value: int
    result: int


@dataclass(frozen=True, eq=False)
class AttentionTiles:
    """Masks cut into tiles: some queries (rows) that are computed at once, and the keys they see.

    All masks have the same number of queries. `numbers` is the table that the kernel reads. Each
    mask has `tiles` tiles that write new results, then `added` tiles that add to results of an
    earlier one. `all_see_all`: no score is ever left out.
    """

    tiles: int
    added: int
    masks: int
    queries: int
    width: int
    lanes: int
    all_see_all: bool
    numbers: IntArray
    most_keys: int
    all_keys: int

    @classmethod
    def of(
        cls, masks: npt.NDArray[np.bool_], pitches: Pitches, target: Target
    ) -> "AttentionTiles":
        """Return the tiles of masks (masks, queries, keys)."""
        queries = masks.shape[1]
        width = tile_width(masks, target)
        groups = [row_groups(mask, width * target.lanes) for mask in masks]
        added = [sum(group.adds for group in each) for each in groups]
        for each, own in zip(groups, added, strict=True):
            each += [_NOTHING] * (max(added) - own)
        every = [group for each in groups for group in each]
        numbers, sees_all = _numbers(every, pitches, width, target.lanes)
        keys = [_padded(len(group.keys)) for group in every]
        sizes = len(groups[0]) - max(added), max(added), len(masks), queries, width, target.lanes
        return cls(*sizes, sees_all, numbers, max(keys), sum(keys))

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.width * self.lanes

    @property
    def header_bytes(self) -> int:
        """Bytes of a tile's own numbers in the table, without its groups of keys."""
        return 4 * (3 * self.rows + _HEADER)

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of keys."""
        return 4 * KEYS * (2 + self.width)


_NOTHING = RowGroup(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros((0, 1), bool), True)


def tile_width(masks: npt.NDArray[np.bool_], target: Target) -> int:
    """Return the vectors of rows in a tile: two if AVX-512 holds them and all rows see all keys.

    Two must also divide the vectors of queries, so that none is idle.
    """
    vectors = ceil_div(masks.shape[1], target.lanes)
    return 2 if target.isa == "avx512" and vectors % 2 == 0 and masks.all() else 1


def _padded(keys: int) -> int:
    return max(KEYS, round_up(keys, KEYS))


def _numbers(
    groups: list[RowGroup], pitches: Pitches, width: int, lanes: int
) -> tuple[IntArray, bool]:
    """Return the table, and whether every tile's rows all see all its keys.

    False too if a last group is filled up with a repeated key, which no row sees.
    """
    lists: dict[bytes, int] = {}
    headers, keys, sees_all = [], list[npt.NDArray[np.int32]](), True
    first = 4 * (3 * width * lanes + _HEADER) * len(groups)
    for group in groups:
        own, all_seen = _keys(group, pitches, width, lanes)
        sees_all = sees_all and all_seen
        if own.tobytes() not in lists:
            lists[own.tobytes()] = first
            first += own.nbytes
            keys.append(own.ravel())
        rows = np.pad(group.rows, (0, width * lanes - len(group.rows)), "edge")
        ends = np.zeros(_HEADER, np.int64)
        ends[:2] = lists[own.tobytes()], len(own)
        places = (rows * pitches.query, rows * pitches.result, rows * SUMS_BYTES)
        headers.append(np.concatenate([*places, ends]).astype(np.int32))
    return np.concatenate([*headers, *keys]), sees_all


def _keys(
    group: RowGroup, pitches: Pitches, width: int, lanes: int
) -> tuple[IntArray, bool]:
    """Return the table's part for one tile's keys: a row of numbers for each group of 8 keys.

    Also return whether every row of the tile sees every key.
    """
    repeated = ((0, 0), (0, width * lanes - len(group.rows)))
    allowed = np.pad(group.allowed, repeated, "constant" if group.adds else "edge")
    missing = _padded(len(group.keys)) - len(group.keys)
    keys = np.pad(group.keys, (0, missing), "edge") if len(group.keys) else np.zeros(KEYS, np.int64)
    bits = allowed.reshape(-1, width, lanes) @ (1 << np.arange(lanes))
    seen = np.pad(bits, ((0, missing), (0, 0))).reshape(-1, KEYS * width)
    places = [(keys * pitch).reshape(-1, KEYS) for pitch in (pitches.key, pitches.value)]
    sees_all = not missing and bool(allowed.all())
    return np.concatenate([*places, seen], axis=1).astype(np.int32), sees_all
