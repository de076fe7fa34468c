import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("pystoi")

from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE  # noqa: E402
from sparsejit.voice.train.speech_score import (  # noqa: E402  # noqa: E402
    PERIODIC,
    PitchAgreement,
    SpeechScore,
    mean_pitch_agreement,
    pitch,
    pitch_agreement,
    score_held_out,
)


class Fixed:
    """A voice that says the same whatever the mel."""

    def __init__(self, audio):
        self.audio = audio

    def generate(self, mel, *, seed=0):
        return self.audio[: mel.shape[1] * HOP_LENGTH]


@pytest.fixture
def speech():
    time = np.arange(3 * SAMPLE_RATE) / SAMPLE_RATE
    syllables = np.abs(np.sin(2 * np.pi * 2 * time))
    noise = np.random.default_rng(0).standard_normal(len(time))
    return (0.1 * syllables * noise).astype(np.float32)


def test_only_the_recording_itself_scores_one(tmp_path, speech):
    soundfile.write(tmp_path / "a.wav", speech, SAMPLE_RATE, subtype="FLOAT")
    other = np.random.default_rng(1).normal(0, 0.1, len(speech)).astype(np.float32)
    assert score_held_out(Fixed(speech), tmp_path, ["a"])["a"].stoi == pytest.approx(1, abs=1e-3)
    assert score_held_out(Fixed(other), tmp_path, ["a"])["a"].stoi < 0.6


def test_a_missing_recording_is_named(tmp_path, speech):
    soundfile.write(tmp_path / "a.wav", speech, SAMPLE_RATE)
    with pytest.raises(InvalidInput, match="lacks the recording b"):
        score_held_out(Fixed(speech), tmp_path, ["a", "b"])


def pulses(hertz):
    """A second of a buzz whose pitch follows `hertz` (samples,)."""
    phase = np.cumsum(hertz) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * phase) ** 9).astype(np.float32)


GLIDE = np.linspace(90, 250, SAMPLE_RATE)


def test_pitch_follows_a_glide():
    hertz, periodicity = pitch(pulses(GLIDE))
    inner = slice(0, 90)  # the last windows reach into the silence behind the end
    middle = GLIDE[HOP_LENGTH * np.arange(90) + SAMPLE_RATE // 50]
    assert periodicity[inner].min() > PERIODIC
    # Over two windows the glide itself moves by a few Hertz.
    np.testing.assert_allclose(hertz[inner], middle, rtol=0.03)


def test_silence_and_noise_have_no_pitch(speech):
    assert (pitch(np.zeros(9000, np.float32))[1] == 0).all()
    assert np.mean(pitch(speech)[1] >= PERIODIC) < 0.01


@pytest.mark.parametrize(("semitones", "share"), [(0, 1), (0.8, 1), (1.2, 0), (-12, 0)])
def test_pitch_agrees_within_a_semitone(semitones, share):
    found = pitch_agreement(pulses(GLIDE), pulses(GLIDE * 2 ** (semitones / 12)))
    assert found.within_a_semitone == pytest.approx(share, abs=0.03)
    assert found.frames > 80
    if semitones > -12:
        assert found.median_semitones == pytest.approx(semitones, abs=0.05)


def test_unvoiced_speech_says_nothing_of_pitch():
    nothing = pitch_agreement(np.zeros(9000, np.float32), np.zeros(9000, np.float32))
    assert nothing.frames == 0
    scores = [SpeechScore(1, nothing), SpeechScore(1, PitchAgreement(0.5, 0, 10))]
    assert mean_pitch_agreement([*scores, SpeechScore(1, PitchAgreement(1, 0, 30))]) == 0.875
