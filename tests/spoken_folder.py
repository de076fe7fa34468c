"""A small folder to be spoken, and what must come of it."""

from pathlib import Path

import numpy as np
import soundfile

from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE
from sparsejit.voice.speak.bulk import Manner, SpeakingTask
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.weights import VoiceWeights

FRAMES = 4
NETWORK = VoiceWeights.random(hidden=8).network


def recordings(folder: Path) -> Path:
    """Three stored mels and a recording, a to d, beside what is neither."""
    folder.mkdir()
    for level, name in enumerate("abc", 2):
        np.save(folder / f"{name}.npy", np.full((80, FRAMES), -level, np.float32))
    soundfile.write(folder / "d.FLAC", np.zeros(FRAMES * HOP_LENGTH), SAMPLE_RATE, format="FLAC")
    (folder / "notes.txt").write_text("said by whom")
    (folder / ".e.wav").touch()
    (folder / "f.wav").mkdir()
    return folder


def manner_of_a_small_voice(folder: Path) -> Manner:
    voice = folder / "voice.safetensors"
    VoiceWeights.random(hidden=8).save(voice)
    return Manner(voice, seed=7, temperature=0.8)


def assert_spoken(manner: Manner, task: SpeakingTask) -> None:
    """The output has the samples of its stored mel alone."""
    voice = WaveRNN.from_pretrained(manner.voice, temperature=manner.temperature)
    expected = np.clip(voice.generate(np.load(task.source), manner.seed), -1, 1)
    written, _ = soundfile.read(task.out, dtype="float32")
    np.testing.assert_allclose(written, expected, atol=2.0**-15)
