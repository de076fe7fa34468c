"""Convolutions over one to three spatial axes, with known or computed weights.

    by_windows    a convolution with computed weights, as a product with the elements of all windows
    convolution   a convolution, transposed or not
    folded        the sum of windows at their places in an image

Computed weights are a matrix:

    x (batch, in, *spatial)  ->  (batch, groups, in taps / groups, positions)

Windows of the first of three axes become channels:

    x (n, c, d, h, w), weights (o, c, k, u, v)    windows (n p, c k, h, w), weights (o, c k, u, v)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from sparsejit.frontends.writing.arranging import (
    expanded,
    joined,
    padded,
    permuted,
    reshaped,
    sliced,
)
from sparsejit.frontends.writing.products import matmul
from sparsejit.frontends.writing.selection import flip
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops.convolution import Convolution, positions
from sparsejit.ir.values import Value


def by_windows(
    write: Writer, op: Convolution, x: Value, weight: Value, bias: Value | None = None
) -> Value:
    """The result of a convolution without activation.

    Raises Unmapped for fewer positions than a window has.
    """
    around = [(p, p) for p in op.padding]
    stride, kernel, groups = op.stride, weight.shape[2:], op.groups
    if op.transposed:
        x, weight = _spread(write, x, stride), _turned(write, weight, groups)
        axes = zip(kernel, op.dilation, op.padding, op.output_padding, strict=True)
        around = [(d * (k - 1) - p, d * (k - 1) - p + more) for k, d, p, more in axes]
        stride = (1,) * len(kernel)
    x = padded(write, x, [(0, 0), (0, 0), *around])
    batch, channels, *spatial = x.shape
    places = positions(tuple(spatial), kernel, stride, op.dilation)
    if min(places) < 1:
        raise Unmapped(f"has {list(spatial)} positions, fewer than its kernel")
    taps = []
    for tap in product(*map(range, kernel)):
        part = x
        for axis, (k, s, d, n) in enumerate(zip(tap, stride, op.dilation, places, strict=True)):
            part = sliced(write, part, 2 + axis, k * d, k * d + (n - 1) * s + 1, s)
        taps.append(reshaped(write, part, (batch, groups, channels // groups, 1, -1)))
    depth = channels // groups * len(taps)
    windows = reshaped(write, joined(write, taps, 3), (batch, groups, depth, -1))
    rows = reshaped(write, weight, (1, groups, -1, depth))
    wide = expanded(write, rows, (batch, *rows.shape[1:]))
    y = reshaped(write, matmul(write, wide, windows), (batch, -1, *places))
    if bias is None:
        return y
    return write.pointwise("add", y, reshaped(write, bias, (-1, *(1 for _ in kernel))))


def _spread(write: Writer, x: Value, stride: tuple[int, ...]) -> Value:
    """x with zeros between the positions of each spatial axis."""
    for axis, step in enumerate(stride, 2):
        shape = x.shape
        apart = reshaped(write, x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        around = [(0, step - 1 if n == axis + 1 else 0) for n in range(len(apart.shape))]
        wide = padded(write, apart, around)
        whole = reshaped(write, wide, (*shape[:axis], -1, *shape[axis + 1 :]))
        x = sliced(write, whole, axis, 0, (shape[axis] - 1) * step + 1)
    return x


def _turned(write: Writer, weight: Value, groups: int) -> Value:
    """Weights (in, out / groups, *kernel) as (out, in / groups, *kernel), taps in reverse."""
    rank = len(weight.shape) - 2
    turned = flip(write, weight, range(2, rank + 2))
    each = reshaped(write, turned, (groups, -1, *turned.shape[1:]))
    swapped = permuted(write, each, (0, 2, 1, *range(3, rank + 3)))
    return reshaped(write, swapped, (-1, *swapped.shape[2:]))


Sizes = tuple[int, ...]


def each_axis(sizes: int | Sequence[int], rank: int) -> Sizes:
    """A number for each spatial axis; a single number is repeated."""
    numbers = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return numbers * rank if len(numbers) == 1 else numbers


def convolution(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    transposed: bool,
    output_padding: int | Sequence[int],
    groups: int,
) -> Value:
    """A convolution, transposed or not; x may lack its batch axis."""
    value, weight = write.floats(x), write.floats(weight)
    rank = len(weight.shape) - 2
    if rank not in (1, 2, 3):
        raise Unmapped(f"has {rank} spatial axes")
    geometry = _Geometry(
        each_axis(stride, rank),
        each_axis(padding, rank),
        each_axis(dilation, rank),
        groups,
        transposed,
        each_axis(output_padding, rank) if transposed else (),
    )
    operands = (weight,) if bias is None else (weight, write.floats(bias))
    convolved = write.one if write.is_fixed(weight) else partial(by_windows, write)
    whole = value if len(value.shape) == rank + 2 else reshaped(write, value, (1, *value.shape))
    if rank == 3:
        result = _over_three_axes(write, convolved, geometry, whole, *operands)
    else:
        result = convolved(Convolution(*geometry), whole, *operands)
    return result if whole is value else reshaped(write, result, result.shape[1:])


class _Geometry(NamedTuple):
    """The attributes of a convolution, in the order of `Convolution`."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    transposed: bool
    output_padding: Sizes

    def of_planes(self) -> Convolution:
        """The convolution over the last two axes."""
        sizes = self.stride[1:], self.padding[1:], self.dilation[1:]
        return Convolution(*sizes, self.groups, self.transposed, self.output_padding[1:])


