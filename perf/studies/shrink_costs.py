"""Time and memory of shrinking large models with random weights, by stage.

    python -m sparsejit.perf.studies.shrink_costs --model bert          (some hours on one core)

Each model has a process of its own, whose largest resident memory is printed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
import typer
from rich import print as print_table

import sparsejit
from sparsejit.api.reports.shown import table_of
from sparsejit.perf.zoo.attention import Bert
from sparsejit.perf.zoo.convolutional import resnet_50

_MODELS = ("bert", "resnet")
_MODULE = "sparsejit.perf.studies.shrink_costs"
# BERT-base, and its samples.
_BLOCKS, _WIDTH, _HEADS, _TOKENS = 12, 768, 12, 128


def main(
    model: Annotated[list[str] | None, typer.Option(help="bert or resnet; repeat.")] = None,
    samples: Annotated[int, typer.Option(help="Number of samples.")] = 128,
    blocks: Annotated[int, typer.Option(help="Number of blocks of BERT.")] = _BLOCKS,
    speed: Annotated[float, typer.Option(help="Speed over dense.")] = 1.5,
    here: Annotated[bool, typer.Option(help="In this process.", hidden=True)] = False,
) -> None:
    """Shrink each model once."""
    for name in model or _MODELS:
        if here:
            _shrink(*_model(name, samples, blocks), speed)
            continue
        given = f"--here --model {name} --samples {samples} --blocks {blocks} --speed {speed}"
        subprocess.run([sys.executable, "-m", _MODULE, *given.split()], check=True)


def _model(name: str, samples: int, blocks: int) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    if name == "resnet":
        return resnet_50().eval(), [torch.randn(1, 3, 224, 224) for _ in range(samples)]
    words = [torch.randint(Bert.WORDS, (1, _TOKENS)) for _ in range(samples)]
    return Bert(blocks, _WIDTH, _HEADS).eval(), words


def _shrink(model: Any, data: Sequence[torch.Tensor], speed: float) -> None:
    told: dict[str, tuple[float, float]] = {}
    start = time.monotonic()
    made = sparsejit.shrink(model, data, speed=speed, progress=_stages(told))
    ends = [*(began for began, _ in list(told.values())[1:]), time.monotonic()]
    table = table_of(f"{time.monotonic() - start:.0f} s; {made.line}", ("stage",), ("s", "GB"))
    for (name, (began, gigabytes)), end in zip(told.items(), ends, strict=True):
        table.add_row(name, f"{end - began:.0f}", f"{gigabytes:.2f}")
    table.add_row("most memory", "", f"{_gigabytes():.2f}")
    print_table(table)


def _stages(told: dict[str, tuple[float, float]]) -> Callable[[str, float], None]:
    """A progress function that records each stage's start, and the most memory up to then."""

    def tell(stage: str, share: float) -> None:
        told.setdefault(stage.partition(" of ")[0], (time.monotonic(), _gigabytes()))

    return tell


def _gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    typer.run(main)
