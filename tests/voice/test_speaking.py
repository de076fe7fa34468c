"""A voice speaks files piece by piece: the samples of the whole, in flat memory."""

import re
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from fake_clock import FakeClock

from sparsejit.errors import InvalidInput
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE, load_audio, log_mel
from sparsejit.voice.speak.speak_file import (
    SpokenFile,
    count_frames,
    expected_samples,
    is_whole_wav,
    mel_pieces,
    speak_file,
)
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.weights import VoiceWeights

soundfile = pytest.importorskip("soundfile")

FloatArray = npt.NDArray[np.float32]
NETWORK = VoiceWeights.random(hidden=8).network


@pytest.fixture(scope="module")
def voice() -> WaveRNN:
    return WaveRNN(VoiceWeights.random(hidden=8))


def ignore(given: object) -> None:
    pass


def noise(path: Path, seconds: float, rate: int = SAMPLE_RATE, channels: int = 1) -> Path:
    """A recording of quiet noise, written in pieces."""
    generator = np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", rate, channels) as file:
        for _ in range(round(seconds)):
            file.write(generator.normal(0, 0.05, (rate, channels)))
        file.write(generator.normal(0, 0.05, (round(seconds % 1 * rate), channels)))
    return path


@pytest.mark.parametrize("rate", [SAMPLE_RATE, 16_000])
def test_a_file_gets_the_samples_of_the_whole_mel(
    voice: WaveRNN, tmp_path: Path, rate: int
) -> None:
    source, out = noise(tmp_path / "noise.flac", 9, rate), tmp_path / "new" / "spoken.wav"
    mel = log_mel(load_audio(source))
    np.testing.assert_array_equal(np.concatenate(list(mel_pieces(source, NETWORK)), axis=1), mel)
    pieces: list[FloatArray] = []
    spoken = speak_file(voice, source, out, 5, pieces.append)
    expected = voice.generate(mel, 5)
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    written, out_rate = soundfile.read(out, dtype="float32")
    np.testing.assert_allclose(written, np.clip(expected, -1, 1), atol=2.0**-15)
    assert (spoken.samples, out_rate) == (len(expected), SAMPLE_RATE)
    assert expected_samples(source, NETWORK) == len(expected)
    assert is_whole_wav(out, len(expected), SAMPLE_RATE)
    assert not is_whole_wav(out, len(expected) - HOP_LENGTH, SAMPLE_RATE)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stored_mel_is_spoken(
    voice: WaveRNN, tmp_path: Path, order: Any, dtype: npt.DTypeLike
) -> None:
    mel = log_mel(np.random.default_rng(0).normal(0, 0.05, 1500 * HOP_LENGTH))
    source = tmp_path / "mel.npy"
    np.save(source, np.asarray(mel, dtype, order=order))
    np.testing.assert_array_equal(np.concatenate(list(mel_pieces(source, NETWORK)), axis=1), mel)
    assert count_frames(source, NETWORK, ignore) == 1500
    assert speak_file(voice, source, tmp_path / "a.wav", 0, ignore).samples == 1500 * HOP_LENGTH
    assert expected_samples(source, NETWORK) == 1500 * HOP_LENGTH


def mel_with(value: float, frames: int = 3000) -> FloatArray:
    mel = np.full((80, frames), -4, np.float32)
    mel[70, -1] = value
    return mel


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (mel_with(np.nan), "NaN"),
        (mel_with(9), "runs from -4 to 9"),
        (np.zeros((79, 4), np.float32), r"shape \(79, 4\)"),
        (np.zeros((4, 80), np.float32), r"shape \(4, 80\); give \(80, frames\)"),
        (np.zeros((80, 0), np.float32), r"shape \(80, 0\)"),
        (np.zeros((80, 4), np.int64), "int64"),
        (np.zeros((80, 4), np.complex64), "complex64"),
        (np.array([{}] * 3), "cannot read"),
    ],
)
def test_a_wrong_mel_is_found_before_the_work(
    tmp_path: Path, stored: npt.NDArray[Any], message: str
) -> None:
    source = tmp_path / "wrong.npy"
    np.save(source, stored, allow_pickle=True)
    with pytest.raises(InvalidInput, match=message) as refused:
        count_frames(source, NETWORK, ignore)
    assert str(source) in str(refused.value)


