"""Table that the attention kernel reads beside its operands: its tiles, then their keys.

    tile     byte offsets of its rows in Q, in the result and in the sums        3 * rows
             byte offset of its keys from the first tile on; number of groups    2, and 14 zeros
    group    byte offsets of 8 keys in K and in V                                8 + 8
             bits of the rows that see each key                                  8 a vector of rows

All are int32. A tile is `width` vectors of rows. A last tile of fewer rows repeats its last row, a
last group of fewer keys its last key, which then no row sees. Tiles with the same keys share them.
Tiles that add to the result of others come last; in these a repeated row sees nothing, and every
mask has the same number of them.

With pairs, K and V are copied in bfloat16, two keys side by side: key 2 n and the one behind it.

    mask     byte offset of its pairs from the first tile on; their number       2, and 14 zeros
    pair     byte offsets of both keys in K and in V                             2 + 2
    group    byte offsets of 4 pairs in the copies of K and of V                 4 + 4

A mask comes before its tiles. A key that it shows to no row is not read: the other key of the pair
stands in its place, and no row sees it there.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.ir.row_groups import RowGroup, row_groups
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div

KEYS = 8  # keys of a group: their sums keep both multipliers busy
SUMS_BYTES = 8  # bytes of a row's largest score and the sum of its powers
_HEADER = 16
HEADER_BYTES = 4 * _HEADER  # of a mask; the last bytes of a tile's header

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Pitches:
    """Bytes from row to row of Q, K, V and the result, and in paired copies of K and V.

    A row of the copy of V has two keys.
    """

    query: int
    key: int
    value: int
    result: int
    paired_key: int = 0
    paired_value: int = 0


@dataclass(frozen=True, eq=False)
class AttentionTiles:
    """Masks cut into tiles: some queries (rows) that are computed at once, and the keys they see.

    All masks have the same number of queries. `numbers` is the table that the kernel reads. Each
    mask has `tiles` tiles that write new results, then `added` tiles that add to results of an
    earlier one. `all_see_all`: no score is ever left out. `pairs`: K and V are copied in pairs.
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
    pairs: bool = False

    @classmethod
    def of(
        cls,
        masks: npt.NDArray[np.bool_],
        pitches: Pitches,
        target: Target,
        pairs: bool = False,
    ) -> "AttentionTiles":
        """Return the tiles of masks (masks, queries, keys)."""
        width = tile_width(masks, target)
        groups = [row_groups(mask, width * target.lanes) for mask in masks]
        added = [sum(group.adds for group in each) for each in groups]
        for each, own in zip(groups, added, strict=True):
            each += [_NOTHING] * (max(added) - own)
        table = _TableNumbers(pitches, width, target.lanes, pairs)
        for mask, each in zip(masks, groups, strict=True):
            table.add(mask, each)
        sizes = len(groups[0]) - max(added), max(added), len(masks), masks.shape[1]
        made = table.sees_all, table.numbers(), max(table.keys), sum(table.keys)
        return cls(*sizes, width, target.lanes, *made, pairs)

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.width * self.lanes

    @property
    def header_bytes(self) -> int:
        """Bytes of a tile's own numbers in the table, without its groups of keys."""
        return 4 * (3 * self.rows + _HEADER)

    @property
    def offsets(self) -> int:
        """Byte offsets in K, and in V, that a group has: one for each key or pair."""
        return KEYS // 2 if self.pairs else KEYS

    @property
    def seen_at(self) -> int:
        """Bytes of a group before the bits of the rows that see its keys."""
        return 4 * 2 * self.offsets

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of keys."""
        return self.seen_at + 4 * KEYS * self.width


_NOTHING = RowGroup(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros((0, 1), bool), True)


def tile_width(masks: npt.NDArray[np.bool_], target: Target) -> int:
    """Return the vectors of rows in a tile: two if AVX-512 holds them and all rows see all keys.

    Two must also divide the vectors of queries, so that none is idle.
    """
    vectors = ceil_div(masks.shape[1], target.lanes)
    return 2 if target.isa == "avx512" and vectors % 2 == 0 and masks.all() else 1


class _TableNumbers:
    """The numbers of tiles: headers in the order of the masks, and behind them lists of keys."""

    def __init__(self, pitches: Pitches, width: int, lanes: int, pairs: bool) -> None:
        self.pitches, self.width, self.lanes, self.pairs = pitches, width, lanes, pairs
        self.sees_all = True
        self.keys: list[int] = []  # of each tile, with those that fill its last group
        self._headers: list[npt.NDArray[np.int64]] = []
        self._lists: dict[bytes, int] = {}  # the number of int32 before each
        self._listed: list[IntArray] = []

    def add(self, mask: npt.NDArray[np.bool_], groups: list[RowGroup]) -> None:
        """Append a mask's tiles, and before them its pairs."""
        seen = np.pad(mask.any(axis=0), (0, mask.shape[1] % 2)).reshape(-1, 2)
        pairs = np.flatnonzero(seen.any(axis=1)) if seen.any() else np.zeros(1, np.int64)
        if self.pairs:
            self._append(np.zeros(0, np.int64), self._sources(seen, pairs))
        for group in groups:
            keys, slots = self._keys(group, pairs)
            self.sees_all = self.sees_all and bool(slots.all())
            self.keys.append(len(slots))
            bits = slots.reshape(-1, self.width, self.lanes) @ (1 << np.arange(self.lanes))
            rows = np.pad(group.rows, (0, slots.shape[1] - len(group.rows)), "edge")
            moves = self.pitches.query, self.pitches.result, SUMS_BYTES
            listed = np.concatenate([*keys, bits.reshape(-1, KEYS * self.width)], axis=1)
            self._append(np.concatenate([rows * move for move in moves]), listed)

    def numbers(self) -> IntArray:
        """Return the whole table."""
        first = sum(header.size for header in self._headers)
        for header in self._headers:
            header[-_HEADER] = 4 * (first + header[-_HEADER])
        return np.concatenate([*self._headers, *self._listed]).astype(np.int32)

    def _append(self, before: npt.NDArray[np.int64], listed: npt.NDArray[np.int64]) -> None:
        """Append a header: numbers, then the place of a list and its length."""
        numbers, ends = listed.astype(np.int32).ravel(), np.zeros(_HEADER, np.int64)
        if numbers.tobytes() not in self._lists:
            self._lists[numbers.tobytes()] = sum(each.size for each in self._listed)
            self._listed.append(numbers)
        ends[:2] = self._lists[numbers.tobytes()], len(listed)
        self._headers.append(np.concatenate([before, ends]))

    def _sources(
        self, seen: npt.NDArray[np.bool_], pairs: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The offsets in K and in V of both keys of each pair."""
        shown, both = seen[pairs], 2 * pairs[:, None] + np.arange(2)
        read = np.where(shown, both, np.where(shown.any(axis=1, keepdims=True), both[:, ::-1], 0))
        return np.concatenate([read * self.pitches.key, read * self.pitches.value], axis=1)

    def _keys(
        self, group: RowGroup, pairs: npt.NDArray[np.int64]
    ) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]:
        """The offsets in K and in V of a tile's keys by groups of 8, and which rows see each key.

        With pairs, the offsets in the copies.
        """
        repeated = ((0, 0), (0, self.width * self.lanes - len(group.rows)))
        allowed = np.pad(group.allowed, repeated, "constant" if group.adds else "edge")
        keys, slots, together = group.keys, np.arange(len(group.keys)), 1
        moves = [self.pitches.key, self.pitches.value]
        if self.pairs:
            both, parity = np.divmod(keys, 2)
            keys, order = np.unique(np.searchsorted(pairs, both), return_inverse=True)
            slots, together = 2 * order + parity, 2
            moves = [2 * self.pitches.paired_key, self.pitches.paired_value]
        held = KEYS // together
        keys = keys if len(keys) else np.zeros(1, np.int64)
        keys = np.pad(keys, (0, -len(keys) % held), "edge")
        seen = np.zeros((together * len(keys), allowed.shape[1]), bool)
        seen[slots] = allowed
        return [(keys * move).reshape(-1, held) for move in moves], seen
