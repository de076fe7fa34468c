"""What it costs to share work with other cores, and whether that gains enough.

A barrier, and what crosses, are of this machine where it was calibrated, else of its core's data.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sparsejit.machine.prices import SharingPrices
from sparsejit.machine.target import Target


def sharing_prices(target: Target) -> SharingPrices:
    """The prices of the target's core."""
    return target.core.sharing


def barrier_ns(target: Target) -> float:
    """What a call costs beyond its longest part: to hand one to a worker and hear of its end."""
    return sharing_prices(target).barrier_ns


def parallel_ns(ns: float, threads: int, target: Target) -> float:
    """Expected time of a layer that takes `ns` alone: equal parts, and a barrier a worker."""
    return ns / threads + barrier_ns(target) * (threads - 1)


def gains_enough(ns: float, shared_ns: float, target: Target) -> bool:
    """Whether what takes `ns` on one thread is to be shared, for prediction errs."""
    return ns >= sharing_prices(target).least_gain * shared_ns


def worthwhile_threads(ns: float, most: int, target: Target) -> int:
    """How many of at most `most` threads make a layer of `ns` fastest; 1 if they gain little."""
    best = min(range(1, most + 1), key=lambda threads: parallel_ns(ns, threads, target))
    return best if gains_enough(ns, parallel_ns(ns, best, target), target) else 1


def why_alone(ns: float, threads: int, target: Target) -> str:
    """Why a layer that takes `ns` is not shared."""
    if threads == 1:
        return "one thread was asked for"
    return f"{ns:.0f} ns is too little to share: a worker costs {barrier_ns(target):.0f} ns"


@dataclass(frozen=True)
class WavePrices:
    """What the steps of a model take when several threads run them between barriers; in ns."""

    prices: SharingPrices

    @classmethod
    def on(cls, target: Target) -> WavePrices:
        return cls(sharing_prices(target))

    @property
    def without_crossing(self) -> WavePrices:
        """As if what one core wrote were as near to all others."""
        return WavePrices(self.prices._replace(crossing_bytes=inf))

    def crossing_ns(self, count: float) -> float:
        """Nanoseconds for bytes that another core wrote last."""
        return count / self.prices.crossing_bytes

    def torn_ns(self, lines: int) -> float:
        """Nanoseconds for cache lines of which two threads write a part each."""
        return self.crossing_ns(lines * self.prices.torn_line_bytes)

    def wave_ns(self, longest_ns: float, threads: int) -> float:
        """Nanoseconds for so many threads, the caller's among them, of which one takes longest."""
        return longest_ns + self.prices.barrier_ns * (threads - 1)

    def score(self, alone_ns: float, ns: float, is_shared: bool) -> float:
        """How many times faster a wave is than one thread; less where threads share it."""
        gain = alone_ns / ns if ns else 1.0
        return gain / self.prices.least_gain if is_shared else gain
