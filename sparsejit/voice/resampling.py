"""Resampling of a recording that comes in pieces.

Truncating the spectrum loses nothing that the new rate can hold, but needs the whole signal. So
the signal is taken as a sum of blocks that fade into each other, and each block is resampled alone:

    block 0     ___________              every block is 6 s long, 2 s of it shared with the next;
    block 1            \\/___________      the weights of fading out and fading in sum to one
    block 2                     \\/__

Blocks lie at whole seconds of the recording, so a sample does not depend on how it was cut.
"""

from math import inf
from numbers import Real

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

_STEP_SECONDS = 4
_FADE_SECONDS = 2


class Resampler:
    """Takes one recording in pieces and returns it, piece by piece, at `new_rate`.

    Both rates are whole numbers of Hz; InvalidInput for one that is not positive.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        for hertz in (rate, new_rate):
            is_number = isinstance(hertz, Real) and not isinstance(hertz, bool)
            if not is_number or not 0 < hertz < inf or hertz != int(hertz):
                raise InvalidInput(f"the sample rate is {hertz!r}; give a positive number of Hz")
        self._rate, self._new_rate = int(rate), int(new_rate)
        self._taken = self._given = 0
        # Before the recording was silence, which block 0 fades in from.
        self._waiting = np.zeros(_FADE_SECONDS * self._rate, np.float32)
        self._fading = np.zeros(_FADE_SECONDS * self._new_rate)
        self._skipped = _FADE_SECONDS * self._new_rate
        fade = np.arange(_FADE_SECONDS * self._rate) + 0.5
        self._fade = 0.5 - 0.5 * np.cos(np.pi * fade / len(fade))

    def push(self, samples: FloatArray) -> FloatArray:
        """The next samples at the new rate that `samples`, float32 (n,), complete; maybe none."""
        self._taken += len(samples)
        if self._rate == self._new_rate:
            return samples
        self._waiting = np.concatenate([self._waiting, samples])
        pieces = [np.empty(0, np.float32)]
        while len(self._waiting) >= (_STEP_SECONDS + _FADE_SECONDS) * self._rate:
            pieces.append(self._next_block())
        self._given += sum(map(len, pieces))
        return np.concatenate(pieces)

    def finish(self) -> FloatArray:
        """The rest: round(n * new_rate / rate) samples were given in all."""
        if self._rate == self._new_rate:
            return np.empty(0, np.float32)
        missing = round(self._taken * self._new_rate / self._rate) - self._given
        pieces = [np.empty(0, np.float32)]
        silence = np.zeros((_STEP_SECONDS + _FADE_SECONDS) * self._rate, np.float32)
        while sum(map(len, pieces)) < missing:
            self._waiting = np.concatenate([self._waiting, silence])
            pieces.append(self._next_block())
        return np.concatenate(pieces)[:missing]

    def _next_block(self) -> FloatArray:
        """Resample four seconds, from this block's fade-in to the next block's."""
        step, fade = _STEP_SECONDS * self._rate, _FADE_SECONDS * self._rate
        block = self._waiting[: step + fade].astype(np.float64)
        self._waiting = self._waiting[step:]
        block[:fade] *= self._fade
        block[step:] *= self._fade[::-1]
        made = _with_truncated_spectrum(block, (_STEP_SECONDS + _FADE_SECONDS) * self._new_rate)
        made[: len(self._fading)] += self._fading
        complete, self._fading = np.split(made, [_STEP_SECONDS * self._new_rate])
        given = complete[self._skipped :].astype(np.float32)
        self._skipped = 0
        return given


def resample(audio: FloatArray, rate: int, new_rate: int) -> FloatArray:
    """Resample a whole recording, float32 (n,), to `new_rate`, as `Resampler` does its pieces."""
    resampler = Resampler(rate, new_rate)
    return np.concatenate([resampler.push(audio), resampler.finish()])


def _with_truncated_spectrum(block: DoubleArray, length: int) -> DoubleArray:
    """Resample the block to `length` samples, without frequencies that these cannot hold."""
    spectrum = np.fft.rfft(block)
    kept = np.zeros(length // 2 + 1, dtype=complex)
    shared = min(len(spectrum), len(kept))
    kept[:shared] = spectrum[:shared]
    return np.fft.irfft(kept, length) * (length / len(block))
