"""A folder of recordings spoken into a folder; failed files are tried once more, others kept.

    tasks_of           the files of a folder, as tasks
    speak_tasks        speaks them by a `Crew`, and reports
    worker_processes   a crew: worker processes of this machine
    ray_cluster        a crew: a Ray cluster
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from sparsejit.errors import InvalidInput, MissingDependency, SparseJitError
from sparsejit.files import check_writable
from sparsejit.voice.features import AUDIO_SUFFIXES
from sparsejit.voice.speak.speak_file import (
    MEL_SUFFIX,
    SpokenFile,
    count_frames,
    expected_samples,
    is_whole_wav,
    speak_file,
)
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.weights import is_voice_file

# Files that are read from a folder; a single recording may have any format that libsndfile reads.
SOURCE_SUFFIXES = (
    *AUDIO_SUFFIXES,
    *(".aif", ".aiff", ".au", ".caf", ".mp3", ".oga", ".opus", ".w64"),
    MEL_SUFFIX,
)


@dataclass(frozen=True, order=True)
class SpeakingTask:
    """A recording or mel in a file, and the WAV file to speak it into."""

    source: Path
    out: Path


@dataclass(frozen=True)
class Manner:
    """Settings for all files of a folder; `dtype` is the dtype of the voice's stored matrices.

    `post_filter` is for voices of our own: voices of another project are never filtered.
    `sample_rate` and `companding` are for a checkpoint that another project wrote, as in
    `WaveRNN.from_checkpoint`.
    """

    voice: Path
    seed: int = 0
    temperature: float | None = None
    dtype: str = "float32"
    sample_rate: int | None = None
    companding: str | None = None
    post_filter: bool = True

    def compile(self) -> WaveRNN:
        """Compile the voice. Raises as `WaveRNN.from_pretrained` or `WaveRNN.from_checkpoint` does.

        Raises InvalidInput too for a sample rate or companding with a voice of our own.
        """
        how = {name: getattr(self, name) for name in ("dtype", "temperature", "post_filter")}
        if not is_voice_file(self.voice):
            rate, curve = self.sample_rate, self.companding
            return WaveRNN.from_checkpoint(self.voice, sample_rate=rate, companding=curve, **how)
        if self.sample_rate is not None or self.companding is not None:
            raise InvalidInput(
                f"{self.voice} holds its sample rate and companding; leave both options out, "
                "which are for another project's checkpoint"
            )
        return WaveRNN.from_pretrained(self.voice, **how)

    def speak(self, task: SpeakingTask, look_up: Callable[[], None]) -> SpokenFile | str:
        """Speak one file; return its error in one line where it fails.

        `look_up` is called after every piece; a BaseException from it that is no Exception, such
        as KeyboardInterrupt, ends the work.
        """
        try:
            voice = _compiled(self)
            count_frames(task.source, voice.source, lambda _: look_up())
            return speak_file(voice, task.source, task.out, self.seed, lambda _: look_up())
        except SparseJitError as error:
            return str(error)
        except Exception as error:  # one file's error: the others are still spoken
            return f"{type(error).__name__}: {error}"


Outcome = tuple[SpeakingTask, SpokenFile | str]
# Speaks tasks, in any order, and yields the outcome of each.
Crew = Callable[[Iterable[SpeakingTask]], Iterator[Outcome]]


@dataclass
class FolderReport:
    """Outcome of the files of a folder; `failed` has the errors."""

    spoken: dict[SpeakingTask, SpokenFile] = field(default_factory=dict)
    kept: list[SpeakingTask] = field(default_factory=list)
    failed: dict[SpeakingTask, str] = field(default_factory=dict)


def tasks_of(folder: Path, out: Path) -> list[SpeakingTask]:
    """Tasks for the recordings and mels of a folder, by name, each with a WAV file in `out`.

    Raises InvalidInput where there is none, where two would be spoken into one file, and where
    `out` lies in the folder or cannot be written to.
    """
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            f"{out} lies in {folder}, whose recordings are read; name a folder outside it"
        )
    sources = sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SOURCE_SUFFIXES and file.is_file() and file.name[0] != "."
    )
    if not sources:
        raise InvalidInput(f"{folder} holds no {', '.join(SOURCE_SUFFIXES)} file; put some there")
    spoken_from: dict[Path, Path] = {}
    for source in sources:
        wav = out / f"{source.stem}.wav"
        other = spoken_from.setdefault(wav, source)
        if other is not source:
            raise InvalidInput(f"{other} and {source} would both be {wav}; rename one of them")
        check_writable(wav)
    return [SpeakingTask(source, wav) for wav, source in spoken_from.items()]


def speak_tasks(
    tasks: Iterable[SpeakingTask],
    network: TrainedNetwork,
    crew: Crew,
    overwrite: bool,
    finished: Callable[[], None],
) -> FolderReport:
    """Speak the files that are not there yet, or all with `overwrite`; then failed ones once more.

    `finished` is called for each file that was there already, was spoken, or has failed twice;
    `network` is the voice's.
    """
    report = FolderReport()
    waiting = []
    for task in tasks:
        if not overwrite and _is_there(task, network):
            report.kept.append(task)
            finished()
        else:
            waiting.append(task)
    again = []
    for task, outcome in crew(waiting):
        if isinstance(outcome, str):
            again.append(task)
            continue
        report.spoken[task] = outcome
        finished()
    for task, outcome in crew(sorted(again)):
        if isinstance(outcome, str):
            report.failed[task] = outcome
        else:
            report.spoken[task] = outcome
        finished()
    return report


def _is_there(task: SpeakingTask, network: TrainedNetwork) -> bool:
    """Whether the whole output is there. A file of another length may be of another recording."""
    try:
        samples = expected_samples(task.source, network)
    except InvalidInput:
        return False  # speaking it then reports the error
    return is_whole_wav(task.out, samples, network.sample_rate)


@lru_cache(maxsize=1)
def _compiled(manner: Manner) -> WaveRNN:
    """Compile the voice, once in each process."""
    return manner.compile()


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
        """Wait until the parent process ends, then end this one.

        A parent that is killed ends no worker itself.
        """
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
