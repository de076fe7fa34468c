"""A few seconds of gradual pruning for `sparsejit demo`, on speech-like sound made on the spot."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.prune.pruner import Pruner
from sparsejit.prune.schedules import CubicSchedule

SAMPLE_RATE = 8000
CLASSES = 32
WINDOW = 32
HIDDEN = 256
BATCH = 256
DENSE_STEPS = 600
PRUNE_STEPS = 600
REPORT_EVERY = 10
PRUNED_LAYER = "2.weight"
AMOUNT, PATTERN = 0.9, "1x8"


@dataclass(frozen=True)
class PrunePoint:
    """Held-out loss in nats a sample, and density of the pruned layer, after `step` steps."""

    step: int
    loss: float
    density: float


@dataclass(frozen=True)
class ShowcaseResult:
    """Held-out losses in nats a sample.

    dense: before pruning. one_shot: `dense` cut to the final density, not retrained.
    gradual: pruned while training on. dense_longer: trained on equally long without pruning.
    """

    dense: float
    one_shot: float
    gradual: float
    dense_longer: float
    density: float


class Showcase:
    """Trains a predictor of the next sample, then prunes its 256 x 256 layer gradually.

    `run` yields the points of the pruning phase; afterwards `result` and `model` are set.
    Deterministic for one seed on one machine and thread count.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.model = _build_predictor(seed)
        self.result: ShowcaseResult | None = None

    def run(self) -> Iterator[PrunePoint]:
        """Train dense, then prune while training on, with a point every REPORT_EVERY steps."""
        train, held_out = _windows(vowels(self.seed, 48)), _windows(vowels(self.seed + 1, 16))
        optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        batches = _batches(train, self.seed)
        for _ in range(DENSE_STEPS):
            _train_step(self.model, optimizer, *next(batches))
        dense = _loss(self.model, held_out)
        one_shot = self._one_shot_loss(held_out)
        dense_longer = self._dense_longer_loss(optimizer, train, held_out)

        schedule = CubicSchedule(start=0, end=PRUNE_STEPS * 2 // 3, every=REPORT_EVERY)
        pruner = Pruner(AMOUNT, PATTERN, targets=[PRUNED_LAYER], schedule=schedule)
        pruner.prepare(self.model, optimizer)
        yield PrunePoint(0, dense, 1.0)
        batches = _batches(train, self.seed + 1)
        for step in range(1, PRUNE_STEPS + 1):
            _train_step(self.model, optimizer, *next(batches))
            pruner.step()
            if step % REPORT_EVERY == 0:
                loss = _loss(self.model, held_out)
                yield PrunePoint(step, loss, pruner.sparsity_report().density)
        density = pruner.finalize().density
        gradual = _loss(self.model, held_out)
        self.result = ShowcaseResult(dense, one_shot, gradual, dense_longer, density)

    def _one_shot_loss(self, held_out: tuple[Tensor, Tensor]) -> float:
        model = copy.deepcopy(self.model)
        Pruner(AMOUNT, PATTERN, targets=[PRUNED_LAYER]).prepare(model)
        return _loss(model, held_out)

    def _dense_longer_loss(
        self,
        optimizer: torch.optim.Adam,
        train: tuple[Tensor, Tensor],
        held_out: tuple[Tensor, Tensor],
    ) -> float:
        model = copy.deepcopy(self.model)
        twin = torch.optim.Adam(model.parameters())
        twin.load_state_dict(optimizer.state_dict())
        batches = _batches(train, self.seed + 1)
        for _ in range(PRUNE_STEPS):
            _train_step(model, twin, *next(batches))
        return _loss(model, held_out)


def vowels(seed: int, voices: int, samples: int = 1600) -> np.ndarray:
    """Sustained vowels at 8 kHz, shape (voices, samples), float64, mean 0, variance 1.

    A pulse train of drifting pitch plus breath noise, through two second-order resonances: the
    source-filter model (Fant 1960) with formants near the ones of English vowels.
    """
    random = np.random.default_rng(seed)
    pitch = random.uniform(90, 250, (voices, 1)) * np.exp(
        np.cumsum(random.normal(0, 2e-3, (voices, samples)), axis=1)
    )
    phase = np.cumsum(pitch / SAMPLE_RATE, axis=1)
    signal = np.diff(np.floor(phase), axis=1, prepend=0) + random.normal(0, 0.03, phase.shape)
    for low, high in ((300, 850), (900, 2300)):
        signal = _resonate(signal, random.uniform(low, high, voices), bandwidth=80.0)
    return (signal - signal.mean(1, keepdims=True)) / signal.std(1, keepdims=True)


def _resonate(signal: np.ndarray, frequency: np.ndarray, bandwidth: float) -> np.ndarray:
    radius = np.exp(-np.pi * bandwidth / SAMPLE_RATE)
    feedback = 2 * radius * np.cos(2 * np.pi * frequency / SAMPLE_RATE)
    out = np.zeros_like(signal)
    for t in range(signal.shape[1]):
        out[:, t] = signal[:, t] + feedback * out[:, t - 1] - radius**2 * out[:, t - 2]
    return out


def _windows(sound: np.ndarray) -> tuple[Tensor, Tensor]:
    """Past samples (n, WINDOW) float32 and the mu-law class (n,) of the sample that follows."""
    companded = np.sign(sound) * np.log1p(31 * np.minimum(np.abs(sound) / 4, 1)) / np.log(32)
    classes = np.clip((companded + 1) / 2 * CLASSES, 0, CLASSES - 1).astype(np.int64)
    past = np.lib.stride_tricks.sliding_window_view(companded[:, :-1], WINDOW, axis=1)
    inputs = torch.tensor(past.reshape(-1, WINDOW), dtype=torch.float32)
    return inputs, torch.tensor(classes[:, WINDOW:].reshape(-1))


def _build_predictor(seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(WINDOW, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CLASSES),
        )


def _batches(data: tuple[Tensor, Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(data[0]), (BATCH,), generator=generator)
        yield data[0][chosen], data[1][chosen]


def _train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, classes: Tensor
) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(inputs), classes).backward()
    optimizer.step()


@torch.no_grad()
def _loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Mean cross-entropy in nats of every eighth held-out window, enough for two digits."""
    return functional.cross_entropy(model(data[0][::8]), data[1][::8]).item()
