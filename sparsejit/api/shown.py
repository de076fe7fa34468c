"""Reports and tables as text for `print`, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Wide enough that no column of our tables is folded.
_COLUMNS = 2000
_HTML = '<pre style="line-height: normal; white-space: pre; font-family: monospace">{code}</pre>'


class Shown:
    """Of a class with `__rich__`: `print` shows its tables, and so does a notebook."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        return _recorded(self).export_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return _recorded(self).export_html(inline_styles=True, code_format=_HTML)


def _recorded(shown: Shown) -> Console:
    """A console that it was printed to."""
    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=_COLUMNS, highlight=False)
    console.print(shown)
    return console


def table_of(
    title: str, words: Iterable[str], figures: Iterable[str], notes: Iterable[str] = ()
) -> Table:
    """A table without rows yet: columns of words, then of figures, and notes below."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", caption_justify="left")
    for name in words:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = "\n".join(notes) or None
    return table
