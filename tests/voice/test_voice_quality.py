from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("soundfile")
pytest.importorskip("pystoi")

from sparsejit.voice.score import stoi_held_out
from sparsejit.voice.wavernn import WaveRNN

RECORDINGS = Path(__file__).parents[3] / "shared" / "data" / "speech"


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason=f"the recordings are not in {RECORDINGS}")
def test_the_bundled_voice_is_intelligible():
    """Compiled and free-running, over the recordings that its training did not see."""
    voice = WaveRNN.from_pretrained()
    scores = stoi_held_out(voice, RECORDINGS, voice.weights.held_out)
    assert len(scores) == 8
    assert np.mean(list(scores.values())) >= 0.85
