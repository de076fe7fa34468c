"""Moments of the rows that layers multiply, over the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array
from sparsejit.prune.shrink.layers import ShrinkLayer

# Least number of rows, in all and for each weight of an output; the most rows of one element.
_ALL_ROWS, _TIMES, _MOST_ROWS = 8192, 4, 2048


class Moments:
    """Means over rows z (in,).

    Attributes:
        second: float64 (in, in), of z zT
        mean: float64 (in,), of z
        count: number of rows
    """

    def __init__(self, inputs: int) -> None:
        self.second = torch.zeros(inputs, inputs, dtype=torch.float64)
        self.mean = torch.zeros(inputs, dtype=torch.float64)
        self.count = 0

    def add(self, rows: Array) -> None:
        """Take in rows (n, in)."""
        z = torch.from_numpy(rows)
        self.count += len(z)
        share = len(z) / self.count
        self.second.lerp_(((z.T @ z) / len(z)).double(), share)
        self.mean.lerp_(z.double().mean(0), share)

    def hessian(self, has_bias: bool) -> Tensor:
        """The second moment; without that of the mean, where a bias makes up for it."""
        return self.second - self.mean.outer(self.mean) if has_bias else self.second


class PairedMoments(Moments):
    """Moments of rows z, and of the rows x of the dense model at the same places.

    Attributes:
        cross: float64 (in, in), of x zT
        dense_mean: float64 (in,), of x
    """

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs)
        self.cross = torch.zeros_like(self.second)
        self.dense_mean = torch.zeros_like(self.mean)

    def add_pair(self, dense: Array, rows: Array) -> None:
        """Take in rows (n, in) of both."""
        self.add(rows)
        x, z = torch.from_numpy(dense), torch.from_numpy(rows)
        share = len(z) / self.count
        self.cross.lerp_(((x.T @ z) / len(z)).double(), share)
        self.dense_mean.lerp_(x.double().mean(0), share)

    def covariance(self, has_bias: bool) -> Tensor:
        """The mean of x zT; without the means' product, where a bias makes up for it."""
        return self.cross - self.dense_mean.outer(self.mean) if has_bias else self.cross


def rows_of(layer: ShrinkLayer, x: Array, number: int, elements: int) -> Array:
    """Rows (n, in) of x that the layer multiplies on one of the elements of the data.

    Raises InvalidInput for NaN and infinite values.
    """
    rows = layer.rows(x, _rows_of_element(layer, elements), number)
    if not np.isfinite(rows).all():
        raise InvalidInput(
            f"{layer.key.layer} meets NaN or infinite values in data[{number}]; leave it out"
        )
    return rows


def _rows_of_element(layer: ShrinkLayer, elements: int) -> int:
    wanted = max(_ALL_ROWS, _TIMES * layer.inputs)
    return min(_MOST_ROWS, -(-wanted // elements))
