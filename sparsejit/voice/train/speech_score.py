"""Score of free-running speech against the recordings: STOI and pitch."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy.typing as npt

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE, FloatArray, load_audio, log_mel
from sparsejit.voice.train.dataset import audio_files
from sparsejit.voice.train.pitch import PitchAgreement, pitch_agreement


class Generator(Protocol):
    """Anything that speaks from a mel, such as `sparsejit.WaveRNN`."""

    def generate(self, mel: npt.ArrayLike, *, seed: int = 0) -> FloatArray: ...


@dataclass(frozen=True)
class SpeechScore:
    """Score of one recording: STOI (Taal et al. 2011, pystoi), 0 to 1, and pitch."""

    stoi: float
    pitch: PitchAgreement


def score_held_out(
    voice: Generator,
    folder: str | os.PathLike[str],
    names: Sequence[str],
    seed: int = 0,
) -> dict[str, SpeechScore]:
    """Score each recording of `folder` named in `names`, resynthesised from its mel.

    `names` are file names without suffix; a voice's own held-out ones are
    `voice.weights.held_out`.

    Raises InvalidInput if a named recording is not in `folder`.
    """
    files = {path.stem: path for path in audio_files(folder)}
    missing = sorted(set(names) - files.keys())
    if missing:
        raise InvalidInput(
            f"{folder} lacks the recording {missing[0]}; give the voice's own folder"
        )
    return {name: score_of(voice, files[name], seed) for name in names}


def score_of(voice: Generator, recording: Path, seed: int = 0) -> SpeechScore:
    """Score one recording spoken again by `voice` from its mel."""
    try:
        from pystoi import stoi
    except ImportError as error:
        raise MissingDependency("pystoi is missing: pip install 'sparsejit[dev]'") from error
    audio = load_audio(recording)
    mel = log_mel(audio)
    audio = audio[: mel.shape[1] * HOP_LENGTH]
    spoken = voice.generate(mel, seed=seed)
    return SpeechScore(float(stoi(audio, spoken, SAMPLE_RATE)), pitch_agreement(audio, spoken))


def mean_pitch_agreement(scores: Iterable[SpeechScore]) -> float:
    """The share of the voiced frames of all recordings that are within a semitone."""
    found = [score.pitch for score in scores if score.pitch.frames]
    frames = sum(pitch.frames for pitch in found)
    return sum(pitch.within_a_semitone * pitch.frames for pitch in found) / max(frames, 1)
