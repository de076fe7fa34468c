"""A model's report as text, as a table for terminals, and as a self-contained web page."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from sparsejit.api.model_report import LayerReport, ModelReport

# Heading, and what it shows of a layer.
_COLUMNS = (
    ("layer", lambda layer: layer.layer),
    ("kernel", lambda layer: layer.kernel),
    ("nnz", lambda layer: f"{layer.nnz:,}" if layer.weights else ""),
    ("density", lambda layer: f"{layer.nnz / layer.weights:.1%}" if layer.weights else ""),
    ("KiB", lambda layer: f"{layer.weight_bytes / 1024:.0f}" if layer.weights else ""),
    ("predicted ns", lambda layer: _number(layer.predicted_ns)),
    ("measured ns", lambda layer: _number(layer.measured_ns)),
    ("share", lambda layer: _percent(layer.share)),
    ("effective GFLOPS", lambda layer: _number(layer.effective_gflops)),
    ("real GFLOPS", lambda layer: _number(layer.real_gflops)),
    ("of limit", lambda layer: _percent(layer.share_of_limit)),
    ("why", lambda layer: layer.reason),
)
_TEXT_COLUMNS = 2  # the first, which are set flush left

_BARS = """
td:nth-child(-n+2), th:nth-child(-n+2), td:last-child, th:last-child { text-align: left }
.bar { display: flex; height: 3.2em; margin: 1em 0; border: 1px solid var(--line);
  overflow: hidden }
.bar div { overflow: hidden; white-space: nowrap; font-size: 11px; padding: .3em 0 0 .2em;
  border-right: 1px solid var(--page); color: #1c2127; box-sizing: border-box }
"""


@cache
def page_style() -> str:
    """The style sheet that every page written here begins with: colours, light and dark; tables."""
    return Path(__file__).with_name("page.css").read_text()


def as_text(report: ModelReport) -> str:
    """The facts, then one line a kernel, then who runs what."""
    rows = [[heading for heading, _ in _COLUMNS]]
    rows += [[cell(layer) for _, cell in _COLUMNS] for layer in report.layers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (_line(row, widths) for row in rows)
    return "\n".join([*_facts(report), *lines, *report.schedule])


def _line(row: list[str], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if number < _TEXT_COLUMNS else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join([*cells[:-1], row[-1]]).rstrip()


def as_table(report: ModelReport) -> Table:
    """For terminals."""
    from rich.table import Table
    from rich.text import Text

    caption = Text("\n".join(report.schedule))
    table = Table(
        title=Text("\n".join(_facts(report))),
        title_justify="left",
        caption=caption if report.schedule else None,
        caption_justify="left",
    )
    for number, (heading, _) in enumerate(_COLUMNS):
        is_text = number < _TEXT_COLUMNS or number == len(_COLUMNS) - 1
        table.add_column(heading, justify="left" if is_text else "right")
    for layer in report.layers:
        table.add_row(*(Text(cell(layer)) for _, cell in _COLUMNS))
    return table


def as_page(report: ModelReport) -> str:
    """HTML that needs nothing else: a bar of where the time goes, and the table."""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(report))
    heads = "".join(f"<th>{escape(heading)}</th>" for heading, _ in _COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(layer))}</td>" for _, cell in _COLUMNS) + "</tr>"
        for layer in report.layers
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sparsejit model</title>'
        f"<style>{page_style()}{_BARS}</style></head>"
        f"<body><h1>Where the time goes</h1><ul>{facts}</ul>"
        f'<div class="bar">{"".join(map(_segment, enumerate(report.layers)))}</div>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"{_schedule(report)}</body></html>\n"
    )


def _schedule(report: ModelReport) -> str:
    """Which thread runs what, where there are several."""
    lines = escape("\n".join(report.schedule))
    return f"<h2>Who runs what</h2><pre>{lines}</pre>" if lines else ""


def _segment(numbered: tuple[int, LayerReport]) -> str:
    """A layer's part of the bar, as wide as its share, in a colour of its layer."""
    number, layer = numbered
    if not layer.share:
        return ""
    hue = number * 137 % 360  # by the golden angle neighbours differ
    source = f"{layer.source} {layer.code}".strip()
    title = f"{layer.layer}: {layer.kernel}, {_number(layer.measured_ns)} ns, {source}"
    return (
        f'<div style="flex:{layer.share:.5f} 0 0;background:hsl({hue} 60% 75%)" '
        f'title="{escape(title)}">{escape(layer.layer)}<br>{_percent(layer.share)}</div>'
    )


def _facts(report: ModelReport) -> list[str]:
    facts: dict[str, Any] = report.facts
    density = facts["nnz"] / max(facts["weights"], 1)
    lines = [
        f"{facts['layers']} layers, {facts['nnz']:,} of {facts['weights']:,} weights "
        f"({density:.1%}), {facts['kernels']} kernels, {facts['isa']}",
        f"{facts['code_bytes']:,} bytes of code, {facts['pool_bytes']:,} of literals; workspace "
        f"{facts['workspace_bytes']:,} bytes (buffers apart would take {facts['buffer_bytes']:,})",
        f"compiled in {facts['compile_ms']:.0f} ms for {facts['processor']}; "
        f"rates: {facts['rates']}",
    ]
    if report.whole_ns is not None:
        parts = sum(layer.measured_ns or 0 for layer in report.layers)
        lines.append(
            f"measured: {report.whole_ns:,.0f} ns for {report.samples} sample"
            f"{'s' if report.samples > 1 else ''} at a time; the layers add up to {parts:,.0f}"
        )
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
