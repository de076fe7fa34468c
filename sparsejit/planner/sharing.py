"""Cost of sharing work with other cores, and whether that gains enough.

Costs of a barrier and of crossing bytes are measured on this machine if it was calibrated, else
recorded data of its core.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from sparsejit.machine.price_records import SharingPrices
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import TableRow, choose, priced


def sharing_prices(target: Target) -> SharingPrices:
    """The prices of the target's core."""
    return target.core.sharing


def barrier_ns(target: Target) -> float:
    """Nanoseconds of a call beyond its longest part: to start a worker and to await its end."""
    return sharing_prices(target).barrier_ns


def parallel_ns(ns: float, threads: int, target: Target) -> float:
    """Predicted ns of a layer on `threads` threads: its `ns` in equal parts, and the barriers."""
    return ns / threads + barrier_ns(target) * (threads - 1)


def worthwhile_threads(ns: float, most: int, target: Target) -> int:
    """Number of threads, at most `most`, that makes a layer of `ns` fastest; 1 for a small gain."""
    rows = [
        priced(f"{threads} threads", parallel_ns(ns, threads, target), threads)
        for threads in range(2, most + 1)
    ]
    threads: int = choose("threads", with_one_thread(rows, ns, target), None).row.emitter
    return threads


def with_one_thread(
    shared: Iterable[TableRow[object, float]], ns: float, target: Target
) -> list[TableRow[object, float]]:
    """The rows for `choose` between ways to share work of `ns`, and one thread.

    Shared work must gain by a margin, since predictions err.
    """
    least = sharing_prices(target).least_gain
    rows = [replace(row, margin=least) for row in shared]
    return [*rows, priced("one thread", ns, 1)]


def why_alone(ns: float, threads: int, target: Target) -> str:
    """Reason why a layer of `ns` is not shared, in words."""
    if threads == 1:
        return "one thread was asked for"
    return f"{ns:.0f} ns is too little to share: a worker costs {barrier_ns(target):.0f} ns"


@dataclass(frozen=True)
class WavePrices:
    """Costs in ns of running a model's steps in waves: several threads compute up to a barrier."""

    prices: SharingPrices

    @classmethod
    def on(cls, target: Target) -> WavePrices:
        return cls(sharing_prices(target))

    @property
    def without_crossing(self) -> WavePrices:
        """The same costs with bytes that cross between cores for free."""
        return WavePrices(self.prices._replace(crossing_bytes=inf))

    def crossing_ns(self, count: float) -> float:
        """Nanoseconds to read `count` bytes that another core wrote last."""
        return count / self.prices.crossing_bytes

    def torn_ns(self, lines: int) -> float:
        """Nanoseconds lost by cache lines of which two threads write a part each."""
        return self.crossing_ns(lines * self.prices.torn_line_bytes)

    def wave_ns(self, longest_ns: float, threads: int) -> float:
        """Nanoseconds of a wave of `threads` threads: the longest thread's, and the barriers."""
        return longest_ns + self.prices.barrier_ns * (threads - 1)

    def gain_enough(self, alone_ns: float, ns: float) -> bool:
        """Whether shared waves, which take `alone_ns` on one thread, gain enough."""
        return self.score(alone_ns, ns, True) >= 1

    def score(self, alone_ns: float, ns: float, is_shared: bool) -> float:
        """Speedup of a wave over one thread, divided by the least gain if threads share it."""
        gain = alone_ns / ns if ns else 1.0
        return gain / self.prices.least_gain if is_shared else gain
