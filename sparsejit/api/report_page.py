"""A report as tables for terminals, and as a self-contained web page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.api.shown import Frame, share_of_limit_text, table_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from sparsejit.api.report import LayerReport, Report


class Column(NamedTuple):
    """A column of a table.

    heading: its heading; cell: the function of its cells; is_text: whether they are text, flush
    left; is_long: whether a terminal shows them below the table
    """

    heading: str
    cell: Callable[[Any], str]
    is_text: bool = False
    is_long: bool = False


class Bands(NamedTuple):
    """Rows as tables below each other, each as wide as the terminal at most.

    Each table starts with the first column. A long column has a table of its own.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    notes: Sequence[str] = ()
    frame: Frame = "none"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self.columns
        narrow = [column for column in others if not column.is_long]
        bands: list[list[Column]] = []
        for column in narrow:
            if bands and self._fits([first, *bands[-1], column], console, options):
                bands[-1].append(column)
            else:
                bands.append([column])
        bands += [[column] for column in others if column.is_long]
        for number, band in enumerate(bands, 1):
            notes = self.notes if number == len(bands) else ()
            yield self._table([first, *band], options.max_width, notes)
            if number < len(bands):
                yield ""

    def _fits(self, columns: Sequence[Column], console: Console, options: ConsoleOptions) -> bool:
        from rich.measure import Measurement

        table = self._table(columns, options.max_width)
        unbound = options.update(width=_UNBOUND)
        return Measurement.get(console, unbound, table).maximum <= options.max_width

    def _table(self, columns: Sequence[Column], width: int, notes: Sequence[str] = ()) -> Table:
        """Return one table, whose texts are folded to a third of the width, long ones to it all."""
        from rich.text import Text

        table = table_of("", notes=notes, frame=self.frame)
        for column in columns:
            table.add_column(
                column.heading if column.is_text else column.heading.replace(" ", "\n"),
                justify="left" if column.is_text else "right",
                overflow="fold",
                max_width=width // 3 if column.is_text and not column.is_long else None,
            )
        for row in self.rows:
            if any(column.cell(row) for column in columns[1:]):
                table.add_row(*(Text(column.cell(row)) for column in columns))
        return table


_LAYERS = (
    Column("layer", lambda layer: layer.layer, True),
    Column("kernel", lambda layer: layer.kernel, True),
    Column("size", lambda layer: "{} x {}".format(*layer.shape) if layer.shape else ""),
    Column("nnz", lambda layer: f"{layer.nnz:,}" if layer.weights else ""),
    Column("density", lambda layer: _percent(layer.density)),
    Column("KiB", lambda layer: f"{layer.weight_bytes / 1024:.0f}" if layer.weights else ""),
    Column("predicted ns", lambda layer: _number(layer.predicted_ns)),
    Column("measured ns", lambda layer: _number(layer.measured_ns)),
    Column("share", lambda layer: _percent(layer.share)),
    Column("effective GFLOPS", lambda layer: _number(layer.effective_gflops)),
    Column("real GFLOPS", lambda layer: _number(layer.real_gflops)),
    Column("of limit", lambda layer: _of_limit(layer)),
    Column("error", lambda layer: "" if layer.error is None else f"{layer.error:.1e}"),
    Column("why", lambda layer: layer.why, True, True),
)
_CANDIDATES = (
    Column("candidate", lambda candidate: candidate.kernel, True),
    Column("steps", lambda candidate: str(candidate.steps)),
    Column("code", lambda candidate: str(candidate.code_bytes)),
    Column("data", lambda candidate: str(candidate.data_bytes)),
    Column("predicted ns", lambda candidate: _number(candidate.predicted_ns)),
    Column("measured", lambda candidate: _number(candidate.measured_ns)),
    Column("bound by", lambda candidate: candidate.bound, True),
)

# More characters than any table has.
_UNBOUND = 100_000

# Characters of a line, and of a name: two such columns and two of figures take a line.
_BRIEF_WIDTH, _BRIEF_NAME = 80, 27

_BARS = """
.bar { display: flex; height: 3.2em; margin: 1em 0; border: 1px solid var(--line);
  overflow: hidden }
.bar div { overflow: hidden; white-space: nowrap; font-size: 11px; padding: .3em 0 0 .2em;
  border-right: 1px solid var(--page); color: #1c2127; box-sizing: border-box }
"""


@cache
def page_style() -> str:
    """Return the start of every page's style sheet: colours, light and dark, and tables."""
    return Path(__file__).with_name("page.css").read_text()


