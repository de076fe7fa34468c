"""Tables of reports for terminals and for self-contained web pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.api.reports.shown import Frame, table_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table


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


# More characters than any table has.
_UNBOUND = 100_000


@cache
def page_style() -> str:
    """Return the start of every page's style sheet: colours, light and dark, and tables."""
    return Path(__file__).with_name("page.css").read_text()




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
