"""Tasks in worker processes: a crash or a hang is an outcome, too.

    Trials     processes that run one task after another
    SelfTest   examination of kernels: a crash or a hang is a failure of the running kernel
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from sparsejit.selftest.cases import ProductCase, derive
from sparsejit.selftest.examination import Compile, Verdict, compile_case, examine

_LOOK_AROUND_S = 0.5

# Environment variables that set the number of threads of numpy's BLAS, one for each library.
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Outcome = TypeVar("Outcome")


@dataclass
class _Worker:
    """A process; if `is_busy`, it has been running `task` since the time `since`."""

    process: SpawnProcess
    connection: Connection
    task: Any = None
    is_busy: bool = False
    since: float = 0.0
    done: int = 0


class Trials(Generic[Outcome]):
    """Runs tasks in `workers` processes of one BLAS thread each.

    `attempt(task)` runs in a process and returns the outcome; it must be a module-level function,
    because processes are spawned. `failed(task, problem)` makes the outcome of a task that crashed
    or took more than `patience_s`. `clock` returns seconds. A process is replaced after `most`
    tasks.
    """

    def __init__(
        self,
        attempt: Callable[[Any], Outcome],
        failed: Callable[[Any, str], Outcome],
        workers: int,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        most: int | None = None,
    ) -> None:
        self._attempt, self._failed = attempt, failed
        self._workers = workers
        self._patience_s = patience_s
        self._clock = clock
        self._most = most

    def run(self, tasks: Iterator[Any]) -> Iterator[Outcome]:
        """Yield the outcome of each task when it is done."""
        workers = [self._start() for _ in range(self._workers)]
        try:
            for worker in workers:
                self._hand_over(worker, tasks)
            while busy := [worker for worker in workers if worker.is_busy]:
                wait([worker.connection for worker in busy], _LOOK_AROUND_S)
                for worker in busy:
                    outcome = self._look_at(worker)
                    if outcome is None:
                        continue
                    yield outcome
                    self._hand_over(worker, tasks)
        finally:
            for worker in workers:
                _end(worker)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, self._attempt), daemon=True)
        with _one_blas_thread():
            process.start()
        there.close()
        return _Worker(process, here)

    def _hand_over(self, worker: _Worker, tasks: Iterator[Any]) -> None:
        """Send the next task, if there is one, to a worker, or to its replacement."""
        worker.is_busy = False
        for task in tasks:
            worker.is_busy = True
            worker.task, worker.since = task, self._clock()
            break
        if not worker.is_busy:
            return
        if not worker.process.is_alive() or worker.done == self._most:
            _end(worker)
            fresh = self._start()
            worker.process, worker.connection, worker.done = fresh.process, fresh.connection, 0
        worker.done += 1
        with contextlib.suppress(BrokenPipeError):  # it died just now: `_look_at` reports that
            worker.connection.send(worker.task)

    def _look_at(self, worker: _Worker) -> Outcome | None:
        """Return the outcome of a worker's task, or None while it is running."""
        if worker.connection.poll():
            try:
                outcome: Outcome = worker.connection.recv()
                return outcome
            except (EOFError, ConnectionResetError):
                worker.process.join()
                return self._failed(worker.task, _end_in_words(worker.process.exitcode))
        if self._clock() - worker.since < self._patience_s:
            return None
        worker.process.kill()
        worker.process.join()
        return self._failed(worker.task, f"hung: no answer for {self._patience_s:.0f} s")


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit processes that are started inside to one BLAS thread: there is one process a core."""
    before = {name: os.environ.get(name) for name in _BLAS_THREADS}
    os.environ.update(dict.fromkeys(_BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_in_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"crashed: killed by {signal.Signals(-exit_code).name}"
    return f"ended its process with status {exit_code}"


def serve(connection: Connection, attempt: Callable[[Any], Any]) -> None:
    """Run task after task, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(attempt(task))


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
    threads = case.threads if isinstance(case, ProductCase) else 1
    return Verdict(number, case.kernel, case.dtype.value, case.target.isa, threads, problem)
