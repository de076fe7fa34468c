"""Discrete Fourier transforms over the last axis, as products with small matrices.

n = n1 n2, j = n2 a + b, k = k1 + n1 c, w = exp(-2 pi i / n):

    X[k] = sum_b w^(b k1) (sum_a x[a, b] w^(n2 a k1)) w^(n1 b c)
           twiddles       DFT of n1 points            DFT of n2 points

A prime length is one product, or where it is long a convolution of a power of two (Bluestein).
Matrices and twiddles are made in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isqrt, pi
from typing import NamedTuple

import numpy as np

from sparsejit.frontends.writing import complex_values
from sparsejit.frontends.writing.arranging import (
    expanded,
    joined,
    moved,
    padded,
    reshaped,
    sliced,
    swapped,
)
from sparsejit.frontends.writing.complex_values import Complex
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.values import Array, Value
from sparsejit.whole_numbers import ceil_div

# Most points of a transform that is one product: a prime number, and another one.
_MOST_OF_PRIME, _MOST_DIRECT = 256, 64
# In place of a zero of a matrix: kernels for matrices with zeros shorten the other weights.
_TINY = np.float32(1e-30)
_PARTS = ("real", "imag")
Signal = Value | Complex


class Transform(NamedTuple):
    """Plan of a discrete Fourier transform: scale sum_j x[j] exp(sign 2 pi i j k / size).

    It has results for k below `bins`. `is_real` leaves out the imaginary part of the result. Fewer
    elements than `size` are followed by zeros.
    """

    size: int
    sign: int
    scale: float
    bins: int
    is_real: bool = False


def forward(size: int, scale: float = 1.0) -> Transform:
    """The transform of a signal to its whole spectrum."""
    return Transform(size, -1, scale, size)


def one_sided(size: int, scale: float = 1.0) -> Transform:
    """The transform of a real signal to its spectrum up to half the size."""
    return Transform(size, -1, scale, size // 2 + 1)


def inverse(size: int, scale: float | None = None) -> Transform:
    """The transform of a spectrum to its signal, divided by the size unless a scale is given."""
    return Transform(size, 1, 1 / size if scale is None else scale, size)


def transformed(write: Writer, x: Operand, plan: Transform, axis: int = -1) -> Complex:
    """The transform over an axis, which has `bins` elements afterwards."""
    rows = of_parts(lambda part: moved(write, part, axis, -1), x)
    made = _over_last(write, _cut(write, rows, plan.size), plan)
    assert isinstance(made, Complex)
    if not isinstance(rows, Complex):
        made = Complex(made.real, _without_noise(write, made.imag, plan.size))
    return Complex(*(moved(write, getattr(made, part), -1, axis) for part in _PARTS))


def real_signal(write: Writer, z: Complex, size: int, scale: float, axis: int = -1) -> Value:
    """The real signal of a one-sided spectrum.

    Every bin counts twice except the first, and the last one of an even size; imaginary parts of
    these do not count.
    """
    rows = _cut(write, of_parts(lambda part: moved(write, part, axis, -1), z), size // 2 + 1)
    twice = np.full(rows.shape[-1], 2, np.float32)
    twice[:: size // 2 if size % 2 == 0 else size] = 1
    rows = of_parts(lambda part: write.pointwise("mul", part, twice), rows)
    made = _over_last(write, rows, Transform(size, 1, scale, size, is_real=True))
    assert isinstance(made, Value)
    return moved(write, made, -1, axis)


def of_parts(change: Callable[[Value], Value], x: Operand) -> Signal:
    """Apply `change` to both parts of a complex signal, or to a real signal."""
    return Complex(change(x.real), change(x.imag)) if isinstance(x, Complex) else change(x)


def _without_noise(write: Writer, imag: Value, size: int) -> Value:
    """The imaginary part of a real signal's spectrum, with exact zeros at 0 and at half the size.

    The sign of an angle depends on these zeros.
    """
    zero = expanded(write, write.floats(0.0), (*imag.shape[:-1], 1))
    count = imag.shape[-1]
    first = [0, size // 2] if size % 2 == 0 and size // 2 < count else [0]
    ends = [*first[1:], count]
    rest = [sliced(write, imag, -1, a + 1, b) for a, b in zip(first, ends, strict=True)]
    return joined(write, [part for each in rest for part in (zero, each)], -1)


def _cut(write: Writer, x: Signal, length: int) -> Signal:
    """At most the first `length` elements of a signal's last axis."""
    end = min(length, x.shape[-1])
    return of_parts(lambda part: sliced(write, part, -1, 0, end), x)


