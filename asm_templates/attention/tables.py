"""What the kernel of masked attention reads beside its operands: its tiles, one after another.

    rows     where each lane's row of Q, the result and its sums begins  3 * lanes of bytes
    groups   how many groups of keys follow                              one, and 15 zeros
    group    where 8 keys begin in K and in V, and who sees them         8 + 8 of bytes, 8 of bits

All are int32. A tile is as many rows as there are lanes. A last one of fewer repeats its last row,
and a last group of fewer keys its last key, which then nobody sees. Tiles that add to the result
of others come last; in these a repeated row sees nothing, and of each mask there are as many.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.row_groups import RowGroup, row_groups
from sparsejit.machine.target import Target

KEYS = 8  # of a group: the sums of so many keep both multipliers busy
GROUP_BYTES = 3 * 4 * KEYS
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

    Of each mask: `tiles` that begin their rows' results, and `added` that go on with some of them.
    """

    tiles: int
    added: int
    masks: int
    queries: int
    numbers: IntArray
    most_keys: int
    all_keys: int

    @classmethod
    def of(
        cls, masks: npt.NDArray[np.bool_], pitches: Pitches, target: Target
    ) -> "AttentionTiles":
        """Those of masks (masks, queries, keys)."""
        groups = [row_groups(mask, target.lanes) for mask in masks]
        added = [sum(group.adds for group in each) for each in groups]
        for each, own in zip(groups, added, strict=True):
            each += [_NOTHING] * (max(added) - own)
        tiles = [_tile(group, pitches, target.lanes) for each in groups for group in each]
        keys = [_padded(len(group.keys)) for each in groups for group in each]
        numbers, begun = np.concatenate(tiles), len(groups[0]) - max(added)
        sizes = begun, max(added), len(masks), masks.shape[1]
        return cls(*sizes, numbers, max(keys), sum(keys))


_NOTHING = RowGroup(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros((0, 1), bool), True)


def header_bytes(lanes: int) -> int:
    """Of a tile, before its first group."""
    return 4 * (3 * lanes + _HEADER)


def _padded(keys: int) -> int:
    return max(KEYS, -(-keys // KEYS) * KEYS)


def _tile(group: RowGroup, pitches: Pitches, lanes: int) -> IntArray:
    rows = np.pad(group.rows, (0, lanes - len(group.rows)), "edge")
    repeated = ((0, 0), (0, lanes - len(group.rows)))
    allowed = np.pad(group.allowed, repeated, "constant" if group.adds else "edge")
    missing = _padded(len(group.keys)) - len(group.keys)
    keys = np.pad(group.keys, (0, missing), "edge") if len(group.keys) else np.zeros(KEYS, np.int64)
    seen = np.pad(allowed @ (1 << np.arange(lanes)), (0, missing))
    groups = np.stack([keys * pitches.key, keys * pitches.value, seen]).reshape(3, -1, KEYS)
    count = np.zeros(_HEADER, np.int64)
    count[0] = groups.shape[1]
    places = (rows * pitches.query, rows * pitches.result, rows * SUMS_BYTES)
    return np.concatenate([*places, count, groups.swapaxes(0, 1).ravel()]).astype(np.int32)
