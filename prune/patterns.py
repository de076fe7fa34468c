"""Which weights live and die together: blocks of `weight[out, in]`."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sparsejit.errors import InvalidInput


@dataclass(frozen=True)
class BlockPattern:
    """Blocks of `rows` consecutive outputs by `cols` consecutive inputs.

    The grid starts afresh at the first row of each gate. Blocks cut off by the lower or right
    edge are smaller.

    Raises InvalidInput unless rows and cols are at least 1.
    """

    rows: int
    cols: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise InvalidInput(
                f"block=({self.rows}, {self.cols}) is empty: give (rows, cols) of 1 or more"
            )

    def scores(self, weight: Tensor, gates: int) -> Tensor:
        """Mean square of each block: float64, shape (gates, block rows, block columns).

        The mean, not the sum, lets a small edge block compete with whole ones. float64 keeps the
        order of any two float32 magnitudes, which their float32 squares do not.
        """
        squares = weight.detach().reshape(gates, weight.shape[0] // gates, -1).double().square()
        sizes = self._sum_blocks(torch.ones_like(squares[:1]))
        return self._sum_blocks(squares) / sizes

    def occupied(self, weight: Tensor, gates: int) -> Tensor:
        """Whether a block holds a nonzero: bool, shape (gates, block rows, block columns)."""
        nonzero = weight.detach().reshape(gates, weight.shape[0] // gates, -1) != 0
        return self._sum_blocks(nonzero.double()) > 0

    def spread(self, blocks: Tensor, shape: torch.Size) -> Tensor:
        """Blocks (gates, block rows, block columns) as elements of a weight of `shape`."""
        gates = blocks.shape[0]
        rows, cols = shape[0] // gates, shape[1:].numel()
        elements = blocks.repeat_interleave(self.rows, 1).repeat_interleave(self.cols, 2)
        return elements[:, :rows, :cols].reshape(shape)

    def _sum_blocks(self, values: Tensor) -> Tensor:
        rows, cols = values.shape[1:]
        padded = functional.pad(values, (0, -cols % self.cols, 0, -rows % self.rows))
        return padded.unflatten(2, (-1, self.cols)).unflatten(1, (-1, self.rows)).sum((2, 4))


PATTERNS = {
    "unstructured": BlockPattern(1, 1),
    "1x8": BlockPattern(8, 1),
    "1x16": BlockPattern(16, 1),
}


def choose_pattern(pattern: str, block: tuple[int, int] | None) -> BlockPattern:
    """The named pattern, or any block shape; InvalidInput for an unknown name or for both."""
    if pattern not in PATTERNS:
        raise InvalidInput(
            f"pattern={pattern!r} is unknown: "
            f"use one of {', '.join(PATTERNS)}, or block=(rows, cols)"
        )
    if block is None:
        return PATTERNS[pattern]
    if pattern != "unstructured":
        raise InvalidInput(f"pattern={pattern!r} and block={block} were both given: drop one")
    if len(block) != 2:
        raise InvalidInput(f"block={block} has {len(block)} sizes: give (rows, cols)")
    return BlockPattern(*block)


def choose_pruned(scores: Tensor, pruned: Tensor, amount: float) -> Tensor:
    """Blocks to prune, round(amount * blocks) in every gate: the lowest scores.

    `scores` and `pruned` have shape (gates, block rows, block columns). What is pruned stays
    pruned. Equal scores go in order of position (row by row), first one first.
    """
    blocks = scores[0].numel()
    ranked = scores.masked_fill(pruned, -1.0).flatten(1)
    # Python's round, half to even, is also torch.nn.utils.prune's rule.
    lowest = ranked.argsort(dim=1, stable=True)[:, : round(amount * blocks)]
    return pruned.flatten(1).scatter(1, lowest, True).view_as(pruned)
