"""Worker processes that examine kernels: a crash or a hang is a failure of the kernel in flight."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from sparsejit.selftest.cases import derive
from sparsejit.selftest.examination import Compile, Verdict, compile_case, examine

# No kernel takes a second; one that takes so long hangs.
PATIENCE_S = 60.0
# So many failures tell enough; each may have cost a new process.
MOST_FAILURES = 25

_LOOK_AROUND_S = 0.5

# How numpy's BLAS, whichever it is, is told its number of threads.
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class _Worker:
    """A process, and the kernel that it has in hand since `since`, if any."""

    process: SpawnProcess
    connection: Connection
    number: int | None = None
    since: float = 0.0


class SelfTest:
    """Examines the kernels of `seed` whose numbers are given, in `workers` processes.

    `compile_it` makes the kernel of a case; it must be a function of a module, for processes that
    are started anew. `clock` tells seconds.
    """

    def __init__(
        self,
        seed: int,
        workers: int,
        compile_it: Compile = compile_case,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seed = seed
        self._workers = workers
        self._compile_it = compile_it
        self._clock = clock

    def run(
        self, numbers: Iterator[int], go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Verdict]:
        """Every kernel's verdict as it comes, until `go_on` says no or `MOST_FAILURES` failed."""
        failures = 0

        def next_number() -> int | None:
            return next(numbers, None) if go_on() and failures < MOST_FAILURES else None

        workers = [self._start() for _ in range(self._workers)]
        try:
            for worker in workers:
                self._hand_over(worker, next_number())
            while busy := [worker for worker in workers if worker.number is not None]:
                wait([worker.connection for worker in busy], _LOOK_AROUND_S)
                for worker in busy:
                    verdict = self._look_at(worker)
                    if verdict is None:
                        continue
                    failures += verdict.problem is not None
                    yield verdict
                    self._hand_over(worker, next_number())
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()
                worker.connection.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=_serve, args=(there, self._seed, self._compile_it), daemon=True
        )
        with _one_blas_thread():
            process.start()
        there.close()
        return _Worker(process, here)

    def _hand_over(self, worker: _Worker, number: int | None) -> None:
        """Give a worker, or the one that takes its place, a number; None is no more work."""
        worker.number, worker.since = number, self._clock()
        if number is None:
            return
        if not worker.process.is_alive():
            worker.connection.close()
            fresh = self._start()
            worker.process, worker.connection = fresh.process, fresh.connection
        with contextlib.suppress(BrokenPipeError):  # it died just now: `_look_at` will see
            worker.connection.send(number)

    def _look_at(self, worker: _Worker) -> Verdict | None:
        """What became of the kernel that a worker has in hand; None while it is at work."""
        assert worker.number is not None
        if worker.connection.poll():
            try:
                verdict: Verdict = worker.connection.recv()
                return verdict
            except (EOFError, ConnectionResetError):
                worker.process.join()
                return self._failure(worker.number, _end_in_words(worker.process.exitcode))
        if self._clock() - worker.since < PATIENCE_S:
            return None
        worker.process.kill()
        worker.process.join()
        return self._failure(worker.number, f"hung: no answer for {PATIENCE_S:.0f} s")

    def _failure(self, number: int, problem: str) -> Verdict:
        case = derive(self._seed, number)
        dtype, isa = case.each.dtype.value, case.target.isa
        return Verdict(number, case.strategy, dtype, isa, case.threads, problem)


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """A process started meanwhile keeps to one core: there is one process a core already."""
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


def _serve(connection: Connection, seed: int, compile_it: Compile) -> None:
    """Examine kernel after kernel, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        connection.send(examine(derive(seed, number), compile_it))
