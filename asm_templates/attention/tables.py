"""What the kernel of attention reads beside its operands: its tiles, then their keys.

    tile     where each of its rows of Q, of the result and of its sums begins   3 * rows of bytes
             where its keys are, from the first tile on; how many groups         2, and 14 zeros
    group    where 8 keys begin in K and in V, and who sees them                 8 + 8 of bytes,
                                                                                 8 of bits a vector

All are int32. A tile is `width` vectors of rows. A last one of fewer repeats its last row, and a
last group of fewer keys its last key, which then nobody sees. Tiles with the same keys share them.
Tiles that add to the result of others come last; in these a repeated row sees nothing, and of each
mask there are as many.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.row_groups import RowGroup, row_groups
from sparsejit.machine.target import Target

KEYS = 8  # of a group: the sums of so many keep both multipliers busy
SUMS_BYTES = 8  # of a row: its largest score, and the sum of its powers
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
    """The tiles of one or more masks, all of as many rows; `numbers` is what the kernel reads.

    `tiles` begin each mask's rows of results, and `added` go on with some of them.
    Where `all_see_all`, no score is ever left out.
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
        """The tiles of masks (masks, queries, keys)."""
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
        """How many rows a tile has."""
        return self.width * self.lanes

    @property
    def header_bytes(self) -> int:
        """Bytes that a tile's header takes."""
        return 4 * (3 * self.rows + _HEADER)

    @property
    def group_bytes(self) -> int:
        """Bytes that a group of keys takes."""
        return 4 * KEYS * (2 + self.width)


_NOTHING = RowGroup(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros((0, 1), bool), True)


def tile_width(masks: npt.NDArray[np.bool_], target: Target) -> int:
    """Two vectors of rows where they see the same keys, registers hold them and none is idle."""
    vectors = -(-masks.shape[1] // target.lanes)
    return 2 if target.isa == "avx512" and vectors % 2 == 0 and masks.all() else 1


def _padded(keys: int) -> int:
    return max(KEYS, -(-keys // KEYS) * KEYS)


def _numbers(
    groups: list[RowGroup], pitches: Pitches, width: int, lanes: int
) -> tuple[IntArray, bool]:
    """All tiles, and whether all their keys are seen by all their rows."""
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
    """(groups of 8, numbers of a group), and whether every row sees every key."""
    repeated = ((0, 0), (0, width * lanes - len(group.rows)))
    allowed = np.pad(group.allowed, repeated, "constant" if group.adds else "edge")
    missing = _padded(len(group.keys)) - len(group.keys)
    keys = np.pad(group.keys, (0, missing), "edge") if len(group.keys) else np.zeros(KEYS, np.int64)
    bits = allowed.reshape(-1, width, lanes) @ (1 << np.arange(lanes))
    seen = np.pad(bits, ((0, missing), (0, 0))).reshape(-1, KEYS * width)
    places = [(keys * pitch).reshape(-1, KEYS) for pitch in (pitches.key, pitches.value)]
    sees_all = not missing and bool(allowed.all())
    return np.concatenate([*places, seen], axis=1).astype(np.int32), sees_all
