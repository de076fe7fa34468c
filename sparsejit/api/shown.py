"""Text of reports and tables for `print`, and their HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import TextType

Frame = Literal["box", "rule", "none"]

# Characters of a line: enough that no column is folded.
_COLUMNS = 2000
_HTML = '<pre style="line-height: normal; white-space: pre; font-family: monospace">{code}</pre>'


class Shown:
    """Base of classes with `__rich__`, whose tables `print` and notebooks show."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        return _recorded(self).export_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return _recorded(self).export_html(inline_styles=True, code_format=_HTML)


def _recorded(shown: Shown) -> Console:
    """Print an object to a recording console, and return that."""
    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=_COLUMNS, highlight=False)
    console.print(shown)
    return console


def table_of(
    title: TextType,
    words: Iterable[str] = (),
    figures: Iterable[str] = (),
    notes: Iterable[str] = (),
    *,
    frame: Frame = "box",
    lines: bool = False,
    footer: bool = False,
) -> Table:
    """Return a table without rows: columns of words, then of figures, and notes below.

    The caller may add columns. frame: "box" around all cells, "rule" below the headings, or "none".
    lines: whether lines separate rows. footer: whether the footers of columns are shown.
    """
    table = _framed(frame)
    table.title, table.title_justify, table.caption_justify = title or None, "left", "left"
    table.show_lines, table.show_footer = lines, footer
    for name in words:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = "\n".join(notes) or None
    return table


def _framed(frame: Frame) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    if frame == "box":
        return Table()
    if frame == "rule":
        return Table(box=SIMPLE, padding=(0, 1, 0, 0))
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
