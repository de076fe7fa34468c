"""Sounds, files and pictures: inputs of the models of `shrink_models.py`.

Even and odd seeds choose from different recordings and files.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.voice.features import SAMPLE_RATE, load_audio
from sparsejit.voice.resampling import resample

FloatArray = npt.NDArray[np.float32]
RATE = 16_000

_NOISES = ("white", "brown", "hum", "babble")
# Bytes that magika takes of either end of a file, size of the block with them, and its padding.
_END, _BLOCK, _NO_BYTE = 1024, 4096, 256
_MOST_OF_A_SUFFIX = 4000
_SIDE, _GREY = 416, 114  # of yolox's pictures, and the colour around them


@cache
def _speech(folder: Path, odd: bool) -> list[FloatArray]:
    """Half of the recordings in a folder, at `RATE`."""
    files = sorted(folder.glob("*.flac"))[odd::2][:48]
    return [resample(load_audio(file), SAMPLE_RATE, RATE) for file in files]


def sounds(folder: Path, seed: int, count: int, samples: int) -> FloatArray:
    """Speech in noise (count, samples) at many levels; an eighth is noise alone."""
    rng = np.random.default_rng(seed)
    voices = _speech(folder, bool(seed % 2))
    made = np.empty((count, samples), np.float32)
    for number in range(count):
        speech = _cut(rng, voices, samples)
        noise = _noise(rng, _NOISES[number % len(_NOISES)], voices, samples)
        ratio = 10 ** (rng.uniform(-5, 40) / 20)
        mixed = noise if number % 8 == 7 else speech + noise / ratio
        level = 10 ** (rng.uniform(-40, -14) / 20)
        made[number] = (level * mixed / (mixed.std() + 1e-9)).clip(-1, 1)
    return made


def _cut(rng: np.random.Generator, voices: list[FloatArray], samples: int) -> FloatArray:
    """`samples` of random recordings in a row, with half a second of silence between them.

    Each recording is scaled to a standard deviation of 1.
    """
    parts: list[FloatArray] = []
    while sum(map(len, parts)) < samples + RATE:
        one = voices[rng.integers(len(voices))]
        parts += [one / (one.std() + 1e-9), np.zeros(RATE // 2, np.float32)]
    start = rng.integers(RATE)
    return np.concatenate(parts)[start : start + samples]


def _noise(
    rng: np.random.Generator, kind: str, voices: list[FloatArray], samples: int
) -> FloatArray:
    """Noise (samples,) of standard deviation 1: "babble" of voices, "brown", "hum", or white."""
    white = rng.normal(size=samples)
    if kind == "babble":
        white = np.sum([_cut(rng, voices, samples) for _ in range(4)], axis=0)
    elif kind == "brown":
        white = np.fft.irfft(np.fft.rfft(white) / np.sqrt(1 + np.arange(samples // 2 + 1)), samples)
    elif kind == "hum":
        phase = 2 * np.pi * rng.uniform(45, 65) * np.arange(samples) / RATE
        white = 0.3 * white + np.sum([np.sin(n * phase) / n for n in range(1, 9)], axis=0)
    return np.asarray(white / (white.std() + 1e-9), np.float32)


def files_for_magika(seed: int, count: int) -> npt.NDArray[np.int32]:
    """Both ends of files of this machine (count, 2048), spread over all suffixes."""
    rng = np.random.default_rng(seed)
    kinds = [rng.permutation(paths[seed % 2 :: 2]) for paths in _paths_by_suffix()]
    found: list[npt.NDArray[np.int32]] = []
    for turn in range(max(map(len, kinds))):
        for number in rng.permutation(len(kinds)):
            if turn < len(kinds[number]) and (ends := _ends_of(kinds[number][turn])) is not None:
                found.append(ends)
            if len(found) == count:
                return np.stack(found)
    return np.stack(found)


@cache
def _paths_by_suffix() -> list[list[str]]:
    """Installed files by suffix, without the rarest suffixes."""
    found: dict[str, list[str]] = defaultdict(list)
    for root in (sys.base_prefix, sys.prefix, "/usr/share", "/usr/lib", "/usr/bin"):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                paths = found[os.path.splitext(name)[1].lower()]
                if len(paths) < _MOST_OF_A_SUFFIX:
                    paths.append(os.path.join(folder, name))
    return [paths for _, paths in sorted(found.items()) if len(paths) >= 4]


def _ends_of(path: str) -> npt.NDArray[np.int32] | None:
    """The first and last bytes of a file as magika takes them; None for a path without bytes."""
    if os.path.islink(path) or not os.path.isfile(path) or not os.path.getsize(path):
        return None
    with open(path, "rb") as file:
        first = file.read(_BLOCK).lstrip()[:_END]
        file.seek(-min(_BLOCK, os.path.getsize(path)), os.SEEK_END)
        last = file.read().rstrip()[-_END:]
    made = np.full(2 * _END, _NO_BYTE, np.int32)
    made[: len(first)] = np.frombuffer(first, np.uint8)
    made[2 * _END - len(last) :] = np.frombuffer(last, np.uint8)
    return made


@cache
def _photographs() -> list[npt.NDArray[np.uint8]]:
    """The photographs that matplotlib and scikit-learn bring along."""
    import matplotlib
    from PIL import Image
    from sklearn.datasets import load_sample_images

    person = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    own = np.asarray(Image.open(person).convert("RGB"))
    return [own, own[:400], *load_sample_images().images]


def pictures(seed: int, count: int) -> FloatArray:
    """Parts of photographs on one another (count, 3, 416, 416), as yolox takes them."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    made = np.empty((count, 3, _SIDE, _SIDE), np.float32)
    for number in range(count):
        canvas = Image.new("RGB", (_SIDE, _SIDE), (_GREY,) * 3)
        for place in range(rng.integers(1, 4)):
            part = _part(rng, 1.0 if place == 0 else rng.uniform(0.3, 0.8))
            left, top = (int(n) for n in rng.integers(-40, 200 if place else 1, 2))
            canvas.paste(part, (left, top))
        light = rng.uniform(0.6, 1.3) * np.asarray(canvas, np.float32)
        noisy = light + rng.normal(0, rng.uniform(0, 12), light.shape)
        made[number] = noisy.clip(0, 255)[:, :, ::-1].transpose(2, 0, 1)
    return made


def _part(rng: np.random.Generator, size: float) -> Any:
    """A part of a photograph, turned a little, perhaps mirrored."""
    from PIL import Image, ImageOps

    photographs = _photographs()
    one = Image.fromarray(photographs[rng.integers(len(photographs))])
    share = rng.uniform(0.6, 1.0, 2)
    width, height = (int(n) for n in share * one.size)
    left, top = (int(rng.integers(n + 1)) for n in (one.width - width, one.height - height))
    part = one.crop((left, top, left + width, top + height)).rotate(rng.uniform(-12, 12))
    part = ImageOps.mirror(part) if rng.random() < 0.5 else part
    scale = size * _SIDE / max(part.size) * rng.uniform(0.8, 1.2)
    return part.resize((max(8, int(scale * part.width)), max(8, int(scale * part.height))))
