"""ATen's convolutions and pooling, and resizing of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import joined, padded, reshaped, sliced
from sparsejit.frontends.writing.convolution import convolution, each_axis, transposed
from sparsejit.frontends.writing.grid_sample import grid_sampled
from sparsejit.frontends.writing.pooling import (
    adaptive_positions,
    beyond_the_end,
    largest_with_places,
    over_windows,
    picked,
    positions,
    weighed,
)
from sparsejit.frontends.writing.reductions import largest, mean_over
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.convolution import PoolingKind
from sparsejit.ir.values import Array, Value
from sparsejit.whole_numbers import ceil_div

Sizes = int | Sequence[int]


def direct(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Value:
    """conv1d to conv3d; padding "same" adds an odd element at the end."""
    value = write.value(x)
    around: Sizes = 0  # "valid"
    if padding == "same":
        kernel = write.shape(weight)[2:]
        spans = each_axis(dilation, len(kernel))
        reach = [step * (n - 1) for step, n in zip(spans, kernel, strict=True)]
        beyond = [(0, 0)] * (len(value.shape) - len(kernel)) + [(0, n % 2) for n in reach]
        value, around = padded(write, value, beyond), [n // 2 for n in reach]
    elif not isinstance(padding, str):
        around = padding
    return convolution(write, value, weight, bias, stride, around, dilation, False, 0, groups)


def pooled(
    write: Writer,
    kind: PoolingKind,
    x: Operand,
    kernel: tuple[int, ...],
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    counts_padding: bool = True,
    counts_beyond: bool = False,
) -> Value:
    """Pooling of x, which may lack its batch axis.

    `counts_beyond`: whether a mean also counts places that ceil_mode adds behind the padding.
    """
    value, rank = write.floats(x), len(kernel)
    steps = each_axis(stride, rank) if stride or stride == 0 else kernel
    steps = steps or kernel
    around, spans = each_axis(padding, rank), each_axis(dilation, rank)
    pairs = [(p, p) for p in around]
    geometry = zip(value.shape[-rank:], kernel, steps, pairs, spans, strict=True)
    extra = tuple(beyond_the_end(*axis) if ceil_mode else 0 for axis in geometry)
    widths = tuple((p, p + more) for p, more in zip(around, extra, strict=True))
    windows = kernel, steps, widths, spans, counts_padding, () if counts_beyond else extra
    if len(value.shape) == rank + 2:
        return over_windows(write, kind, value, *windows)
    result = over_windows(write, kind, reshaped(write, value, (1, *value.shape)), *windows)
    return reshaped(write, result, result.shape[1:])


def max_pool(rank: int) -> Callable[..., Value]:
    """Mapping of torch's max_pool1d to max_pool3d, by the number of spatial axes."""

    def mapping(
        write: Writer,
        x: Operand,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Value:
        kernel = each_axis(kernel_size, rank)
        return pooled(write, PoolingKind.MAX, x, kernel, stride, padding, dilation, ceil_mode)

    return mapping


def max_pool_with_places(rank: int) -> Callable[..., tuple[Value, Value]]:
    """Mapping of torch's max_pool1d_with_indices to max_pool3d_with_indices, by spatial axes."""

    def mapping(
        write: Writer,
        x: Operand,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:
        value, kernel = write.floats(x), each_axis(kernel_size, rank)
        steps = each_axis(stride, rank) if stride else kernel
        around, spans = each_axis(padding, rank), each_axis(dilation, rank)
        tables = []
        for axis in zip(value.shape[-rank:], kernel, steps, around, spans, strict=True):
            length, size, step, before, span = axis
            reach, whole = span * (size - 1) + 1, length + 2 * before
            pairs = before, before
            more = beyond_the_end(length, size, step, pairs, span) if ceil_mode else 0
            windows = (whole + more - reach) // step + 1
            tables.append(positions(length, windows, size, step, before, span))
        found, places = largest_with_places(write, value, tables)
        if rank < 3:
            found = pooled(
                write, PoolingKind.MAX, value, kernel, stride, padding, dilation, ceil_mode
            )
        return found, places

    return mapping


def average_pool(rank: int) -> Callable[..., Value]:
    """Mapping of torch's avg_pool1d to avg_pool3d, by the number of spatial axes."""

    def mapping(
        write: Writer,
        x: Operand,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        kernel = each_axis(kernel_size, rank)
        counts = count_include_pad or not any(each_axis(padding, rank))
        counts = counts and not (ceil_mode and not any(each_axis(padding, rank)))
        is_divided = divisor_override is not None
        sizes, kind = (kernel, stride, padding, 1, ceil_mode), PoolingKind.AVERAGE
        result = pooled(write, kind, x, *sizes, counts or is_divided, counts_beyond=is_divided)
        if divisor_override is None:
            return result
        return write.pointwise("mul", result, float(np.prod(kernel)) / divisor_override)

    return mapping


def adaptive(kind: PoolingKind, rank: int) -> Callable[..., Value]:
    """Mapping of adaptive pooling: window i of m spans floor(i n / m) to ceil((i + 1) n / m)."""

    def mapping(write: Writer, x: Operand, output_size: Sizes) -> Value:
        value = write.floats(x)
        wanted, lengths = each_axis(output_size, rank), value.shape[-rank:]
        if any(n % m for n, m in zip(lengths, wanted, strict=True)):
            return _uneven(write, value, kind, wanted)
        kernel = tuple(n // m for n, m in zip(lengths, wanted, strict=True))
        return pooled(write, kind, value, kernel, kernel, 0, 1, False)

    return mapping


def _uneven(write: Writer, x: Value, kind: PoolingKind, wanted: Sequence[int]) -> Value:
    """Adaptive pooling to windows of unlike sizes, axis after axis: a reduction for each window."""
    reduce = largest if kind is PoolingKind.MAX else mean_over
    for number, windows in enumerate(wanted):
        axis = len(x.shape) - len(wanted) + number
        length = x.shape[axis]
        parts = [
            reduce(
                write,
                sliced(write, x, axis, n * length // windows, ceil_div((n + 1) * length, windows)),
                [axis],
                True,
            )
            for n in range(windows)
        ]
        x = joined(write, parts, axis)
    return x


def adaptive_max_with_places(rank: int) -> Callable[..., tuple[Value, Value]]:
    """Mapping of adaptive max pooling: the largest element of each window, and its index."""

    def mapping(write: Writer, x: Operand, output_size: Sizes) -> tuple[Value, Value]:
        value = write.floats(x)
        sizes = zip(value.shape[-rank:], each_axis(output_size, rank), strict=True)
        tables = [adaptive_positions(length, windows) for length, windows in sizes]
        found, places = largest_with_places(write, value, tables)
        if rank < 3:
            found = adaptive(PoolingKind.MAX, rank)(write, value, output_size)
        return found, places

    return mapping


def nearest(rank: int) -> Callable[..., Value]:
    """Mapping of upsample_nearest: position i of m takes the element at floor(i n / m)."""

    def mapping(write: Writer, x: Operand, output_size: Any, *scales: Any) -> Value:
        value = write.floats(x)
        factors = [s[0] if isinstance(s, list | tuple) and rank == 1 else s for s in scales]
        if len(factors) == 1 and isinstance(factors[0], list | tuple):
            factors = list(factors[0])
        for number in range(rank):
            axis = len(value.shape) - rank + number
            length = value.shape[axis]
            factor = factors[number] if number < len(factors) else None
            size = int(length * factor) if factor and not output_size else output_size[number]
            ratio = 1.0 / factor if factor else length / size
            places = np.minimum(np.floor(np.arange(size) * np.float32(ratio)), length - 1)
            value = picked(write, value, axis, places.astype(np.int64))
        return value

    return mapping


def resampled(mode: str) -> Callable[..., Value]:
    """Mapping of torch's resizing of images in a mode: products with `_weights` along each axis."""

    def mapping(
        write: Writer, x: Operand, output_size: Any, align_corners: bool, factors: Any
    ) -> Value:
        value = write.floats(x)
        rank = len(value.shape) - 2
        for number in range(rank):
            factor = factors[number] if factors else None
            size = output_size[number] if output_size else None
            weights = _weights(value.shape[2 + number], size, factor, mode, align_corners)
            value = weighed(write, value, 2 + number, weights)
        return value

    return mapping


def _weights(length: int, size: int | None, factor: float | None, mode: str, align: bool) -> Array:
    """torch's interpolation weights (size, length) of each old position in each new one."""
    import torch

    images = torch.eye(length, dtype=torch.float64).reshape(length, 1, length, 1)
    sizes: Any = {"scale_factor": (factor, 1.0)} if size is None else {"size": (size, 1)}
    made = torch.nn.functional.interpolate(images, mode=mode, align_corners=align, **sizes)
    return np.asarray(made.reshape(length, -1).T.contiguous().numpy())


_SAMPLING = ("linear", "nearest", "cubic")
_PADDING = ("zeros", "border", "reflection")


def grid_sampler(
    write: Writer, x: Operand, grid: Operand, mode: int, padding: int, align_corners: bool
) -> Value:
    """Images at the points of a grid."""
    return grid_sampled(write, x, grid, _SAMPLING[mode], _PADDING[padding], align_corners)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.conv1d.default": direct,
    "aten.conv1d.padding": direct,
    "aten.conv2d.default": direct,
    "aten.conv2d.padding": direct,
    "aten.conv3d.default": direct,
    "aten.conv3d.padding": direct,
    "aten.conv_transpose1d.default": transposed,
    "aten.conv_transpose3d.input": transposed,
    "aten.conv_transpose2d.input": transposed,
    "aten.convolution.default": convolution,
    **{f"aten.grid_sampler{kind}.default": grid_sampler for kind in ("", "_2d", "_3d")},
    "aten.max_pool1d.default": max_pool(1),
    "aten.max_pool2d.default": max_pool(2),
    "aten.max_pool3d.default": max_pool(3),
    **{f"aten.max_pool{n}d_with_indices.default": max_pool_with_places(n) for n in (1, 2, 3)},
    "aten.avg_pool1d.default": average_pool(1),
    "aten.avg_pool2d.default": average_pool(2),
    "aten.avg_pool3d.default": average_pool(3),
    "aten.adaptive_avg_pool3d.default": adaptive(PoolingKind.AVERAGE, 3),
    "aten._adaptive_avg_pool3d.default": adaptive(PoolingKind.AVERAGE, 3),
    "aten.upsample_trilinear3d.vec": resampled("bilinear"),
    "aten.upsample_nearest3d.vec": nearest(3),
    "aten.adaptive_avg_pool1d.default": adaptive(PoolingKind.AVERAGE, 1),
    "aten.adaptive_avg_pool2d.default": adaptive(PoolingKind.AVERAGE, 2),
    "aten._adaptive_avg_pool2d.default": adaptive(PoolingKind.AVERAGE, 2),
    **{f"aten.adaptive_max_pool{n}d.default": adaptive_max_with_places(n) for n in (1, 2, 3)},
    "aten.upsample_linear1d.vec": resampled("bilinear"),
    "aten.upsample_bilinear2d.vec": resampled("bilinear"),
    "aten.upsample_bicubic2d.vec": resampled("bicubic"),
    "aten.upsample_nearest1d.vec": nearest(1),
    "aten.upsample_nearest2d.vec": nearest(2),
}
