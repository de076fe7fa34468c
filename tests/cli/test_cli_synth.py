"""`sparsejit synth` of one file: log-mel files, the loudspeaker, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner, Result

soundfile = pytest.importorskip("soundfile")

from sparsejit.commands.cli import app  # noqa: E402
from sparsejit.errors import InvalidInput, MissingDependency  # noqa: E402
from sparsejit.voice.speak.wavernn import WaveRNN  # noqa: E402
from sparsejit.voice.weights import VoiceWeights  # noqa: E402

FRAMES = 150


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voice") / "voice.safetensors"
    VoiceWeights.random(hidden=8).save(path)
    return path


@pytest.fixture
def mel(tmp_path: Path) -> Path:
    path = tmp_path / "mel.npy"
    np.save(path, np.random.default_rng(0).uniform(-4, -2, (80, FRAMES)))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["synth", *map(str, arguments)])


def forbid(*arguments: object) -> None:
    raise AssertionError("the work began")


def refused(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, InvalidInput), done.output
    return str(done.exception)


@pytest.mark.parametrize("post_filter", [True, False])
def test_a_stored_mel_is_spoken(
    voice: Path, mel: Path, tmp_path: Path, post_filter: bool
) -> None:
    out = tmp_path / "spoken.wav"
    filtering = "--post-filter" if post_filter else "--no-post-filter"
    done = run(mel, out, "--voice", voice, "--seed", "4", filtering, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["recording"], report["out"], report["seed"]) == (str(mel), str(out), 4)
    assert report["seconds"] == FRAMES * 220 / 22_050
    written, _ = soundfile.read(out, dtype="float32")
    assert report["post_filter"] == post_filter
    expected = WaveRNN.from_pretrained(voice, post_filter=post_filter).generate(np.load(mel), 4)
    np.testing.assert_allclose(written, np.clip(expected, -1, 1), atol=2.0**-15)


def test_a_mel_that_is_wrong_at_its_end_is_refused_before_the_work(
    voice: Path, mel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsejit.commands.synth.speak_file", forbid)
    values = np.load(mel)
    values[3, -1] = np.nan
    np.save(mel, values)
    out = tmp_path / "spoken.wav"
    out.write_text("from before")
    assert "NaN" in refused(mel, out, "--voice", voice)
    assert out.read_text() == "from before"
    assert sorted(tmp_path.iterdir()) == [mel, out]


def test_a_recording_is_not_written_over(voice: Path, tmp_path: Path) -> None:
    recording = tmp_path / "a.wav"
    soundfile.write(recording, np.zeros(4400), 22_050)
    before = recording.read_bytes()
    (tmp_path / "link.wav").symlink_to(recording)
    for out in (recording, tmp_path / "link.wav"):
        assert "is the recording itself" in refused(recording, out, "--voice", voice)
    assert recording.read_bytes() == before


@pytest.mark.parametrize("option", [["--overwrite"], ["--workers", "2"], ["--ray", "auto"]])
def test_options_of_a_folder_are_refused_for_a_file(
    mel: Path, tmp_path: Path, option: list[str]
) -> None:
    assert "are for a folder" in refused(mel, tmp_path / "a.wav", *option)


class FakeSpeaker:
    """The default audio device: keeps what it plays."""

    def __init__(self) -> None:
        self.played: list[npt.NDArray[np.float32]] = []
        self.calls: list[str] = []
        self.fails_at: int | None = None

    def module(self) -> ModuleType:
        module = ModuleType("sounddevice")
        module.__dict__.update(OutputStream=self.open, PortAudioError=DeviceError)
        return module

    def open(self, **options: Any) -> "FakeSpeaker":
        assert options == {"samplerate": 22_050, "channels": 1, "dtype": "float32"}
        return self

    def write(self, samples: npt.NDArray[np.float32]) -> None:
        if self.fails_at == len(self.played):
            raise DeviceError("unplugged")
        self.played.append(samples[:, 0].copy())

    def __getattr__(self, name: str) -> Callable[[], None]:
        assert name in {"start", "stop", "abort", "close"}
        return lambda: self.calls.append(name)


class DeviceError(Exception):
    pass


@pytest.fixture
def speaker(monkeypatch: pytest.MonkeyPatch) -> FakeSpeaker:
    fake = FakeSpeaker()
    monkeypatch.setitem(sys.modules, "sounddevice", fake.module())
    return fake


def test_play_is_heard_and_written(
    voice: Path, mel: Path, tmp_path: Path, speaker: FakeSpeaker
) -> None:
    done = run(mel, tmp_path / "a.wav", "--voice", voice, "--play")
    assert done.exit_code == 0, done.output
    expected = WaveRNN.from_pretrained(voice).generate(np.load(mel))
    np.testing.assert_array_equal(np.concatenate(speaker.played), expected)
    assert speaker.calls == ["start", "stop", "close"]
    assert soundfile.info(tmp_path / "a.wav").frames == len(expected)


def test_a_device_that_stops_ends_the_work(
    voice: Path, mel: Path, tmp_path: Path, speaker: FakeSpeaker
) -> None:
    speaker.fails_at = 1
    long = np.tile(np.load(mel), (1, 30))  # or all was waiting to be played by then
    np.save(mel, long)
    message = refused(mel, tmp_path / "a.wav", "--voice", voice, "--play")
    assert "the audio device stopped (unplugged)" in message
    assert len(speaker.played) == 1
    assert speaker.calls == ["start", "abort", "stop", "close"]
    assert list(tmp_path.iterdir()) == [mel]


def test_a_device_that_stops_at_the_end_is_told(
    voice: Path, mel: Path, tmp_path: Path, speaker: FakeSpeaker
) -> None:
    speaker.fails_at = 0
    np.save(mel, np.load(mel)[:, :1])
    assert "unplugged" in refused(mel, tmp_path / "a.wav", "--voice", voice, "--play")


def test_without_a_device_that_is_said_before_the_work(
    voice: Path, mel: Path, tmp_path: Path, speaker: FakeSpeaker
) -> None:
    def no_device(**options: Any) -> None:
        raise DeviceError("Error querying device -1")

    sys.modules["sounddevice"].OutputStream = no_device  # type: ignore[attr-defined]
    message = refused(mel, tmp_path / "a.wav", "--voice", voice, "--play")
    assert "no audio device plays 22050 Hz here (Error querying device -1)" in message
    assert list(tmp_path.iterdir()) == [mel]


@pytest.mark.parametrize("portaudio", [False, True])
def test_missing_packages_for_play_are_named(
    voice: Path, mel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portaudio: bool
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    if portaudio:
        monkeypatch.delitem(sys.modules, "sounddevice")
        (tmp_path / "path").mkdir()
        broken = tmp_path / "path" / "sounddevice.py"
        broken.write_text("raise OSError('PortAudio library not found')")
        monkeypatch.syspath_prepend(broken.parent)
    done = run(mel, tmp_path / "a.wav", "--voice", voice, "--play")
    assert isinstance(done.exception, MissingDependency)
    remedy = "apt-get install libportaudio2" if portaudio else "pip install 'sparsejit[play]'"
    assert remedy in str(done.exception)
    assert not (tmp_path / "a.wav").exists()
