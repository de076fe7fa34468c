import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter

from sparsejit.voice import prediction
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE, log_mel
from sparsejit.voice.prediction import (
    DECODED,
    ORDER,
    THRESHOLDS,
    ZERO_CLASS,
    encode,
    pre_emphasise,
    predictor_from_mel,
    quantise,
)


def voiced_noise(samples, seed=0):
    """A resonant signal with a pitch, loud and quiet by turns, like speech to a predictor."""
    generator = np.random.default_rng(seed)
    source = 0.1 * generator.standard_normal(samples)
    source[:: SAMPLE_RATE // 200] += 1
    envelope = 0.05 + np.abs(np.sin(np.arange(samples) / 3000))
    poles = [0.97 * np.exp(0.2j), 0.95 * np.exp(0.7j)]
    shape = np.real(np.poly([*poles, *np.conj(poles)]))
    return (0.01 * lfilter([1.0], shape, source * envelope)).astype(np.float32)


def test_the_tables_interleave():
    assert (DECODED[:-1] < THRESHOLDS).all()
    assert (DECODED[1:] > THRESHOLDS).all()
    assert (quantise(DECODED) == np.arange(256)).all()
    assert quantise(0.0) == ZERO_CLASS


@given(st.floats(-2, 2, width=32))
def test_quantise_rounds_on_the_mu_law_curve(value):
    compressed = np.sign(value) * np.log1p(255 * abs(min(max(value, -1), 1))) / np.log(256)
    exact = (compressed + 1) / 2 * 255
    assert abs(float(quantise(np.float32(value))) - exact) <= 0.5 + 1e-3


def test_a_value_on_a_threshold_belongs_above():
    np.testing.assert_array_equal(quantise(THRESHOLDS), np.arange(1, 256))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, ORDER))
def test_levinson_solves_the_toeplitz_system(seed, order):
    signal = np.random.default_rng(seed).standard_normal(200)
    lags = np.array([signal[: 200 - k] @ signal[k:] for k in range(order + 1)])
    predictor, error = prediction.levinson(lags[None])
    exact = solve_toeplitz(lags[:-1], lags[1:])
    np.testing.assert_allclose(predictor[0], exact, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(error[0], lags[0] - exact @ lags[1:], rtol=1e-8)


def test_predictors_are_stable_and_gains_positive():
    mel = np.random.default_rng(0).uniform(-9, 1, (80, 50)).astype(np.float32)
    predictors, gains = predictor_from_mel(mel)
    assert (gains > 0).all()
    for predictor in predictors:
        assert np.abs(np.roots([1, *-predictor.astype(np.float64)])).max() < 1


def test_the_gain_is_the_level_of_the_residual():
    """White noise through 1 / (1 - 0.9 z^-1) pre-emphasises back to the noise itself."""
    noise = np.random.default_rng(0).normal(0, 0.02, 200 * HOP_LENGTH)
    _, gains = predictor_from_mel(log_mel(lfilter([1.0], [1.0, -0.9], noise)))
    assert np.median(gains) == pytest.approx(0.02, rel=0.1)


def encoded(signals):
    mels = [log_mel(signal) for signal in signals]
    predictors, gains = (
        np.stack(parts) for parts in zip(*map(predictor_from_mel, mels), strict=True)
    )
    emphasised = np.stack([pre_emphasise(signal) for signal in signals])
    return emphasised, predictors, gains, encode(emphasised, predictors, gains)


def decode_slowly(classes, predictors, gains):
    """The synthesis equations of the module's docstring, one sample at a time, in float64."""
    past = [0.0] * ORDER
    decoded, predicted = [], []
    for t, index in enumerate(classes):
        frame = t // HOP_LENGTH
        p = float(predictors[frame].astype(np.float64) @ past)
        s = min(max(p + float(DECODED[index]) * 16 * float(gains[frame]), -4.0), 4.0)
        past = [s, *past[:-1]]
        decoded.append(s)
        predicted.append(p)
    return np.array(decoded), np.array(predicted)


def test_decoding_the_classes_gives_the_signal_back():
    signals = [voiced_noise(20 * HOP_LENGTH, seed) for seed in range(3)]
    emphasised, predictors, gains, (classes, _, _) = encoded(signals)
    for row in range(3):
        decoded, _ = decode_slowly(classes[row], predictors[row], gains[row])
        noise = np.mean((decoded - emphasised[row]) ** 2)
        assert np.mean(emphasised[row] ** 2) / noise > 1000


def test_the_network_sees_what_the_decoder_has():
    _, predictors, gains, (classes, signal, predicted) = encoded([voiced_noise(20 * HOP_LENGTH)])
    s, p = decode_slowly(classes[0], predictors[0], gains[0])
    scale = 1 / (64 * np.repeat(gains[0].astype(np.float64), HOP_LENGTH))
    # float32 against float64 may put a value on the other side of a threshold, rarely.
    for found, exact in [(signal[0], np.append(0, s[:-1])), (predicted[0], p)]:
        difference = found.astype(int) - quantise((exact * scale).astype(np.float32))
        assert np.abs(difference).max() <= 1
        assert np.count_nonzero(difference) < 0.01 * len(difference)


def test_clips_do_not_influence_each_other():
    signals = [voiced_noise(10 * HOP_LENGTH, seed) for seed in range(3)]
    _, _, _, forward = encoded(signals)
    _, _, _, backward = encoded(signals[::-1])
    for array, reversed_array in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(array, reversed_array[::-1])
