"""Amounts chosen for a time budget against one amount for all layers, at equal compiled time.

On the digits of `pruning_study.py`: a perceptron of four unequal layers, and all matrices of a GRU
with its read-out. Run with `python -m sparsejit.perf.latency_pruning`; see docs/pruning.md.
"""

import argparse
import copy
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from sparsejit.api import compile_matrix
from sparsejit.files import atomic_path
from sparsejit.machine.target import Target
from sparsejit.perf import history, pruning_study
from sparsejit.perf.machine import machine_limits
from sparsejit.perf.pruning_study import Digits
from sparsejit.prune import CubicSchedule, Pruner, Random
from sparsejit.prune.in_model import us_in_turn
from sparsejit.prune.latency import time_in_turn
from sparsejit.prune.patterns import choose_pattern
from sparsejit.prune.prunable import Prunable, prunables

RESULTS = "latency_pruning"
PLOT = history.RESULTS.parents[1] / "docs" / "latency_pruning.png"
PATTERNS = ("unstructured", "lane16", "1x8")
# Microseconds; the dense layers take 15.5 and 1.25 (AMD EPYC, Zen 5).
BUDGETS = {"images": (0.5, 1.0), "sequences": (0.08, 0.15)}
CHOSEN, UNIFORM, RANDOM = "chosen", "uniform", "chosen, random mask"
_PLACES = 15
_COLOURS = dict(zip(PATTERNS, ("C0", "C1", "C2"), strict=True))
_STYLES = {CHOSEN: "o-", UNIFORM: "s--", RANDOM: "x:"}


def deep_perceptron() -> nn.Sequential:
    widths = (64, 512, 512, 256, 10)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


TASKS = {
    "images": replace(
        pruning_study.TASKS["images"], build=deep_perceptron, targets=["*.weight"], phase=500
    ),
    "sequences": replace(pruning_study.TASKS["sequences"], targets=["rnn.weight_*", "fc.weight"]),
}


@dataclass(frozen=True)
class LatencyArm:
    """What one model is pruned to, and the microseconds its layers take when cut at once."""

    task: str
    seed: int
    pattern: str
    budget_us: float
    allocation: str
    amounts: dict[str, float]
    planned_us: float


@dataclass(frozen=True)
class LatencyRow:
    """An arm's trained model: microseconds of its layers, loss in nats and accuracy, held out."""

    arm: LatencyArm
    measured_us: float
    loss: float
    accuracy: float


