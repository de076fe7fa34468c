"""What cutting does to single layers of the pruning study: their outputs' error, their kernels.

`python -m sparsejit.perf.pruning_layers --errors` prints the table of docs/pruning.md; `--kernels`
times the compiled layers and writes perf/results/pruning_kernels.jsonl for its other tables.
"""

import argparse
import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from sparsejit.perf.history import RESULTS, circumstances, replace_rows
from sparsejit.perf.kernels import kernel_time
from sparsejit.perf.pruning_study import AMOUNTS, PATTERNS, TASKS, StudyRun
from sparsejit.prune import Pruner, calibrate, prune_second_order, prune_wanda, refit
from sparsejit.prune.calibration import Calibration

# The layer of each task that is compiled.
TIMED = {"images": "3.weight", "sequences": "rnn.weight_hh_l0"}


@dataclass(frozen=True)
class KernelTime:
    """A layer cut by magnitude: the kernel that is chosen for it, nanoseconds a call."""

    task: str
    pattern: str
    amount: float
    kernel: str
    kernel_ns: float


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


def output_errors(tasks: Iterable[str], amount: float = 0.9) -> str:
    """A table of the outputs' energy that each way of cutting loses, by weight and pattern.

    On the inputs of held-out digits; calibrated on those of the training digits.
    """
    lines = ["| weight | pattern | " + " | ".join(CUTS) + " |", "|---|---|" + "---|" * len(CUTS)]
    for task in tasks:
        run = StudyRun(task, seed=0)
        calibration, held_out = (
            calibrate(run.checkpoint, run.task.targets, [images])
            for images, _ in (run.data.train, run.data.held_out)
        )
        for name in calibration:
            only = {name: calibration[name]}
            shape = " x ".join(map(str, calibration[name].weight.shape))
            for pattern in PATTERNS:
                cells = []
                for cut in CUTS.values():
                    model = copy.deepcopy(run.checkpoint)
                    cut(model, only, amount, pattern)
                    cells.append(f"{held_out[name].error(model.get_parameter(name)):.3f}")
                lines.append(f"| {task}, {shape} | {pattern} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kernel_times(tasks: Iterable[str], amounts: Iterable[float]) -> Iterator[KernelTime]:
    """Yield the time of each task's layer in every pattern, once checked against float64."""
    for task in tasks:
        run = StudyRun(task, seed=0)
        for pattern in PATTERNS:
            for amount in amounts:
                model = copy.deepcopy(run.checkpoint)
                Pruner(amount, pattern, targets=TIMED[task]).prepare(model)
                weight = model.get_parameter(TIMED[task]).detach().numpy()
                yield KernelTime(task, pattern, amount, *kernel_time(weight))


def main() -> None:
    """Print the table of errors, or time the kernels into a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", action="store_true", help="Print the layers' errors.")
    parser.add_argument("--kernels", action="store_true", help="Time the compiled layers.")
    parser.add_argument("--results", type=Path, default=RESULTS / "pruning_kernels.jsonl")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.errors:
        print(output_errors(TASKS))
    if chosen.kernels:
        times = kernel_times(TASKS, AMOUNTS)
        replace_rows(chosen.results, ({**asdict(time), **circumstances()} for time in times))


if __name__ == "__main__":
    main()
