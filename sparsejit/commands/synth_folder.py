"""`sparsejit synth FOLDER OUT`: all recordings of a folder, by all cores or a Ray cluster."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sparsejit.commands.console import ProgressBar, error_console, print_json, say
from sparsejit.errors import InvalidInput
from sparsejit.runtime import native_timing
from sparsejit.runtime.workers import available_cores
from sparsejit.voice.speak.bulk import (
    Crew,
    FolderReport,
    Manner,
    SpeakingTask,
    ray_cluster,
    speak_tasks,
    tasks_of,
    worker_processes,
)
from sparsejit.voice.spec.trained import TrainedNetwork


@dataclass(frozen=True)
class FolderOptions:
    """Options that apply to a folder only."""

    overwrite: bool = False
    workers: int | None = None
    ray: str | None = None

    def crew(self, manner: Manner) -> AbstractContextManager[Crew]:
        """The processes of this machine, or the Ray cluster, that speak the folder's files."""
        if self.ray is not None:
            return ray_cluster(manner, self.ray)
        return worker_processes(manner, self.workers or available_cores())


def synth_folder(
    folder: Path, out: Path, manner: Manner, options: FolderOptions, as_json: bool
) -> None:
    """Speak a folder; exit status 1 where a file has failed twice, 130 after Ctrl-C."""
    if options.workers is not None and options.ray is not None:
        raise InvalidInput("--workers and --ray exclude each other; Ray counts its cluster's cores")
    tasks = tasks_of(folder, out)
    # Compile here first: an unusable voice is found, and a processor that was never measured is
    # measured once, without workers beside it.
    speaker = manner.compile()
    started = native_timing.clock()
    report = _speak(tasks, manner, options, speaker.source)
    wall_seconds = (native_timing.clock() - started) / 1e9
    if as_json:
        settings = {
            "folder": str(folder),
            "out": str(out),
            "voice": str(manner.voice),
            "seed": manner.seed,
            "dtype": manner.dtype,
            "temperature": speaker.source.temperature,
            "sample_rate": speaker.sample_rate,
        }
        print_json({**settings, **_as_dict(report, wall_seconds)})
    else:
        _print(report, wall_seconds, out)
    if report.failed:
        raise typer.Exit(1)


def _speak(
    tasks: list[SpeakingTask], manner: Manner, options: FolderOptions, network: TrainedNetwork
) -> FolderReport:
    try:
        with options.crew(manner) as crew, ProgressBar() as bar:
            bar.begin("speaking", len(tasks))
            return speak_tasks(tasks, network, crew, options.overwrite, bar.step)
    except KeyboardInterrupt:
        error_console.print("stopped; the same command speaks the remaining recordings")
        raise typer.Exit(130) from None


def _seconds(report: FolderReport) -> float:
    return sum(spoken.seconds for spoken in report.spoken.values())


def _as_dict(report: FolderReport, wall_seconds: float) -> dict[str, Any]:
    spoken = [
        {
            "recording": str(task.source),
            "out": str(task.out),
            "seconds": one.seconds,
            "computing_seconds": one.computing_seconds,
            "real_time_factor": one.real_time_factor,
            "first_audio_ms": one.first_audio_ms,
        }
        for task, one in sorted(report.spoken.items(), key=lambda item: item[0].source)
    ]
    return {
        "seconds": _seconds(report),
        "wall_seconds": wall_seconds,
        "real_time_factor": _seconds(report) / wall_seconds,
        "spoken": spoken,
        "kept": [str(task.out) for task in report.kept],
        "failed": [
            {"recording": str(task.source), "error": why} for task, why in report.failed.items()
        ],
    }


def _print(report: FolderReport, wall_seconds: float, out: Path) -> None:
    for task, why in report.failed.items():
        named = why if str(task.source) in why else f"{task.source}: {why}"
        error_console.print(f"failed: {named}", style="red", markup=False)
    seconds, count = _seconds(report), len(report.spoken)
    if count:
        speed = f"made in {wall_seconds:.2f} s, {seconds / wall_seconds:.1f} times real time"
        files = "1 file" if count == 1 else f"{count} files"
        say(f"{seconds:.1f} s of speech in {files} in {out}, {speed}")
    if report.kept:
        say(f"{len(report.kept)} were there already; --overwrite speaks them again")
