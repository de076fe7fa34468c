"""Score of free-running speech against the recordings: STOI and pitch.

    pitch_agreement   the pitch of speech, and its agreement with the recording's
    score_of          score of one recording
    score_held_out    scores of several recordings
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE, FloatArray, load_audio, log_mel
from sparsejit.voice.train.dataset import audio_files

LOWEST_HZ, HIGHEST_HZ = 60.0, 400.0
# 25 ms.
WINDOW = SAMPLE_RATE // 40
# Least periodicity of a clearly periodic frame.
PERIODIC = 0.8
_SILENCE = 1e-6

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PitchAgreement:
    """Share of a recording's `frames` clearly periodic frames that are spoken within a semitone.

    median_semitones: the median of spoken over recorded pitch; above 0 is sharp.
    """

    within_a_semitone: float
    median_semitones: float
    frames: int


def pitch(audio: FloatArray) -> tuple[DoubleArray, DoubleArray]:
    """Return F0 in Hz and periodicity, at most 1, of frames 220 samples apart at 22,050 Hz.

    Periodicity is the normalised autocorrelation sum(x y) / sqrt(sum(x x) sum(y y)), where y is
    the window x one lag later, at the lag where it is greatest; silence has 0.
    """
    lags = np.arange(int(SAMPLE_RATE / HIGHEST_HZ) - 1, int(SAMPLE_RATE / LOWEST_HZ) + 2)
    padded = np.pad(audio.astype(float), (0, WINDOW + int(lags[-1])))
    spans = np.lib.stride_tricks.sliding_window_view(padded, WINDOW + int(lags[-1]))
    spans = spans[: len(audio) : HOP_LENGTH]
    size = 1 << (spans.shape[1] - 1).bit_length()
    spectrum = np.conj(np.fft.rfft(spans[:, :WINDOW], size)) * np.fft.rfft(spans, size)
    products = np.fft.irfft(spectrum, size)[:, lags]
    sums = np.pad(np.cumsum(spans * spans, axis=1), ((0, 0), (1, 0)))
    energies = sums[:, WINDOW:] - sums[:, : sums.shape[1] - WINDOW]
    scale = np.sqrt(energies[:, :1] * energies[:, lags])
    periodicity = np.where(scale > _SILENCE, products / np.maximum(scale, _SILENCE), 0)
    chosen = 1 + periodicity[:, 1:-1].argmax(axis=1)
    rows = np.arange(len(periodicity))
    before, at, after = (periodicity[rows, chosen + step] for step in (-1, 0, 1))
    bend = np.minimum(before - 2 * at + after, -1e-9)
    # The top of the parabola through three points, at most half a lag away where it has one.
    away = np.clip(0.5 * (before - after) / bend, -0.5, 0.5)
    return SAMPLE_RATE / (lags[chosen] + away), at


def pitch_agreement(recording: FloatArray, spoken: FloatArray) -> PitchAgreement:
    """Compare the pitch of speech with the recording's, both at 22,050 Hz, frame by frame."""
    length = min(len(recording), len(spoken))
    wanted, periodicity = pitch(recording[:length])
    found, _ = pitch(spoken[:length])
    voiced = periodicity >= PERIODIC
    if not voiced.any():
        return PitchAgreement(float("nan"), float("nan"), 0)
    semitones = 12 * np.log2(found[voiced] / wanted[voiced])
    share = float(np.mean(np.abs(semitones) <= 1))
    return PitchAgreement(share, float(np.median(semitones)), int(voiced.sum()))


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
