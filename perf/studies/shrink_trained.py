"""Small models that are trained in a minute each: digits, next characters and spoken words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from sparsejit.perf.zoo.convolutional import Separable

FloatArray = npt.NDArray[np.float32]
_CONTEXT, _WIDTH, _HEADS, _BLOCKS = 64, 128, 4, 3
_WORDS, _FRAMES, _BANDS, _RATE = 12, 48, 32, 8000


class TrainedModel(NamedTuple):
    """A classifier, elements without labels to shrink it by, and fresh ones with labels."""

    model: nn.Module
    elements: list[Tensor]
    fresh: list[Tensor]
    labels: npt.NDArray[np.int64]


def digits() -> TrainedModel:
    """Scikit-learn's digits, 8 x 8, in batches of 16, and a net of convolutions."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.tensor(images[order] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels[order])
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    _train(model, lambda n: (x[:1184][n], y[:1184][n]), 1184, 900, 64)
    rest = (len(x) - 1184) // 16 * 16
    fresh = list(x[1184 : 1184 + rest].split(16))
    return TrainedModel(model, list(x[:1184].split(16)), fresh, y[1184 : 1184 + rest].numpy())


class CausalLayer(nn.Module):
    """Attention to the past and two linear layers, each behind a norm and added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.mixed, self.output = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.linear1, self.linear2 = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.mixed(self.norm1(x)).view(*x.shape[:2], 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(x.shape))
        y: Tensor = self.linear2(gelu(self.linear1(self.norm2(x))))
        return x + y


class CharacterModel(nn.Module):
    """Character ids (batch, places) -> scores of the next character (batch, places, characters)."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, _WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(_CONTEXT, _WIDTH))
        self.layers = nn.Sequential(*(CausalLayer() for _ in range(_BLOCKS)))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layers(self.characters(x) + self.places)))
        return y


def next_characters(file: Path) -> TrainedModel:
    """A transformer trained to predict the next character of a text, less the text's last tenth."""
    torch.manual_seed(0)
    text = file.read_text()
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([known[character] for character in text])
    windows = numbers.unfold(0, _CONTEXT + 1, 1)
    seen = len(windows) * 9 // 10 - _CONTEXT
    model = CharacterModel(len(known))

    def batch(n: Tensor) -> tuple[Tensor, Tensor]:
        return windows[n][:, :-1], windows[n][:, 1:].reshape(-1)

    _train(model, batch, seen, 400, 32)
    samples = [windows[n, :-1][None] for n in np.linspace(0, seen - 1, 192).astype(int)]
    fresh = windows[np.linspace(seen + _CONTEXT, len(windows) - 1, 400).astype(int)]
    labels = fresh[:, 1:].reshape(-1).numpy()
    return TrainedModel(model, samples, list(fresh[:, None, :-1]), labels)


def spoken_words() -> TrainedModel:
    """Generated words as spectra (1, 1, 32, 48), and a net of separable convolutions."""
    torch.manual_seed(0)
    x, y = (torch.from_numpy(each) for each in _words(0, 2400))
    fresh, labels = _words(1, 1000)
    rows = ((48, 96, 2), (96, 96, 1), (96, 192, 2), (192, 192, 1))
    model = nn.Sequential(
        *(nn.Conv2d(1, 48, 3, 2, 1), nn.ReLU()),
        *(Separable(*row) for row in rows),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, _WORDS)),
    )
    _train(model, lambda n: (x[n], y[n]), len(x), 260, 64)
    samples, _ = _words(2, 192)
    split = torch.from_numpy(samples).split(1), torch.from_numpy(fresh).split(1)
    return TrainedModel(model, list(split[0]), list(split[1]), labels)


def _words(seed: int, count: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Logarithms of spectra in bands (count, 1, bands, frames), and the number of each word.

    A word glides through four vowels, each two formants, at a pitch, pace and noise of its own.
    """
    vowels = np.random.default_rng(99).uniform((250, 800), (850, 2800), (_WORDS, 4, 2))
    rng = np.random.default_rng(seed)
    labels = rng.integers(_WORDS, size=count)
    samples = _FRAMES * 128 + 128
    at = np.arange(samples) / samples
    made = np.empty((count, 1, _BANDS, _FRAMES), np.float32)
    harmonics = np.arange(1, 25)[:, None]
    for number, label in enumerate(labels):
        places = (at * rng.uniform(0.8, 1.2) + rng.uniform(-0.1, 0.1)).clip(0, 1)
        own = vowels[label] * rng.uniform(0.9, 1.12)
        formants = [np.interp(places * 3, np.arange(4), own[:, n])[None] for n in range(2)]
        pitch = rng.uniform(90, 220) * (1 + rng.uniform(-0.2, 0.2) * at)
        power = sum(1 / (1 + ((harmonics * pitch - f) / 90) ** 2) for f in formants)
        phase = 2 * np.pi * harmonics * np.cumsum(pitch) / _RATE
        sound = (power * np.sin(phase)).sum(0)
        sound += rng.normal(0, sound.std() * 10 ** (-rng.uniform(-4, 15) / 20), samples)
        frames = np.lib.stride_tricks.sliding_window_view(sound, 256)[::128] * np.hanning(256)
        bands = np.square(np.abs(np.fft.rfft(frames)[:, : 4 * _BANDS])).reshape(_FRAMES, _BANDS, 4)
        made[number, 0] = np.log(bands.sum(2).T + 1e-3)
    return (made - made.mean((1, 2, 3), keepdims=True)) / 3, labels


def _train(
    model: nn.Module,
    batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    elements: int,
    steps: int,
    size: int,
) -> None:
    """Train by Adam with one cycle of steps, then set to evaluation."""
    optimizer = torch.optim.AdamW(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        inputs, labels = batch(torch.randint(elements, (size,)))
        optimizer.zero_grad()
        y = model(inputs)
        cross_entropy(y.reshape(len(labels), -1), labels).backward()
        optimizer.step()
        rate.step()
    model.eval()