def _over_last(write: Writer, x: Signal, plan: Transform) -> Signal:
    if plan.size <= _MOST_DIRECT:
        return _direct(write, x, plan)
    rows = _rows_of(plan.size)
    if rows > 1:
        return _by_factors(write, x, plan, rows)
    if plan.size <= _MOST_OF_PRIME:
        return _direct(write, x, plan)
    return _by_convolution(write, x, plan)


def _rows_of(size: int) -> int:
    """The factor of a transform's size that is transformed first; 1 for a prime size."""
    divisors = [n for n in range(2, isqrt(size) + 1) if size % n == 0]
    small = [n for n in divisors if n <= _MOST_DIRECT]
    return max(small) if small else min(divisors, default=1)


def _direct(write: Writer, x: Signal, plan: Transform) -> Signal:
    """The transform as one product with the matrix of cosines and sines."""
    is_pair = isinstance(x, Complex)
    key = plan, x.shape[-1], is_pair
    weights = write.derived(_matrix(*key), _constant)
    flat = joined(write, [x.real, x.imag], -1) if isinstance(x, Complex) else x
    made = write.one(Linear(), flat, weights)
    if plan.is_real:
        return made
    ends = (0, plan.bins), (plan.bins, 2 * plan.bins)
    return Complex(*(sliced(write, made, -1, *each) for each in ends))


def _constant(write: Writer, array: Operand) -> Value:
    return write.constant(array, "DFT")


@lru_cache(maxsize=32)
def _matrix(plan: Transform, given: int, is_pair: bool) -> Array:
    """The matrix of a whole transform, bins by `given` elements, real before imaginary parts."""
    turn = _roots(np.outer(np.arange(plan.bins), np.arange(given)), plan.size, plan.sign)
    cos, sin = turn.real * plan.scale, turn.imag * plan.scale
    rows = [[cos, -sin], [sin, cos]][: 1 if plan.is_real else 2]
    whole = np.block([row[: 1 + is_pair] for row in rows]).astype(np.float32)
    return np.where(whole == 0, _TINY, whole)


def _roots(exponents: Array, size: int, sign: int) -> Array:
    """exp(sign 2 pi i exponent / size), with exact zeros."""
    angles = (exponents % size) * (2 * pi / size)
    parts = np.cos(angles), sign * np.sin(angles)
    cos, sin = (np.where(np.abs(part) < 1e-12, 0.0, part) for part in parts)
    return np.asarray(cos + 1j * sin)


def _by_factors(write: Writer, x: Signal, plan: Transform, rows: int) -> Signal:
    """The transform by two factors of its size: of `rows` points, twiddles, of the other factor."""
    columns = plan.size // rows
    filled = ceil_div(x.shape[-1], columns)
    bins = ceil_div(plan.bins, rows)

    def apart(part: Value) -> Value:
        around = [(0, 0)] * (len(part.shape) - 1) + [(0, filled * columns - part.shape[-1])]
        whole = padded(write, part, around)
        return swapped(write, reshaped(write, whole, (*part.shape[:-1], filled, columns)), -1, -2)

    first = _over_last(write, of_parts(apart, x), Transform(rows, plan.sign, 1.0, rows))
    scaled = _times(write, first, _twiddles(columns, rows, plan.sign))
    turned = of_parts(lambda part: swapped(write, part, -1, -2), scaled)
    made = _over_last(write, turned, plan._replace(size=columns, bins=bins))

    def together(part: Value) -> Value:
        flat = reshaped(write, swapped(write, part, -1, -2), (*part.shape[:-2], bins * rows))
        return sliced(write, flat, -1, 0, plan.bins)

    return of_parts(together, made)


