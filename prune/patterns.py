"""Patterns of weights that are pruned together: blocks of `weight[out, in]`, lanes, N of M."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from sparsejit.errors import InvalidInput
from sparsejit.whole_numbers import ceil_div


@dataclass(frozen=True)
class Blocks:
    """The sets of weights of one matrix that are kept or pruned as one.

    labels: int64, shape (gates, rows, columns), the block of each weight, from 0 in each gate.
    scores: float64, shape (gates, blocks): importance of each block; -inf where nothing is left.
    """

    labels: Tensor
    scores: Tensor

    @property
    def gates(self) -> int:
        return self.scores.shape[0]

    @property
    def per_gate(self) -> int:
        return self.scores.shape[1]

    def spread(self, blocks: Tensor) -> Tensor:
        """A value for each block (gates, blocks) as one for each weight (gates, rows, columns)."""
        return blocks.gather(1, self.labels.flatten(1)).view_as(self.labels)


def least(scores: Tensor, count: int) -> Tensor:
    """Mask, bool (n,), of the `count` least scores. The first of equal scores is taken first."""
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    highest = scores.kthvalue(count).values  # sorting all of them takes several times as long
    chosen = scores < highest
    ties = (scores == highest).nonzero().flatten()
    return chosen.index_fill_(0, ties[: count - int(chosen.sum())], True)


class Pattern(Protocol):
    """A division of a matrix, weight[out_features, in_features], into blocks."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int:
        """Number of consecutive inputs that blocks lie within: none crosses a multiple of it."""
        ...

    @property
    def rows(self) -> int:
        """Number of consecutive outputs that blocks lie within: none crosses a multiple of it."""
        ...

    def count(self, rows: int, cols: int) -> int:
        """Number of blocks of a matrix."""
        ...

    def blocks(self, importance: Tensor, alive: Tensor) -> Blocks:
        """Blocks of a matrix by the importance of its weights, both (gates, rows, columns).

        Weights that are not alive count 0; an importance of inf protects its block.
        """
        ...


@dataclass(frozen=True)
class BlockPattern:
    """Blocks of `rows` consecutive outputs by `cols` consecutive inputs.

    The grid starts afresh at the first row of each gate. Blocks cut off by the lower or right edge
    are smaller. A block's score is the mean importance, so that they compete with whole ones.

    Raises:
        InvalidInput: unless rows and cols are at least 1
    """

    rows: int
    cols: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise InvalidInput(
                f"block=({self.rows}, {self.cols}) is empty: give (rows, cols) of 1 or more"
            )

    @property
    def name(self) -> str:
        if self.cols > 1:
            return f"block ({self.rows}, {self.cols})"
        return f"1x{self.rows}" if self.rows > 1 else "unstructured"

    @property
    def window(self) -> int:
        return self.cols

    def count(self, rows: int, cols: int) -> int:
        return ceil_div(rows, self.rows) * ceil_div(cols, self.cols)

    def blocks(self, importance: Tensor, alive: Tensor) -> Blocks:
        gates, rows, cols = importance.shape
        across = ceil_div(cols, self.cols)
        block_row = torch.arange(rows, device=importance.device) // self.rows
        block_col = torch.arange(cols, device=importance.device) // self.cols
        labels = (block_row[:, None] * across + block_col).expand(gates, -1, -1)
        return _mean_scores(labels, self.count(rows, cols), importance, alive)


