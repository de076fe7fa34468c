"""A folder of recordings: each spoken once, what failed once more, what is there kept."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sparsejit.errors import InvalidInput
from sparsejit.voice.speak.bulk import Crew, Manner, Outcome, SpeakingTask, speak_tasks, tasks_of
from sparsejit.voice.speak.speak_file import SpokenFile

soundfile = pytest.importorskip("soundfile")
from spoken_folder import NETWORK, assert_spoken, manner_of_a_small_voice, recordings  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recordings(tmp_path / "in")


@pytest.fixture(scope="module")
def manner(tmp_path_factory: pytest.TempPathFactory) -> Manner:
    return manner_of_a_small_voice(tmp_path_factory.mktemp("voice"))


def nothing() -> None:
    pass


def crew_of(manner: Manner) -> Crew:
    """Speaks in this process."""

    def crew(tasks: Iterable[SpeakingTask]) -> Iterator[Outcome]:
        for task in tasks:
            yield task, manner.speak(task, nothing)

    return crew


def test_a_folder_is_its_recordings_and_mels_by_name(folder: Path, tmp_path: Path) -> None:
    tasks = tasks_of(folder, tmp_path / "out")
    assert [task.source.name for task in tasks] == ["a.npy", "b.npy", "c.npy", "d.FLAC"]
    assert [task.out for task in tasks] == [tmp_path / "out" / f"{name}.wav" for name in "abcd"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", [".", "out", "deep/out", "../in"])
def test_an_output_inside_the_input_is_refused(folder: Path, inside: str) -> None:
    with pytest.raises(InvalidInput, match="name a folder outside"):
        tasks_of(folder, folder / inside)


def test_two_recordings_for_one_output_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "b.wav").touch()
    with pytest.raises(InvalidInput, match=r"b\.npy and .*b\.wav would both be .*out/b\.wav"):
        tasks_of(folder, tmp_path / "out")


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").touch()
    with pytest.raises(InvalidInput, match=r"holds no .*\.flac.*\.npy file"):
        tasks_of(tmp_path / "in", tmp_path / "out")


def test_an_output_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"file.*is no folder"):
        tasks_of(folder, tmp_path / "file")
    (tmp_path / "out" / "c.wav").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"c\.wav.*it is a folder"):
        tasks_of(folder, tmp_path / "out")


def test_complete_files_are_kept(folder: Path, tmp_path: Path, manner: Manner) -> None:
    tasks = tasks_of(folder, tmp_path / "out")
    speak_tasks(tasks[:2], NETWORK, crew_of(manner), False, nothing)
    # A file of another length: cut off, or of another recording.
    soundfile.write(tasks[1].out, np.zeros(100), 22_050)
    finished: list[int] = []
    report = speak_tasks(tasks, NETWORK, crew_of(manner), False, lambda: finished.append(1))
    assert report.kept == tasks[:1]
    assert list(report.spoken) == tasks[1:]
    assert len(finished) == len(tasks)
    assert_spoken(manner, tasks[1])
    again = speak_tasks(tasks, NETWORK, crew_of(manner), True, nothing)
    assert (again.kept, list(again.spoken)) == ([], tasks)


def test_failed_texts_are_spoken_once_more_after_all_others(folder: Path, tmp_path: Path) -> None:
    tasks = tasks_of(folder, tmp_path / "out")
    spoken = SpokenFile(220, 0.1, 1.0, 22_050)
    asked: list[str] = []

    def crew(given: Iterable[SpeakingTask]) -> Iterator[Outcome]:
        for task in given:
            name = task.source.stem
            asked.append(name)
            well = name == "c" or (name == "a" and asked.count("a") == 2)
            yield task, spoken if well else f"{name} failed {asked.count(name)} times"

    report = speak_tasks(tasks, NETWORK, crew, False, nothing)
    assert asked == [*"abcd", *"abd"]
    assert report.spoken == {tasks[0]: spoken, tasks[2]: spoken}
    assert report.failed == {tasks[1]: "b failed 2 times", tasks[3]: "d failed 2 times"}


def test_a_file_that_fails_says_why_and_leaves_nothing(
    folder: Path, tmp_path: Path, manner: Manner
) -> None:
    np.save(folder / "b.npy", np.zeros((3, 80)))
    (folder / "d.FLAC").write_bytes(b"no audio")
    tasks = tasks_of(folder, tmp_path / "out")
    report = speak_tasks(tasks, NETWORK, crew_of(manner), False, nothing)
    assert re.search(r"b\.npy has shape \(3, 80\)", report.failed[tasks[1]])
    assert re.search(r"cannot read audio from .*d\.FLAC", report.failed[tasks[3]])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.wav", "c.wav"]
