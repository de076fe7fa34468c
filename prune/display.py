"""Tables as text for `print` and as HTML for notebooks."""

from io import StringIO

from rich.console import Console, ConsoleRenderable, RichCast

# Wide enough that no column of our tables is folded.
_COLUMNS = 150
_HTML = '<pre style="line-height: normal; white-space: pre; font-family: monospace">{code}</pre>'


class Shown:
    """Of a class with `__rich__`: `print` shows its tables, and so does a notebook."""

    def __rich__(self) -> ConsoleRenderable | RichCast | str:
        raise NotImplementedError

    def __str__(self) -> str:
        console = _recorder()
        console.print(self)
        return console.export_text().rstrip("\n")

    def _repr_html_(self) -> str:
        console = _recorder()
        console.print(self)
        return console.export_html(inline_styles=True, code_format=_HTML)


def _recorder() -> Console:
    return Console(record=True, file=StringIO(), width=_COLUMNS, highlight=False)
