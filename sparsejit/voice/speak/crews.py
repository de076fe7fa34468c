"""Crews that speak a folder: worker processes of this machine, or a Ray cluster."""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.speak.bulk import Crew, Manner, Outcome, SpeakingTask
from sparsejit.voice.speak.speak_file import SpokenFile

_DIED = "its worker process died; was there too little memory?"
# Variables of libraries that would start threads of their own beside the workers.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Time for a cluster to end cancelled tasks and to remove their files.
_SECONDS_TO_STOP = 30.0
_SECONDS_TO_ANSWER = 5.0


@contextmanager
def worker_processes(manner: Manner, workers: int) -> Iterator[Crew]:
    """A crew of processes. At the end of the block each stops, within a piece, and leaves no file.

    Each has an executor of its own: a process that dies does not fail another's file.
    """
    stop = multiprocessing.get_context("spawn").Event()
    executors = [_executor(manner, stop) for _ in range(workers)]

    def submit(place: int, task: SpeakingTask) -> Future[SpokenFile | str]:
        with _as_workers_start():
            try:
                return executors[place].submit(_speak_in_worker, task)
            except BrokenProcessPool:  # the process died without a task
                executors[place] = _executor(manner, stop)
                return executors[place].submit(_speak_in_worker, task)

    def crew(tasks: Iterable[SpeakingTask]) -> Iterator[Outcome]:
        waiting, free = deque(tasks), list(range(workers))
        busy: dict[Future[SpokenFile | str], tuple[int, SpeakingTask]] = {}
        while waiting or busy:
            while waiting and free:
                place, task = free.pop(), waiting.popleft()
                busy[submit(place, task)] = (place, task)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                place, task = busy.pop(future)
                free.append(place)
                try:
                    yield task, future.result()
                except BrokenProcessPool:
                    yield task, _DIED

    try:
        yield crew
    finally:
        stop.set()
        for executor in executors:
            executor.shutdown(cancel_futures=True)


def _executor(manner: Manner, stop: Event) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), _WorkerProcess.begin, (manner, stop)
    )


@contextmanager
def _as_workers_start() -> Iterator[None]:
    """Set the state that a new process inherits: one thread for its libraries, and no Ctrl-C.

    The terminal sends Ctrl-C to all processes, but this one alone decides when work ends.
    """
    added = [name for name in _THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in added:
            del os.environ[name]


class _WorkerProcess:
    """State of a worker process."""

    manner: Manner
    stop: Event
    speaking = threading.Lock()

    @classmethod
    def begin(cls, manner: Manner, stop: Event) -> None:
        cls.manner, cls.stop = manner, stop
        threading.Thread(target=cls.end_with_parent, daemon=True).start()

    @classmethod
    def end_with_parent(cls) -> None:
        """End this process with its parent, which may be killed and then ends no worker."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            cls.stop.set()
            with cls.speaking:  # its temporary file is removed by then
                os._exit(1)

    @classmethod
    def look_up(cls) -> None:
        if cls.stop.is_set():
            raise KeyboardInterrupt


def _speak_in_worker(task: SpeakingTask) -> SpokenFile | str:
    with _WorkerProcess.speaking:
        return _WorkerProcess.manner.speak(task, _WorkerProcess.look_up)


@contextmanager
def ray_cluster(manner: Manner, address: str) -> Iterator[Crew]:
    """A crew that is a Ray cluster, whose nodes see the files under the same paths.

    At the end of the block running tasks are cancelled, and leave no file. Raises
    MissingDependency where Ray is not installed, InvalidInput where no cluster answers.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("ray is missing: pip install 'sparsejit[ray]'") from error
    _check_that_it_listens(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise InvalidInput(f"no Ray cluster answers at {address} ({error})") from error
    # No retries here: `speak_tasks` repeats failed tasks, as with processes.
    speak = ray.remote(num_cpus=1, max_retries=0)(_speak_on_cluster)
    there = replace(manner, voice=manner.voice.absolute())
    running: dict[Future[SpokenFile | str], Any] = {}

    def crew(tasks: Iterable[SpeakingTask]) -> Iterator[Outcome]:
        asked = {}
        for task in tasks:
            paths = SpeakingTask(task.source.absolute(), task.out.absolute())
            reference = speak.remote(there, paths)
            future = reference.future()
            asked[future], running[future] = task, reference
        for future in as_completed(asked):
            del running[future]
            try:
                yield asked[future], future.result()
            except ray.exceptions.RayError as error:
                yield asked[future], f"{type(error).__name__}: {error}"

    try:
        yield crew
    finally:
        for reference in running.values():
            ray.cancel(reference)
        if running:
            wait(running, _SECONDS_TO_STOP)
        ray.shutdown()


def _check_that_it_listens(address: str) -> None:
    """Raise InvalidInput where host:port refuses a connection, which Ray would retry for minutes.

    Addresses of other forms are left to Ray, which reports errors in them at once.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"no Ray cluster answers at {address} ({error})") from error


def _speak_on_cluster(manner: Manner, task: SpeakingTask) -> SpokenFile | str:
    return manner.speak(task, lambda: None)
