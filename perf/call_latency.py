"""Latencies: percentiles and a histogram for each engine.

    latency_report          of calls at a steady rate, or one after another
    native_latencies        of each call of a model, or step of a stream, in one native loop
    spare_core, busy_core   a load on another core meanwhile
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.stepped import StepOperand
from sparsejit.api.reports.layers_report import example_arrays
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array, Value
from sparsejit.runtime.native_call import new_workspace
from sparsejit.runtime.step_timing import ns_of_calls

PERCENTILES = (50.0, 99.0, 99.9, 99.99)
_BINS = 16
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class CallLatency:
    """Latencies of one engine: microseconds from a call's due time to its end.

    Where calls follow each other at once, a call is due when the one before has ended.

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

    rate: calls due in a second; 0 where they follow each other at once. edges: of logarithmically
    spaced bins, in microseconds, one more than bins. skipped: engines that cannot keep up, with the
    reason. load: of another core meanwhile, in words.
    """

    rate: float
    edges: tuple[float, ...]
    engines: tuple[CallLatency, ...]
    skipped: dict[str, str]
    load: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def latency_report(
    rate: float,
    late_ns: Mapping[str, Sequence[float] | Array],
    skipped: dict[str, str],
    load: str = "",
) -> LatencyReport:
    """Make a report of `late_ns`: by engine, nanoseconds from due to done of each call."""
    found = {name: np.sort(np.asarray(ns)) / 1000 for name, ns in late_ns.items()}
    if not found:
        return LatencyReport(rate, (), (), skipped, load)
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
    return LatencyReport(rate, tuple(map(float, edges)), tuple(engines), skipped, load)


def _percentile(ascending: "np.ndarray[Any, Any]", percent: float) -> float | None:
    """The time that `percent` of the calls do not exceed; None if fewer than one lies beyond."""
    beyond = round(len(ascending) * (100 - percent) / 100, 6)
    return float(ascending[len(ascending) - 1 - int(beyond)]) if beyond >= 1 else None


# Calls of a native loop: the fewest, the most, and the first, which tell how many fit the time.
_FEWEST_CALLS, _MOST_CALLS, _FIRST_CALLS = 1_000, 10_000_000, 200


def native_latencies(fast: CompiledModel, seconds: float) -> Array:
    """Nanoseconds of each call of a model in one native loop, of as many as fit the seconds.

    A model with states runs the steps of one stream. Inputs are random, the same for all calls.
    """
    variant = fast.parts.variants[0]
    arrays: tuple[list[Array], ...] = example_arrays(variant.graph)
    memory, samples = variant.program.memory, variant.tile or 1
    room = new_workspace(variant.workspace_bytes)
    if fast.states:
        stepped, samples = fast.stepped(1), 1
        memory, room = stepped.step.memory, stepped.new_block()
        operands = stepped.inputs, stepped.outputs
        values = variant.inputs, variant.outputs
        arrays = tuple(map(_without_states, operands, values, arrays))
    run = partial(ns_of_calls, memory, arrays, room, samples)
    each = float(np.median(run(_FIRST_CALLS)))
    return run(min(max(int(seconds * 1e9 / max(each, 1.0)), _FEWEST_CALLS), _MOST_CALLS))


def _without_states(
    operands: Sequence[StepOperand], values: Sequence[Value], arrays: Sequence[Array]
) -> list[Array]:
    """The arrays of a step's operands, of one sample."""
    by_value = dict(zip(values, arrays, strict=True))
    found = [(by_value[each.value], each.axis) for each in operands]
    return [a if axis is None else np.ascontiguousarray(a[:1]) for a, axis in found]


def spare_core() -> int:
    """The last allowed core. Raises InvalidInput where it is the only one."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise InvalidInput(f"core {first} is the only one; leave out --load, or allow another")
    return others[-1]


@contextmanager
def busy_core(core: int) -> Iterator[str]:
    """Keep a core busy inside the context; yield the load in words."""
    command = [sys.executable, "-c", _LOAD, str(core), str(os.getpid())]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            yield f"products of 256 x 256 and copies of 64 MiB in turns on core {core}"
        finally:
            process.kill()


# It ends with its parent, however that ends.
_LOAD = """
import os, sys
import numpy as np
os.sched_setaffinity(0, {int(sys.argv[1])})
x, a = np.ones((256, 256), np.float32), np.ones(1 << 24, np.float32)
b = a.copy()
while os.getppid() == int(sys.argv[2]):
    for _ in range(20):
        x @ x
    b[:] = a
"""
