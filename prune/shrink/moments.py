"""Moments of the rows that layers multiply, over the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array
from sparsejit.prune.shrink.layers import ShrinkLayer
from sparsejit.whole_numbers import ceil_div

# Least number of rows, in all and for each weight of an output; the most rows of one element.
_ALL_ROWS, _TIMES, _MOST_ROWS = 16384, 16, 2048
# Rows are summed once there are a layer's inputs over this number: products then take most time.
_AT_ONCE = 4


def torch_device() -> torch.device:
    """The device of sums and linear systems: a GPU where torch finds one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SummedProducts:
    """The sum of the outer products x zT over pairs of rows x and z, (in,) each.

    Rows are taken in many at once: the sum is larger than the rows of one element, and slower to
    read.
    """

    def __init__(self, inputs: int) -> None:
        self._sum = torch.zeros(inputs, inputs, dtype=torch.float64, device=torch_device())
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Tensor, z: Tensor) -> None:
        """Take in rows (n, in) of both."""
        self._waiting.append((x, z))
        if sum(len(rows) for rows, _ in self._waiting) >= len(self._sum) // _AT_ONCE:
            self._take_in()

    def mean(self, count: int) -> Tensor:
        """The sum divided by `count`, the number of rows: float64 (in, in)."""
        if self._waiting:
            self._take_in()
        return self._sum / count

    def _take_in(self) -> None:
        x, z = (torch.cat(rows).to(self._sum.device) for rows in zip(*self._waiting, strict=True))
        self._sum += x.T @ z
        self._waiting = []


class Moments:
    """The mean and the second moment of rows z (in,), taken in a few at a time.

    Attributes:
        mean: float64 (in,), of z
        count: number of rows
    """

    def __init__(self, inputs: int) -> None:
        self._second = SummedProducts(inputs)
        self.mean = torch.zeros(inputs, dtype=torch.float64, device=torch_device())
        self.count = 0

    def add(self, rows: Array) -> None:
        """Take in rows (n, in)."""
        z = torch.from_numpy(rows)
        self.count += len(z)
        self._second.add(z, z)
        self.mean.lerp_(z.double().mean(0).to(self.mean), len(z) / self.count)

    @property
    def are_zeros(self) -> bool:
        """Whether all rows are zeros."""
        return not self._second.mean(self.count).any()

    def hessian(self, has_bias: bool) -> Tensor:
        """The mean of z zT, (in, in); if a bias makes up for the mean of z, the covariance."""
        second = self._second.mean(self.count)
        return second.addr_(self.mean, self.mean, alpha=-1) if has_bias else second


class PairedMoments(Moments):
    """Moments of rows z, and of the rows x of the dense model at the same places.

    Attributes:
        dense_mean: float64 (in,), of x
    """

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs)
        self._cross = SummedProducts(inputs)
        self.dense_mean = torch.zeros_like(self.mean)

    def add_pair(self, dense: Array, rows: Array) -> None:
        """Take in rows (n, in) of both."""
        self.add(rows)
        x = torch.from_numpy(dense)
        self._cross.add(x, torch.from_numpy(rows))
        self.dense_mean.lerp_(x.double().mean(0).to(self.mean), len(x) / self.count)

    def covariance(self, has_bias: bool) -> Tensor:
        """The mean of x zT, (in, in), less the means' product if a bias makes up for that."""
        cross = self._cross.mean(self.count)
        return cross.addr_(self.dense_mean, self.mean, alpha=-1) if has_bias else cross


def rows_of(layer: ShrinkLayer, x: Array, number: int, elements: int) -> Array:
    """Some of the rows (n, in) of x that the layer multiplies on one element of the data.

    `number` is the element's, of `elements` in all. Raises InvalidInput for NaN and infinite
    values.
    """
    rows = layer.rows(x, _rows_of_element(layer, elements), number)
    if not np.isfinite(rows).all():
        raise InvalidInput(
            f"{layer.key.layer} meets NaN or infinite values in data[{number}]; leave it out"
        )
    return rows


def count_of_rows(layer: ShrinkLayer, elements: int) -> int:
    """Number of rows that `rows_of` returns for all elements."""
    return elements * min(layer.row_count, _rows_of_element(layer, elements))


def _rows_of_element(layer: ShrinkLayer, elements: int) -> int:
    wanted = max(_ALL_ROWS, _TIMES * layer.inputs)
    return min(_MOST_ROWS, ceil_div(wanted, elements))
