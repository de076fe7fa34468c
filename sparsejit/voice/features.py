"""Log-mel features of a recording, and reading recordings."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.resampling import Resampler

SAMPLE_RATE = 22_050
HOP_LENGTH = 220
N_MELS = 80
WINDOW_LENGTH = 800
FFT_LENGTH = 1024
MEL_LOW_HZ = 40.0
MEL_HIGH_HZ = 11_000.0
POWER_FLOOR = 1e-9
# Range of log10 power: from the floor to a tone at full scale (2.1), and a margin beyond both for
# the errors of networks that predict mels.
MEL_RANGE = (-9.5, 2.5)
_READ_AT_ONCE = 1 << 16  # samples of a recording
_FRAMES_AT_ONCE = 256

# Suffixes of recordings in a folder.
AUDIO_SUFFIXES = (".flac", ".ogg", ".wav")

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]


def log_mel(audio: npt.ArrayLike, rate: int = SAMPLE_RATE) -> FloatArray:
    """Return log10 mel power, float32 (80, frames), of mono `audio` in [-1, 1].

    Frame f is centred on sample f*220 + 110 of the signal at 22,050 Hz; there are
    samples // 220 frames. A band is the weighted mean power density of its triangle, scaled so
    that white noise of variance v reads log10(v).

    Raises InvalidInput for audio that is not one-dimensional, finite and at least a frame long.
    """
    stream = MelStream(rate)
    return np.concatenate([stream.push(audio), stream.finish()], axis=1)


class MelStream:
    """`log_mel` of one recording that comes in pieces: the same frames to the bit for any pieces.

    Needs the memory of a few seconds of audio, beside its results.
    """

    def __init__(self, rate: int = SAMPLE_RATE) -> None:
        self._resampler = Resampler(rate, SAMPLE_RATE)
        # From the first sample of the next frame's window; the first window begins in silence.
        self._waiting = np.zeros(WINDOW_LENGTH // 2 - HOP_LENGTH // 2, np.float32)
        self._samples = self._given = 0

    def push(self, audio: npt.ArrayLike) -> FloatArray:
        """The frames, (80, any number of them), that the next piece of mono audio completes."""
        return self._frames(self._resampler.push(_checked_audio(audio)))

    def finish(self) -> FloatArray:
        """The frames whose windows reach beyond the end; InvalidInput for audio without a frame."""
        rest = self._frames(self._resampler.finish())
        frames = self._samples // HOP_LENGTH
        if frames == 0:
            raise InvalidInput(
                f"the audio has {self._samples} samples at {SAMPLE_RATE} Hz; "
                f"give at least one frame of {HOP_LENGTH}"
            )
        missing = frames - self._given
        silence = np.zeros(WINDOW_LENGTH, np.float32)
        last = _mel_of_windows(np.concatenate([self._waiting, silence]), missing)
        return np.concatenate([rest, last], axis=1)

    def _frames(self, samples: FloatArray) -> FloatArray:
        self._samples += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        frames = max(0, (len(self._waiting) - WINDOW_LENGTH) // HOP_LENGTH + 1)
        mel = _mel_of_windows(self._waiting, frames)
        self._waiting = self._waiting[frames * HOP_LENGTH :]
        self._given += frames
        return mel


def _mel_of_windows(samples: FloatArray, frames: int) -> FloatArray:
    """Log-mel (80, frames) of the first windows, each 220 samples after the one before."""
    mel = np.empty((N_MELS, frames), np.float32)
    for first in range(0, frames, _FRAMES_AT_ONCE):
        last = min(first + _FRAMES_AT_ONCE, frames)
        piece = samples[first * HOP_LENGTH : (last - 1) * HOP_LENGTH + WINDOW_LENGTH]
        windows = np.lib.stride_tricks.sliding_window_view(piece, WINDOW_LENGTH)[::HOP_LENGTH]
        spectrum = np.fft.rfft(windows * hann_window(), FFT_LENGTH, axis=1)
        mel[:, first:last] = log_bands(spectrum.real**2 + spectrum.imag**2).T
    return mel


def log_bands(power: DoubleArray) -> DoubleArray:
    """log10 of weighted means (frames, 80) of the power (frames, 513) of Hann windows.

    No matrix product: in a BLAS the order of a frame's sums depends on the number of frames.
    """
    bins, weights, starts = _filters_in_a_row()
    bands = np.add.reduceat(power[:, bins] * weights, starts, axis=1)
    return np.log10(np.maximum(bands, POWER_FLOOR))


def over_bins(bands: DoubleArray) -> DoubleArray:
    """Values of bands (frames, 80) interpolated over frequency: (frames, 513).

    Bins beyond the outer centres have the outer bands' values. No matrix product: its sums may
    differ with the number of frames.
    """
    below, share = _band_below_each_bin()
    return bands[:, below] + share * (bands[:, below + 1] - bands[:, below])


@cache
def _band_below_each_bin() -> tuple[IndexArray, DoubleArray]:
    """The band whose centre is next below each of 513 FFT bins, and the bin's distance from it.

    The distance is 0 to 1 on the way to the centre above; bins beyond the outer centres count as
    lying on them.
    """
    bins = np.fft.rfftfreq(FFT_LENGTH, 1 / SAMPLE_RATE)
    position = np.interp(bins, mel_centres(), np.arange(N_MELS))
    below = np.minimum(position.astype(np.intp), N_MELS - 2)
    return below, position - below


@cache
def hann_window() -> DoubleArray:
    """A periodic Hann window, as librosa and torch.stft use."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_LENGTH) / WINDOW_LENGTH)


