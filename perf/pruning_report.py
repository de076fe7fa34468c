"""The pruning study's rows as tables and as a plot.

`python -m sparsejit.perf.pruning_report` prints docs/pruning.md's tables and draws its plot from
perf/results/pruning_study.jsonl and pruning_kernels.jsonl.
"""

import argparse
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsejit.files import atomic_path
from sparsejit.perf.history import RESULTS, read_rows
from sparsejit.perf.pruning_study import DENSE, METHODS

Row = dict[str, Any]
STUDY = RESULTS / "pruning_study.jsonl"
KERNELS = RESULTS / "pruning_kernels.jsonl"
PLOT = RESULTS.parents[1] / "docs" / "pruning.png"
*CHOSEN, RANDOM = METHODS


class Study:
    """Percent of held-out digits right, by task, pattern, amount, method and seed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_seed: dict[tuple[str, str, float, str], dict[int, float]] = {}
        for row in rows:
            place = (row["task"], row["pattern"], row["amount"], row["method"])
            self._by_seed.setdefault(place, {})[row["seed"]] = 100 * row["accuracy"]
        places = list(self._by_seed)
        self.tasks = list(dict.fromkeys(task for task, *_ in places))
        pruned = [place for place in places if place[1] != DENSE]
        self.patterns = list(dict.fromkeys(pattern for _, pattern, *_ in pruned))
        self.amounts = sorted({amount for _, _, amount, _ in pruned})

    def percents(self, task: str, pattern: str, amount: float, method: str) -> list[float]:
        """Accuracy, one a seed in their order."""
        by_seed = self._by_seed[task, pattern, amount, method]
        return [by_seed[seed] for seed in sorted(by_seed)]

    def mean(self, task: str, pattern: str, amount: float, method: str) -> float:
        return statistics.fmean(self.percents(task, pattern, amount, method))

    def dense(self, task: str, method: str = DENSE) -> list[float]:
        return self.percents(task, DENSE, 0.0, method)

    def losses(self, task: str, pattern: str, amount: float, method: str) -> list[float]:
        """Points below the dense network of the same seed."""
        pruned = self.percents(task, pattern, amount, method)
        return [before - after for before, after in zip(self.dense(task), pruned, strict=True)]

    def best_method(self, task: str, pattern: str) -> str:
        """Of all but the random mask, the best on average over the amounts."""
        return max(CHOSEN, key=lambda m: sum(self.mean(task, pattern, a, m) for a in self.amounts))


def markdown(study: Study, kernels: Iterable[Row]) -> str:
    """One table a task, and where the random mask is the best of a row."""
    times = {(row["task"], row["pattern"], row["amount"]): row["kernel_ns"] for row in kernels}
    return "\n\n".join(_table(study, task, times) for task in study.tasks)


def _table(study: Study, task: str, times: dict[tuple[str, str, float], float]) -> str:
    dense, other = study.dense(task), study.dense(task, "other start")
    moved = statistics.fmean(abs(a - b) for a, b in zip(dense, other, strict=True))
    lines = [
        f"**{task}**, dense {statistics.fmean(dense):.1f} %; another start moves a dense network "
        f"by {moved:.1f} points on average:",
        "",
        f"| amount | pattern | {' | '.join(METHODS)} | kernel, ns |",
        "|---|---|" + "---|" * (len(METHODS) + 1),
    ]
    wins = []
    for amount, pattern in product(study.amounts, study.patterns):
        means = {method: study.mean(task, pattern, amount, method) for method in METHODS}
        best = max(means.values())
        cells = [f"**{m:.1f}**" if m == best else f"{m:.1f}" for m in means.values()]
        cells.append(f"{times[task, pattern, amount]:.0f}")
        lines.append(f"| {amount:.0%} | {pattern} | {' | '.join(cells)} |")
        if (lead := means[RANDOM] - max(means[method] for method in CHOSEN)) > 0:
            wins.append(f"{pattern} at {amount:.0%} (by {lead:.1f})")
    rows = len(study.amounts) * len(study.patterns)
    where = ": " + ", ".join(wins) if wins else ""
    return "\n".join([*lines, "", f"The random mask is best in {len(wins)} of {rows} rows{where}."])


def draw(path: Path, study: Study) -> None:
    """Write a PNG: points lost against amount, each pattern by its best method.

    Bars are the standard deviation over the seeds. Dashed: the random mask.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(1, len(study.tasks), sharey=True, squeeze=False)[0]
    for task, panel in zip(study.tasks, axes, strict=True):
        _draw_task(panel, study, task)
    axes[0].set_ylabel("points of accuracy lost against dense")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _draw_task(axes: Axes, study: Study, task: str) -> None:
    ticks = range(len(study.amounts))
    for place, pattern in enumerate(study.patterns):
        best = study.best_method(task, pattern)
        shift = 0.06 * (place - (len(study.patterns) - 1) / 2)  # the bars beside each other
        for method, style in ((best, "-"), (RANDOM, "--")):
            losses = [study.losses(task, pattern, amount, method) for amount in study.amounts]
            axes.errorbar(
                [tick + shift for tick in ticks],
                [statistics.fmean(each) for each in losses],
                yerr=[statistics.stdev(each) for each in losses] if method == best else None,
                linestyle=style,
                linewidth=2 if method == best else 1,
                color=f"C{place}",
                capsize=3,
                label=f"{pattern}, {best}" if method == best else None,
            )
    axes.plot([], [], "--", color="grey", label="random mask")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(title=task, xlabel="share pruned")
    axes.set_xticks(ticks, [f"{amount:.0%}" for amount in study.amounts])
    axes.legend(loc="upper left")


def main() -> None:
    """Print the tables and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--kernels", type=Path, default=KERNELS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    chosen = parser.parse_args()
    study = Study(read_rows(chosen.study))
    draw(chosen.plot, study)
    print(markdown(study, read_rows(chosen.kernels)))


if __name__ == "__main__":
    main()
