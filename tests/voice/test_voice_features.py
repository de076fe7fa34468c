import numpy as np
import pytest

from sparsejit.errors import InvalidInput
from sparsejit.voice import features
from sparsejit.voice.features import HOP_LENGTH, N_MELS, SAMPLE_RATE, load_audio, log_mel, resample

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


@pytest.mark.parametrize(("rate", "new_rate"), [(16_000, 22_050), (48_000, 22_050)])
def test_resampling_keeps_a_tone(rate, new_rate):
    # One second, so that the tone is periodic in the block and the ends do not matter.
    result = resample(tone(1000, rate, rate), rate, new_rate)
    np.testing.assert_allclose(result, tone(1000, new_rate, new_rate), atol=1e-4)


def test_resampling_removes_what_the_new_rate_cannot_hold():
    assert np.abs(resample(tone(15_000, 48_000, 48_000), 48_000, SAMPLE_RATE)).max() < 1e-4


def test_load_audio_mixes_channels(tmp_path):
    left, right = tone(300, 2205), tone(500, 2205)
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([left, right], axis=1) / 2, SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_allclose(load_audio(path), (left + right) / 4, atol=1e-6)


@pytest.mark.parametrize("content", [b"", b"this is not audio" * 100])
def test_unreadable_audio_names_the_file(tmp_path, content):
    path = tmp_path / "broken.wav"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"broken\.wav"):
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
    ],
)
def test_log_mel_refuses(audio, rate, message):
    with pytest.raises(InvalidInput, match=message):
        log_mel(audio, rate)
