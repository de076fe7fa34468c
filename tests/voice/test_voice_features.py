import re

import numpy as np
import pytest

from sparsejit.errors import InvalidInput
from sparsejit.voice import features
from sparsejit.voice.features import (
    HOP_LENGTH,
    N_MELS,
    SAMPLE_RATE,
    MelStream,
    audio_pieces,
    load_audio,
    log_mel,
)
from sparsejit.voice.resampling import Resampler, resample

soundfile = pytest.importorskip("soundfile")


def tone(hertz, samples, rate=SAMPLE_RATE):
    return np.sin(2 * np.pi * hertz * np.arange(samples) / rate).astype(np.float32)


def test_white_noise_reads_its_variance():
    noise = np.random.default_rng(0).normal(0, 0.1, 10 * SAMPLE_RATE)
    power = 10.0 ** log_mel(noise).astype(np.float64)
    np.testing.assert_allclose(power.mean(axis=1), 0.01, rtol=0.15)


@pytest.mark.parametrize("band", [3, 20, 41, 60, 79])
def test_a_tone_peaks_in_the_band_centred_on_it(band):
    mel = log_mel(tone(features.mel_centres()[band], 4000))
    assert mel[:, 8].argmax() == band


@pytest.mark.parametrize("frame", [0, 5, 19])
def test_frame_f_is_centred_on_the_middle_of_its_samples(frame):
    click = np.zeros(20 * HOP_LENGTH, np.float32)
    click[frame * HOP_LENGTH + HOP_LENGTH // 2] = 1
    mel = log_mel(click)
    assert mel.shape == (N_MELS, 20)
    assert mel.sum(axis=0).argmax() == frame


def test_silence_is_the_floor():
    np.testing.assert_allclose(log_mel(np.zeros(500)), -9, atol=1e-6)


def test_every_filter_sums_to_one():
    np.testing.assert_allclose(features.mel_filters().sum(axis=1), 1)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_resampling_keeps_a_tone(rate):
    # Over the joints of blocks, but for the ends: a tone that is cut is more than a tone.
    result = resample(tone(1000, 11 * rate, rate), rate, SAMPLE_RATE)
    inner = slice(SAMPLE_RATE // 2, -SAMPLE_RATE // 2)
    expected = tone(1000, 11 * SAMPLE_RATE, SAMPLE_RATE)
    np.testing.assert_allclose(result[inner], expected[inner], atol=1e-4)


def test_resampling_removes_what_the_new_rate_cannot_hold():
    result = resample(tone(15_000, 9 * 48_000, 48_000), 48_000, SAMPLE_RATE)
    assert np.abs(result[SAMPLE_RATE // 2 : -SAMPLE_RATE // 2]).max() < 1e-4


def pieces_of(audio, seed):
    """`audio` cut at random, with cuts that leave nothing between them."""
    cuts = np.random.default_rng(seed).integers(0, len(audio), 30)
    return np.split(audio, np.sort([*cuts, cuts[0]]))


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 11_027])
def test_features_do_not_depend_on_how_a_recording_is_cut(rate):
    """To the bit: the sampler would draw other classes."""
    audio = np.random.default_rng(1).normal(0, 0.1, 13 * rate + 7).astype(np.float32)
    whole, resampled = log_mel(audio, rate), resample(audio, rate, SAMPLE_RATE)
    assert len(resampled) == round(len(audio) * SAMPLE_RATE / rate)
    for seed in range(2):
        stream, resampler = MelStream(rate), Resampler(rate, SAMPLE_RATE)
        pieces = pieces_of(audio, seed)
        frames = [*map(stream.push, pieces), stream.finish()]
        np.testing.assert_array_equal(np.concatenate(frames, axis=1), whole)
        samples = [*map(resampler.push, pieces), resampler.finish()]
        np.testing.assert_array_equal(np.concatenate(samples), resampled)


def test_a_frame_does_not_depend_on_those_beside_it():
    audio = np.random.default_rng(2).normal(0, 0.1, 600 * HOP_LENGTH)
    whole = log_mel(audio)
    for first, last in ((290, 297), (300, 560)):
        alone = log_mel(audio[(first - 2) * HOP_LENGTH : (last + 4) * HOP_LENGTH])[:, 2:-4]
        np.testing.assert_array_equal(alone, whole[:, first:last])
    power = np.random.default_rng(3).random((20, 513))
    alone = [features.log_bands(row[None])[0] for row in power]
    np.testing.assert_array_equal(features.log_bands(power), alone)


@pytest.mark.parametrize("rate", [SAMPLE_RATE, 48_000])
def test_a_file_is_read_in_pieces(tmp_path, rate):
    audio = np.random.default_rng(3).normal(0, 0.1, 7 * rate).astype(np.float32)
    path = tmp_path / "noise.wav"
    soundfile.write(path, audio, rate, subtype="FLOAT")
    pieces = list(audio_pieces(path))
    assert max(map(len, pieces)) <= 6 * SAMPLE_RATE
    np.testing.assert_array_equal(np.concatenate(pieces), resample(audio, rate, SAMPLE_RATE))
    np.testing.assert_array_equal(load_audio(path), np.concatenate(pieces))


def test_load_audio_mixes_channels(tmp_path):
    left, right = tone(300, 2205), tone(500, 2205)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([left, right], axis=1) / 2, SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_allclose(load_audio(path), (left + right) / 4, atol=1e-6)


@pytest.mark.parametrize("content", [b"", b"this is not audio" * 100])
@pytest.mark.parametrize("name", ["broken.wav", "broken.raw"])
def test_unreadable_audio_names_the_file(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=re.escape(name)):
        load_audio(path)


def test_audio_without_samples_is_refused(tmp_path):
    path = tmp_path / "empty.wav"
    soundfile.write(path, np.zeros(0, np.float32), SAMPLE_RATE)
    with pytest.raises(InvalidInput, match="0 samples"):
        load_audio(path)


@pytest.mark.parametrize(
    ("audio", "rate", "message"),
    [
        (np.zeros((2, 500)), SAMPLE_RATE, r"shape \(2, 500\)"),
        (np.full(500, np.nan), SAMPLE_RATE, "NaN"),
        (np.zeros(219), SAMPLE_RATE, "219 samples"),
        (np.zeros(500), 0, "rate is 0"),
        (np.zeros(500), 22_050.5, r"rate is 22050\.5"),
    ],
)
def test_log_mel_refuses(audio, rate, message):
    with pytest.raises(InvalidInput, match=message):
        log_mel(audio, rate)