@dataclass(frozen=True)
class InputBlocks(BlockPattern):
    """Blocks of `rows` consecutive outputs by `cols` consecutive inputs, or input channels.

    A block of a convolution lies at one tap of its windows. Columns of its matrix are channel by
    channel, so that a channel's neighbour is `taps` columns on.
    """

    taps: int = 1

    @property
    def name(self) -> str:
        return f"{self.cols}x{self.rows}in"

    @property
    def window(self) -> int:
        return self.cols * self.taps

    def count(self, rows: int, cols: int) -> int:
        return super().count(rows, cols // self.taps) * self.taps

    def blocks(self, importance: Tensor, alive: Tensor) -> Blocks:
        gates, rows, cols = importance.shape
        column = torch.arange(cols, device=importance.device)
        across = column // self.window * self.taps + column % self.taps
        down = torch.arange(rows, device=importance.device) // self.rows
        in_a_row = self.count(1, cols)
        labels = (down[:, None] * in_a_row + across).expand(gates, -1, -1)
        return _mean_scores(labels, self.count(rows, cols), importance, alive)


def on_weight(pattern: Pattern, shape: Sequence[int]) -> Pattern:
    """The pattern for a weight (out, in, taps ...) that is pruned as a matrix (out, in * taps).

    Only blocks of input channels depend on the number of taps.
    """
    return replace(pattern, taps=prod(shape[2:])) if isinstance(pattern, InputBlocks) else pattern


@dataclass(frozen=True)
class LanePattern:
    """In each group of `rows` outputs every row keeps the same count per window of inputs.

    A block is one slot of a (group, window): slot k takes the weight of rank k of every row.
    Its score is the mean importance of those weights, which never rises with k. Sixteen rows are
    then the sixteen lanes of a vector, none of which idles.
    """

    rows: int = 16
    window: int = 16

    @property
    def name(self) -> str:
        return f"lane{self.rows}"

    def count(self, rows: int, cols: int) -> int:
        return ceil_div(rows, self.rows) * cols

    def blocks(self, importance: Tensor, alive: Tensor) -> Blocks:
        _, rows, cols = importance.shape
        group = torch.arange(rows, device=importance.device) // self.rows
        window_start = torch.arange(cols, device=importance.device) // self.window * self.window
        rank = _ranks_in_windows(importance, alive, self.window)
        labels = group[:, None] * cols + window_start + rank
        return _mean_scores(labels, self.count(rows, cols), importance, alive)


@dataclass(frozen=True)
class NofM:
    """At most `kept` of every `window` consecutive inputs of a row: "2:4" and the like.

    A block is the set of weights of rank k in all rows and windows. The last window, if cut off by
    the edge, counts its missing inputs as pruned.

    Raises:
        InvalidInput: unless 1 <= kept < window
    """

    kept: int
    window: int

    def __post_init__(self) -> None:
        if not 1 <= self.kept < self.window:
            raise InvalidInput(
                f"pattern '{self.kept}:{self.window}' keeps {self.kept} of {self.window}: "
                "give N:M with 1 <= N < M, for example '2:4'"
            )

    @property
    def name(self) -> str:
        return f"{self.kept}:{self.window}"

    @property
    def amount(self) -> float:
        return 1 - self.kept / self.window

    @property
    def rows(self) -> int:
        return 1

    def count(self, rows: int, cols: int) -> int:
        return self.window

    def blocks(self, importance: Tensor, alive: Tensor) -> Blocks:
        labels = _ranks_in_windows(importance, alive, self.window)
        by_rank = -torch.arange(self.window, dtype=torch.float64, device=importance.device)
        scores = by_rank.repeat(importance.shape[0], 1)
        return Blocks(labels, _bury_the_empty(scores, labels, alive))


def _ranks_in_windows(importance: Tensor, alive: Tensor, window: int) -> Tensor:
    """Rank from 0, the most important, of each weight among its row's window of inputs.

    The first of equal weights ranks first; weights that are not alive rank last.
    """
    key = importance.masked_fill(~alive, -torch.inf)
    padded = functional.pad(key, (0, -key.shape[2] % window), value=-torch.inf)
    order = padded.unflatten(2, (-1, window)).argsort(dim=3, descending=True, stable=True)
    return order.argsort(dim=3).flatten(2)[:, :, : key.shape[2]]


def _mean_scores(labels: Tensor, count: int, importance: Tensor, alive: Tensor) -> Blocks:
    values = importance.double().masked_fill(~alive, 0).flatten(1)
    sums = values.new_zeros(values.shape[0], count).scatter_add_(1, labels.flatten(1), values)
    sizes = torch.zeros_like(sums).scatter_add_(1, labels.flatten(1), torch.ones_like(values))
    return Blocks(labels, _bury_the_empty(sums / sizes, labels, alive))


def _bury_the_empty(scores: Tensor, labels: Tensor, alive: Tensor) -> Tensor:
    left = torch.zeros_like(scores).scatter_add_(1, labels.flatten(1), alive.double().flatten(1))
    return scores.masked_fill(left == 0, -torch.inf)


PATTERNS: dict[str, Pattern] = {
    "unstructured": BlockPattern(1, 1),
    "1x8": BlockPattern(8, 1),
    "1x16": BlockPattern(16, 1),
    "lane16": LanePattern(),
    "4x1in": InputBlocks(1, 4),
    "4x2in": InputBlocks(2, 4),
}


def choose_pattern(pattern: str | Pattern, block: tuple[int, int] | None = None) -> Pattern:
    """The named pattern, N:M, or any block shape; InvalidInput for anything else, and for both."""
    if block is not None:
        if pattern != "unstructured":
            raise InvalidInput(f"pattern={pattern!r} and block={block} were both given: drop one")
        if not isinstance(block, Sequence) or not all(isinstance(n, Integral) for n in block):
            raise InvalidInput(f"block={block!r} is no shape: give whole numbers (rows, cols)")
        if len(block) != 2:
            raise InvalidInput(f"block={block} has {len(block)} sizes: give (rows, cols)")
        return BlockPattern(*block)
    if not isinstance(pattern, str) and hasattr(pattern, "blocks"):
        return pattern
    name = str(pattern)
    if name in PATTERNS:
        return PATTERNS[name]
    n_of_m = re.fullmatch(r"(\d+):(\d+)", name)
    if n_of_m is None:
        raise InvalidInput(
            f"pattern={pattern!r} is unknown: "
            f"use one of {', '.join(PATTERNS)}, N:M such as '2:4', or block=(rows, cols)"
        )
    return NofM(int(n_of_m[1]), int(n_of_m[2]))
