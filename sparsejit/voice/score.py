"""How intelligible a voice is: STOI of free-running speech against the recordings."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy.typing as npt

from ..errors import InvalidInput, MissingDependency
from .dataset import audio_files
from .features import HOP_LENGTH, SAMPLE_RATE, FloatArray, load_audio, log_mel


class Generator(Protocol):
    """Anything that speaks from a mel, such as `sparsejit.WaveRNN`."""

    def generate(self, mel: npt.ArrayLike, *, seed: int = 0) -> FloatArray: ...


def stoi_held_out(
    voice: Generator,
    folder: str | os.PathLike[str],
    names: Sequence[str],
    seed: int = 0,
) -> dict[str, float]:
    """Return the STOI of each recording of `folder` named in `names`, resynthesised from its mel.

    STOI (Taal et al. 2011, as pystoi computes it) is 0 to 1. `names` are file names without
    suffix; a voice's own held-out ones are `voice.weights.held_out`.

    Raises InvalidInput if a named recording is not in `folder`.
    """
    files = {path.stem: path for path in audio_files(folder)}
    missing = sorted(set(names) - files.keys())
    if missing:
        raise InvalidInput(
            f"{folder} lacks the recording {missing[0]}; give the voice's own folder"
        )
    return {name: stoi_of(voice, files[name], seed) for name in names}


def stoi_of(voice: Generator, recording: Path, seed: int = 0) -> float:
    """Return the STOI of one recording spoken again by `voice` from its mel."""
    try:
        from pystoi import stoi
    except ImportError as error:
        raise MissingDependency("pystoi is missing: pip install pystoi") from error
    audio = load_audio(recording)
    mel = log_mel(audio)
    spoken = voice.generate(mel, seed=seed)
    return float(stoi(audio[: mel.shape[1] * HOP_LENGTH], spoken, SAMPLE_RATE))
