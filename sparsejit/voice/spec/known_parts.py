"""Products with the features of a sample, by parts, and products that are exact.

    Features        features as a sum of parts, so that products cost as little as possible
    ExactLinear     W x + b of frames, the same bits in any order of summation
    RowwiseLinear   W x + b of frames, the same bits for any number of rows

Parts that change only with the frame are multiplied once a frame; a scalar multiplies one column.

A frame's values must not depend on how many frames are computed at once, or speech would change
with the cut of the stream. A matrix product does: a BLAS sums one row in another order than many.
So the factors of every product here are rounded to grids on which float64 sums are exact, and
then no order, no fused multiply-add and no BLAS changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparsejit.ir.values import Value
from sparsejit.voice.features import FloatArray

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Features:
    """A layer's features (n,) as a sum of parts, which products take one by one.

    They are constant + sum of column * scalar + rows of tables + W c of conditioning + computed.
    constant and columns are (n,), tables (rows, n), W (n, size of c); `computed` is (n,), with
    magnitudes up to `largest`, where that is known.
    """

    constant: DoubleArray
    scaled: tuple[tuple[Value, DoubleArray], ...] = ()
    rows: tuple[tuple[Value, DoubleArray], ...] = ()
    conditioning: Mapping[str, DoubleArray] = field(default_factory=dict)
    computed: Value | None = None
    largest: float | None = None

    @classmethod
    def of_computed(cls, value: Value, largest: float | None = None) -> Features:
        """Features that a layer computed."""
        return cls(np.zeros(value.shape[0]), computed=value, largest=largest)

    @classmethod
    def of_conditioning(cls, name: str, size: int) -> Features:
        return cls(np.zeros(size), conditioning={name: np.eye(size)})

    @property
    def size(self) -> int:
        return len(self.constant)

    @property
    def known(self) -> Features:
        """The features without the computed part."""
        return replace(self, computed=None, largest=None)

    @property
    def is_zero(self) -> bool:
        """Whether there are no parts, and the constant is zero."""
        some = self.scaled or self.rows or self.conditioning or self.computed
        return not some and not self.constant.any()

    def product(self, matrix: DoubleArray) -> Features:
        """matrix (m, n) times all parts but the computed one."""
        return Features(
            matrix @ self.constant,
            tuple((scalar, matrix @ column) for scalar, column in self.scaled),
            tuple((index, table @ matrix.T) for index, table in self.rows),
            {name: matrix @ weights for name, weights in self.conditioning.items()},
        )

    def picked(self, order: npt.NDArray[np.intp]) -> Features:
        """The features in another order; they must have no computed part."""
        return Features(
            self.constant[order],
            tuple((scalar, column[order]) for scalar, column in self.scaled),
            tuple((index, table[:, order]) for index, table in self.rows),
            {name: weights[order] for name, weights in self.conditioning.items()},
        )

    def plus(self, other: Features) -> Features:
        """The sum of both, of which at most one has a computed part."""
        both = dict(self.conditioning)
        for name, weights in other.conditioning.items():
            both[name] = both[name] + weights if name in both else weights
        return Features(
            self.constant + other.constant,
            _summed(self.scaled + other.scaled),
            _summed(self.rows + other.rows),
            both,
            self.computed or other.computed,
            other.largest if self.computed is None else self.largest,
        )


def _summed(
    parts: tuple[tuple[Value, DoubleArray], ...],
) -> tuple[tuple[Value, DoubleArray], ...]:
    """Parts (value, array), with arrays of the same value added up to one."""
    sums: dict[Value, DoubleArray] = {}
    for value, array in parts:
        sums[value] = sums[value] + array if value in sums else array
    return tuple(sums.items())


def columns_of(
    matrix: DoubleArray, parts: Sequence[Features]
) -> Iterator[tuple[Features, DoubleArray]]:
    """Each part of a concatenation with the matrix's columns for it."""
    ends = np.cumsum([part.size for part in parts])
    yield from zip(parts, np.split(matrix, ends[:-1], axis=1), strict=True)


# A float64 holds every whole number to 2**53: inputs of 23 bits times a row of weights of 29, and
# one bit for the rounding of the weights.
_INPUT_BITS = 23
_WEIGHT_BITS = 29



class ExactLinear:
    """W x + b for rows of x in float64: the same bits in any order of summation.

    W (M, N) and x are rounded to whole multiples of units, powers of two that leave every partial
    sum below 2**53 times their product: 2**-23 of `largest`, the greatest |x| that may come, and
    2**-29 of the greatest sum of |W| over a row. That is as precise as float32.
    """

    def __init__(
        self, weight: npt.ArrayLike, bias: npt.ArrayLike = 0.0, largest: float = 1.0
    ) -> None:
        wide = np.asarray(weight, np.float64)
        weight_unit = _power_from(np.abs(wide).sum(axis=1).max()) * 2.0**-_WEIGHT_BITS
        self.input_unit = _power_from(largest) * 2.0**-_INPUT_BITS
        self.output_unit = weight_unit * self.input_unit
        self.weight = np.ascontiguousarray(np.rint(wide / weight_unit).T)
        self.bias = np.asarray(bias, np.float64)

    def __call__(self, x: DoubleArray) -> DoubleArray:
        """x (F, N), no element above `largest` in size; returns (F, M)."""
        whole = np.rint(x / self.input_unit) @ self.weight
        return whole * self.output_unit + self.bias


def _power_from(value: float) -> float:
    """The least power of two that is not below `value` > 0; 1 for 0."""
    mantissa, exponent = math.frexp(value)
    return 2.0 ** (exponent - (mantissa == 0.5))


class RowwiseLinear:
    """W x + b of rows x in float64: the same bits for a row, with any number of rows.

    `ExactLinear` with every row scaled by its own power of two, so that no bound on x is needed.
    """

    def __init__(self, weight: npt.ArrayLike, bias: npt.ArrayLike = 0.0) -> None:
        self._exact = ExactLinear(weight)
        self._bias = np.asarray(bias, np.float64)

    def __call__(self, x: DoubleArray) -> DoubleArray:
        """x (rows, in); returns (rows, out)."""
        _, exponents = np.frexp(np.abs(x).max(axis=1, initial=0, keepdims=True))
        scaled = self._exact(x * np.ldexp(1.0, -exponents))
        return scaled * np.ldexp(1.0, exponents) + self._bias


def taps_in_a_row(weight: FloatArray) -> FloatArray:
    """A convolution's weight (out, in, width) as a matrix (out, width * in) for frames joined."""
    return weight.transpose(0, 2, 1).reshape(len(weight), -1)
