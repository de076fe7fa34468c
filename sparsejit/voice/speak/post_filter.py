"""A post-filter that gives every band of a frame the power in the mel.

Samples are drawn at random, so the power of a band in a frame varies about the one wanted. The
filter measures the log-mel of the drawn samples, multiplies each frame's spectrum by the square
root of wanted over found, and adds up the overlapping frames by weighted overlap-add:

    drawn --> window, FFT --> mel found          frame f: samples 220 f - 290 to 220 f + 510
                  |               |
                  v               v
              spectrum  x  10 ** ((wanted - found) / 2), interpolated over frequency
                  |
                  v
        inverse FFT, window, sum over frames / sum of squared windows --> speech
"""

from collections.abc import Iterable, Iterator

import numpy as np

from sparsejit.voice.features import (
    FFT_LENGTH,
    HOP_LENGTH,
    N_MELS,
    WINDOW_LENGTH,
    DoubleArray,
    FloatArray,
    hann_window,
    log_bands,
    over_bins,
)

# Gains beyond 12 dB add nothing: speech of the bundled voice scores the same with 24.
MOST_GAIN = 4.0
# Frames that must be drawn before the first sample is final.
FRAMES_AHEAD = 4
_FRAMES_AT_ONCE = 64
_BEFORE = WINDOW_LENGTH // 2 - HOP_LENGTH // 2


def post_filtered(drawn: Iterable[tuple[FloatArray, FloatArray]]) -> Iterator[FloatArray]:
    """Yield filtered speech, float32, of pieces (log-mel (80, F), samples (220 F,)) as they come.

    The pieces joined do not depend on how the speech was cut.
    """
    filtering = PostFilter()
    for mel, samples in drawn:
        yield from filtering.push(mel, samples)
    yield from filtering.finish()


class PostFilter:
    """Filters the speech of one stream, so that its bands have the power in the mel."""

    def __init__(self) -> None:
        # From the first sample of the next frame's window; the first window begins in silence.
        self._samples = np.zeros(_BEFORE, np.float32)
        self._mel = np.empty((0, N_MELS), np.float32)
        self._sum = np.zeros(WINDOW_LENGTH - HOP_LENGTH)
        self._weight = np.zeros(WINDOW_LENGTH - HOP_LENGTH)
        self._to_drop, self._to_give = _BEFORE, 0

    def push(self, mel: FloatArray, samples: FloatArray) -> Iterator[FloatArray]:
        """Take drawn samples and their mel; yield the filtered speech that they complete."""
        self._to_give += len(samples)
        self._mel = np.concatenate([self._mel, mel.T])
        self._samples = np.concatenate([self._samples, samples])
        yield from self._filter()

    def finish(self) -> Iterator[FloatArray]:
        """Yield the rest, with silence after the last sample."""
        self._samples = np.concatenate([self._samples, np.zeros(WINDOW_LENGTH, np.float32)])
        yield from self._filter()
        yield from self._give(self._sum, self._weight)

    def _filter(self) -> Iterator[FloatArray]:
        while frames := self._whole_frames():
            windows = np.lib.stride_tricks.sliding_window_view(self._samples, WINDOW_LENGTH)
            filtered = _filtered(windows[::HOP_LENGTH][:frames], self._mel[:frames])
            self._samples = self._samples[frames * HOP_LENGTH :]
            self._mel = self._mel[frames:]
            yield from self._add(filtered)

    def _whole_frames(self) -> int:
        """Number of the next frames whose windows are drawn completely."""
        windows = max(0, (len(self._samples) - WINDOW_LENGTH) // HOP_LENGTH + 1)
        return min(windows, len(self._mel), _FRAMES_AT_ONCE)

    def _add(self, filtered: DoubleArray) -> Iterator[FloatArray]:
        """Add filtered windows (F, 800), 220 samples apart, to the sums of overlapping windows.

        Yields the speech that no later window reaches.
        """
        final = len(filtered) * HOP_LENGTH
        total, weight = (np.pad(each, (0, final)) for each in (self._sum, self._weight))
        squared = hann_window() ** 2
        for frame, window in enumerate(filtered):
            place = slice(frame * HOP_LENGTH, frame * HOP_LENGTH + WINDOW_LENGTH)
            total[place] += window
            weight[place] += squared
        self._sum, self._weight = total[final:], weight[final:]
        yield from self._give(total[:final], weight[:final])

    def _give(self, total: DoubleArray, weight: DoubleArray) -> Iterator[FloatArray]:
        """Yield speech: sums of windows over sums of squared windows, at the same samples.

        The sums come in the order of time; padding before the first and after the last sample is
        left out.
        """
        dropped = min(self._to_drop, len(total))
        place = slice(dropped, dropped + min(len(total) - dropped, self._to_give))
        speech = (total[place] / weight[place]).astype(np.float32)
        self._to_drop -= dropped
        self._to_give -= len(speech)
        if len(speech):
            yield speech


def _filtered(windows: FloatArray, wanted: FloatArray) -> DoubleArray:
    """Filter windows (F, 800) of samples to the log-mel (F, 80) wanted; window them twice."""
    spectrum = np.fft.rfft(windows * hann_window(), FFT_LENGTH, axis=1)
    found = log_bands(spectrum.real**2 + spectrum.imag**2)
    most = 2 * np.log10(MOST_GAIN)
    gain = 10.0 ** (over_bins(np.clip(wanted - found, -most, most)) / 2)
    return np.fft.irfft(spectrum * gain, FFT_LENGTH, axis=1)[:, :WINDOW_LENGTH] * hann_window()
