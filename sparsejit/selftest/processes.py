"""Kernels examined in worker processes: a crash or a hang is a failure of the running kernel."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from sparsejit.selftest.cases import derive
from sparsejit.selftest.examination import Compile, Verdict, compile_case, examine
from sparsejit.selftest.trials import Trials

# Time limit. No kernel takes a second, so one that takes longer than this hangs.
PATIENCE_S = 60.0
# The test stops after this number of failures; each may have cost a new process.
MOST_FAILURES = 25


class SelfTest:
    """Examines kernels of `seed`, in `workers` processes.

    `compile_it` makes the kernel of a case; it must be a module-level function, because processes
    are spawned. `clock` returns seconds.
    """

    def __init__(
        self,
        seed: int,
        workers: int,
        compile_it: Compile = compile_case,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        attempt, failed = partial(_examined, seed, compile_it), partial(_failure, seed)
        self._trials = Trials(attempt, failed, workers, PATIENCE_S, clock)

    def run(
        self, numbers: Iterator[int], go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Verdict]:
        """Yield each kernel's verdict, until `go_on` is false or `MOST_FAILURES` have failed."""
        failures = 0

        def wanted() -> Iterator[int]:
            while go_on() and failures < MOST_FAILURES:
                number = next(numbers, None)
                if number is None:
                    return
                yield number

        for verdict in self._trials.run(wanted()):
            failures += verdict.problem is not None
            yield verdict


def _examined(seed: int, compile_it: Compile, number: int) -> Verdict:
    return examine(derive(seed, number), compile_it)


def _failure(seed: int, number: int, problem: str) -> Verdict:
    case = derive(seed, number)
    dtype, isa = case.each.dtype.value, case.target.isa
    return Verdict(number, case.strategy, dtype, isa, case.threads, problem)