def _times(write: Writer, x: Signal, factors: tuple[Array, Array]) -> Complex:
    """x times known complex factors."""
    other = Complex(*(write.derived(part, _constant) for part in factors))
    return complex_values.multiply(write, x, other)


def _in_float32(numbers: Array) -> tuple[Array, Array]:
    return numbers.real.astype(np.float32), numbers.imag.astype(np.float32)


@lru_cache(maxsize=32)
def _twiddles(columns: int, rows: int, sign: int) -> tuple[Array, Array]:
    return _in_float32(_roots(np.outer(np.arange(columns), np.arange(rows)), columns * rows, sign))


def _by_convolution(write: Writer, x: Signal, plan: Transform) -> Signal:
    """The transform of any size as a convolution with a chirp, exp(i pi j^2 / n) (Bluestein).

    It follows from j k = (j^2 + k^2 - (k - j)^2) / 2.
    """
    given = x.shape[-1]
    length = 1 << (given + plan.bins - 2).bit_length()
    before, kernel, after = _chirps(plan, given, length)
    spectrum = _over_last(write, _times(write, x, before), forward(length))
    product = _times(write, spectrum, kernel)
    found = _over_last(write, product, Transform(length, 1, 1.0, plan.bins))
    made = _times(write, found, after)
    return made.real if plan.is_real else made


@lru_cache(maxsize=8)
def _chirps(plan: Transform, given: int, length: int) -> Sequence[tuple[Array, Array]]:
    """Factors of `_by_convolution`: of its input, of the spectrum of that, and of its result."""
    chirp = _roots(np.arange(plan.size, dtype=np.int64) ** 2, 2 * plan.size, plan.sign)
    kernel = np.zeros(length, complex)
    kernel[: plan.bins] = chirp[: plan.bins].conj()
    kernel[length - given + 1 :] = chirp[1:given][::-1].conj()
    spectrum = np.fft.fft(kernel) / length
    return [
        _in_float32(each) for each in (chirp[:given], spectrum, chirp[: plan.bins] * plan.scale)
    ]


def shifted(write: Writer, x: Operand, axes: Sequence[int], is_back: bool = False) -> Signal:
    """Move the zero frequency to the middle of the axes, or back to the front."""

    def turned(part: Operand) -> Value:
        result = write.value(part)
        for axis in axes:
            length = result.shape[axis]
            cut = length // 2 if is_back else length - length // 2
            ends = (cut, length), (0, cut)
            result = joined(write, [sliced(write, result, axis, *each) for each in ends], axis)
        return result

    return of_parts(turned, x)


def frames(write: Writer, x: Operand, size: int, hop: int) -> Value:
    """(..., frames, size): parts of the last axis, each `hop` elements after the one before."""
    value = write.value(x)
    count = (value.shape[-1] - size) // hop + 1
    blocks = ceil_div(size, hop)
    length = (count - 1 + blocks) * hop
    end = min(length, value.shape[-1])
    around = [(0, 0)] * (len(value.shape) - 1) + [(0, length - end)]
    whole = padded(write, sliced(write, value, -1, 0, end), around)
    rows = reshaped(write, whole, (*value.shape[:-1], count - 1 + blocks, hop))
    parts = [sliced(write, rows, -2, n, n + count) for n in range(blocks)]
    return sliced(write, joined(write, parts, -1), -1, 0, size)


def overlapped(write: Writer, x: Value, hop: int) -> Value:
    """The sum of frames (..., frames, size), each `hop` elements after the one before."""
    *lead, count, size = x.shape
    blocks = ceil_div(size, hop)
    none = [(0, 0)] * len(lead)
    whole = padded(write, x, [*none, (0, 0), (0, blocks * hop - size)])
    total: Value | None = None
    for n in range(blocks):
        part = sliced(write, whole, -1, n * hop, (n + 1) * hop)
        placed = padded(write, part, [*none, (n, blocks - 1 - n), (0, 0)])
        total = placed if total is None else write.pointwise("add", total, placed)
    assert total is not None
    flat = reshaped(write, total, (*lead, (count + blocks - 1) * hop))
    return sliced(write, flat, -1, 0, (count - 1) * hop + size)
