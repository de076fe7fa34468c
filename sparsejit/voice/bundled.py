"""The voice that ships with the package, and one utterance its training did not see."""

from dataclasses import dataclass
from pathlib import Path

from ..artefact.sealed import read_sealed
from .features import FloatArray

DATA = Path(__file__).parent / "data"
VOICE = DATA / "voice.safetensors"
UTTERANCE = DATA / "utterance.safetensors"


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
