"""Linear prediction from a mel spectrogram, and the coding of its residual into classes.

Frame f has a predictor a[f] (order 20) and a gain g[f], both functions of the mel alone, so that
synthesis has them too. For the pre-emphasised signal s, sample t:

    p    = sum_k a[f, k] * s[t - 1 - k]                k = 0 .. 19
    e    = DECODED[class[t]] * 16 * g[f]
    s[t] = clamp(p + e, -4, 4)
    y[t] = s[t] + 0.9 * y[t - 1]

Everything starts at zero and class[-1] is ZERO_CLASS; a and g switch at t = 220 f.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from sparsejit.voice.features import (
    FFT_LENGTH,
    HOP_LENGTH,
    SAMPLE_RATE,
    FloatArray,
    over_bins,
)

ORDER = 20
PRE_EMPHASIS = 0.9
CLASSES = 256
RESIDUAL_SCALE = 16.0
SIGNAL_SCALE = 64.0
SIGNAL_LIMIT = 4.0
LAG_WINDOW_HZ = 30.0
WHITE_NOISE_CORRECTION = 1e-5

IndexArray = npt.NDArray[np.uint8]


def class_levels(classes: int) -> npt.NDArray[np.float64]:
    """The levels of all classes, evenly spaced from -1 to 1: 2 k / (classes - 1) - 1."""
    return 2 * np.arange(classes) / (classes - 1) - 1


def expanded(levels: npt.NDArray[np.float64], classes: int = 256) -> npt.NDArray[np.float64]:
    """The amplitudes of mu-law levels in [-1, 1] (ITU-T G.711's curve), mu = classes - 1."""
    mu = classes - 1
    return np.sign(levels) * ((1.0 + mu) ** np.abs(levels) - 1) / mu


# Class k decodes to the k-th of 256 values evenly spaced on the mu-law curve; the decision
# thresholds lie half-way on the curve. Both tables are float32 and are the definition.
DECODED: FloatArray = expanded(class_levels(CLASSES)).astype(np.float32)
THRESHOLDS: FloatArray = expanded(2 * (np.arange(255) + 0.5) / 255 - 1).astype(np.float32)
ZERO_CLASS = 128


def quantise(values: npt.ArrayLike) -> IndexArray:
    """Return the classes, uint8, of float32 `values`: the count of THRESHOLDS <= value."""
    return np.searchsorted(THRESHOLDS, values, side="right").astype(np.uint8)


def predictor_from_mel(mel: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return predictors a, float32 (frames, 20), and gains g, float32 (frames,).

    `mel` is log10 power (80, frames). The power spectrum interpolated from it, times the
    pre-emphasis response, gives the autocorrelation of each frame (Wiener-Khinchin); the
    lag window and the white-noise correction keep Levinson's recursion well conditioned.
    """
    bands = np.asarray(mel, dtype=np.float64).T
    power = 10.0 ** over_bins(bands) * _pre_emphasis_power()
    autocorrelation = np.fft.irfft(power, axis=1)[:, : ORDER + 1]
    lags = np.arange(ORDER + 1) / SAMPLE_RATE
    autocorrelation *= np.exp(-0.5 * (2 * np.pi * LAG_WINDOW_HZ * lags) ** 2)
    autocorrelation[:, 0] *= 1 + WHITE_NOISE_CORRECTION
    coefficients, error = levinson(autocorrelation)
    return coefficients.astype(np.float32), np.sqrt(error).astype(np.float32)


def levinson(
    autocorrelation: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Solve the normal equations of linear prediction for each row of (frames, order + 1).

    Returns the predictors (frames, order) and the prediction error powers (frames,).
    """
    frames, order = autocorrelation.shape[0], autocorrelation.shape[1] - 1
    predictor = np.zeros((frames, order))
    error = autocorrelation[:, 0].copy()
    for i in range(order):
        past = autocorrelation[:, i:0:-1]
        reflection = autocorrelation[:, i + 1] - (predictor[:, :i] * past).sum(axis=1)
        reflection /= error
        predictor[:, :i] -= reflection[:, None] * predictor[:, :i][:, ::-1].copy()
        predictor[:, i] = reflection
        error *= 1 - reflection**2
    return predictor, error


@cache
def _pre_emphasis_power() -> npt.NDArray[np.float64]:
    angle = np.linspace(0, np.pi, FFT_LENGTH // 2 + 1)
    return 1 + PRE_EMPHASIS**2 - 2 * PRE_EMPHASIS * np.cos(angle)


def pre_emphasise(audio: FloatArray) -> FloatArray:
    """Return s[t] = y[t] - 0.9 y[t-1], float32, with y[-1] = 0."""
    signal = audio.astype(np.float32)
    signal[1:] -= np.float32(PRE_EMPHASIS) * audio[:-1]
    return signal


def encode(
    signals: FloatArray, predictors: FloatArray, gains: FloatArray
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Encode pre-emphasised signals in closed loop; all clips advance together.

    signals (clips, 220 * frames), predictors (clips, frames, 20), gains (clips, frames).
    Returns, each uint8 (clips, 220 * frames): the classes; the network's input classes
    of s[t-1] / (64 g) and of the prediction p / (64 g), with s the *decoded* signal.
    """
    clips, length = signals.shape
    columns = np.ascontiguousarray(signals.T)
    classes = np.empty((length, clips), np.uint8)
    predictions = np.empty((length, clips), np.float32)
    # Row t + ORDER is s[t]; the predictor is reversed to meet rows in time order.
    decoded = np.zeros((length + ORDER, clips), np.float32)
    reversed_predictors = np.ascontiguousarray(predictors[:, :, ::-1].transpose(1, 2, 0))
    scales = np.ascontiguousarray(gains.T) * np.float32(RESIDUAL_SCALE)
    for t in range(length):
        frame = t // HOP_LENGTH
        scale = scales[frame]
        prediction = np.einsum("kc,kc->c", reversed_predictors[frame], decoded[t : t + ORDER])
        classes[t] = np.searchsorted(THRESHOLDS, (columns[t] - prediction) / scale, side="right")
        residual = DECODED[classes[t]] * scale
        np.clip(prediction + residual, -SIGNAL_LIMIT, SIGNAL_LIMIT, out=decoded[t + ORDER])
        predictions[t] = prediction
    inverse = np.repeat(1 / (np.float32(SIGNAL_SCALE) * gains.T), HOP_LENGTH, axis=0)
    previous = decoded[ORDER - 1 : -1]
    return classes.T, quantise(previous * inverse).T, quantise(predictions * inverse).T
