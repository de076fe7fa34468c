"""Times the steps of a native function that leaves time stamps in its workspace.

The stamps are those of the time stamp counter, read without waiting for earlier instructions, so
that the function runs as it would without them; two in a row at the start say what one costs.
"""

import ctypes
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import Timing, pinned, time_native

_BUDGET_NS = 300_000_000
_FEWEST_RUNS, _MOST_RUNS = 20, 20_000
_WARM_UP_RUNS = 5

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StampedFunction:
    """`int run(inputs, outputs, workspace, tiles)`, and where in its workspace stamps lie.

    The first two stamps have nothing between them; each that follows ends a step.
    """

    memory: ExecutableMemory
    workspace_bytes: int
    first_stamp: int
    steps: int


def time_steps(
    function: StampedFunction, inputs: Sequence[Array], outputs: Sequence[Array]
) -> list[float]:
    """Median nanoseconds of each step over many runs, pinned to one core, inputs warm."""
    workspace = _workspace(function.workspace_bytes)
    stamps = workspace[function.first_stamp :][: 8 * (function.steps + 2)].view(np.int64)
    sources, destinations = _table(inputs), _table(outputs)
    native = function.memory.function(4)
    arguments = ctypes.addressof(sources), ctypes.addressof(destinations), workspace.ctypes.data, 1
    rows: list[Array] = []
    with pinned():
        for _ in range(_WARM_UP_RUNS):
            native(*arguments)
        first_tick, started = _ticks(native, arguments, stamps)
        end = started + _BUDGET_NS
        while len(rows) < _FEWEST_RUNS or (
            len(rows) < _MOST_RUNS and time.perf_counter_ns() < end
        ):
            native(*arguments)
            rows.append(stamps.copy())
        last_tick, ended = _ticks(native, arguments, stamps)
    ns_a_tick = (ended - started) / (last_tick - first_tick)
    spans = np.diff(np.array(rows), axis=1)
    medians = [statistics.median(column) for column in spans.T.tolist()]
    empty, *steps = medians
    return [max(0.0, ticks - empty) * ns_a_tick for ticks in steps]


def time_whole(
    memory: ExecutableMemory,
    workspace_bytes: int,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> Timing:
    """Nanoseconds of a model's function for one tile, in a native loop."""
    workspace, sources, destinations = _workspace(workspace_bytes), _table(inputs), _table(outputs)
    tables = ctypes.addressof(sources), ctypes.addressof(destinations)
    return time_native(memory.address, (*tables, workspace.ctypes.data, 1))


def _workspace(size: int) -> Array:
    raw = np.zeros(size + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :]


def _ticks(native: Any, arguments: tuple[int, ...], stamps: Array) -> tuple[int, int]:
    """The counter and the clock right after a run."""
    native(*arguments)
    return int(stamps[-1]), time.perf_counter_ns()


def _table(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
