"""`sparsejit train`: a voice from a folder of recordings."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsejit.commands.console import console, require


def train(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Recordings of one speaker.")
    ],
    out: Annotated[
        Path, typer.Option(help="Receives checkpoints, the log and the finished voice.")
    ] = Path("runs/voice"),
    samples: Annotated[int | None, typer.Option(help="Length of the training.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Units of the GRU.")] = None,
    amount: Annotated[float | None, typer.Option(help="Share of weights to prune.")] = None,
    pattern: Annotated[str | None, typer.Option(help="What to prune in, such as 1x8.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights and batches.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where present.")] = None,
) -> None:
    """Train a voice from a folder of audio, pruning it gradually; resumes where it stopped."""
    require("torch", "soundfile")
    from sparsejit.voice.train import TrainingPlan
    from sparsejit.voice.train import train as train_voice

    chosen: dict[str, Any] = {
        "samples": samples,
        "hidden_size": hidden_size,
        "amount": amount,
        "pattern": pattern,
        "seed": seed,
    }
    plan = TrainingPlan(**{name: value for name, value in chosen.items() if value is not None})
    console.print(f"voice: {train_voice(folder, out, plan, device)}")