def _over_three_axes(
    write: Writer,
    convolved: Callable[..., Value],
    geometry: _Geometry,
    x: Value,
    weight: Value,
    *bias: Value,
) -> Value:
    """One convolution over the last two axes, with windows of the first axis among its channels."""
    taps, (step, span, around) = weight.shape[2], (
        each[0] for each in (geometry.stride, geometry.dilation, geometry.padding)
    )
    if geometry.transposed:
        beside = span * (taps - 1) - around
        x = _with_zeros_between(write, x, step)
        widths, step = (beside, beside + geometry.output_padding[0]), 1
        weight = permuted(write, flip(write, weight, [2]), (0, 2, 1, 3, 4))
        weight = reshaped(write, weight, (-1, *weight.shape[2:]))
    else:
        widths = around, around
        weight = reshaped(write, weight, (weight.shape[0], -1, *weight.shape[3:]))
    x = padded(write, x, [(0, 0), (0, 0), widths, (0, 0), (0, 0)])
    batch, channels, depth, *plane = x.shape
    count = (depth - span * (taps - 1) - 1) // step + 1
    if count < 1:
        raise Unmapped(f"has {depth} positions, fewer than its kernel spans")
    last = step * (count - 1) + 1
    parts = [sliced(write, x, 2, n * span, n * span + last, step) for n in range(taps)]
    apart = (batch, channels, 1, count, *plane)
    windows = joined(write, [reshaped(write, part, apart) for part in parts], 2)
    planes = permuted(write, windows, (0, 3, 1, 2, 4, 5))
    planes = reshaped(write, planes, (batch * count, channels * taps, *plane))
    result = convolved(geometry.of_planes(), planes, weight, *bias)
    result = reshaped(write, result, (batch, count, *result.shape[1:]))
    return permuted(write, result, (0, 2, 1, 3, 4))


def _with_zeros_between(write: Writer, x: Value, step: int) -> Value:
    """x with step - 1 zeros between the elements of axis 2."""
    if step == 1:
        return x
    batch, channels, depth, *plane = x.shape
    apart = reshaped(write, x, (batch, channels, depth, 1, *plane))
    wide = padded(write, apart, [*[(0, 0)] * 3, (0, step - 1), (0, 0), (0, 0)])
    whole = reshaped(write, wide, (batch, channels, depth * step, *plane))
    return sliced(write, whole, 2, 0, (depth - 1) * step + 1)


def transposed(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """A transposed convolution over one to three axes, as torch's conv_transpose1d to 3d."""
    return convolution(
        write, x, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


def folded(
    write: Writer,
    x: Operand,
    size: int | Sequence[int],
    kernel: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Value:
    """The sum of windows (..., channels * kernel, positions) at their places in an image.

    It is a transposed convolution of each channel, with a weight of one at a window's element.
    """
    value = write.floats(x)
    sizes, kernels, steps = (each_axis(each, 2) for each in (size, kernel, stride))
    around, apart = each_axis(padding, 2), each_axis(dilation, 2)
    spans = [d * (k - 1) + 1 for k, d in zip(kernels, apart, strict=True)]
    room = [n + 2 * p - w for n, p, w in zip(sizes, around, spans, strict=True)]
    places = [free // s + 1 for free, s in zip(room, steps, strict=True)]
    left = [free % s for free, s in zip(room, steps, strict=True)]
    *lead, rows, _ = value.shape
    each = prod(kernels)
    ones = np.tile(np.eye(each, dtype=np.float32), (rows // each, 1))
    weight = write.constant(ones.reshape(rows, 1, *kernels), "windows")
    images = reshaped(write, value, (*lead, rows, *places))
    groups = rows // each
    made = transposed(write, images, weight, None, steps, around, left, groups, apart)
    return write.cast(made, write.element(x))
