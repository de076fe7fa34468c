"""Which pattern and method keep a small network's accuracy: a study that anyone can repeat.

Handwritten digits from scikit-learn's own files, as images for a perceptron and as sequences of 8
rows for a GRU. Run with `python -m sparsejit.perf.pruning_study`; see docs/pruning.md.
"""

import argparse
import copy
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.api import compile_matrix
from sparsejit.files import atomic_path
from sparsejit.measure import pinned
from sparsejit.perf.kernels import time_at_places
from sparsejit.prune import (
    ADMM,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Pruner,
    Random,
    calibrate,
    prune_second_order,
    prune_wanda,
    refit,
)
from sparsejit.prune.calibration import Calibration

# Training steps of the dense checkpoint, and as many again for the methods that train on.
PHASE = 500
BATCH = 64
LEARNING_RATE = 2e-3
PATTERNS = ("unstructured", "lane16", "1x8", "1x16")
AMOUNTS = (0.8, 0.9, 0.95, 0.97, 0.98)


@dataclass(frozen=True)
class Result:
    """Share of held-out digits classified right, for one seed; amount 0 is the dense model."""

    task: str
    pattern: str
    amount: float
    method: str
    seed: int
    accuracy: float


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
    build: Callable[[], nn.Module]
    targets: Sequence[str]


TASKS = {
    "images": Task(perceptron, ["1.weight", "3.weight"]),
    "sequences": Task(RowReader, ["rnn.weight_hh_l0"]),
}


class Run:
    """One task and seed: the data and the dense checkpoint that methods start from."""

    def __init__(self, task: str, seed: int) -> None:
        self.task = TASKS[task]
        self.seed = seed
        self.data = Digits.load(seed)
        self.dense = self.fresh()
        self.train(self.dense, PHASE)

    def fresh(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.task.build()

    def train(self, model: nn.Module, steps: int, pruner: Pruner | None = None) -> nn.Module:
        """Adam, its rate falling on a cosine over `steps`, or over the recipe of a rewinding."""
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        if pruner is not None:
            pruner.prepare(model, optimizer)
        recipe = pruner.schedule if pruner is not None else None
        length = recipe.length if isinstance(recipe, IterativeSchedule) else steps
        batches = self._batches()
        for step in range(steps):
            at = pruner.training_step if pruner is not None else step
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * at / length))
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

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        images, classes = self.data.held_out
        return (model(images).argmax(1) == classes).double().mean().item()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        images, classes = self.data.train
        while True:
            for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
                yield images[chosen], classes[chosen]


def one_shot(run: Run, amount: float, pattern: str) -> nn.Module:
    """The checkpoint cut by magnitude, not trained further."""
    model = copy.deepcopy(run.dense)
    Pruner(amount, pattern, targets=run.task.targets).prepare(model)
    return model


def second_order(run: Run, amount: float, pattern: str) -> nn.Module:
    """The checkpoint cut by second order and refitted on the training images, not trained."""
    model = copy.deepcopy(run.dense)
    calibration = calibrate(model, run.task.targets, [run.data.train[0]])
    prune_second_order(model, calibration, amount, pattern)
    return model


