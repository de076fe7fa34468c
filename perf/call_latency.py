"""How late calls at a steady rate are done: percentiles and a histogram of each engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = (50.0, 99.0, 99.9, 99.99)
_BINS = 16
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class CallLatency:
    """Microseconds from when a call was due to when it was done.

    percentiles: by their percent; None where the calls are too few for one to lie beyond it.
    histogram: calls in each bin of the report's edges.
    """

    name: str
    calls: int
    percentiles: dict[float, float | None]
    worst: float
    histogram: tuple[int, ...]

    @property
    def bars(self) -> str:
        """The histogram in a line, a letter a bin, heights by the logarithm of the count."""
        top = np.log1p(max(self.histogram))
        heights = np.ceil((len(_BARS) - 1) * np.log1p(self.histogram) / top).astype(int)
        return "".join(_BARS[height] for height in heights)


@dataclass(frozen=True)
class LatencyReport:
    """All engines at one rate, by their 99th percentiles.

    rate: calls due in a second. edges: of bins evenly spaced by their logarithms, in microseconds,
    one more than bins. skipped: who cannot keep up, and why.
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
    """`late_ns`: of each engine's calls, nanoseconds from due to done."""
    found = {name: np.sort(np.asarray(ns)) / 1000 for name, ns in late_ns.items()}
    if not found:
        return LatencyReport(rate, (), (), skipped)
    least = min(us[0] for us in found.values())
    most = max(us[-1] for us in found.values())
    edges = np.geomspace(least, max(most, 1.01 * least), _BINS + 1)
    edges[0], edges[-1] = least, max(edges[-1], most)  # rounding leaves out none
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
    """The least that so many percent do not exceed, if any does."""
    beyond = round(len(ascending) * (100 - percent) / 100, 6)
    return float(ascending[len(ascending) - 1 - int(beyond)]) if beyond >= 1 else None
