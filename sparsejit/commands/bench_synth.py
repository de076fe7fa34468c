"""`sparsejit bench synth`: what a sample of a voice costs, part by part."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    error_console,
    hand_over,
    require,
    say,
)
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.voice.bundled import VOICE, bundled_utterance
from sparsejit.voice.weights import VoiceWeights

if TYPE_CHECKING:
    from sparsejit.perf.voice_times import VoiceTime


def synth(
    voice: Annotated[Path, typer.Option(help="A voice that `train` wrote.")] = VOICE,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, ...; repeatable. Default: three.")
    ] = None,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: Annotated[
        bool, typer.Option("--record", help="Append to perf/results/synth.jsonl.")
    ] = False,
) -> None:
    """Time the sampler of a voice in every dtype, its parts, and torch run eagerly."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf import history
    from sparsejit.perf.machine import machine_limits
    from sparsejit.perf.voice_times import DTYPES, time_voice

    dtypes = [DType.parse(name).value for name in dtype or DTYPES]
    weights = VoiceWeights.load(voice)
    check_outputs(out)
    with error_console.status("") as status:
        found = time_voice(weights, bundled_utterance().mel, dtypes, status.update)
    rows = [{"voice": voice.stem, **one.as_dict(), **history.speeds()} for one in found]
    if record:
        where = history.append("synth", rows, machine_limits(Target.detect()))
        error_console.print(f"recorded in {where}")
    if hand_over(rows, as_json, out):
        return
    console.print(_voices(found))
    console.print(_parts(found))
    say(f"on one {Target.detect().core.key} core; torch eager takes {found[0].us_torch:.1f} us")


def _voices(found: "list[VoiceTime]") -> Table:
    table = Table("dtype", title="a sample", title_justify="left")
    for name in ("us least", "us median", "times real time", "times torch eager", "KiB of weights"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            one.dtype,
            f"{one.us_min:.2f}",
            f"{one.us_median:.2f}",
            f"{one.real_time_factor:.1f}",
            f"{one.speed_up:.0f}",
            f"{one.weight_bytes / 1024:.0f}",
        )
    return table


def _parts(found: "list[VoiceTime]") -> Table:
    """Nanoseconds and shares, and in parentheses what was predicted of products."""
    table = Table("part", title="its parts, ns", title_justify="left")
    for one in found:
        table.add_column(one.dtype, justify="right")
    for rows in zip(*(one.parts for one in found), strict=True):
        cells = (
            f"{part.ns:.0f}{_predicted(part.predicted_ns)} {part.share:4.0%}" for part in rows
        )
        table.add_row(rows[0].name, *cells)
    return table


def _predicted(ns: float | None) -> str:
    return "" if ns is None else f" ({ns:.0f})"
