"""Text of reports and tables for `print`, and their HTML for notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from io import StringIO
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import TextType

Frame = Literal["box", "rule", "none"]

# Characters of a line outside a terminal: enough that no column is folded.
_COLUMNS = 2000
_HTML = '<pre style="line-height: normal; white-space: pre; font-family: monospace">{code}</pre>'


class Shown:
    """Base of classes with `__rich__`, whose tables `print` and notebooks show."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __str__(self) -> str:
        text = _recorded(self, terminal_width() or _COLUMNS).export_text()
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()

    def _repr_html_(self) -> str:
        return _recorded(self, _COLUMNS).export_html(inline_styles=True, code_format=_HTML)


def terminal_width() -> int | None:
    """Return the characters of a line of stdout's terminal or of COLUMNS; None outside both."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return get_terminal_size().columns


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s for any number but 1."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def share_of_limit_text(share: float) -> str:
    """Return a share of the processor's limit in per cent, 100 % at most.

    The limit is measured as times are: a kernel that reaches it seems to pass it now and then.
    """
    return f"{min(share, 1.0):.0%}"


def _recorded(shown: Shown, width: int) -> Console:
    """Print an object to a recording console, and return that."""
    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=width, highlight=False)
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
        table.add_column(name, overflow="fold")
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
