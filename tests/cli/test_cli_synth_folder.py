"""`sparsejit synth` of a folder: the report, the exit status, Ctrl-C, and what is refused."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

soundfile = pytest.importorskip("soundfile")

from spoken_folder import assert_spoken, manner_of_a_small_voice, recordings  # noqa: E402

from sparsejit.commands import synth_folder as command  # noqa: E402
from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.voice.speak.bulk import Crew, Manner, Outcome, SpeakingTask  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def manner(tmp_path_factory: pytest.TempPathFactory) -> Manner:
    return manner_of_a_small_voice(tmp_path_factory.mktemp("voice"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recordings(tmp_path / "in")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the number of workers, or the cluster, asked for; this process speaks."""
    crews: list[object] = []

    @contextmanager
    def here(manner: Manner, whom: object) -> Iterator[Crew]:
        crews.append(whom)

        def crew(tasks: Iterable[SpeakingTask]) -> Iterator[Outcome]:
            for task in tasks:
                yield task, manner.speak(task, lambda: None)

        yield crew

    monkeypatch.setattr(command, "worker_processes", here)
    monkeypatch.setattr(command, "ray_cluster", here)
    return crews


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["synth", *map(str, arguments)])


def test_the_report_names_each_file(
    folder: Path, tmp_path: Path, manner: Manner, asked: list[object]
) -> None:
    np.save(folder / "b.npy", np.zeros((80, 3)) + np.nan)
    out, options = tmp_path / "out", ("--voice", manner.voice, "--seed", "7", "--json")
    done = run(folder, out, *options, "--temperature", "0.8", "--workers", "3")
    assert (done.exit_code, asked) == (1, [3])
    report = json.loads(done.stdout)
    assert [Path(one["recording"]).name for one in report["spoken"]] == ["a.npy", "c.npy", "d.FLAC"]
    assert set(report["spoken"][0]) >= {"seconds", "computing_seconds", "first_audio_ms"}
    assert report["seconds"] == 3 * 4 * 220 / 22_050
    assert (report["seed"], report["temperature"], report["kept"]) == (7, 0.8, [])
    (failed,) = report["failed"]
    assert failed["recording"] == str(folder / "b.npy")
    assert "NaN" in failed["error"]
    for name in "ac":
        assert_spoken(manner, SpeakingTask(folder / f"{name}.npy", out / f"{name}.wav"))

    np.save(folder / "b.npy", np.zeros((80, 3)) - 3)
    again = run(folder, out, *options, "--ray", "head:6379")
    assert (again.exit_code, asked) == (0, [3, "head:6379"])
    report = json.loads(again.stdout)
    assert [Path(one["out"]).name for one in report["spoken"]] == ["b.wav"]
    assert report["kept"] == [str(out / f"{name}.wav") for name in "acd"]


def test_the_lines_say_what_was_made_kept_and_failed(
    folder: Path, tmp_path: Path, manner: Manner, asked: list[object]
) -> None:
    (folder / "d.FLAC").write_bytes(b"no audio")
    out, voice = tmp_path / "out", ("--voice", manner.voice)
    done = run(folder, out, *voice)
    assert (done.exit_code, asked) == (1, [command.available_cores()])
    assert f"0.1 s of speech in 3 files in {out}, made in " in done.stdout
    assert f"failed: cannot read audio from {folder / 'd.FLAC'}" in done.stderr
    (folder / "d.FLAC").unlink()
    kept = run(folder, out, *voice)
    assert (kept.exit_code, kept.stderr) == (0, "")
    assert kept.stdout == "3 were there already; --overwrite speaks them again\n"
    assert "in 3 files in" in run(folder, out, *voice, "--overwrite").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--play",), "--play is for one recording"),
        (("--workers", "2", "--ray", "auto"), "exclude each other"),
        (("--voice", "nothing.safetensors"), "there is no voice file"),
    ],
)
def test_impossible_options_are_refused_before_the_work(
    folder: Path, tmp_path: Path, asked: list[object], options: tuple[str, ...], message: str
) -> None:
    refused = run(folder, tmp_path / "out", *options)
    assert isinstance(refused.exception, InvalidInput)
    assert message in str(refused.exception)
    assert not asked
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_no_half_file(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """With the bundled voice, and six minutes to speak."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    np.save(folder / "long.npy", np.full((80, 36_000), -5, np.float32))
    command = [sys.executable, "-m", "sparsejit.commands.cli", "synth", str(folder), str(out)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def is_speaking() -> bool:
        """A file without bytes is there only to see that the folder can be written to."""
        with suppress(FileNotFoundError):
            return any(path.stat().st_size for path in out.glob(".long.*.wav"))
        return False

    assert eventually(lambda: is_speaking() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    stopped = "stopped; the same command speaks the remaining recordings\n"
    assert (process.returncode, stdout, stderr) == (130, "", stopped)
    assert list(out.iterdir()) == []
