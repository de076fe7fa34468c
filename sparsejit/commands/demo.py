"""`sparsejit demo`: prune, compile, speak, and show what each part costs, also as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import JsonOption, console, print_json, require, say
from sparsejit.files import atomic_path, check_writable
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import cycles_per_ns
from sparsejit.voice.bundled import DENSE, Utterance, bundled_recording, bundled_utterance
from sparsejit.voice.speak.speak_file import check_wav, write_wav
from sparsejit.voice.speak.wavernn import WaveRNN

if TYPE_CHECKING:
    from sparsejit.perf.kernels import Comparison
    from sparsejit.perf.voice.listening_page import SampleTime
    from sparsejit.perf.voice.sound_page import Take
    from sparsejit.perf.voice.synthesis import SynthesisTime
    from sparsejit.prune.showcase import PrunePoint, Showcase

FloatArray = npt.NDArray[np.float32]

_BARS = " ▁▂▃▄▅▆▇█"


def demo(
    out: Annotated[
        Path, typer.Option(help="The folder for demo.html, demo.wav and demo.png.")
    ] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the pruning run and of the voice.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prune a small network, synthesise speech with the bundled voice, and time every layer."""
    require("torch", "scipy", "soundfile", "matplotlib", "threadpoolctl", "jinja2")
    check_wav(out / "demo.wav")
    check_writable(out / "demo.png")
    check_writable(out / "demo.html")
    report: dict[str, Any] = {"prune": _prune(seed, quiet=as_json)}
    voice, utterance = WaveRNN.from_pretrained(), bundled_utterance()
    short = WaveRNN.from_pretrained(dtype="int8")
    audio = voice.generate(utterance.mel, seed)
    write_wav(out / "demo.wav", audio, voice.sample_rate)
    _draw(out / "demo.png", voice, utterance.mel, audio, utterance.text)
    layers, times = _measure([voice, short], utterance.mel)
    dense = WaveRNN.from_pretrained(DENSE).generate(utterance.mel, seed)
    takes = _takes(voice, dense, audio, short.generate(utterance.mel, seed))
    _write_page(out / "demo.html", voice, utterance, takes, layers, times)
    report["layers"] = [row.as_dict() for comparison in layers for row in comparison.rows]
    report["synthesis"], report["synthesis_int8"] = (
        {**vars(time), "real_time_factor": time.real_time_factor, "speed_up": time.speed_up}
        for time in times
    )
    if as_json:
        print_json(report)
        return
    console.print(_layer_table(layers))
    console.print(_synthesis_table(voice, times))
    console.print(f'"{utterance.text}" ({utterance.name}, not in the training data)')
    say(f"{len(audio) / voice.sample_rate:.1f} s of speech in {out / 'demo.wav'}")
    say(f"spectrograms in {out / 'demo.png'}; a page with the sound in {out / 'demo.html'}")


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
    """Bars of density and loss over the steps, and held-out losses of the networks to compare."""
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
    from sparsejit.perf.voice.listening_page import draw_mels

    spoken = voice.features(audio, voice.sample_rate)
    draw_mels(path, mel, spoken, voice.hop_length / voice.sample_rate, text)


def _measure(
    voices: list[WaveRNN], mel: FloatArray
) -> "tuple[list[Comparison], list[SynthesisTime]]":
    """Time each layer of the first voice by itself, and each of the voices as a whole."""
    from sparsejit.perf.kernels import run
    from sparsejit.perf.voice.synthesis import layer_matrices, time_synthesis

    with console.status("measuring") as status:
        layers = []
        for matrix in layer_matrices(voices[0].source):
            family = voices[0].loop.plans[matrix.name].chosen.template.family
            layers += run([matrix], [family], status.update, [DType.FLOAT32])
        status.update("synthesis")
        return layers, time_synthesis(voices, mel)


def _takes(voice: WaveRNN, dense: FloatArray, audio: FloatArray, short: FloatArray) -> "list[Take]":
    """The recordings on the page: the original, and speech from its mel."""
    from sparsejit.perf.voice.sound_page import Take

    rate = voice.sample_rate
    spoken = (
        f"Spoken from the recording's mel spectrogram alone: {voice.source.hidden_size} units, "
        f"{_density(voice):.0%} of the weights left, in one compiled function."
    )
    return [
        Take("Recording", "The human speaker.", bundled_recording(), rate),
        Take("Dense, float32", "The network with all its weights, none pruned.", dense, rate),
        Take("Pruned, float32", spoken, audio, rate),
        Take("Pruned, int8", "The same weights as 8-bit integers.", short, rate),
    ]


def _write_page(
    path: Path,
    voice: WaveRNN,
    utterance: Utterance,
    takes: "list[Take]",
    layers: "list[Comparison]",
    times: "list[SynthesisTime]",
) -> None:
    from sparsejit.perf.voice.listening_page import ListeningPage

    target = Target.detect()
    clock = f"{cycles_per_ns(target):.1f} GHz"
    page = ListeningPage(
        text=utterance.text,
        source=f"{utterance.name} of LJ Speech (public domain), not in the training data.",
        machine=f"{target.model} ({target.core.key}, {target.isa}), one core at {clock}",
        takes=takes,
        layers=[row for comparison in layers for row in comparison.rows],
        samplers=_samplers(times),
        timed="Medians; torch runs the same layers densely, "
        "without the signal processing around them.",
        sample_rate=voice.sample_rate,
        density=_density(voice),
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page.html(), "utf-8")


def _density(voice: WaveRNN) -> float:
    """The density of the layers that run once a sample."""
    return sum(la.nnz for la in voice.layers) / sum(la.weights for la in voice.layers)


def _samplers(times: "list[SynthesisTime]") -> "list[SampleTime]":
    """Median microseconds a sample of whole samplers: ours in float32 and int8, and torch's."""
    from sparsejit.perf.voice.listening_page import SampleTime

    time, short = times
    return [
        SampleTime("sparsejit, one native function", time.us_median),
        SampleTime("the same in int8", short.us_median),
        SampleTime("torch eager, the network alone", time.us_torch),
    ]


def _layer_table(layers: "list[Comparison]") -> Table:
    from sparsejit.perf.voice.listening_page import LAYER_COLUMNS

    table = table_of("layers of the voice, one core, times against peers in this run")
    for heading, _ in LAYER_COLUMNS:
        justify: JustifyMethod = "left" if heading == "layer" else "right"
        table.add_column(heading, justify=justify, no_wrap=" " not in heading)
    for comparison in layers:
        (row,) = comparison.rows
        table.add_row(*(cell(row) for _, cell in LAYER_COLUMNS))
    return table


def _synthesis_table(voice: WaveRNN, times: "list[SynthesisTime]") -> Table:
    faster = f"{times[0].speed_up:.0f} times faster than torch eager"
    figures = ("us a sample", "times real time")
    table = table_of("the whole sampler, one core", [""], figures, [faster])
    for sampler in _samplers(times):
        real_time = 1e6 / (voice.sample_rate * sampler.us)
        table.add_row(sampler.name, f"{sampler.us:.2f}", f"{real_time:.1f}")
    return table
