"""`sparsejit bench synth`: the time of a network's sample, part by part, and the rivals' time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    RecordOption,
    check_outputs,
    console,
    error_console,
    hand_over,
    record_rows,
    require,
    say,
)
from sparsejit.errors import MissingDependency
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target

if TYPE_CHECKING:
    from sparsejit.perf.voice.voice_times import VoiceTime


def synth(
    network: Annotated[
        list[str] | None,
        typer.Option(help="voice, deck, wavernn-16k, lpcnet; repeatable. Default: all."),
    ] = None,
    voice: Annotated[
        Path | None, typer.Option(help="A voice that `train` wrote. Default: the bundled one.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="wavernn-16k's folder: model.safetensors and mel.npy.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="float32, bfloat16, ...; repeatable. Default: three.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="torch, torchscript, torch-compile, onnxruntime; repeatable."),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Run the other libraries too.")] = True,
    as_json: JsonOption = False,
    out: JsonFileOption = None,
    record: RecordOption = False,
) -> None:
    """Time networks that make a sample at a time, their parts, and peers, on one core."""
    require("torch", "scipy", "threadpoolctl")
    from sparsejit.perf import history
    from sparsejit.perf.peers.model_peers import peers_named
    from sparsejit.perf.voice.voice_networks import NETWORKS, check_network
    from sparsejit.perf.voice.voice_peers import STEP_PEERS
    from sparsejit.perf.voice.voice_times import DTYPES

    dtypes = [DType.parse(name).value for name in dtype or DTYPES]
    names = [one.name for one in peers_named(peer or STEP_PEERS)] if peers else []
    networks = [check_network(name) for name in network or NETWORKS]
    check_outputs(out)
    paths = {"voice": voice, "wavernn-16k": checkpoint}
    rows: list[dict[str, Any]] = []
    for name in networks:
        found = _timed(name, paths.get(name), dtypes, names)
        rows += [{**one.as_dict(), **history.speeds()} for one in found]
        if found and not as_json:
            _show(found)
    record_rows(record, "synth", rows)
    hand_over(rows, as_json, out)


def _timed(
    name: str, path: Path | None, dtypes: Sequence[str], peers: Sequence[str]
) -> "list[VoiceTime]":
    """Time a network; print a message and return no times where its files are not there."""
    from sparsejit.perf.voice.voice_times import time_network

    try:
        with error_console.status("") as status:
            return time_network(name, path, dtypes, peers, status.update)
    except MissingDependency as problem:
        error_console.print(f"{name}: skipped, {problem}")
        return []


def _show(found: "Sequence[VoiceTime]") -> None:
    console.print(_times(found))
    console.print(_parts(found))
    if found[0].peers:
        console.print(_peers(found))
    for name, why in found[0].skipped.items():
        say(f"{name}: skipped, {why}")


def _times(found: "Sequence[VoiceTime]") -> Table:
    """A table of the loop's times in each dtype, and of the memory in KiB that a sample reads.

    The memory's parts: weights, indices and constants, code, table rows, conditioning.
    """
    first = found[0]
    title = f"{first.network}: a sample on one {Target.detect().core.key} core"
    figures = ("us least", "us median", "times real time", "products", "predicted", "KiB")
    parts_title = "weights + indices + code + rows + conditioning"
    table = table_of(title, ["dtype"], (*figures, parts_title))
    for one in found:
        touched = one.touched
        parts = (
            *(touched.weights, touched.indices, touched.code),
            *(touched.rows, touched.conditioning),
        )
        table.add_row(
            one.dtype,
            f"{one.us_min:.2f}",
            f"{one.us_median:.2f}",
            f"{one.real_time_factor:.1f}",
            f"{one.products_us:.2f}",
            f"{one.predicted_us:.2f}",
            f"{touched.total / 1024:.0f}",
            " + ".join(f"{part / 1024:.0f}" for part in parts),
        )
    return table


def _parts(found: "Sequence[VoiceTime]") -> Table:
    """A table of each part of a sample, in nanoseconds and shares; predictions in parentheses."""
    table = table_of("its parts, ns", ["part"], (one.dtype for one in found))
    by_name = [{part.name: part for part in one.parts} for one in found]
    for name in dict.fromkeys(name for parts in by_name for name in parts):
        cells = []
        for parts in by_name:
            part = parts.get(name)
            text = part and f"{part.ns:.0f}{_predicted(part.predicted_ns)} {part.share:4.0%}"
            cells.append(text or "")
        table.add_row(name, *cells)
    products = (f"{1e3 * one.products_us:.0f} {one.shares()['products']:4.0%}" for one in found)
    table.add_row("all products", *products)
    return table


def _predicted(ns: float | None) -> str:
    return "" if ns is None else f" ({ns:.0f})"


def _peers(found: "Sequence[VoiceTime]") -> Table:
    figures = ("us median", *(f"over our {one.dtype}" for one in found))
    table = table_of("peers in the same rounds", ["peer"], figures)
    for peer in found[0].peers:
        ratios = (f"{one.speed_up(peer.name):.1f}" for one in found)
        table.add_row(peer.name, f"{peer.us_median:.2f}", *ratios)
    return table
