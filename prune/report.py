"""What is left of each layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from torch import Tensor

from sparsejit.prune.patterns import Pattern


@dataclass(frozen=True)
class LayerSparsity:
    """One weight: counts are of nonzero values, not of masks."""

    name: str
    shape: tuple[int, ...]
    gates: int
    pattern: str
    nnz: int
    elements: int
    occupied_blocks: int
    blocks: int

    @property
    def density(self) -> float:
        return self.nnz / self.elements

    @property
    def block_density(self) -> float:
        return self.occupied_blocks / self.blocks


def describe_layer(name: str, weight: Tensor, pattern: Pattern, gates: int) -> LayerSparsity:
    """Count what is left of one weight."""
    nonzero = weight.reshape(gates, weight.shape[0] // gates, -1) != 0
    scores = pattern.blocks(nonzero.double(), nonzero).scores
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


@dataclass(frozen=True)
class SparsityReport:
    """All pruned layers; `rich.print(report)` shows a table."""

    layers: Sequence[LayerSparsity]

    @property
    def density(self) -> float:
        return sum(layer.nnz for layer in self.layers) / sum(
            layer.elements for layer in self.layers
        )

    def __rich__(self) -> Table:
        table = Table(title="Sparsity", show_footer=True)
        nnz = sum(layer.nnz for layer in self.layers)
        table.add_column("weight", footer="all")
        table.add_column("shape", justify="right")
        table.add_column("gates", justify="right")
        table.add_column("pattern", justify="right")
        table.add_column("nnz", justify="right", footer=f"{nnz:,}")
        table.add_column("density", justify="right", footer=f"{self.density:.2%}")
        table.add_column("block density", justify="right")
        for layer in self.layers:
            table.add_row(
                layer.name,
                " x ".join(map(str, layer.shape)),
                str(layer.gates),
                layer.pattern,
                f"{layer.nnz:,}",
                f"{layer.density:.2%}",
                f"{layer.block_density:.2%}",
            )
        return table
