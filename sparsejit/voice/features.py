"""Log-mel features of a recording, and reading recordings."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput, MissingDependency

SAMPLE_RATE = 22_050
HOP_LENGTH = 220
N_MELS = 80
WINDOW_LENGTH = 800
FFT_LENGTH = 1024
MEL_LOW_HZ = 40.0
MEL_HIGH_HZ = 11_000.0
POWER_FLOOR = 1e-9
# What log10 power can be: from the floor to a tone at full scale (2.1), and as much beyond as a
# network that predicts mels may err.
MEL_RANGE = (-9.5, 2.5)

FloatArray = npt.NDArray[np.float32]


def log_mel(audio: npt.ArrayLike, rate: int = SAMPLE_RATE) -> FloatArray:
    """Return log10 mel power, float32 (80, frames), of mono `audio` in [-1, 1].

    Frame f is centred on sample f*220 + 110 of the signal at 22,050 Hz; there are
    samples // 220 frames. A band is the weighted mean power density of its triangle, scaled so
    that white noise of variance v reads log10(v).

    Raises InvalidInput for audio that is not one-dimensional, finite and at least a frame long.
    """
    samples = resample(_checked_audio(audio), rate, SAMPLE_RATE)
    frames = len(samples) // HOP_LENGTH
    if frames == 0:
        raise InvalidInput(
            f"the audio has {len(samples)} samples at {SAMPLE_RATE} Hz; "
            f"give at least one frame of {HOP_LENGTH}"
        )
    lead = WINDOW_LENGTH // 2 - HOP_LENGTH // 2
    padded = np.pad(samples, (lead, WINDOW_LENGTH))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_LENGTH)
    windows = windows[: frames * HOP_LENGTH : HOP_LENGTH]
    # A periodic Hann window, as librosa and torch.stft use.
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_LENGTH) / WINDOW_LENGTH)
    spectrum = np.fft.rfft(windows * hann, FFT_LENGTH, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2) / np.sum(hann**2)
    bands = power @ mel_filters().T
    return np.log10(np.maximum(bands, POWER_FLOOR)).T.astype(np.float32)


def mel_centres() -> npt.NDArray[np.float64]:
    """Return the centre frequencies of the bands in Hz, float64 (80,)."""
    return _mel_edges()[1:-1]


@cache
def mel_filters() -> npt.NDArray[np.float64]:
    """Return triangular filters (80, 513) over FFT bins; each row sums to one."""
    bins = np.fft.rfftfreq(FFT_LENGTH, 1 / SAMPLE_RATE)
    edges = _mel_edges()
    low, centre, high = (edges[i : i + N_MELS, None] for i in range(3))
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles / triangles.sum(axis=1, keepdims=True)


def _mel_edges() -> npt.NDArray[np.float64]:
    low, high = (2595 * np.log10(1 + hz / 700) for hz in (MEL_LOW_HZ, MEL_HIGH_HZ))
    return 700 * (10 ** (np.linspace(low, high, N_MELS + 2) / 2595) - 1)


def resample(audio: FloatArray, rate: int, new_rate: int) -> FloatArray:
    """Return `audio` at `new_rate`, band-limited by truncating its spectrum (numpy only)."""
    if rate <= 0:
        raise InvalidInput(f"the sample rate is {rate}; give a positive number of Hz")
    if rate == new_rate or len(audio) == 0:
        return audio
    length = round(len(audio) * new_rate / rate)
    spectrum = np.fft.rfft(audio.astype(np.float64))
    kept = np.zeros(length // 2 + 1, dtype=complex)
    shared = min(len(spectrum), len(kept))
    kept[:shared] = spectrum[:shared]
    return (np.fft.irfft(kept, length) * (length / len(audio))).astype(np.float32)


def load_audio(path: str | os.PathLike[str]) -> FloatArray:
    """Return a recording as mono float32 at 22,050 Hz.

    Raises InvalidInput if the file is unreadable, empty or not finite.
    """
    try:
        import soundfile
    except ImportError as error:
        raise MissingDependency("soundfile is missing: pip install soundfile") from error
    file = Path(path)
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise InvalidInput(
            f"cannot read audio from {file} ({error}); give WAV, FLAC or another "
            "format that libsndfile reads"
        ) from error
    if len(samples) == 0:
        raise InvalidInput(f"{file} holds 0 samples; remove it or give a recording with sound")
    return resample(_checked_audio(samples.mean(axis=1)), rate, SAMPLE_RATE)


def _checked_audio(audio: npt.ArrayLike) -> FloatArray:
    samples = np.asarray(audio, dtype=np.float32)
    if samples.ndim != 1:
        raise InvalidInput(
            f"the audio has shape {samples.shape}; give one channel, shape (samples,)"
        )
    if not np.isfinite(samples).all():
        raise InvalidInput("the audio contains NaN or infinity; give finite samples in [-1, 1]")
    return samples
