"""Grouping of rows that share an accumulator, and exchanges of sums into the order of y.

Sixteen rows that share an accumulator share its steps, so they should have similar numbers of
nonzeros in each register of x. Rows are swapped among 2, 4 or 8 vectors of y, a block, so that the
bound of the steps (see `covering`) falls. Its sums are put back in order by one stage of exchanges
between two vectors for each doubling; an exchange is two `vpermi2ps`, which give the one vector any
sixteen of the 32 sums and the other the rest:

    vector held   0  1  2  3  4  5  6  7
    stage 0       0--1  2--3  4--5  6--7     bit 0 of a sum's vector in y chooses its vector
    stage 1       0-----2  1--3 ...          bit 1
    stage 2       0-----------4  1 ...       bit 2, and sixteen sums into their order

Two rows may be swapped between vectors that differ in bit k at most if they go to vectors that
agree in the bits below k. First the fullest rows are brought together, which evens out totals;
then, for each pair of vectors, the best swap is made as long as one lowers the bound. Reasons and
gains: docs/kernels/gather.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.integer]
_Counts = npt.NDArray[np.uint16]

SWEEPS = 2
# Weight of the bound (doubled) over the weight of each of its two terms: a term that does not bind
# now may do so after the next swap.
_BINDING = 32
# Swaps times registers tried at a time: more do not fit L2.
_AT_ONCE = 1 << 19


def exchanges(vectors: int, stages: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of vectors that exchange sums, in order.

    Vectors form blocks of 2**stages; the rest form smaller ones.
    """
    for first, size in blocks(vectors, stages):
        bit = 1
        while bit < size:
            lower = (first + held for held in range(size) if not held & bit)
            yield from ((vector, vector + bit) for vector in lower)
            bit *= 2


def blocks(vectors: int, stages: int) -> Iterator[tuple[int, int]]:
    """Cut `vectors` vectors into blocks; yield the first vector and the size of each.

    Sizes are powers of two, at most 2**stages, the largest first.
    """
    first = 0
    while first < vectors:
        size = min(1 << stages, 1 << (vectors - first).bit_length() - 1)
        yield first, size
        first += size