class BudgetRun(pruning_study.StudyRun):
    """A task of this study, its data, and the dense checkpoint that all arms prune."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.task, self.seed = name, TASKS[name], seed
        self.data = Digits.load(seed)
        self.checkpoint = self.fresh(seed)
        self.train(self.checkpoint, self.task.phase)

    def arms(self) -> Iterator[LatencyArm]:
        """Measure, and yield every pattern and budget: chosen, uniform, and with a random mask."""
        for pattern in PATTERNS:
            layers = prunables(self.checkpoint, self.task.targets, choose_pattern(pattern))
            for budget in BUDGETS[self.name]:
                pruner = Pruner(budget_us=budget, pattern=pattern, targets=self.task.targets)
                pruner.prepare(copy.deepcopy(self.checkpoint))
                assert pruner.trade_off is not None
                chosen, us = pruner.trade_off.amounts, pruner.trade_off.measured_us
                same, uniform_us = uniform_amount(layers, us)
                point = (self.name, self.seed, pattern, budget)
                yield LatencyArm(*point, CHOSEN, chosen, us)
                yield LatencyArm(*point, UNIFORM, dict.fromkeys(layers, same), uniform_us)
                yield LatencyArm(*point, RANDOM, chosen, us)

    def trained(self, arm: LatencyArm) -> nn.Module:
        """Pruned from the checkpoint on a cubic; or a random mask's, from scratch and as long."""
        if arm.allocation == RANDOM:
            fixed = Pruner(
                arm.amounts, arm.pattern, targets=self.task.targets, criterion=Random(self.seed)
            )
            return self.train(self.fresh(self.seed), 2 * self.task.phase, fixed)
        schedule = CubicSchedule(0, self.task.phase // 2, every=10)
        return self.train_on(
            Pruner(arm.amounts, arm.pattern, targets=self.task.targets, schedule=schedule)
        )

    @torch.no_grad()
    def row(self, arm: LatencyArm, model: nn.Module) -> LatencyRow:
        """Compile the layers as they are after training, time them, and score the model."""
        weights = (model.get_parameter(name).flatten(1).numpy() for name in arm.amounts)
        us = us_in_turn([compile_matrix(weight) for weight in weights], _PLACES)
        images, classes = self.data.held_out
        loss = functional.cross_entropy(model(images), classes).item()
        return LatencyRow(arm, us, loss, self.accuracy(model))


def study(tasks: Iterable[str], seeds: Iterable[int]) -> Iterator[LatencyRow]:
    """Train and measure every arm."""
    for task, seed in product(tasks, seeds):
        run = BudgetRun(task, seed)
        for arm in run.arms():
            yield run.row(arm, run.trained(arm))


def recorded() -> list[LatencyRow]:
    """The last row of every arm that was recorded."""
    last: dict[tuple[object, ...], LatencyRow] = {}
    for row in history.read_rows(history.RESULTS / f"{RESULTS}.jsonl"):
        arm = LatencyArm(**row["arm"])
        key = (arm.task, arm.seed, arm.pattern, arm.budget_us, arm.allocation)
        last[key] = LatencyRow(arm, row["measured_us"], row["loss"], row["accuracy"])
    return list(last.values())


def uniform_amount(layers: dict[str, Prunable], us: float) -> tuple[float, float]:
    """The least amount for all layers that takes `us` or a little more, and what it takes."""
    low, high = 0.0, 0.998
    taken = {high: time_in_turn(layers, dict.fromkeys(layers, high))}
    while high - low > 5e-4:
        middle = (low + high) / 2
        time = time_in_turn(layers, dict.fromkeys(layers, middle))
        if time <= 1.02 * us:
            high, taken[middle] = middle, time
        else:
            low = middle
    return high, taken[high]


def groups(rows: Iterable[LatencyRow]) -> dict[tuple[str, str, float, str], list[LatencyRow]]:
    """Rows of all seeds by task, pattern, budget and allocation."""
    found: dict[tuple[str, str, float, str], list[LatencyRow]] = {}
    for row in rows:
        arm = row.arm
        key = (arm.task, arm.pattern, arm.budget_us, arm.allocation)
        found.setdefault(key, []).append(row)
    return found


def mean(rows: Sequence[LatencyRow], field: str) -> float:
    return statistics.fmean(getattr(row, field) for row in rows)


def markdown(rows: Sequence[LatencyRow]) -> str:
    """One table: times in ns and losses of every budget, means over the seeds."""
    by_point = groups(rows)
    lines = [
        "| | pattern | budget, ns | chosen, ns | loss | right | uniform, ns | loss | right "
        "| random mask, loss | right |",
        "|---|---|" + "---|" * 9,
    ]
    for task, pattern, budget, allocation in by_point:
        if allocation != CHOSEN:
            continue
        cells = [task, pattern, f"{1e3 * budget:.0f}"]
        for other in (CHOSEN, UNIFORM, RANDOM):
            group = by_point[task, pattern, budget, other]
            if other != RANDOM:
                cells.append(f"{1e3 * mean(group, 'measured_us'):.0f}")
            cells += [f"{mean(group, 'loss'):.3f}", f"{mean(group, 'accuracy'):.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(path: Path, rows: Sequence[LatencyRow]) -> None:
    """Write a PNG: held-out loss against the time of the layers, means over the seeds."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_point = groups(rows)
    tasks = list(dict.fromkeys(row.arm.task for row in rows))
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for pattern, allocation in product(PATTERNS, _STYLES):
            points = [
                group
                for key, group in by_point.items()
                if key == (task, pattern, key[2], allocation)
            ]
            axes.plot(
                [1e3 * mean(group, "measured_us") for group in points],
                [mean(group, "loss") for group in points],
                _STYLES[allocation],
                color=_COLOURS[pattern],
                label=f"{pattern}, {allocation}",
            )
        axes.set(title=task, xlabel="ns, all layers in turn", ylim=(0, None))
    figure.axes[0].set_ylabel("held-out loss, nats")
    figure.axes[-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def main() -> None:
    """Run the study, record its rows, print its table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--recorded", action="store_true", help="Only show the last run again.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # pruned units' moments decay into them; ten times slower
    if not options.recorded:
        rows = list(study(options.tasks, range(options.seeds)))
        history.append(RESULTS, map(asdict, rows), machine_limits(Target.detect()))
    rows = recorded()
    print(markdown(rows))
    draw(options.plot, rows)


if __name__ == "__main__":
    main()
