"""Sparsity and time of each pruned layer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from torch import Tensor

from sparsejit.api.reports.shown import Shown, table_of
from sparsejit.prune.patterns import Pattern, on_weight


@dataclass(frozen=True)
class LayerTime:
    """Time of one product with one vector of inputs, on one core, by the planner's choice.

    A recurrent layer takes one step. A convolution takes one image for each of its calls, or one
    position of its output where images are not known.

    Attributes:
        kernel: dtype, family and level
        lane_use: nonzeros over the lanes of all steps that the cost model counts (`cost.lane_use`);
            None for images, whose lanes are positions
        predicted_ns: nanoseconds, as predicted
        measured_ns: nanoseconds, the fastest of many calls (of images the median), the median over
            places in memory
        effective_gflops: operations a nanosecond of the measured time, zeros counted
        real_gflops: the same without zeros
    """

    kernel: str
    lane_use: float | None
    predicted_ns: float
    measured_ns: float
    effective_gflops: float
    real_gflops: float


@dataclass(frozen=True)
class LayerSparsity:
    """One weight: counts are of nonzero values, not of masks.

    Attributes:
        name: the parameter's name in the model
        shape: the parameter's shape
        gates: number of gates that share it
        pattern: the pattern that it was pruned in
        nnz: values that are not zero
        elements: all values
        occupied_blocks: blocks that hold a value that is not zero
        blocks: all blocks
        time: its time, where `time_layers` measured it
    """

    name: str
    shape: tuple[int, ...]
    gates: int
    pattern: str
    nnz: int
    elements: int
    occupied_blocks: int
    blocks: int
    time: LayerTime | None = None

    @property
    def density(self) -> float:
        return self.nnz / self.elements

    @property
    def block_density(self) -> float:
        return self.occupied_blocks / self.blocks

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; the figures of `time` beside the others."""
        row = asdict(self)
        times = row.pop("time") or {}
        return {**row, "density": self.density, "block_density": self.block_density, **times}


def describe_layer(name: str, weight: Tensor, pattern: Pattern, gates: int) -> LayerSparsity:
    """Count the nonzeros of one weight, shape (out_features, ...), in `gates` equal row groups."""
    nonzero = weight.reshape(gates, weight.shape[0] // gates, -1) != 0
    scores = on_weight(pattern, weight.shape).blocks(nonzero.double(), nonzero).scores
    return LayerSparsity(
        name=name,
        shape=tuple(weight.shape),
        gates=gates,
        pattern=pattern.name,
        nnz=int(weight.count_nonzero()),
        elements=weight.numel(),
        occupied_blocks=int(scores.isfinite().sum()),
        blocks=scores.numel(),
    )


# Header and format of a column, by its key in `LayerSparsity.as_dict`.
_Columns = dict[str, tuple[str, Callable[[Any], str]]]
_SPARSITY: _Columns = {
    "shape": ("shape", lambda shape: " x ".join(map(str, shape))),
    "gates": ("gates", str),
    "pattern": ("pattern", str),
    "nnz": ("nnz", "{:,}".format),
    "density": ("density", "{:.2%}".format),
    "block_density": ("block\ndensity", "{:.2%}".format),
}
_COST: _Columns = {
    "kernel": ("kernel", str),
    "lane_use": ("lane\nuse", lambda use: "" if use is None else f"{use:.0%}"),
    "predicted_ns": ("predicted\nns", "{:,.0f}".format),
    "measured_ns": ("measured\nns", "{:,.0f}".format),
    "effective_gflops": ("GFLOPS\neffective", "{:,.0f}".format),
    "real_gflops": ("\nreal", "{:.1f}".format),
}


@dataclass(frozen=True)
class SparsityReport(Shown):
    """All pruned layers; `print`, `rich.print` and notebooks show a table.

    Attributes:
        layers: one entry a weight
        in_turn_us: microseconds of all products one after another, where they were timed
    """

    layers: Sequence[LayerSparsity]
    in_turn_us: float | None = None

    @property
    def nnz(self) -> int:
        return sum(layer.nnz for layer in self.layers)

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)

    @property
    def density(self) -> float:
        return self.nnz / self.elements

    def total(self) -> dict[str, float]:
        """Sums over the layers, and the times of all where all were timed."""
        total: dict[str, float] = {
            "nnz": self.nnz,
            "elements": self.elements,
            "density": self.density,
        }
        if self.in_turn_us is not None:
            times = [layer.time for layer in self.layers if layer.time is not None]
            total["predicted_ns"] = sum(time.predicted_ns for time in times)
            total["measured_ns"] = measured = sum(time.measured_ns for time in times)
            for key in ("effective_gflops", "real_gflops"):
                flops = sum(getattr(time, key) * time.measured_ns for time in times)
                total[key] = flops / measured
            total["in_turn_us"] = self.in_turn_us
        return total

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"layers": [layer.as_dict() for layer in self.layers], "total": self.total()}

    def __rich__(self) -> Table | Group:
        sparsity = self._table("Sparsity", _SPARSITY)
        if self.in_turn_us is None:
            return sparsity
        notes = [f"all in turn {self.in_turn_us:.3g} us"]
        return Group(sparsity, self._table("Time of one product or image, one core", _COST, notes))

    def _table(self, title: str, columns: _Columns, notes: Sequence[str] = ()) -> Table:
        table = table_of(title, notes=notes, footer=True)
        table.add_column("weight", "all", overflow="fold")
        total = self.total()
        for key, (header, text) in columns.items():
            footer = text(total[key]) if key in total else ""
            table.add_column(header, footer, justify="right", no_wrap=True)
        for row in (layer.as_dict() for layer in self.layers):
            cells = (text(row[key]) for key, (_, text) in columns.items())
            table.add_row(row["name"], *cells)
        return table