def gradual(run: Run, amount: float, pattern: str) -> nn.Module:
    """From the checkpoint, pruned on a cubic over two thirds of a second phase."""
    schedule = CubicSchedule(0, PHASE * 2 // 3, every=10)
    pruner = Pruner(amount, pattern, targets=run.task.targets, schedule=schedule)
    return run.train(copy.deepcopy(run.dense), PHASE, pruner)


def gradual_lamp(run: Run, amount: float, pattern: str) -> nn.Module:
    """From the checkpoint, the amount shared by LAMP, on a cubic over a third of the phase."""
    schedule = CubicSchedule(0, PHASE // 3, every=10)
    pruner = Pruner(amount, pattern, targets=run.task.targets, schedule=schedule, allocation="lamp")
    return run.train(copy.deepcopy(run.dense), PHASE, pruner)


def rewinding(run: Run, amount: float, pattern: str) -> nn.Module:
    """From scratch, five rounds of training with four prunings between, the rate rewound."""
    schedule = IterativeSchedule(rounds=4, length=PHASE * 2 // 5)
    pruner = Pruner(amount, pattern, targets=run.task.targets, schedule=schedule)
    return run.train(run.fresh(), schedule.total, pruner)


def admm(run: Run, amount: float, pattern: str) -> nn.Module:
    """From the checkpoint, half a phase of ADMM, its projection, half a phase of training."""
    pruner = Pruner(
        amount,
        pattern,
        targets=run.task.targets,
        schedule=OneShot(PHASE // 2),
        regulariser=ADMM(rho=0.02, every=10),
    )
    return run.train(copy.deepcopy(run.dense), PHASE, pruner)


def random_mask(run: Run, amount: float, pattern: str) -> nn.Module:
    """From scratch under a fixed random mask, as many steps as the others have in all."""
    pruner = Pruner(amount, pattern, targets=run.task.targets, criterion=Random(run.seed))
    return run.train(run.fresh(), 2 * PHASE, pruner)


METHODS: dict[str, Callable[[Run, float, str], nn.Module]] = {
    "one-shot": one_shot,
    "second order": second_order,
    "gradual": gradual,
    "gradual, LAMP": gradual_lamp,
    "rewinding": rewinding,
    "ADMM": admm,
    "random mask": random_mask,
}


def study(tasks: Iterable[str], amounts: Sequence[float], seeds: Iterable[int]) -> Iterator[Result]:
    """Yield every task, seed, pattern, amount and method, the dense models first."""
    for task in tasks:
        for seed in seeds:
            run = Run(task, seed)
            dense = run.train(copy.deepcopy(run.dense), PHASE)
            yield Result(task, "dense", 0.0, "dense", seed, run.accuracy(dense))
            for pattern in PATTERNS:
                for amount in amounts:
                    for name, method in METHODS.items():
                        accuracy = run.accuracy(method(run, amount, pattern))
                        yield Result(task, pattern, amount, name, seed, accuracy)


def mean_percent(results: Iterable[Result]) -> dict[tuple[str, str, float, str], float]:
    """Accuracy in percent over the seeds, by task, pattern, amount and method."""
    groups: dict[tuple[str, str, float, str], list[float]] = {}
    for r in results:
        groups.setdefault((r.task, r.pattern, r.amount, r.method), []).append(100 * r.accuracy)
    return {key: statistics.fmean(values) for key, values in groups.items()}


def markdown(results: Sequence[Result]) -> str:
    """One table a task."""
    means = mean_percent(results)
    lines = []
    for task in dict.fromkeys(r.task for r in results):
        dense = means[task, "dense", 0.0, "dense"]
        lines += [
            f"**{task}**, dense {dense:.1f} %:",
            "",
            "| pattern | amount | " + " | ".join(METHODS) + " |",
            "|---|---|" + "---|" * len(METHODS),
        ]
        rows = dict.fromkeys((k[1], k[2]) for k in means if k[0] == task and k[1] != "dense")
        for pattern, amount in rows:
            cells = [f"{means[task, pattern, amount, method]:.1f}" for method in METHODS]
            lines.append(f"| {pattern} | {amount:.0%} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def reconstruction(tasks: Iterable[str], amount: float = 0.9) -> str:
    """A table of the outputs' energy that each way of cutting loses, by weight and pattern.

    On the inputs of held-out digits; calibrated on those of the training digits.
    """
    lines = ["| weight | pattern | " + " | ".join(CUTS) + " |", "|---|---|" + "---|" * len(CUTS)]
    for task in tasks:
        run = Run(task, seed=0)
        calibration, held_out = (
            calibrate(run.dense, run.task.targets, [images])
            for images, _ in (run.data.train, run.data.held_out)
        )
        for name in calibration:
            only = {name: calibration[name]}
            for pattern in PATTERNS:
                cells = []
                for cut in CUTS.values():
                    model = copy.deepcopy(run.dense)
                    cut(model, only, amount, pattern)
                    cells.append(f"{held_out[name].error(model.get_parameter(name)):.3f}")
                lines.append(f"| {task} {name} | {pattern} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cut_by_magnitude(
    model: nn.Module, calibration: Calibration, amount: float, pattern: str
) -> None:
    Pruner(amount, pattern, targets=list(calibration)).prepare(model)


def cut_and_refit(model: nn.Module, calibration: Calibration, amount: float, pattern: str) -> None:
    cut_by_magnitude(model, calibration, amount, pattern)
    refit(model, calibration)


CUTS: dict[str, Callable[[nn.Module, Calibration, float, str], object]] = {
    "magnitude": cut_by_magnitude,
    "Wanda": prune_wanda,
    "magnitude, refit": cut_and_refit,
    "second order": prune_second_order,
}


def kernel_times(amounts: Iterable[float]) -> str:
    """A table of compiled times of the perceptron's 256 x 256 matrix, cut by magnitude."""
    run = Run("images", seed=0)
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    lines = ["| pattern | amount | kernel | ns |", "|---|---|---|---|"]
    for pattern in PATTERNS:
        for amount in amounts:
            weight = one_shot(run, amount, pattern).get_parameter("3.weight").detach().numpy()
            kernel = compile_matrix(weight)
            with pinned():
                times = [timing.min_ns for timing in time_at_places(kernel, x)]
            nanoseconds = statistics.median(times)
            lines.append(f"| {pattern} | {amount:.0%} | {kernel.strategy} | {nanoseconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Run the study and print its tables; results also go to a JSON file as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--amounts", nargs="+", type=float, default=AMOUNTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--reconstruction", action="store_true", help="Only the layers' errors.")
    parser.add_argument("--kernels", action="store_true", help="Only the compiled times.")
    parser.add_argument("--out", type=Path, default=Path("perf/results/pruning_study.json"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.reconstruction:
        print(reconstruction(chosen.tasks))
        return
    if chosen.kernels:
        print(kernel_times(chosen.amounts))
        return
    results = []
    for result in study(chosen.tasks, chosen.amounts, range(chosen.seeds)):
        results.append(result)
        with atomic_path(chosen.out) as temporary:
            temporary.write_text(json.dumps([asdict(r) for r in results], indent=0))
    print(markdown(results))


if __name__ == "__main__":
    main()
