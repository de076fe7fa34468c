"""What the kernel of masked attention reads beside its operands: its tiles, one after another.

    rows     where each lane's row of Q begins, and then of the result   2 * lanes of bytes
    groups   how many groups of keys follow                              one, and 15 zeros
    group    where 8 keys begin in K and in V, and who sees them         8 + 8 of bytes, 8 of bits

All are int32. A tile is as many rows as there are lanes. A last one of fewer repeats its last row,
and a last group of fewer keys its last key, which then nobody sees.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.row_groups import RowGroup, row_groups
from sparsejit.machine.target import Target

KEYS = 8  # of a group: the sums of so many keep both multipliers busy
GROUP_BYTES = 3 * 4 * KEYS
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
    """The tiles of one or more masks, all of as many rows; `numbers` is what the kernel reads."""

    tiles: int
    masks: int
    numbers: IntArray
    most_keys: int
    all_keys: int

    @classmethod
    def of(
        cls, masks: npt.NDArray[np.bool_], pitches: Pitches, target: Target
    ) -> "AttentionTiles":
        """Those of masks (masks, queries, keys)."""
        groups = [row_groups(mask, target.lanes) for mask in masks]
        tiles = [_tile(group, pitches, target.lanes) for each in groups for group in each]
        keys = [_padded(len(group.keys)) for each in groups for group in each]
        return cls(len(groups[0]), len(masks), np.concatenate(tiles), max(keys), sum(keys))


def header_bytes(lanes: int) -> int:
    """Of a tile, before its first group."""
    return 4 * (2 * lanes + _HEADER)


def _padded(keys: int) -> int:
    return max(KEYS, -(-keys // KEYS) * KEYS)


def _tile(group: RowGroup, pitches: Pitches, lanes: int) -> IntArray:
    rows = np.pad(group.rows, (0, lanes - len(group.rows)), "edge")
    allowed = np.pad(group.allowed, ((0, 0), (0, lanes - len(group.rows))), "edge")
    missing = _padded(len(group.keys)) - len(group.keys)
    keys = np.pad(group.keys, (0, missing), "edge") if len(group.keys) else np.zeros(KEYS, np.int64)
    seen = np.pad(allowed @ (1 << np.arange(lanes)), (0, missing))
    groups = np.stack([keys * pitches.key, keys * pitches.value, seen]).reshape(3, -1, KEYS)
    count = np.zeros(_HEADER, np.int64)
    count[0] = groups.shape[1]
    parts = rows * pitches.query, rows * pitches.result, count, groups.swapaxes(0, 1).ravel()
    return np.concatenate(parts).astype(np.int32)
