"""What is left of each layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class LayerSparsity:
    """One weight: counts are of nonzero values, not of masks."""

    name: str
    shape: tuple[int, ...]
    gates: int
    block: tuple[int, int]
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
        table.add_column("block", justify="right")
        table.add_column("nnz", justify="right", footer=f"{nnz:,}")
        table.add_column("density", justify="right", footer=f"{self.density:.2%}")
        table.add_column("block density", justify="right")
        for layer in self.layers:
            table.add_row(
                layer.name,
                " x ".join(map(str, layer.shape)),
                str(layer.gates),
                f"{layer.block[0]} x {layer.block[1]}",
                f"{layer.nnz:,}",
                f"{layer.density:.2%}",
                f"{layer.block_density:.2%}",
            )
        return table
