"""Which pattern and method keep a small network's accuracy: a study that anyone can repeat.

Handwritten digits from scikit-learn's own files, as images for a perceptron and as sequences of 8
rows for a GRU. `python -m sparsejit.perf.pruning_study` adds the runs that are not recorded yet to
perf/results/pruning_study.jsonl; `pruning_report.py` makes docs/pruning.md's tables of them.
"""

import argparse
import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.perf.history import RESULTS, append_rows, circumstances, read_rows
from sparsejit.prune import (
    ADMM,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Pruner,
    Random,
    Regulariser,
    Schedule,
    calibrate,
    prune_second_order,
)

BATCH = 64
PATTERNS = ("unstructured", "lane16", "1x8", "1x16")
AMOUNTS = (0.8, 0.9, 0.95, 0.97, 0.98)
# Settings were chosen on seeds 10 to 12: these are for reporting.
SEEDS = (0, 1, 2)
DENSE = "dense"


@dataclass(frozen=True)
class Cell:
    """One run of the study; pattern and method are "dense" where the amount is 0."""

    task: str
    seed: int
    pattern: str
    amount: float
    method: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Cell":
        return cls(**{field.name: row[field.name] for field in fields(cls)})


def cells(tasks: Iterable[str], seeds: Iterable[int]) -> Iterator[Cell]:
    """Yield the whole study, dense networks first of each task and seed."""
    for task, seed in product(tasks, seeds):
        for control in CONTROLS:
            yield Cell(task, seed, DENSE, 0.0, control)
        for pattern, amount, method in product(PATTERNS, AMOUNTS, METHODS):
            yield Cell(task, seed, pattern, amount, method)


@dataclass(frozen=True)
class Digits:
    """Pixels 0 to 1, shape (n, 8, 8), and classes (n,)."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]

    @classmethod
    def load(cls, seed: int) -> "Digits":
        digits = load_digits()
        parts = train_test_split(
            torch.tensor(digits.images / 16, dtype=torch.float32),
            torch.tensor(digits.target),
            test_size=0.4,
            random_state=seed,
            stratify=digits.target,
        )
        return cls((parts[0], parts[2]), (parts[1], parts[3]))


class RowReader(nn.Module):
    """A GRU over the 8 rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 128, batch_first=True)
        self.fc = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.rnn(images)[0][:, -1])


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


@dataclass(frozen=True)
class Task:
    """phase: training steps of the checkpoint, and as many again for every method that trains.

    rho: of ADMM.
    """

    build: Callable[[], nn.Module]
    targets: Sequence[str]
    phase: int
    learning_rate: float
    rho: float


TASKS = {
    "images": Task(perceptron, ["1.weight", "3.weight"], phase=1000, learning_rate=2e-3, rho=0.02),
    "sequences": Task(RowReader, ["rnn.weight_hh_l0"], phase=500, learning_rate=5e-3, rho=0.1),
}


