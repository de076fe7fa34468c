"""The bundled voice, its dense form, and one utterance that neither was trained on."""

from dataclasses import dataclass
from pathlib import Path

from sparsejit.artefact.sealed import read_sealed
from sparsejit.voice.features import FloatArray, load_audio

DATA = Path(__file__).parent / "data"
VOICE = DATA / "voice.safetensors"
DENSE = DATA / "dense.safetensors"  # trained as long as VOICE, without pruning
UTTERANCE = DATA / "utterance.safetensors"
RECORDING = DATA / "utterance.flac"  # of LJ Speech, public domain


@dataclass(frozen=True)
class Utterance:
    """A recording's name and text, and its log10 mel, float32 (80, frames)."""

    name: str
    text: str
    mel: FloatArray


def bundled_utterance() -> Utterance:
    """Return the bundled utterance; DamagedFile if the installed file is not whole."""
    tensors, metadata = read_sealed(UTTERANCE, "install sparsejit again")
    return Utterance(metadata["name"], metadata["text"], tensors["mel"])


def bundled_recording() -> FloatArray:
    """The recording that the bundled utterance's mel is of: float32 (samples,) at 22,050 Hz.

    Raises InvalidInput if the installed file cannot be read, MissingDependency without soundfile.
    """
    return load_audio(RECORDING)
