from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("soundfile")
pytest.importorskip("pystoi")

pytest.importorskip("torch")

from sparsejit.voice.bundled import VOICE
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.train.likelihood import held_out_nats
from sparsejit.voice.train.speech_score import mean_pitch_agreement, score_held_out
from sparsejit.voice.weights import VoiceWeights

RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "speech"


with_recordings = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason=f"the recordings are not in {RECORDINGS}"
)


@with_recordings
def test_the_bundled_voice_bears_rounding(tmp_path):
    weights = VoiceWeights.load(VOICE)
    kinds = ["float32", "bfloat16", "int8"]
    nats = held_out_nats(weights, RECORDINGS, tmp_path, kinds, most_frames=25)
    assert nats["bfloat16"] == pytest.approx(nats["float32"], abs=0.003)
    assert nats["int8"] == pytest.approx(nats["float32"], abs=0.02)


@with_recordings
def test_the_bundled_voice_is_intelligible():
    """Compiled and free-running, over the recordings that its training did not see."""
    voice = WaveRNN.from_pretrained()
    scores = score_held_out(voice, RECORDINGS, voice.weights.held_out).values()
    assert len(scores) == 8
    assert np.mean([score.stoi for score in scores]) >= 0.94
    assert mean_pitch_agreement(scores) >= 0.86
