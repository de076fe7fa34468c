"""`sparsejit doctor`: print the findings of `sparsejit.commands.machine_report`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from sparsejit.api.reports.shown import table_of
from sparsejit.commands.console import (
    JsonFileOption,
    JsonOption,
    check_outputs,
    console,
    hand_over,
    say,
)

if TYPE_CHECKING:
    from sparsejit.commands.machine_report import Diagnosis, Finding
    from sparsejit.machine.target import Target

_DEVELOPERS = "measure and develop"  # shown with --all
# Extras by a user's purpose; each is of one purpose (`tests/cli/test_cli.py`).
PURPOSES = {
    "run": ("core",),
    "compile models": ("torch", "onnx", "onnxruntime", "sklearn", "forests"),
    "speak from recordings": ("voice", "play", "ray"),
    _DEVELOPERS: ("bench", "dev", "docs"),
}


AllOption = Annotated[
    bool, typer.Option("--all", help="Also list the packages to measure and develop with.")
]


def doctor(
    everything: AllOption = False, as_json: JsonOption = False, out: JsonFileOption = None
) -> None:
    """Report on this machine, missing parts and their remedies; fail if nothing can run."""
    from sparsejit.commands.machine_report import examine

    check_outputs(out)
    diagnosis = examine(everything or as_json or out is not None)
    if not hand_over(diagnosis.as_dict(), as_json, out):
        _print(diagnosis, everything)
    raise typer.Exit(0 if diagnosis.can_run else 1)


def _print(diagnosis: Diagnosis, everything: bool) -> None:
    purposes = {
        purpose: extras
        for purpose, extras in PURPOSES.items()
        if everything or purpose != _DEVELOPERS
    }
    table = table_of("", ("", "needed by"))
    table.add_column("found", overflow="fold")
    for purpose, extras in purposes.items():
        table.add_section()
        table.add_row(f"to {purpose}", style="bold")
        for finding in diagnosis.findings:
            if finding.needed_by in extras:
                found = finding.found or "missing"
                table.add_row(finding.name, finding.needed_by, found, style=_style(finding))
    console.print(table)
    if diagnosis.target is not None:
        _print_target(diagnosis.target)
    for name, text in (("rates", diagnosis.rates), ("cache", diagnosis.cache)):
        say(f"{name}: {text}")
    shown = {extra for extras in purposes.values() for extra in extras}
    lacking = [each for each in diagnosis.findings if not each.ok and each.needed_by in shown]
    for remedy, findings in groupby(sorted(lacking, key=_order), lambda each: each.remedy):
        first, *rest = findings
        names = ", ".join(each.name for each in (first, *rest))
        say(f"remedy for {names}: {remedy}", style=_style(first))
    console.print("ready" if diagnosis.can_run else "not ready: the core needs the red entries")


def _order(finding: Finding) -> tuple[int, str]:
    """Sort key of findings: by purpose, then by remedy, so that equal remedies are together."""
    extras = [extra for each in PURPOSES.values() for extra in each]
    return extras.index(finding.needed_by), finding.remedy


def _style(finding: Finding) -> str | None:
    if finding.ok:
        return None
    return "red" if finding.needed_by == "core" else "yellow"


def _print_target(target: Target) -> None:
    from sparsejit.commands.machine_report import lacking

    caches = {
        "L1d": target.l1d_bytes,
        "L1i": target.l1i_bytes,
        "L2": target.l2_bytes,
        "L3": target.l3_bytes,
    }
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in caches.items())
    registers = f"{target.vector_registers} vector registers of {target.lanes} float32"
    say(f"level in force: {target.isa}, {registers}")
    missing = lacking(target)
    if missing:
        say(missing)
    say(f"instruction sets: {' '.join(sorted(target.instruction_sets))}")
    say(f"caches: {sizes}")