def as_tables(report: Report) -> RenderableType:
    """Return the facts, the layers, the candidates of a single layer, and the schedule."""
    from rich.console import Group
    from rich.text import Text

    tables = [Bands(columns, rows) for columns, rows in _tables(report)]
    texts = [Text(line) for line in (report.title, *report.lines)]
    return Group(*texts, *tables, *map(Text, report.schedule))


def as_brief(report: Report) -> RenderableType:
    """Return layer, kernel, time (measured, or else predicted) and share, within 80 columns."""
    from rich.console import Group
    from rich.text import Text

    times = [layer.measured_ns or layer.predicted_ns or 0.0 for layer in report.layers]
    is_measured = any(layer.measured_ns is not None for layer in report.layers)
    total = sum(times) or 1.0
    table = table_of("", frame="none")
    table.add_column("layer", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for heading in ("us" if is_measured else "us, predicted", "share"):
        table.add_column(heading, justify="right")
    for layer, ns in zip(report.layers, times, strict=True):
        names = (_cut(layer.layer, 0), _cut(layer.kernel, _BRIEF_NAME // 3))
        is_known = (layer.measured_ns, layer.predicted_ns) != (None, None)
        figures = (f"{ns / 1000:,.2f}", f"{ns / total:.1%}") if is_known else ()
        table.add_row(*map(Text, names), *figures)
    table.add_row("all", "", f"{sum(times) / 1000:,.2f}", "", style="bold")
    return Group(Text(fill(report.title, _BRIEF_WIDTH)), table)


def _cut(name: str, head: int) -> str:
    """Shorten a name to `_BRIEF_NAME` characters: its first `head`, an ellipsis, and its end."""
    if len(name) <= _BRIEF_NAME:
        return name
    return f"{name[:head]}…{name[head + 1 - _BRIEF_NAME :]}"


def _tables(report: Report) -> list[tuple[Sequence[Column], Sequence[Any]]]:
    """Return the columns and rows of each table of a report, without empty columns."""
    tables: list[tuple[Sequence[Column], Sequence[Any]]] = [(_LAYERS, report.layers)]
    if len(report.layers) == 1 and report.layers[0].candidates:
        tables.append((_CANDIDATES, report.layers[0].candidates))
    return [
        ([each for each in columns if any(map(each.cell, rows))], rows) for columns, rows in tables
    ]


def html_table(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Return the rows as an HTML table, escaped."""
    starts = ['{} class="text"' if column.is_text else "{}" for column in columns]

    def line(tag: str, cells: Iterable[str]) -> str:
        pairs = zip(starts, cells, strict=True)
        return "".join(f"<{start.format(tag)}>{escape(cell)}</{tag}>" for start, cell in pairs)

    heads = line("th", (column.heading for column in columns))
    body = "".join(
        f"<tr>{line('td', (column.cell(row) for column in columns))}</tr>" for row in rows
    )
    rows_of_page = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{rows_of_page}</table></div>'


def html_page(title: str, heading: str, facts: Sequence[str], body: str, style: str) -> str:
    """Return a self-contained HTML page: a heading, facts as a list, and a body that is HTML.

    `style` is CSS added to the style sheet of all pages.
    """
    listed = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{page_style()}{style}</style></head>"
        f"<body><h1>{escape(heading)}</h1><ul>{listed}</ul>{body}</body></html>\n"
    )


def as_page(report: Report) -> str:
    """Return a self-contained HTML page: a bar of the layers' shares of time, and the tables."""
    bars = "".join(map(_segment, enumerate(report.layers)))
    tables = "".join(html_table(columns, rows) for columns, rows in _tables(report))
    body = f'<div class="bar">{bars}</div>{tables}{_schedule(report)}'
    facts = report.title, *report.lines
    return html_page("sparsejit model", "Time by layer", facts, body, _BARS)


def _schedule(report: Report) -> str:
    """Return the schedule as HTML; "" for a report without one."""
    lines = escape("\n".join(report.schedule))
    return f"<h2>Steps of each thread</h2><pre>{lines}</pre>" if lines else ""


def _segment(numbered: tuple[int, LayerReport]) -> str:
    """Return a layer's part of the bar, as wide as its share, in a colour of its own."""
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


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _of_limit(layer: LayerReport) -> str:
    return "" if layer.share_of_limit is None else share_of_limit_text(layer.share_of_limit)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