def exchange_indices(rows: _Numbers, stages: int) -> _Numbers:
    """Return the indices of the exchanges' `vpermi2ps`: (runs, two an exchange, lanes).

    `rows` (runs, vectors, lanes) has the row in each lane. A run holds all rows of its vectors of
    y; the number of its first vector is a multiple of 2**stages.
    """
    runs, vectors, lanes = rows.shape
    held = rows.copy()
    indices = [np.zeros((runs, 0, lanes), held.dtype)]
    for lower, upper in exchanges(vectors, stages):
        both = np.concatenate([held[:, lower], held[:, upper]], axis=1)
        goes_up = (both // lanes & (upper - lower)) != 0
        order = np.lexsort((both, goes_up))
        indices.append(order.reshape(runs, 2, lanes))
        sums = np.take_along_axis(both, order, axis=1)
        held[:, lower], held[:, upper] = sums[:, :lanes], sums[:, lanes:]
    return np.concatenate(indices, axis=1)


def fullest_together(rows: _Numbers, counts: _Counts) -> _Numbers:
    """Reorder rows within their block of vectors so that the fullest share a vector.

    `rows`: (batches, runs, vectors, lanes), in the order of y, `vectors` a power of two. Runs share
    their steps, so a vector has the lanes of all runs; each run keeps its rows. `counts`: (rows,
    windows, registers), each row's nonzeros in each register; row numbers past the end mean none.
    """
    totals = np.append(counts.sum(axis=(1, 2), dtype=np.int64), 0)
    return _halved(rows, totals[np.minimum(rows, len(counts))])


class StepShape(NamedTuple):
    """The size of a step: `products` products in each lane, with inputs of `sources` registers."""

    sources: int
    products: int = 1


def swapped(
    held: _Numbers, counts: _Counts, sweeps: int, step: StepShape, anywhere: bool = False
) -> _Numbers:
    """Swap rows between vectors, at most `sweeps` times over all pairs; return the rows.

    Each swap lowers the bound of the steps. Arrays are as in `fullest_together`. With `anywhere`,
    the sums may end in any order, so any two rows may be swapped.
    """
    _, _, vectors, lanes = held.shape
    if vectors == 1:
        return held
    wants = np.concatenate([counts, np.zeros((1, *counts.shape[1:]), counts.dtype)])
    swaps = vectors // 2 * lanes * lanes * counts.shape[1] * counts.shape[2]
    chunk = max(1, _AT_ONCE // swaps)
    parts = [
        _Search.of(held[first : first + chunk], wants, step, anywhere)
        for first in range(0, len(held), chunk)
    ]
    for part in parts:
        part.run(sweeps)
    return np.concatenate([part.held.transpose(3, 1, 0, 2) for part in parts])


def _halved(rows: _Numbers, totals: _Numbers) -> _Numbers:
    """Halve blocks of vectors repeatedly: the fuller half of their rows goes to the first half.

    Rows whose vectors in y agree in the lower bits form a kind; each kind is halved by itself, so
    that exchanges can restore the order of y.
    """
    batches, runs, vectors, lanes = rows.shape
    held, size = rows, vectors
    while size > 1:
        kinds = size // 2
        held = held.reshape(batches, runs, vectors // size, size * lanes)
        totals = totals.reshape(held.shape)
        order = np.lexsort((-totals, held // lanes % kinds))
        halves = order.reshape(batches, runs, vectors // size, kinds, 2, lanes).swapaxes(3, 4)
        order = halves.reshape(held.shape)
        held = np.take_along_axis(held, order, axis=3)
        totals = np.take_along_axis(totals, order, axis=3)
        size = kinds
    return held.reshape(rows.shape)


@dataclass(frozen=True, eq=False)
class _Search:
    """Search for swaps of rows that lower the bound of steps, in all batches at once.

    `held` (vectors, runs, lanes, batches) has the row in each lane. `wants` (vectors, runs, lanes,
    registers, windows, batches) counts the nonzeros of each such row that read from each register
    of inputs; `totals` are the sums of these counts over registers.
    """

    held: _Numbers
    wants: _Counts
    totals: _Counts
    step: StepShape
    anywhere: bool

    @classmethod
    def of(cls, rows: _Numbers, wants: _Counts, step: StepShape, anywhere: bool) -> "_Search":
        """Return the search that begins with these rows.

        `rows` (batches, runs, vectors, lanes) has the row in each lane, `wants` (rows + 1, windows,
        registers) the nonzeros of each row by register; its last row is zero, for empty lanes.
        """
        held = np.ascontiguousarray(rows.transpose(2, 1, 3, 0))
        wanted = wants[np.minimum(held, len(wants) - 1)].transpose(0, 1, 2, 5, 4, 3)
        totals = wanted.sum(axis=3, dtype=np.uint16)
        return cls(held, np.ascontiguousarray(wanted), totals, step, anywhere)

    def run(self, sweeps: int) -> None:
        """Sweep over all pairs of vectors until nothing is gained, at most `sweeps` times."""
        vectors, runs = self.held.shape[:2]
        for _ in range(sweeps):
            made = [self._swap(apart, run) for apart in range(1, vectors) for run in range(runs)]
            if not any(made):
                return

    def _swap(self, apart: int, run: int) -> bool:
        """Swap the best two rows between vectors `v` and `v ^ apart`, for each such pair.

        A pair of vectors whose best swap gains nothing keeps its rows. Return whether any rows were
        swapped.
        """
        vectors, _, lanes, batches = self.held.shape
        bit = 1 << apart.bit_length() - 1
        one = np.flatnonzero(np.arange(vectors) & bit == 0)
        other = one ^ apart
        pairs = [(self.wants[side], self.totals[side]) for side in (one, other)]
        (most_one, rest_one), (most_other, rest_other) = (_most(p[0], run) for p in pairs)
        (top_one, left_one), (top_other, left_other) = (_most(p[1], run) for p in pairs)
        (want_one, total_one), (want_other, total_other) = (
            (wants[:, run], totals[:, run]) for wants, totals in pairs
        )
        now = self._price(top_one, most_one) + self._price(top_other, most_other)
        then = self._price(
            np.maximum(left_one[:, :, None], total_other[:, None]),
            np.maximum(rest_one[:, :, None], want_other[:, None]),
        )
        then += self._price(
            np.maximum(left_other[:, None], total_one[:, :, None]),
            np.maximum(rest_other[:, None], want_one[:, :, None]),
        )
        if not self.anywhere:
            kind = self.held[:, run] // lanes & bit - 1
            then[kind[one][:, :, None] != kind[other][:, None]] = np.iinfo(np.int32).max
        then = then.reshape(len(one), lanes * lanes, batches)
        best = then.argmin(axis=1)
        pair, batch = np.nonzero(np.take_along_axis(then, best[:, None], axis=1)[:, 0] < now)
        lane_one, lane_other = np.divmod(best[pair, batch], lanes)
        here, there = (one[pair], run, lane_one), (other[pair], run, lane_other)
        for array in (self.held, self.wants, self.totals):
            array[(*here, ..., batch)], array[(*there, ..., batch)] = (
                array[(*there, ..., batch)],
                array[(*here, ..., batch)],
            )
        return len(pair) > 0

    def _price(self, most_of_lane: _Counts, most: _Counts) -> npt.NDArray[np.int32]:
        """Return the prices of vectors of rows: bounds of their steps, scaled, summed over windows.

        A bound is the larger of two: the most nonzeros of a lane in a window (`most_of_lane`),
        and the sum over registers of the most nonzeros of a lane in each (`most`). Both are scaled
        alike, to whole numbers; a small share of each is added, so that the lesser counts too.
        `most` has registers on the third axis from the end; it may be overwritten.
        """
        sources, products = self.step
        lanes = sources * most_of_lane.astype(np.int32)
        # Rounded up; `-most` would wrap in 16 bits.
        whole = _sum((most + (products - 1)) // products * products).astype(np.int32)
        registers = _sum(most).astype(np.int32) if products > 1 else whole
        price = _BINDING * np.maximum(lanes, whole)
        price += lanes + registers
        total: npt.NDArray[np.int32] = price.sum(axis=-2)
        return total


def _most(wants: _Counts, run: int) -> tuple[_Counts, _Counts]:
    """Return two maxima over a vector's lanes: over all, and over all but one lane of the run.

    `wants` (vectors, runs, lanes, ...) are counts of nonzeros. The first result is (vectors, ...),
    the second (vectors, lanes, ...), by the lane that is left out.
    """
    all_lanes = wants.reshape(len(wants), -1, *wants.shape[3:])
    most = all_lanes.max(axis=1)
    fullest = all_lanes == most[:, None]
    next_most = np.where(fullest, 0, all_lanes).max(axis=1)
    alone = np.count_nonzero(fullest, axis=1) == 1
    without = np.where(alone, next_most, most)
    is_fullest = wants[:, run] == most[:, None]
    return most, np.where(is_fullest, without[:, None], most[:, None])


def _sum(wants: _Counts) -> _Counts:
    """Return the sum over registers, the third axis from the end; `wants` is overwritten.

    Halves at a time, because numpy adds up short inner axes slowly.
    """
    parts = np.moveaxis(wants, -3, 0)
    while len(parts) > 1:
        half = len(parts) // 2
        parts[:half] += parts[len(parts) - half :]
        parts = parts[: len(parts) - half]
    return parts[0]
