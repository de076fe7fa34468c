import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("pystoi")

from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE  # noqa: E402
from sparsejit.voice.score import stoi_held_out  # noqa: E402


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
    assert stoi_held_out(Fixed(speech), tmp_path, ["a"])["a"] == pytest.approx(1, abs=1e-3)
    assert stoi_held_out(Fixed(other), tmp_path, ["a"])["a"] < 0.6


def test_a_missing_recording_is_named(tmp_path, speech):
    soundfile.write(tmp_path / "a.wav", speech, SAMPLE_RATE)
    with pytest.raises(InvalidInput, match="lacks the recording b"):
        stoi_held_out(Fixed(speech), tmp_path, ["a", "b"])
