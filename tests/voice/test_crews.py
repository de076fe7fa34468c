"""Worker processes: the samples of a file alone, a process that dies, and the end of all."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsejit.voice.speak.bulk import Manner, SpeakingTask, speak_tasks, tasks_of, worker_processes
from sparsejit.voice.speak.speak_file import SpokenFile

pytest.importorskip("soundfile")
from spoken_folder import NETWORK, assert_spoken, manner_of_a_small_voice, recordings

DONE = SpokenFile(220, 0.1, 1.0, 22_050)


def nothing() -> None:
    pass


@pytest.fixture
def tasks(tmp_path: Path) -> list[SpeakingTask]:
    return tasks_of(recordings(tmp_path / "in"), tmp_path / "out")


def test_worker_processes_give_the_samples_of_a_file_alone(
    tmp_path: Path, tasks: list[SpeakingTask]
) -> None:
    manner = manner_of_a_small_voice(tmp_path)
    with worker_processes(manner, 2) as crew:
        report = speak_tasks(tasks, NETWORK, crew, False, nothing)
    assert set(report.spoken) == set(tasks)
    for task in tasks[:3]:
        assert_spoken(manner, task)


class Deadly(Manner):
    """Its worker process dies of b, and of c the first time."""

    def speak(self, task: SpeakingTask, look_up: Callable[[], None]) -> SpokenFile | str:
        name = task.source.stem
        if name == "b" or (name == "c" and not task.out.exists()):
            task.out.parent.mkdir(exist_ok=True)
            task.out.touch()
            os._exit(9)
        return DONE


def test_a_worker_that_dies_takes_no_other_file_with_it(tasks: list[SpeakingTask]) -> None:
    with worker_processes(Deadly(Path("voice")), 2) as crew:
        report = speak_tasks(tasks, NETWORK, crew, True, nothing)
    assert set(report.failed) == {tasks[1]}
    assert "died" in report.failed[tasks[1]]
    assert set(report.spoken) == {tasks[0], tasks[2], tasks[3]}


class Endless(Manner):
    """Is done with a at once, and speaks b until it is told to stop; files say what it did."""

    def speak(self, task: SpeakingTask, look_up: Callable[[], None]) -> SpokenFile | str:
        if task.source.stem == "a":
            return DONE
        task.out.parent.mkdir(exist_ok=True)
        task.out.with_suffix(".begun").touch()
        try:
            while True:
                look_up()
        finally:
            task.out.with_suffix(".ended").touch()


def test_workers_stop_where_the_block_ends(
    tasks: list[SpeakingTask], eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    def interrupt() -> None:
        assert eventually(tasks[1].out.with_suffix(".begun").exists)
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        worker_processes(Endless(Path("voice")), 2) as crew,
    ):
        speak_tasks(tasks[:2], NETWORK, crew, True, interrupt)
    assert tasks[1].out.with_suffix(".ended").exists()


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {paths}
from spoken_folder import NETWORK
from test_crews import Endless, nothing
from sparsejit.voice.speak.bulk import speak_tasks, tasks_of
from sparsejit.voice.speak.bulk import worker_processes
if __name__ == "__main__":
    tasks = tasks_of(Path({folder!r}), Path({out!r}))
    with worker_processes(Endless(Path("voice")), 1) as crew:
        speak_tasks(tasks[1:2], NETWORK, crew, True, nothing)
"""


def test_workers_end_when_whoever_began_them_is_killed(
    tmp_path: Path,
    tasks: list[SpeakingTask],
    eventually: Callable[[Callable[[], bool]], bool],
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script.write_text(SCRIPT.format(paths=paths, folder=str(tmp_path / "in"), out=str(out)))
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    assert eventually((out / "b.begun").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually((out / "b.ended").exists)
