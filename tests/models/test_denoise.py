"""The noise suppressor of the examples: its files in ONNX Runtime, its gain and its page."""

import importlib
import re
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from headless_browser import OpenPage, chromium
from streaming_files import FOLDER, STATES, Rival

RECORDING = FOLDER.parent / "speech" / "LJ001-0007.flac"
FILES = {
    "gtcrn": [FOLDER / "gtcrn_simple.onnx"],
    "dtln": [FOLDER / f"dtln_{number}.onnx" for number in (1, 2)],
}
LEAST_GAIN = 5.5  # decibels; 6.2 to 8.3 were found in 11 recordings
pytestmark = pytest.mark.skipif(
    not all(path.exists() for path in (RECORDING, *chain(*FILES.values()))),
    reason="needs ../shared/data",
)
Floats = np.ndarray[Any, np.dtype[np.float32]]
Network = Callable[[Floats], Floats]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("denoise")


def by_itself(path: Path) -> Network:
    """A file in ONNX Runtime, which is fed its own states."""
    rival = Rival(path, *STATES[path.stem])
    (name,) = rival.inputs

    def run(x: Floats) -> Floats:
        (made,) = rival.step({name: x})
        return made

    return run


def gtcrn(network: Network, noisy: Floats) -> Floats:
    """Its samples, by numpy's transforms of all frames."""
    window, count = np.hanning(513)[:-1] ** 0.5, len(noisy) // 256
    padded, y = np.append(np.zeros(256), noisy), np.zeros(256 * count + 256)
    for start in range(0, 256 * count, 256):
        bins = np.fft.rfft(window * padded[start : start + 512])
        pairs = np.stack([bins.real, bins.imag], -1).astype(np.float32)
        made = network(pairs[None, :, None])[0, :, 0]
        y[start : start + 512] += window * np.fft.irfft(made[:, 0] + 1j * made[:, 1])
    return y[: 256 * count]


def dtln(first: Network, second: Network, noisy: Floats) -> Floats:
    """As `gtcrn`, with a mask of spectra, then a network of frames."""
    count = len(noisy) // 128
    padded, y = np.append(np.zeros(384), noisy), np.zeros(128 * count + 384)
    for start in range(0, 128 * count, 128):
        bins = np.fft.rfft(padded[start : start + 512])
        mask = first(np.abs(bins).astype(np.float32)[None, None])[0, 0]
        frame = np.fft.irfft(bins * mask).astype(np.float32)
        y[start : start + 512] += second(frame[None, None])[0, 0]
    return y[: 128 * count]


@pytest.mark.parametrize("form", FILES)
def test_a_stream_of_samples_is_its_files_between_numpys_transforms(
    example: ModuleType, form: str
) -> None:
    noisy = example.with_noise(example.recording(RECORDING)[:40_000], 5.0)
    by_hand = {"gtcrn": gtcrn, "dtln": dtln}[form]
    wanted = by_hand(*map(by_itself, FILES[form]), noisy)
    denoise = example.Denoiser(FILES[form])
    found = denoise.fast.stream().run(noisy[None], out_axis=-1)[0]
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    clean = denoise(noisy)
    assert clean.shape == noisy.shape
    late = found[denoise.delay :]
    np.testing.assert_array_equal(clean[: len(late)], late)


@pytest.mark.parametrize("form", FILES)
def test_noise_goes_and_speech_stays(example: ModuleType, form: str) -> None:
    denoise = example.Denoiser(FILES[form])
    for number in (7, 20, 42):
        path = RECORDING.with_stem(f"LJ001-{number:04}")
        speech = example.recording(path)
        noisy = example.with_noise(speech, 5.0, seed=number)
        assert example.ratio_db(noisy, speech) == pytest.approx(5.0, abs=0.3)
        assert example.ratio_db(denoise(noisy), speech) > 5.0 + LEAST_GAIN


def test_the_ratio_of_speech_to_the_rest(example: ModuleType) -> None:
    time = np.arange(16_000)
    speech, noise = np.sin(time / 7).astype(np.float32), np.cos(time / 7).astype(np.float32)
    assert example.ratio_db(0.2 * (speech + 0.1 * noise), speech) == pytest.approx(20, abs=0.1)


def test_the_command_writes_a_recording_and_a_page(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "clean.wav", tmp_path / "page.html"
    options = ["--add-noise", "5", "--page", str(page), "--model", *map(str, FILES["gtcrn"])]
    example.main([str(RECORDING), str(out), *options])
    printed = capsys.readouterr().out
    gain = re.match(r"\+(\d+\.\d) dB of speech to noise, from 5\.0\n\d+ times real time", printed)
    assert gain is not None and float(gain[1]) > LEAST_GAIN
    speech = example.recording(RECORDING)
    clean, rate = soundfile.read(out, dtype="float32")
    assert (len(clean), rate) == (len(speech), 16_000)
    with chromium() as browser:
        shown = OpenPage(browser, page, 1200)
        seconds = len(speech) / rate
        assert shown.durations() == pytest.approx([seconds] * 3, abs=0.01)
        assert all(size > 0 for sizes in shown.picture_sizes() for size in sizes)
        assert shown.needed_width() <= 1200 and shown.complaints == []


def test_a_microphone_is_a_stream(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that gives a recording in blocks, and then presses Ctrl-C."""
    noisy = example.with_noise(example.recording(RECORDING)[:12_800], 5.0)
    played = np.zeros_like(noisy)

    class Card:
        def __init__(self, callback: Callable[..., None], blocksize: int, **form: object) -> None:
            assert form == {"samplerate": 16_000, "channels": 1, "dtype": "float32"}
            for start in range(0, len(noisy), blocksize):
                heard = noisy[start : start + blocksize, None]
                into = played[start : start + blocksize, None]
                callback(heard, into, blocksize, None, None)

        def __enter__(self) -> None:
            monkeypatch.setattr(example, "Event", lambda: SimpleNamespace(wait=press))

        def __exit__(self, *_: object) -> None:
            pass

    def press() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(Stream=Card))
    denoise = example.Denoiser(FILES["gtcrn"])
    monkeypatch.setattr(example, "Denoiser", lambda files: denoise)
    example.main(["--microphone", "--model", *map(str, FILES["gtcrn"])])
    wanted = denoise.fast.stream().run(noisy[None], out_axis=-1)[0]
    np.testing.assert_array_equal(played, wanted)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.wav", "--model", "b.onnx"], "give two recordings"),
        (["a.wav", "b.wav", "--microphone", "--model", "c.onnx"], "or --microphone alone"),
        (["a.wav", "b.wav", "--model", "c.onnx", "d.onnx", "e.onnx"], "both files of DTLN"),
    ],
)
def test_wrong_words_are_refused(
    example: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        example.main(words)
    assert message in capsys.readouterr().err
