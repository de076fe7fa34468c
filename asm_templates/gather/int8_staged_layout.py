"""Groups of block rows of sixteen outputs, and the inputs that each of their steps multiplies.

A group's slots are its block rows or, if these are few, chains of them that are added at the end.
In a trip every slot takes up to four of its inputs, in ascending order, so that all slots read few
registers of x: none beyond the registers that the slot with the most inputs left needs.

    trip 0: inputs   3  17  60  61 |  9  20  88 101 | ...      registers 0, 1 of x
    trip 1:        118 130 170 190 | 95 140 141 142 | ...      registers 1, 2
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_layout import (
    LANES,
    REGISTER_INPUTS,
    byte_of_input,
)
from sparsejit.asm_templates.scheduling.int8_schedule import PRODUCTS
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.whole_numbers import ceil_div

SLOTS = 16  # of four bytes each in a register
_FIRST_ROUND, _FURTHER_ROUND = 4, 3  # registers of x that one vector of indices tells apart
_SELECTOR = REGISTER_INPUTS  # unit of the bits that select one of them, above the index

_Numbers = npt.NDArray[np.integer]
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PickRound:
    """A vector of indices into up to four registers of x, or three after a trip's first round."""

    trip: int
    is_first: bool
    is_last: bool
    registers: tuple[int, ...]
    indices: _Bytes

    def register(self, selector: int) -> int:
        """Return the register of x for lanes with that selector; -1 for none."""
        position = selector if self.is_first else selector - 1
        return self.registers[position] if 0 <= position < len(self.registers) else -1


@dataclass(frozen=True, eq=False)
class StagedGroup:
    """Block rows, each summed in `chains` chains; `columns` (trips, slots, 4), -1 for none."""

    block_rows: _Numbers
    chains: int
    columns: _Numbers

    @property
    def slots(self) -> int:
        return self.chains * len(self.block_rows)

    def weights(self, block_rows: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """Return own weights (trips, slots, 16, 4) of all `block_rows` (block rows, 16, inputs)."""
        own = np.tile(self.block_rows, self.chains)
        picked = block_rows[own[None, :, None], :, np.maximum(self.columns, 0)]
        picked[self.columns < 0] = 0
        return np.ascontiguousarray(picked.swapaxes(2, 3))

    def rounds(self) -> Iterator[PickRound]:
        """Yield the rounds that bring the inputs of all trips together."""
        for trip, columns in enumerate(self.columns):
            flat = np.full(SLOTS * PRODUCTS, -1)
            flat[: columns.size] = columns.reshape(-1)
            yield from _rounds_of_trip(trip, flat)


def _rounds_of_trip(trip: int, columns: _Numbers) -> Iterator[PickRound]:
    source = columns // REGISTER_INPUTS
    left: list[int] = np.unique(source[columns >= 0]).tolist()
    place = byte_of_input()[columns % REGISTER_INPUTS]
    is_first = True
    while left or is_first:
        count = _FIRST_ROUND if is_first else _FURTHER_ROUND
        own, left = left[:count], left[count:]
        indices = place.copy()
        for position, register in enumerate(own):
            selector = position + (not is_first)
            indices[source == register] += selector * _SELECTOR
        yield PickRound(trip, is_first, not left, tuple(own), indices.astype(np.uint8))
        is_first = False


def group_sizes(matrix: SparseMatrix) -> list[tuple[_Numbers, int, int]]:
    """Return the block rows of each group, the fullest first, their chains and trips."""
    counts = matrix.block_mask(LANES).sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    groups: list[tuple[_Numbers, int, int]] = []
    for first in range(0, len(order), SLOTS):
        own = order[first : first + SLOTS]
        chains = SLOTS // len(own)
        longest = ceil_div(int(counts[own[0]]), chains)
        groups.append((own, chains, ceil_div(longest, PRODUCTS)))
    return groups


def staged_groups(matrix: SparseMatrix) -> list[StagedGroup]:
    """Return the groups of a matrix with the columns of all their steps."""
    used = [np.flatnonzero(row) for row in matrix.block_mask(LANES)]
    return [
        StagedGroup(own, chains, _columns([used[row] for row in own], chains, trips))
        for own, chains, trips in group_sizes(matrix)
    ]


def _columns(used: list[_Numbers], chains: int, trips: int) -> _Numbers:
    """Return the inputs that each slot takes in each trip, (trips, slots, 4), -1 for none."""
    left = [row[chain::chains] for chain in range(chains) for row in used]
    columns = np.full((trips, len(left), PRODUCTS), -1)
    for trip in range(trips):
        later = PRODUCTS * (trips - 1 - trip)
        needed = [row[len(row) - later - 1] for row in left if len(row) > later]
        first = [row[0] for row in left if len(row)]
        last = max([*needed, min(first, default=0)]) // REGISTER_INPUTS
        for slot, row in enumerate(left):
            taken = row[:PRODUCTS]
            taken = taken[taken // REGISTER_INPUTS <= last]
            columns[trip, slot, : len(taken)] = taken
            left[slot] = row[len(taken) :]
    return columns
