"""`sparsejit train`: a voice from a folder of recordings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsejit.commands.console import ProgressBar, error_console, require, say

if TYPE_CHECKING:
    from sparsejit.voice.train.trainer import TrainingPlan, TrainingProgress

# Seconds between printed lines where there is no terminal to draw a bar on.
_SECONDS_A_LINE = 10.0


def train(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Recordings of one speaker.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for checkpoints, the log and the finished voice.")
    ] = Path("runs/voice"),
    samples: Annotated[int | None, typer.Option(help="Length of the training.")] = None,
    hidden_size: Annotated[
        int | None, typer.Option(help="Units of the GRU, a multiple of 8.")
    ] = None,
    amount: Annotated[
        float | None, typer.Option(help="Share of the recurrent weights to prune; 0 for none.")
    ] = None,
    dense_amount: Annotated[
        float | None, typer.Option(help="The same of the dense layers. Default: --amount.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Pattern of the zeros, such as lane16.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    int8_start: Annotated[
        float | None, typer.Option(help="Share of the training after which it rounds to int8.")
    ] = None,
    product_precision: Annotated[
        str | None, typer.Option(help="highest, or medium, which multiplies in bfloat16.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A voice to start from, zeros and all."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights and batches.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where present.")] = None,
) -> None:
    """Train a voice from a folder of audio, pruning it gradually; resumes where it stopped."""
    require("torch", "soundfile")
    from sparsejit.voice.train.trainer import TrainingPlan

    chosen: dict[str, Any] = {
        "samples": samples,
        "hidden_size": hidden_size,
        "amount": amount,
        "dense_amount": dense_amount,
        "pattern": pattern,
        "learning_rate": learning_rate,
        "int8_start": int8_start,
        "product_precision": product_precision,
        "seed": seed,
    }
    plan = TrainingPlan(**{name: value for name, value in chosen.items() if value is not None})
    say(f"voice: {_carry_out(folder, out, plan, device, start)}")


def _carry_out(
    folder: Path, out: Path, plan: "TrainingPlan", device: str | None, start: Path | None
) -> Path:
    """Train; Ctrl-C exits with status 130 where there is a checkpoint to go on from."""
    from sparsejit.voice.train.trainer import train as train_voice
    from sparsejit.voice.weights import VoiceWeights

    begin = None if start is None else VoiceWeights.load(start)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        error_console.print(f"going on from {checkpoint}")
    try:
        with ProgressBar(_SECONDS_A_LINE) as bar:
            bar.begin("reading recordings")

            def show(state: "TrainingProgress") -> None:
                bar.show(progress_line(state), state.step, state.steps)

            return train_voice(folder, out, plan, device, show, begin)
    except KeyboardInterrupt:
        if not checkpoint.exists():
            raise
        error_console.print(f"stopped; the same command goes on from {checkpoint}")
        raise typer.Exit(130) from None


def progress_line(state: "TrainingProgress") -> str:
    return (
        f"step {state.step} of {state.steps}, loss {state.loss:.3f}, "
        f"{state.samples_a_second:,.0f} samples/s, density {state.density:.1%}"
    )