class StudyRun:
    """One task and seed: the data and the dense checkpoint that methods start from."""

    def __init__(self, task: str, seed: int) -> None:
        self.task = TASKS[task]
        self.seed = seed
        self.data = Digits.load(seed)
        self.checkpoint = self.fresh(seed)
        self.train(self.checkpoint, self.task.phase)

    def fresh(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.task.build()

    def pruner(
        self,
        pattern: str,
        amount: float,
        schedule: Schedule | None = None,
        regulariser: Regulariser | None = None,
    ) -> Pruner:
        return Pruner(
            amount,
            pattern,
            targets=self.task.targets,
            schedule=schedule,
            allocation="lamp",
            regulariser=regulariser,
        )

    def shares(self, pattern: str, amount: float) -> dict[str, float]:
        """What LAMP takes of each layer of the checkpoint, for methods that do not rank layers."""
        pruner = self.pruner(pattern, amount)
        pruner.prepare(copy.deepcopy(self.checkpoint))
        return {layer.name: 1 - layer.block_density for layer in pruner.finalize().layers}

    def train(self, model: nn.Module, steps: int, pruner: Pruner | None = None) -> nn.Module:
        """Adam, its rate falling on a cosine over `steps`, or over the recipe of a rewinding."""
        rate = self.task.learning_rate
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        if pruner is not None:
            pruner.prepare(model, optimizer)
        recipe = pruner.schedule if pruner is not None else None
        length = recipe.length if isinstance(recipe, IterativeSchedule) else steps
        batches = self._batches()
        for step in range(steps):
            at = pruner.training_step if pruner is not None else step
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * at / length))
            images, classes = next(batches)
            loss = functional.cross_entropy(model(images), classes)
            if pruner is not None and pruner.regulariser is not None:
                loss = loss + pruner.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if pruner is not None:
                pruner.step()
        return model

    def train_on(self, pruner: Pruner | None = None) -> nn.Module:
        """A second phase from the checkpoint."""
        return self.train(copy.deepcopy(self.checkpoint), self.task.phase, pruner)

    def model(self, cell: Cell) -> nn.Module:
        if cell.method in CONTROLS:
            return CONTROLS[cell.method](self)
        return METHODS[cell.method](self, cell.pattern, cell.amount)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Share of the held-out digits that are classified right."""
        images, classes = self.data.held_out
        return (model(images).argmax(1) == classes).double().mean().item()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        images, classes = self.data.train
        while True:
            for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
                yield images[chosen], classes[chosen]


def other_start(run: StudyRun) -> nn.Module:
    """Dense, two phases from other first weights: how far chance alone moves the accuracy."""
    model = run.train(run.fresh(run.seed + 100), run.task.phase)
    return run.train(model, run.task.phase)


CONTROLS: dict[str, Callable[[StudyRun], nn.Module]] = {
    DENSE: StudyRun.train_on,
    "other start": other_start,
}


def one_shot(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """The checkpoint cut by magnitude, not trained further."""
    model = copy.deepcopy(run.checkpoint)
    run.pruner(pattern, amount).prepare(model)
    return model


def second_order(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """The checkpoint cut by second order and refitted on the training images, not trained."""
    model = copy.deepcopy(run.checkpoint)
    calibration = calibrate(model, run.task.targets, [run.data.train[0]])
    prune_second_order(model, calibration, run.shares(pattern, amount), pattern)
    return model


def gradual(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """From the checkpoint, pruned on a cubic over half of a second phase."""
    return run.train_on(run.pruner(pattern, amount, CubicSchedule(0, run.task.phase // 2, 10)))


def rewinding(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """From scratch, five rounds of training with four prunings between, the rate rewound."""
    schedule = IterativeSchedule(rounds=4, length=run.task.phase * 2 // 5)
    pruner = run.pruner(pattern, amount, schedule)
    return run.train(run.fresh(run.seed), schedule.total, pruner)


def admm(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """From the checkpoint, half a phase of ADMM, its projection, half a phase of training."""
    schedule, regulariser = OneShot(run.task.phase // 2), ADMM(run.task.rho, every=10)
    return run.train_on(run.pruner(pattern, amount, schedule, regulariser=regulariser))


def random_mask(run: StudyRun, pattern: str, amount: float) -> nn.Module:
    """From scratch under a fixed random mask, as many steps as the others have in all."""
    shares = run.shares(pattern, amount)
    pruner = Pruner(shares, pattern, targets=run.task.targets, criterion=Random(run.seed))
    return run.train(run.fresh(run.seed), 2 * run.task.phase, pruner)


# The methods in the order of the tables, the last being what the others have to beat.
METHODS: dict[str, Callable[[StudyRun, str, float], nn.Module]] = {
    "one-shot": one_shot,
    "second order": second_order,
    "gradual": gradual,
    "rewinding": rewinding,
    "ADMM": admm,
    "random mask": random_mask,
}


def measure(wanted: Iterable[Cell]) -> Iterator[tuple[Cell, float]]:
    """Yield each cell with its accuracy; cells of one task and seed should follow each other."""
    for (task, seed), group in groupby(wanted, key=lambda cell: (cell.task, cell.seed)):
        run = StudyRun(task, seed)
        for cell in group:
            yield cell, run.accuracy(run.model(cell))


def record(wanted: Iterable[Cell], results: Path) -> Iterator[dict[str, Any]]:
    """StudyRun the cells that have no row in the file `results` and yield each row it appends.

    A row is a cell, its accuracy, and the machine and commit. Raises InvalidInput outside a git
    checkout.
    """
    shared = circumstances()
    recorded = {Cell.of(row) for row in read_rows(results)}
    for cell, accuracy in measure(cell for cell in wanted if cell not in recorded):
        row = {**asdict(cell), "accuracy": accuracy, **shared}
        append_rows(results, [row])
        yield row


def main() -> None:
    """StudyRun what is missing of the study and print each row as it is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path, default=RESULTS / "pruning_study.jsonl")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # pruned units' moments decay into them; ten times slower
    for row in record(cells(chosen.tasks, chosen.seeds), chosen.results):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
