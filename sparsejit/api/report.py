"""A kernel's report as text, as a table for `rich`, and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from math import log2
from typing import TYPE_CHECKING, Any

from sparsejit.ir.spec import Layer, MatMul
from sparsejit.machine.target import Target
from sparsejit.planner.plan import Plan
from sparsejit.planner.split import Split

if TYPE_CHECKING:
    from rich.table import Table

Report = Mapping[str, Any]

# Of the table of candidates: heading, key of the report, form, width in text.
_COLUMNS = (
    ("candidate", "kernel", "s", "<28"),
    ("steps", "steps", "d", ">8"),
    ("code", "code_bytes", "d", ">9"),
    ("data", "data_bytes", "d", ">9"),
    ("predicted ns", "predicted_ns", ".0f", ">14"),
    ("measured", "measured_ns", ".0f", ">10"),
    ("bound by", "bound", "s", "<"),
)


def describe(
    spec: Layer, plan: Plan, division: Split, target: Target, weight_change: float
) -> dict[str, Any]:
    """What was asked for, what was chosen and why, as plain data; times in ns."""
    each = spec.each if isinstance(spec, MatMul) else spec
    return {
        "dtype": spec.dtype.value,
        "activation": each.activation.value,
        "bias": spec.bias is not None,
        "input_scale": None if each.input_scale is None else float(each.input_scale),
        "batch": spec.batch if isinstance(spec, MatMul) else 1,
        "layout": spec.layout.value if isinstance(spec, MatMul) else None,
        "pitch": spec.padded_to if isinstance(spec, MatMul) else None,
        "case": spec.case,
        "kernel": plan.chosen.template.name,
        "reason": plan.reason,
        "weights_change_by": weight_change,
        "threads_reason": division.reason,
        "parts": [
            {
                "first_column": part.first_column,
                "columns": part.columns,
                "first_row": part.first_row,
                "end_row": part.end_row,
                "kernel": part.plan.chosen.template.name,
                "nnz": part.matrix.nnz,
                "predicted_ns": part.plan.chosen.cost.ns,
            }
            for part in division.parts
        ],
        "target": target.model,
        "rates": target.core.origin,
        "candidates": [
            {
                "kernel": candidate.template.name,
                "family": candidate.template.family,
                "steps": candidate.cost.steps,
                "code_bytes": candidate.cost.code_bytes,
                "data_bytes": candidate.cost.data_bytes,
                "predicted_ns": candidate.cost.ns,
                "measured_ns": plan.measured_ns.get(candidate.template.name),
                "bound": candidate.cost.bound,
                "is_lowered": candidate.is_lowered,
            }
            for candidate in plan.candidates
        ],
    }


def weight_change(division: Split, target: Target) -> float:
    """The most by which a weight differs from what its dtype holds, as a share of itself."""
    parts = division.parts
    return max(part.plan.chosen.template.weight_change(part.matrix, target) for part in parts)


def as_line(report: Report) -> str:
    """One line for a prompt or a log."""
    batch = "" if report["batch"] == 1 else f", batch {report['batch']} {report['layout']}"
    threads = "" if report["threads"] == 1 else f", {report['threads']} threads"
    return (
        f"Kernel {report['out_features']} x {report['in_features']}, {report['dtype']}, "
        f"{1 - report['density']:.1%} zero{batch}: {report['kernel']}{threads}"
    )


def as_text(report: Report, division: Iterable[str]) -> str:
    """What was built, then every candidate with its predicted cost; `division` is in words."""
    return "\n".join(
        [*_facts(report, division), "".join(_padded(headings())), *map(_row, report["candidates"])]
    )


def as_table(report: Report) -> Table:
    """The candidates under the line that describes the kernel."""
    from rich.table import Table

    table = Table(title=as_line(report), caption=report["reason"], title_justify="left")
    for heading, _, form, _ in _COLUMNS:
        table.add_column(heading, justify="left" if form == "s" else "right")
    for candidate in report["candidates"]:
        chosen = candidate["kernel"] == report["kernel"]
        table.add_row(*_cells(candidate), style="bold" if chosen else None)
    return table


def as_html(report: Report, division: Iterable[str]) -> str:
    """For notebooks: the facts as a list, the candidates as a table."""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(report, division))
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in headings())
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(candidate))}</tr>"
        for candidate in report["candidates"]
    )
    return (
        f"<div><strong>{escape(as_line(report))}</strong><ul>{facts}</ul>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def headings() -> list[str]:
    """Of the table of candidates."""
    return [heading for heading, *_ in _COLUMNS]


def _facts(report: Report, division: Iterable[str]) -> list[str]:
    return [
        f"{report['out_features']} x {report['in_features']}, {report['case']}, "
        f"{report['nnz']} nonzeros ({report['density']:.2%}), "
        f"1x8 blocks {report['fill_1x8']:.0%} full",
        f"chosen: {report['kernel']}: {report['reason']}",
        f"built: {report['code_bytes']} bytes of code, {report['pool_bytes']} of literals, "
        f"in {report['compile_ms']:.1f} ms",
        *_grouping(report),
        _exactness(report),
        *division,
        f"rates: {report['rates']}",
    ]


def _grouping(report: Report) -> list[str]:
    """What the report counts of steps, in words."""
    if "lane_use" not in report:
        return []
    steps, ungrouped = report["steps"], report.get("least_steps_ungrouped", report["steps"])
    line = f"steps: {steps}, {report['lane_use']:.0%} of their lanes in use"
    return [f"{line}; at least {ungrouped} with rows as they come" if ungrouped > steps else line]


def _exactness(report: Report) -> str:
    change = report["weights_change_by"]
    if not change:
        return f"weights: exactly as {report['dtype']} holds them"
    kernels = ", ".join(dict.fromkeys(part["kernel"] for part in report["parts"]))
    return (
        f"weights: each changed by at most 2^{log2(change):.0f} of itself, and those below 2^-125 "
        f"become zero, since {kernels} keeps an index in their lowest bits; "
        "exact=True rules that out"
    )


def _cells(candidate: Report) -> list[str]:
    values = ((candidate[key], form) for _, key, form, _ in _COLUMNS)
    return ["-" if value is None else format(value, form) for value, form in values]


def _padded(cells: Iterable[str]) -> list[str]:
    widths = (width for *_, width in _COLUMNS)
    # The last column, which is text, stands apart from the number before it.
    *front, last = (format(cell, width) for cell, width in zip(cells, widths, strict=True))
    return [*front, "  ", last]


def _row(candidate: Report) -> str:
    return "".join(_padded(_cells(candidate)))
