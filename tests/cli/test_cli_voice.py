"""`sparsejit synth` and `demo`: options, reports, and output paths checked before the work."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

soundfile = pytest.importorskip("soundfile")

from sparsejit.commands import demo as demo_command  # noqa: E402
from sparsejit.commands import synth as synth_command  # noqa: E402
from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.files import check_writable  # noqa: E402
from sparsejit.voice.features import load_audio, log_mel  # noqa: E402
from sparsejit.voice.speak.wavernn import WaveRNN  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "hum.wav"
    time = np.arange(4400) / 22_050
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 150 * time) ** 9, 22_050)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_synth_says_how_fast_it_was(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "spoken.wav"
    done = run("synth", recording, out)
    assert done.exit_code == 0, done.output
    speed = r"made in \d+\.\d\d s, \d+\.\d times real time, first audio after \d+\.\d ms\n"
    assert re.fullmatch(rf"0\.2 s of speech in {re.escape(str(out))}, {speed}", done.stdout)
    audio, rate = soundfile.read(out)
    assert (len(audio), rate) == (4400, 22_050)


def test_synth_reports_json_alone_on_stdout(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "spoken.wav"
    arguments = (str(recording), str(out), "--json", "--seed", "3", "--temperature", "0.5")
    done = subprocess.run(
        [sys.executable, "-m", "sparsejit.commands.cli", "synth", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["real_time_factor"] == report["seconds"] / report["computing_seconds"]
    assert report["seconds"] == pytest.approx(4400 / 22_050)
    assert set(report) >= {"recording", "voice", "sample_rate", "first_audio_ms"}
    assert (report["seed"], report["temperature"], report["out"]) == (3, 0.5, str(out))


def test_the_temperature_is_that_of_the_draw(recording: Path, tmp_path: Path) -> None:
    mel = log_mel(load_audio(recording))
    for temperature in (0.3, 2.0):
        out = tmp_path / f"{temperature}.wav"
        done = run("synth", recording, out, "--temperature", temperature)
        assert done.exit_code == 0, done.output
        expected = WaveRNN.from_pretrained(temperature=temperature).generate(mel)
        written, _ = soundfile.read(out, dtype="float32")
        np.testing.assert_allclose(written, np.clip(expected, -1, 1), atol=2.0**-15)


def test_a_voice_may_be_stored_as_int8(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "short.wav"
    done = run("synth", recording, out, "--dtype", "int8", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["dtype"] == "int8"
    mel = WaveRNN.from_pretrained().features(*soundfile.read(recording))
    expected = WaveRNN.from_pretrained(dtype="int8").generate(mel)
    np.testing.assert_allclose(soundfile.read(out)[0], expected, atol=2**-15)
    refused = run("synth", recording, out, "--dtype", "int4")
    assert refused.exit_code != 0 and "int4" in str(refused.exception)


@pytest.mark.parametrize("temperature", ["0", "-1", "nan", "inf"])
def test_a_temperature_that_cannot_be_is_refused(
    recording: Path, tmp_path: Path, temperature: str
) -> None:
    out = tmp_path / "spoken.wav"
    refused = run("synth", recording, out, "--temperature", temperature)
    assert isinstance(refused.exception, InvalidInput)
    assert "the temperature is" in str(refused.exception)
    assert not out.exists()


def unwritable(folder: Path, name: str) -> list[Path]:
    """Places for a file of that name that even root cannot write to."""
    (folder / "file").touch()
    (folder / name).mkdir()
    nowhere = [folder / name, folder / "file" / name, folder / "file" / "deep" / name]
    return [*nowhere, Path("/proc") / name, folder / ("x" * 300 + Path(name).suffix)]


def forbid(*arguments: object) -> None:
    raise AssertionError("the work began")


def test_synth_checks_where_it_writes_before_the_work(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synth_command, "count_frames", forbid)
    monkeypatch.setattr(synth_command.WaveRNN, "from_pretrained", forbid)
    for out in [*unwritable(tmp_path, "spoken.wav"), tmp_path / "spoken.mp3"]:
        refused = run("synth", recording, out)
        assert isinstance(refused.exception, InvalidInput), out
        assert str(out) in str(refused.exception)


def test_demo_checks_where_it_writes_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_command, "_prune", forbid)
    for name in ("demo.wav", "demo.png", "demo.html"):
        folder = tmp_path / name[-3:]
        (folder / name).mkdir(parents=True)
        refused = run("demo", "--out", folder)
        assert isinstance(refused.exception, InvalidInput)
        assert str(folder / name) in str(refused.exception)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", Path("/proc/demo")):
        refused = run("demo", "--out", out)
        assert isinstance(refused.exception, InvalidInput)
        assert str(out) in str(refused.exception)


def test_a_path_is_checked_without_a_trace(tmp_path: Path) -> None:
    for out in (*unwritable(tmp_path, "a.wav"), Path("/dev/full"), Path("/dev/null")):
        with pytest.raises(InvalidInput, match=re.escape(str(out))):
            check_writable(out)
    before = sorted(tmp_path.rglob("*"))
    assert check_writable(tmp_path / "new" / "deep" / "a.wav").name == "a.wav"
    assert check_writable(str(tmp_path / "file")) == tmp_path / "file"
    assert sorted(tmp_path.rglob("*")) == before