@cache
def _filters_in_a_row() -> tuple[IndexArray, DoubleArray, IndexArray]:
    """Bins and weights of all filters, one after the other, and the start of each.

    The weights include the power of the window.
    """
    filters, bins = np.nonzero(mel_filters())
    weights = mel_filters()[filters, bins] / np.sum(hann_window() ** 2)
    return bins, weights, np.searchsorted(filters, np.arange(N_MELS))


def mel_centres() -> DoubleArray:
    """Return the centre frequencies of the bands in Hz, float64 (80,)."""
    return _mel_edges()[1:-1]


@cache
def mel_filters() -> DoubleArray:
    """Return triangular filters (80, 513) over FFT bins; each row sums to one."""
    bins = np.fft.rfftfreq(FFT_LENGTH, 1 / SAMPLE_RATE)
    edges = _mel_edges()
    low, centre, high = (edges[i : i + N_MELS, None] for i in range(3))
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles / triangles.sum(axis=1, keepdims=True)


def _mel_edges() -> DoubleArray:
    low, high = (2595 * np.log10(1 + hz / 700) for hz in (MEL_LOW_HZ, MEL_HIGH_HZ))
    return 700 * (10 ** (np.linspace(low, high, N_MELS + 2) / 2595) - 1)


def load_audio(path: str | os.PathLike[str]) -> FloatArray:
    """Return a recording as mono float32 at 22,050 Hz.

    Raises InvalidInput if the file is unreadable, empty or not finite.
    """
    return np.concatenate(list(audio_pieces(path)))


def audio_pieces(path: str | os.PathLike[str]) -> Iterator[FloatArray]:
    """Yield the samples of `load_audio` piece by piece; each error comes with its piece."""
    try:
        import soundfile
    except ImportError as error:
        raise MissingDependency("soundfile is missing: pip install 'sparsejit[voice]'") from error
    file = Path(path)
    samples_read = 0
    try:
        with soundfile.SoundFile(file) as recording:
            resampler = Resampler(recording.samplerate, SAMPLE_RATE)
            while len(samples := recording.read(_READ_AT_ONCE, "float32", always_2d=True)):
                samples_read += len(samples)
                yield resampler.push(_checked_audio(samples.mean(axis=1)))
            yield resampler.finish()
    except (soundfile.SoundFileError, OSError, TypeError) as error:  # TypeError: no header
        raise InvalidInput(
            f"cannot read audio from {file} ({error}); give WAV, FLAC or another "
            "format that libsndfile reads"
        ) from error
    if not samples_read:
        raise InvalidInput(f"{file} holds 0 samples; remove it or give a recording with sound")


def _checked_audio(audio: npt.ArrayLike) -> FloatArray:
    samples = np.asarray(audio, dtype=np.float32)
    if samples.ndim != 1:
        raise InvalidInput(
            f"the audio has shape {samples.shape}; give one channel, shape (samples,)"
        )
    if not np.isfinite(samples).all():
        raise InvalidInput("the audio contains NaN or infinity; give finite samples in [-1, 1]")
    return samples
