"""Time kernels of operators other than products, each in its graph of `selftest/graphs.py`.

The output is compared with the operators' float64 references before anything is timed. The whole
graph is timed as products are: in a native loop, pinned, at several places in memory. The share of
its kernel is measured by probes between the steps.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparsejit.api.reports.layers_report import times_of_waves
from sparsejit.ir.spec import DType
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.perf.kernels import PLACES, checked_error
from sparsejit.planner.kernels import OTHER_KERNELS
from sparsejit.runtime.native_timing import aligned, median_of_least
from sparsejit.runtime.step_timing import ModelTimer
from sparsejit.selftest.cases import FloatArray, GraphCase, timed_graph
from sparsejit.selftest.examination import Float64, build_graph, graph_output


@dataclass(frozen=True)
class OperatorTime:
    """A kernel in its graph. Times are nanoseconds of one sample, errors against float64.

    `problem` is the operator, `strategy` the kernel. `ns_min` and `ns_median` are of the whole
    graph, medians over `PLACES` allocations; `ns_kernel` is the median of the kernel's own steps,
    of which `ns_predicted` is predicted.
    """

    problem: str
    strategy: str
    dtype: str
    isa: str
    sizes: dict[str, int]
    ns_min: float
    ns_median: float
    ns_kernel: float
    ns_predicted: float
    code_bytes: int
    pool_bytes: int
    compile_ms: float
    max_abs_error: float
    relative_error: float
    ns_by_place: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run_operators(
    names: Iterable[str],
    dtypes: Iterable[DType] = tuple(DType),
    progress: Callable[[str], None] = lambda step: None,
) -> list[OperatorTime]:
    """Measure kernels of `OTHER_KERNELS` in each dtype that they have here.

    `progress` gets the name of each before it is timed. Raises CompileError where an output is
    wrong.
    """
    target, wanted, times = Target.detect(), tuple(dtypes), []
    for row in (OTHER_KERNELS[name] for name in names):
        for dtype in wanted:
            if row.made_for(target, dtype):
                progress(f"{row.operator}: {row.name} {dtype.value}")
                times.append(_measure(timed_graph(row, dtype, target)))
    return times


def _measure(case: GraphCase) -> OperatorTime:
    begin = time.perf_counter()
    program, schedule = build_graph(case)
    compile_ms = 1000 * (time.perf_counter() - begin)
    exact = graph_output(case)
    error = _checked_error(case, program.memory, schedule, exact)
    timers = [_timer(case, ExecutableMemory(program.image.data), schedule) for _ in range(PLACES)]
    places = [timer.whole() for timer, _ in timers]
    steps = times_of_waves(timers[0][0], schedule, case.row.name).steps
    of_level = f"{case.row.name}-{case.target.isa}"
    own = [
        (wave.ns, ns)
        for wave, ns in zip(schedule.waves, steps, strict=True)
        if any(each.step.kernel in (of_level, case.row.name) for each in wave.steps)
    ]
    return OperatorTime(
        problem=case.row.operator,
        strategy=case.row.name,
        dtype=case.dtype.value,
        isa=case.target.isa,
        sizes=case.sizes,
        ns_min=median_of_least(places),
        ns_median=statistics.median(timing.median_ns for timing in places),
        ns_kernel=sum(ns for _, ns in own),
        ns_predicted=sum(ns for ns, _ in own),
        code_bytes=program.image.code_bytes,
        pool_bytes=program.image.pool_bytes,
        compile_ms=compile_ms,
        max_abs_error=error,
        relative_error=error / float(np.abs(exact).max()),
        ns_by_place=tuple(timing.min_ns for timing in places),
    )


def _checked_error(
    case: GraphCase, memory: ExecutableMemory, schedule: ModelSchedule, exact: Float64
) -> float:
    """The largest error of all tiles; raises CompileError where it is too large."""
    timer, y = _timer(case, memory, schedule, len(exact))
    timer.run()
    return checked_error(case.kernel, y, exact, case.about.steps)


def _timer(
    case: GraphCase, memory: ExecutableMemory, schedule: ModelSchedule, tiles: int = 1
) -> tuple[ModelTimer, FloatArray]:
    """A timer of calls of some tiles with arrays of their own, and the output."""
    x = [aligned(each[:tiles]) for each in case.inputs]
    y = aligned(np.full((tiles, *case.y_shape[1:]), np.nan, np.float32))
    return ModelTimer(memory, schedule.workspace_bytes, (x, [y]), tiles), y
