"""A folder of recordings as teacher-forced training data, encoded once and cached."""

import hashlib
import os
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import atomic_path
from sparsejit.voice.features import AUDIO_SUFFIXES, HOP_LENGTH, FloatArray, load_audio, log_mel
from sparsejit.voice.prediction import (
    ORDER,
    ZERO_CLASS,
    IndexArray,
    encode,
    pre_emphasise,
    predictor_from_mel,
)
from sparsejit.voice.spec.own_network import CONTEXT_FRAMES

# Raise when features or coding change: the names of cache files depend on it.
ENCODING_VERSION = 2


@dataclass(frozen=True)
class Clip:
    """One encoded recording. All sample arrays are uint8 of length 220 * frames."""

    name: str
    mel: FloatArray
    classes: IndexArray
    signal: IndexArray
    prediction: IndexArray

    @property
    def frames(self) -> int:
        return self.mel.shape[1]

    def inputs(self) -> IndexArray:
        """Return the network's inputs (samples, 3): s[t-1], class[t-1], prediction."""
        previous = np.concatenate([[np.uint8(ZERO_CLASS)], self.classes[:-1]])
        return np.stack([self.signal, previous, self.prediction], axis=1)

    def padded_mel(self) -> FloatArray:
        """Return mel (80, frames + 4) with its first and last frame repeated."""
        return np.pad(self.mel, ((0, 0), (CONTEXT_FRAMES, CONTEXT_FRAMES)), mode="edge")


def audio_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the recordings in `folder`, sorted by name; InvalidInput if there is none."""
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a folder; give a folder of recordings")
    files = sorted(path for path in root.iterdir() if path.suffix.lower() in AUDIO_SUFFIXES)
    if not files:
        raise InvalidInput(
            f"{root} holds no {', '.join(AUDIO_SUFFIXES)} file; put recordings there"
        )
    return files


def held_out_names(names: list[str], count: int = 8) -> list[str]:
    """Return `count` names (fewer from a small set), evenly spread over sorted `names`."""
    ordered = sorted(names)
    count = min(count, len(ordered) // 4)
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def load_clips(
    folder: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    names: Collection[str] | None = None,
) -> list[Clip]:
    """Return the recordings of `folder`, encoded; the encoding is kept in folder `cache`.

    With `names`, only recordings whose names without suffix are in it.
    """
    files = audio_files(folder)
    chosen = [path for path in files if names is None or path.stem in names]
    stored = _cached(files, cache)
    if not stored.exists():
        stored = _cached(chosen, cache)
    if not stored.exists():
        _save(encode_clips({path.stem: load_audio(path) for path in chosen}), stored)
    return [clip for clip in _load(stored) if names is None or clip.name in names]


def encode_clips(recordings: dict[str, FloatArray]) -> list[Clip]:
    """Encode recordings at 22,050 Hz in lockstep, padded to the longest."""
    mels = {name: log_mel(audio) for name, audio in recordings.items()}
    longest = max(mel.shape[1] for mel in mels.values())
    shape = (len(mels), longest)
    signals = np.zeros((len(mels), longest * HOP_LENGTH), np.float32)
    predictors = np.zeros((*shape, ORDER), np.float32)
    gains = np.ones(shape, np.float32)
    for row, (name, mel) in enumerate(mels.items()):
        frames = mel.shape[1]
        samples = frames * HOP_LENGTH
        signals[row, :samples] = pre_emphasise(recordings[name][:samples])
        predictors[row, :frames], gains[row, :frames] = predictor_from_mel(mel)
    encoded = encode(signals, predictors, gains)
    return [
        Clip(name, mel, *(array[row, : mel.shape[1] * HOP_LENGTH] for array in encoded))
        for row, (name, mel) in enumerate(mels.items())
    ]


def _cached(files: list[Path], cache: str | os.PathLike[str]) -> Path:
    """Path of the cached encoding of exactly these files."""
    listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in files)
    digest = hashlib.sha256(f"{ENCODING_VERSION}\n{listing}".encode()).hexdigest()
    return Path(cache) / f"clips-{digest[:16]}.npz"


def _save(clips: list[Clip], path: Path) -> None:
    with atomic_path(path) as temporary:
        np.savez(
            temporary,
            names=np.array([clip.name for clip in clips]),
            frames=np.array([clip.frames for clip in clips]),
            mel=np.concatenate([clip.mel for clip in clips], axis=1),
            samples=np.concatenate(
                [np.stack([clip.classes, clip.signal, clip.prediction]) for clip in clips], axis=1
            ),
        )


def _load(path: Path) -> list[Clip]:
    try:
        stored = dict(np.load(path, allow_pickle=False))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DamagedFile(f"{path} is not readable ({error}); delete it to encode again") from error
    ends = np.cumsum(stored["frames"])[:-1]
    mels = np.split(stored["mel"], ends, axis=1)
    samples = np.split(stored["samples"], ends * HOP_LENGTH, axis=1)
    return [
        Clip(str(name), mel, *rows)
        for name, mel, rows in zip(stored["names"], mels, samples, strict=True)
    ]


@dataclass(frozen=True)
class Batch:
    """The data of one step of truncated back-propagation over parallel streams."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    mel: FloatArray
    starts: npt.NDArray[np.bool_]


class Streams:
    """Endless parallel streams over shuffled clips, `frames` frames of every stream a step.

    A clip's last frames beyond a multiple of `frames` are not used. `position()` and
    `restore()` make it resumable: the order depends on `seed` and the epoch alone.
    """

    def __init__(self, clips: list[Clip], streams: int, frames: int, seed: int = 0) -> None:
        self._clips = [clip for clip in clips if clip.frames >= frames]
        if not self._clips:
            raise InvalidInput(
                f"no clip has {frames} frames of {HOP_LENGTH} samples; record longer"
            )
        self._inputs = [clip.inputs() for clip in self._clips]
        self._mels = [clip.padded_mel() for clip in self._clips]
        self._frames = frames
        self._seed = seed
        self._taken = 0
        self._cursor = [(self._next_clip(), 0) for _ in range(streams)]

    def _next_clip(self) -> int:
        epoch, place = divmod(self._taken, len(self._clips))
        self._taken += 1
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._clips))
        return int(order[place])

    def position(self) -> dict[str, Any]:
        return {"taken": self._taken, "cursor": list(self._cursor)}

    def restore(self, position: dict[str, Any]) -> None:
        self._taken = position["taken"]
        self._cursor = [tuple(entry) for entry in position["cursor"]]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._step()

    def _step(self) -> Batch:
        pieces = [self._piece(stream) for stream in range(len(self._cursor))]
        inputs, targets, mels, starts = zip(*pieces, strict=True)
        return Batch(
            np.stack(inputs, axis=1).astype(np.int64),
            np.stack(targets, axis=1).astype(np.int64),
            np.stack(mels),
            np.array(starts),
        )

    def _piece(self, stream: int) -> tuple[IndexArray, IndexArray, FloatArray, bool]:
        clip, frame = self._cursor[stream]
        if frame + self._frames > self._clips[clip].frames:
            clip, frame = self._next_clip(), 0
        self._cursor[stream] = (clip, frame + self._frames)
        span = slice(frame * HOP_LENGTH, (frame + self._frames) * HOP_LENGTH)
        mel = self._mels[clip][:, frame : frame + self._frames + 2 * CONTEXT_FRAMES]
        return self._inputs[clip][span], self._clips[clip].classes[span], mel, frame == 0