@pytest.mark.parametrize("name", ["text.npy", "text.wav"])
@pytest.mark.parametrize("content", [b"", b"neither numpy's nor audio"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    for look in (expected_samples, lambda *given: count_frames(*given, ignore)):
        with pytest.raises(InvalidInput, match=re.escape(str(source))):
            look(source, NETWORK)


def test_nan_at_the_end_of_a_recording_is_found_before_the_work(tmp_path: Path) -> None:
    audio = np.zeros(9 * SAMPLE_RATE, np.float32)
    audio[-1] = np.nan
    source = tmp_path / "nan.wav"
    soundfile.write(source, audio, SAMPLE_RATE, subtype="FLOAT")
    with pytest.raises(InvalidInput, match=r"nan\.wav.*NaN"):
        count_frames(source, NETWORK, ignore)


def test_an_error_of_a_listener_leaves_no_file(voice: WaveRNN, tmp_path: Path) -> None:
    def stop(samples: FloatArray) -> None:
        raise KeyboardInterrupt

    source = noise(tmp_path / "noise.wav", 1)
    with pytest.raises(KeyboardInterrupt):
        speak_file(voice, source, tmp_path / "spoken.wav", 0, stop)
    assert sorted(tmp_path.iterdir()) == [source]


class FakeVoice:
    """As quick as nothing, where the samples do not matter; `takes` is called for each piece."""

    sample_rate = SAMPLE_RATE
    source = NETWORK

    def __init__(self, takes: Callable[[], None] = lambda: None) -> None:
        self.takes = takes

    def stream(self, mels: Iterable[FloatArray], seed: int) -> Iterator[FloatArray]:
        for mel in mels:
            self.takes()
            yield np.zeros(mel.shape[1] * HOP_LENGTH, np.float32)


def speak_at_once(source: Path, out: Path, takes: Callable[[], None] = lambda: None) -> SpokenFile:
    return speak_file(cast(WaveRNN, FakeVoice(takes)), source, out, 0, ignore)


@pytest.mark.parametrize(("rate", "most_bytes"), [(SAMPLE_RATE, 12e6), (48_000, 30e6)])
def test_memory_does_not_grow_with_a_recording(
    tmp_path: Path, rate: int, most_bytes: float
) -> None:
    """All samples of 90 seconds would be 8 MB more, the spectra of their frames 70."""
    peaks = []
    for seconds in (30, 120):
        source = noise(tmp_path / f"{seconds}.wav", seconds, rate)
        tracemalloc.start()
        frames = count_frames(source, NETWORK, ignore)
        assert speak_at_once(source, tmp_path / "out.wav").samples == frames * HOP_LENGTH
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0] < 1.05 * most_bytes, peaks


def test_first_audio_is_timed_from_when_its_frames_are_there(
    tmp_path: Path, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frames of look-ahead are waited for; reading beyond them is not a part of it."""
    mel = mel_with(-4, frames=6)

    def arriving(source: Path, network: TrainedNetwork) -> Iterator[FloatArray]:
        for frame in mel.T:
            fake_clock.pass_time(10**9)
            yield frame[:, None]

    class SlowVoice(FakeVoice):
        def stream(self, mels: Iterable[FloatArray], seed: int) -> Iterator[FloatArray]:
            for count, _ in enumerate(mels, 1):
                if count > 2:
                    fake_clock.pass_time(3 * 10**6)
                    yield np.zeros(HOP_LENGTH, np.float32)

    monkeypatch.setattr("sparsejit.voice.speak.speak_file.mel_pieces", arriving)
    play = lambda samples: fake_clock.pass_time(10**12)  # noqa: E731
    out = tmp_path / "out.wav"
    spoken = speak_file(cast(WaveRNN, SlowVoice()), Path("mel.npy"), out, 0, play)
    assert spoken.first_audio_ms == 3
    assert spoken.computing_seconds == 6 + 4 * 0.003
    assert spoken.seconds == 4 * HOP_LENGTH / SAMPLE_RATE
    assert spoken.real_time_factor == spoken.seconds / spoken.computing_seconds
