"""Tables of reports for terminals and for self-contained web pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.api.shown import Frame, table_of

if TYPE_CHECKING:
    from rich.table import Table


class Column(NamedTuple):
    """A column: its heading, the function of its cells, and whether they are text, flush left."""

    heading: str
    cell: Callable[[Any], str]
    is_text: bool = False


@cache
def page_style() -> str:
    """Return the start of every page's style sheet: colours, light and dark, and tables."""
    return Path(__file__).with_name("page.css").read_text()


def rich_table(
    columns: Sequence[Column],
    rows: Sequence[Any],
    notes: Iterable[str] = (),
    frame: Frame = "none",
) -> Table:
    """Return the rows as a table for a terminal, with notes below."""
    from rich.text import Text

    table = table_of("", notes=notes, frame=frame)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.is_text else "right")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    return table


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
