import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsejit.voice.features import HOP_LENGTH, FloatArray, log_mel
from sparsejit.voice.speak.post_filter import FRAMES_AHEAD, MOST_GAIN, PostFilter, post_filtered
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.weights import VoiceWeights


def noise(frames: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 0.1, frames * HOP_LENGTH).astype(np.float32)


def filtered(mel: FloatArray, samples: FloatArray) -> FloatArray:
    return np.concatenate(list(post_filtered([(mel, samples)])))


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 64, 65, 200])
def test_speech_that_has_the_power_wanted_stays_as_it_is(frames: int) -> None:
    samples = noise(frames)
    np.testing.assert_allclose(filtered(log_mel(samples), samples), samples, atol=1e-6)


def test_each_band_comes_nearer_to_the_power_wanted() -> None:
    wanted = log_mel(noise(40, seed=1))
    for samples in (noise(40, seed=2), 2 * noise(40, seed=3)):
        before = np.abs(log_mel(samples) - wanted)
        after = np.abs(log_mel(filtered(wanted, samples)) - wanted)
        assert after.mean() < 0.6 * before.mean()


def test_a_gain_is_bounded() -> None:
    samples = noise(20)
    loud = filtered(log_mel(samples) + 4, samples)
    np.testing.assert_allclose(loud, MOST_GAIN * samples, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=6))
def test_bits_do_not_depend_on_the_cuts_of_speech(lengths: list[int]) -> None:
    frames = sum(lengths) + 1
    mel, samples = log_mel(noise(frames, seed=4)), noise(frames, seed=5)
    places = np.cumsum(lengths)
    mels, pieces = np.split(mel, places, axis=1), np.split(samples, places * HOP_LENGTH)
    found = np.concatenate(list(post_filtered(zip(mels, pieces, strict=True))))
    np.testing.assert_array_equal(found, filtered(mel, samples))
    assert len(found) == len(samples)


def test_the_first_speech_is_there_after_the_frames_that_are_told() -> None:
    mel, samples = log_mel(noise(9)), noise(9)
    filtering = PostFilter()
    for frame in range(FRAMES_AHEAD):
        piece = slice(frame * HOP_LENGTH, (frame + 1) * HOP_LENGTH)
        given = list(filtering.push(mel[:, frame : frame + 1], samples[piece]))
        assert bool(given) == (frame == FRAMES_AHEAD - 1)


def test_silence_stays_silence() -> None:
    silence = np.zeros(10 * HOP_LENGTH, np.float32)
    assert not filtered(log_mel(silence), silence).any()


def test_a_voice_without_the_filter_gives_what_was_drawn() -> None:
    weights = VoiceWeights.random(hidden=8)
    plain, filtering = WaveRNN(weights, post_filter=False), WaveRNN(weights)
    mel = log_mel(noise(12, seed=6))
    drawn = plain.generate(mel, seed=1)
    np.testing.assert_array_equal(filtering.generate(mel, seed=1), filtered(mel, drawn))
    frames = [mel[:, :3], mel[:, 3:]]
    np.testing.assert_array_equal(np.concatenate(list(plain.stream(frames, 1))), drawn)
