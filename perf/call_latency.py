"""Latencies of calls at a steady rate: percentiles and a histogram for each engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = (50.0, 99.0, 99.9, 99.99)
_BINS = 16
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class CallLatency:
    """Latencies of one engine: microseconds from a call's due time to its end.

    percentiles: by percent; None where fewer than one call would lie beyond it.
    histogram: number of calls in each bin of the report's `edges`.
    """

    name: str
    calls: int
    percentiles: dict[float, float | None]
    worst: float
    histogram: tuple[int, ...]

    @property
    def bars(self) -> str:
        """The histogram as a line, one character a bin, with heights logarithmic in the count."""
        top = np.log1p(max(self.histogram))
        heights = np.ceil((len(_BARS) - 1) * np.log1p(self.histogram) / top).astype(int)
        return "".join(_BARS[height] for height in heights)


@dataclass(frozen=True)
class LatencyReport:
    """Latencies of all engines at one rate, sorted by their 99th percentiles.

    rate: calls due in a second. edges: of logarithmically spaced bins, in microseconds, one more
    than bins. skipped: engines that cannot keep up, with the reason.
    """

    rate: float
    edges: tuple[float, ...]
    engines: tuple[CallLatency, ...]
    skipped: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def latency_report(
    rate: float, late_ns: Mapping[str, Sequence[float]], skipped: dict[str, str]
) -> LatencyReport:
    """Make a report of `late_ns`: by engine, nanoseconds from due to done of each call."""
    found = {name: np.sort(np.asarray(ns)) / 1000 for name, ns in late_ns.items()}
    if not found:
        return LatencyReport(rate, (), (), skipped)
    least = min(us[0] for us in found.values())
    most = max(us[-1] for us in found.values())
    edges = np.geomspace(least, max(most, 1.01 * least), _BINS + 1)
    edges[0], edges[-1] = least, max(edges[-1], most)  # rounding must lose no call
    engines = [
        CallLatency(
            name,
            len(us),
            {percent: _percentile(us, percent) for percent in PERCENTILES},
            float(us[-1]),
            tuple(map(int, np.histogram(us, edges)[0])),
        )
        for name, us in found.items()
    ]
    engines.sort(key=lambda one: one.percentiles[99.0] or one.worst)
    return LatencyReport(rate, tuple(map(float, edges)), tuple(engines), skipped)


def _percentile(ascending: "np.ndarray[Any, Any]", percent: float) -> float | None:
    """The time that `percent` of the calls do not exceed; None if fewer than one lies beyond."""
    beyond = round(len(ascending) * (100 - percent) / 100, 6)
    return float(ascending[len(ascending) - 1 - int(beyond)]) if beyond >= 1 else None
