"""What a compiled voice is, as one line, as a table for a terminal and as one for a notebook."""

from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.table import Table

_HEADERS = ("layer", "size", "density", "kernel", "predicted ns")
_TEXT_COLUMNS = ("layer", "kernel")


@dataclass(frozen=True)
class LayerSummary:
    """One matrix (rows, columns) of the network that runs once a sample, and its kernel's cost."""

    name: str
    rows: int
    columns: int
    nnz: int
    kernel: str
    predicted_ns: float

    @property
    def density(self) -> float:
        """Share of weights that are not zero."""
        return self.nnz / (self.rows * self.columns)

    def cells(self) -> tuple[str, ...]:
        """What stands under _HEADERS."""
        size = f"{self.rows} x {self.columns}"
        return self.name, size, f"{self.density:.1%}", self.kernel, f"{self.predicted_ns:,.0f}"


@dataclass(frozen=True)
class VoiceSummary:
    """A voice's title, such as "WaveRNN, 384 units, ...", and its layers."""

    title: str
    layers: tuple[LayerSummary, ...]

    def __str__(self) -> str:
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def table(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title, title_justify="left")
        for header in _HEADERS:
            table.add_column(header, justify="left" if header in _TEXT_COLUMNS else "right")
        for layer in self.layers:
            table.add_row(*layer.cells())
        return table

    def html(self) -> str:
        """For a notebook; no audio, nothing to load."""
        rows = [("th", _HEADERS), *(("td", layer.cells()) for layer in self.layers)]
        body = "".join(
            "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
            for tag, cells in rows
        )
        return f"<table><caption>{escape(self.title)}</caption>{body}</table>"
