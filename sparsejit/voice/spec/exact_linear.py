"""Exact products of frames and matrices.

A frame's values must not depend on how many frames are computed at once, or speech would change
with the cut of the stream. A matrix product does: a BLAS sums one row in another order than many.
So the factors of every product here are rounded to grids on which float64 sums are exact, and
then no order, no fused multiply-add and no BLAS changes a bit.
"""

import math

import numpy as np
import numpy.typing as npt

from sparsejit.voice.features import FloatArray

# A float64 holds every whole number to 2**53: inputs of 23 bits times a row of weights of 29, and
# one bit for the rounding of the weights.
_INPUT_BITS = 23
_WEIGHT_BITS = 29

DoubleArray = npt.NDArray[np.float64]


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
