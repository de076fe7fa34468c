"""`sparsejit train` as a process: what it shows, Ctrl-C, and what it refuses before it starts."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")

from sparsejit.commands import console  # noqa: E402
from sparsejit.commands import train as command  # noqa: E402
from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import DamagedFile, InvalidInput  # noqa: E402
from sparsejit.voice.train.trainer import TrainingProgress  # noqa: E402
from sparsejit.voice.weights import VoiceWeights  # noqa: E402

ROOT = Path(__file__).parents[2]
STEPS = 12
OPTIONS = ("--hidden-size", "8", "--samples", str(STEPS * 16 * 2 * 220), "--device", "cpu")
# The command, whose fifth step waits for a line from the test.
WAITING = """
import sys
from sparsejit.commands import cli
from sparsejit.voice.train.trainer import Trainer

run_step = Trainer.run_step

def wait_at_the_fifth(self, batch):
    if self.step == 4:
        print("waiting", flush=True)
        sys.stdin.readline()
    return run_step(self, batch)

Trainer.run_step = wait_at_the_fifth
cli.main()
"""
FIRST_LINE = r"step 1 of 12, loss \d\.\d{3}, [\d,]+ samples/s, density 100\.0%\n"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight half seconds of a gliding, pulsed tone."""
    root = tmp_path_factory.mktemp("speech")
    time = np.arange(11_025) / 22_050
    for i in range(8):
        pulses = np.sin(2 * np.pi * (120 + 20 * i) * time * (1 + time)) ** 9
        soundfile.write(root / f"clip{i}.wav", 0.3 * pulses, 22_050)
    return root


def start(program: tuple[str, ...], speech: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, "train", str(speech), "--out", str(out), *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_saves_and_the_same_command_goes_on(speech: Path, tmp_path: Path) -> None:
    command_line = ("-m", "sparsejit.commands.cli")
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    stopped = start(("-c", WAITING), speech, tmp_path / "run")
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == "waiting\n"
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate("\n")
    assert stopped.returncode == 130, errors
    first, *_, last = errors.splitlines(keepends=True)
    assert re.fullmatch(FIRST_LINE, first)
    assert last == f"stopped; the same command goes on from {checkpoint}\n"
    step = torch.load(checkpoint, weights_only=True)["step"]
    assert step == 5
    assert not (tmp_path / "run" / "voice.safetensors").exists()

    going_on = start(command_line, speech, tmp_path / "run")
    output, errors = going_on.communicate()
    assert going_on.returncode == 0, errors
    assert errors.startswith(f"going on from {checkpoint}\nstep {step + 1} of 12, loss ")
    assert output == f"voice: {tmp_path / 'run' / 'voice.safetensors'}\n"
    whole = start(command_line, speech, tmp_path / "whole")
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    assert re.match(FIRST_LINE, errors)
    assert errors.splitlines()[-1].startswith("step 12 of 12, loss ")
    resumed = VoiceWeights.load(tmp_path / "run" / "voice.safetensors")
    for name, value in VoiceWeights.load(tmp_path / "whole" / "voice.safetensors").tensors.items():
        np.testing.assert_array_equal(resumed.tensors[name], value)


def test_a_finished_run_repeated_writes_its_voice_again(speech: Path, tmp_path: Path) -> None:
    arguments = ["train", str(speech), "--out", str(tmp_path), *OPTIONS]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    voice = tmp_path / "voice.safetensors"
    first = VoiceWeights.load(voice)
    voice.write_bytes(b"damaged")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    for name, value in VoiceWeights.load(voice).tensors.items():
        np.testing.assert_array_equal(first.tensors[name], value)


def test_a_voice_to_start_from_is_read_before_the_data(speech: Path, tmp_path: Path) -> None:
    voice = tmp_path / "given.safetensors"
    arguments = ["train", str(speech), "--out", str(tmp_path / "run"), "--start", str(voice)]
    voice.write_bytes(b"no voice")
    refused = CliRunner().invoke(app, [*arguments, *OPTIONS])
    assert isinstance(refused.exception, DamagedFile)
    VoiceWeights.random(16).save(voice)
    refused = CliRunner().invoke(app, [*arguments, *OPTIONS])
    assert isinstance(refused.exception, InvalidInput)
    assert "start from has 16 units, the network 8" in str(refused.exception)
    assert not (tmp_path / "run").exists()
    VoiceWeights.random(8).save(voice)
    one_step = ["--hidden-size", "8", "--samples", "7040", "--amount", "0"]
    assert CliRunner().invoke(app, [*arguments, *one_step]).exit_code == 0


def test_the_bar_of_a_terminal_has_loss_rate_and_density(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=150)
    monkeypatch.setattr(console, "error_console", terminal)
    with console.ProgressBar() as bar:
        bar.show(command.progress_line(TrainingProgress(1, 9000, 5.25, 0.9, 12345.6)), 1, 9000)
        bar.refresh()
    assert "step 1 of 9000, loss 5.250, 12,346 samples/s, density 90.0%" in (screen.getvalue())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hidden-size", "7"], "hidden_size is 7; give a multiple of 8 from 8 to 4096"),
        (["--hidden-size", "0"], "hidden_size is 0"),
        (["--hidden-size", "-8"], "hidden_size is -8"),
        (["--hidden-size", "65536"], "hidden_size is 65536"),
        (["--amount", "3"], "amount=3.0 is outside"),
        (["--dense-amount", "1"], "amount=1.0 is outside"),
        (["--int8-start", "2"], "int8_start is 2.0"),
        (["--product-precision", "low"], "product_precision is 'low'; give one of highest, medium"),
        (["--pattern", "3y"], "pattern='3y' is unknown"),
        (["--samples", "10"], "10 samples are less than one step"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_data_is_read(
    tmp_path: Path, options: list[str], message: str
) -> None:
    """The folder has nothing to read, which would be the next complaint."""
    refused = CliRunner().invoke(app, ["train", str(tmp_path), *options])
    assert isinstance(refused.exception, InvalidInput)
    assert str(refused.exception).startswith(message)


def test_a_checkpoint_of_another_network_is_refused_before_data_is_read(
    speech: Path, tmp_path: Path
) -> None:
    torch.save({"plan": {"hidden_size": 16}}, tmp_path / "checkpoint.pt")
    arguments = ["train", str(speech), "--out", str(tmp_path), *OPTIONS]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, InvalidInput)
    assert "has hidden_size 16, the plan 8" in str(refused.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_place_that_cannot_be_written_is_refused_before_data_is_read(
    speech: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "deep", Path("/proc/voice")):
        refused = CliRunner().invoke(app, ["train", str(speech), "--out", str(out), *OPTIONS])
        assert isinstance(refused.exception, InvalidInput), refused.output
        assert str(out) in str(refused.exception)


@pytest.mark.parametrize("content", [{"plan": {}}, {"plan": 3}, {"plan": {"hidden_size": 8}}])
def test_a_checkpoint_that_is_not_whole_is_refused(
    content: dict[str, object], speech: Path, tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    refused = CliRunner().invoke(app, ["train", str(speech), "--out", str(tmp_path), *OPTIONS])
    assert isinstance(refused.exception, DamagedFile)
    assert "delete it to start afresh" in str(refused.exception)


def test_a_log_that_cannot_be_written_is_refused_before_the_work(
    speech: Path, tmp_path: Path
) -> None:
    (tmp_path / "log.jsonl").mkdir()
    refused = CliRunner().invoke(app, ["train", str(speech), "--out", str(tmp_path), *OPTIONS])
    assert isinstance(refused.exception, InvalidInput)
    assert "log.jsonl" in str(refused.exception)
