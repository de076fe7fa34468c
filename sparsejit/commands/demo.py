"""`sparsejit demo`: prune, compile, speak, and show what each part costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsejit.commands.console import JsonOption, console, print_json, require, say
from sparsejit.files import check_writable
from sparsejit.ir.spec import DType
from sparsejit.voice.bundled import bundled_utterance
from sparsejit.voice.wav_file import check_wav, write_wav
from sparsejit.voice.wavernn import WaveRNN

if TYPE_CHECKING:
    from sparsejit.perf.kernels import Comparison, Row
    from sparsejit.perf.synthesis import SynthesisTime
    from sparsejit.prune.showcase import PrunePoint, Showcase

FloatArray = npt.NDArray[np.float32]

_BARS = " ▁▂▃▄▅▆▇█"
_DENSE_BLAS = ("OpenBLAS sgemv", "MKL sgemv", "numpy (OpenBLAS)", "torch.mv")


def demo(
    out: Annotated[Path, typer.Option(help="Where demo.wav and demo.png go.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the pruning run and of the voice.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prune a small network live, speak with the bundled voice, and measure every layer."""
    require("torch", "scipy", "soundfile", "matplotlib", "threadpoolctl")
    check_wav(out / "demo.wav")
    check_writable(out / "demo.png")
    report: dict[str, Any] = {"prune": _prune(seed, quiet=as_json)}
    voice, utterance = WaveRNN.from_pretrained(), bundled_utterance()
    audio = voice.generate(utterance.mel, seed)
    write_wav(out / "demo.wav", audio, voice.sample_rate)
    _draw(out / "demo.png", voice, utterance.mel, audio, utterance.text)
    layers, synthesis = _measure(voice, utterance.mel)
    report["layers"] = [row.as_dict() for comparison in layers for row in comparison.rows]
    report["synthesis"] = {
        **vars(synthesis),
        "real_time_factor": synthesis.real_time_factor,
        "speed_up": synthesis.speed_up,
    }
    if as_json:
        print_json(report)
        return
    console.print(_layer_table(layers))
    console.print(_synthesis_table(voice, synthesis))
    console.print(f'"{utterance.text}" ({utterance.name}, not in the training data)')
    say(f"{len(audio) / voice.sample_rate:.1f} s of speech in {out / 'demo.wav'}")
    say(f"spectrograms in {out / 'demo.png'}")


def _prune(seed: int, quiet: bool) -> dict[str, float]:
    """Run the showcase, drawing every point as it comes."""
    from sparsejit.prune.showcase import Showcase

    showcase = Showcase(seed)
    points: list[PrunePoint] = []
    with Live(Text("training a small network ..."), console=console, transient=quiet) as live:
        for point in showcase.run():
            points.append(point)
            if not quiet:
                live.update(_prune_view(points, showcase))
        if not quiet:
            live.update(_prune_view(points, showcase))
    if not quiet:
        console.print()  # the live view ends without a line break where it is not a terminal
    assert showcase.result is not None
    return vars(showcase.result)


def _prune_view(points: "list[PrunePoint]", showcase: "Showcase") -> Group:
    """Two rows of bars over the steps, and the losses that the pruned one is judged by."""
    density = _bars([point.density for point in points], 0.0, 1.0)
    losses = [point.loss for point in points]
    loss = _bars(losses, min(losses) - 1e-9, max(losses))
    last = points[-1]
    lines = [
        f"gradual pruning, 1x8 blocks, a 256 x 256 layer: step {last.step}",
        f"density {density} {last.density:6.1%}",
        f"loss    {loss} {last.loss:.3f} nats a sample",
    ]
    result = showcase.result
    if result:
        lines.append(
            f"held out: dense {result.dense:.3f}, cut to {result.density:.0%} at once "
            f"{result.one_shot:.3f}, gradually {result.gradual:.3f} "
            f"(dense, trained as long: {result.dense_longer:.3f})"
        )
    return Group(*map(Text, lines))


def _bars(values: list[float], low: float, high: float) -> str:
    levels = np.clip((np.array(values) - low) / max(high - low, 1e-12), 0, 1)
    return "".join(_BARS[round(level * (len(_BARS) - 1))] for level in levels.tolist())


def _draw(path: Path, voice: WaveRNN, mel: FloatArray, audio: FloatArray, text: str) -> None:
    from sparsejit.perf.spectrogram import draw_mels

    spoken = voice.features(audio, voice.sample_rate)
    draw_mels(path, mel, spoken, voice.hop_length / voice.sample_rate, text)


def _measure(voice: WaveRNN, mel: FloatArray) -> "tuple[list[Comparison], SynthesisTime]":
    from sparsejit.perf.kernels import run
    from sparsejit.perf.synthesis import layer_matrices, time_synthesis

    with console.status("measuring") as status:
        layers = []
        for matrix in layer_matrices(voice.weights):
            family = voice.loop.plans[matrix.name].chosen.template.family
            layers += run([matrix], [family], status.update, [DType.FLOAT32])
        status.update("synthesis")
        return layers, time_synthesis(voice, mel)


def _layer_table(layers: "list[Comparison]") -> Table:
    table = Table(
        title="layers of the voice, one core, times against peers in this run",
        title_justify="left",
    )
    table.add_column("layer")
    for column in (
        "shape",
        "nonzeros",
        "kernel",
        "code KiB",
        "ns",
        "GFLOPS effective",
        "real",
        "of limit",
        "over F.linear",
        "over dense BLAS",
    ):
        table.add_column(column, justify="right")
    for comparison in layers:
        (row,) = comparison.rows
        table.add_row(*_layer_cells(row))
    return table


def _layer_cells(row: "Row") -> tuple[str, ...]:
    blas = [row.speed_up(peer.name) for peer in row.peers if peer.name in _DENSE_BLAS]
    return (
        row.problem,
        f"{row.M} x {row.N}",
        f"{row.nnz:,} ({row.nnz / (row.M * row.N):.0%})",
        row.strategy,
        f"{row.code_bytes / 1024:.1f}",
        f"{row.ns_min:,.0f}",
        f"{row.effective_gflops:.0f}",
        f"{row.real_gflops:.1f}",
        f"{row.share_of_limit:.0%} {row.limit}",
        f"{row.speed_up('torch F.linear'):.1f}x",
        f"{min(blas):.1f}x",
    )


def _synthesis_table(voice: WaveRNN, time: "SynthesisTime") -> Table:
    table = Table(title="the whole sampler, one core", title_justify="left")
    for column in ("", "us a sample", "times real time"):
        table.add_column(column, justify="left" if not column else "right")
    names = ("sparsejit, one native function", "torch eager, the network alone")
    for name, us in zip(names, (time.us_median, time.us_torch), strict=True):
        table.add_row(name, f"{us:.2f}", f"{1e6 / (voice.sample_rate * us):.1f}")
    table.caption = f"{time.speed_up:.0f} times faster than torch eager"
    return table
