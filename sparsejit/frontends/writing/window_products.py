"""Convolutions with computed weights, as products with the elements of all windows.

x (batch, in, *spatial)  ->  (batch, groups, in taps / groups, positions), by weights as a matrix
"""

from __future__ import annotations

from itertools import product

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
from sparsejit.frontends.writing.writer import Unmapped, Writer
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
