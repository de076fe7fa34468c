"""Convolutions and pooling over one or two spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import quantisation
from sparsejit.frontends.writing import (
    arranging,
    convolution,
    pointwise,
    pooling,
    reductions,
)
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.convolution import DynamicConvolution, PoolingKind
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.spec import LARGEST_INT8
from sparsejit.ir.values import Value
from sparsejit.whole_numbers import ceil_div

Widths = list[tuple[int, int]]
_STEPS = "strides", "dilations"


def _around(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Widths:
    """Padding before and after each spatial axis, by `pads` or `auto_pad`."""
    rank = len(kernel)
    mode = call.choice("auto_pad", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    pads = call.attribute("pads") or [0] * (2 * rank)
    if mode == "NOTSET":
        if len(pads) != 2 * rank:
            raise Unmapped(f"pads has {len(pads)} items for {rank} spatial axes")
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if mode == "VALID":
        return [(0, 0)] * rank
    strides = call.attribute("strides") or [1] * rank
    spans = call.attribute("dilations") or [1] * rank
    widths = []
    for n, k, s, d in zip(spatial, kernel, strides, spans, strict=True):
        total = max((ceil_div(n, s) - 1) * s + d * (k - 1) + 1 - n, 0)
        less, more = total // 2, total - total // 2
        widths.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return widths


def _around_windows(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Widths:
    """Padding before and after each spatial axis of a pooling, as `_around` has it.

    Raises Unmapped where ONNX Runtime pads differently from ONNX: it leaves dilations out, and pads
    by a negative number where strides exceed the kernel.
    """
    widths = _around(call, spatial, kernel)
    if call.attribute("auto_pad", "NOTSET").startswith("SAME"):
        strides, spans = (call.attribute(name) or [1] * len(kernel) for name in _STEPS)
        for n, k, s, d, pair in zip(spatial, kernel, strides, spans, widths, strict=True):
            total = (ceil_div(n, s) - 1) * s + k - n
            # A padding of -1 removes nothing that a window reads.
            if total != sum(pair) and not (total == -1 and 1 in (k, d)):
                raise Unmapped(
                    f"auto_pad={call.attribute('auto_pad')} with dilations, or strides beyond the "
                    "kernel, for which ONNX and ONNX Runtime give results of different sizes; "
                    "write pads instead"
                )
    return widths


def conv(write: Writer, call: Call) -> Value:
    """A convolution; padding that differs before and after is written as separate zeros."""
    return _conv(write, call, call.value(write, 0), call.value(write, 1), call.optional(write, 2))


def conv_integer(write: Writer, call: Call) -> Value:
    """A convolution of bytes minus their zero points, as floats."""
    rank = len(call.value(write, 0).shape)
    weight = quantisation.centred(write, call, 1, 3, 0, rank)
    matrix = write.known(weight)
    terms = prod(weight.shape[1:])
    by_output = weight if matrix is None else write.constant(matrix.reshape(-1, terms).T, "taps")
    most = quantisation.largest_sum(write, by_output, terms)
    if not call.is_read_as_float and most >= quantisation.ROUNDED_IN_FLOAT32:
        raise Unmapped(f"sums {terms} products of bytes, which float32 rounds; cast it to floats")
    sums = _by_steps_of_the_call(write, call, weight)
    if sums is None:
        x = quantisation.centred(write, call, 0, 2, 1, rank)
        sums = _conv(write, call, x, weight, None)
    return sums if call.is_read_as_float else write.one(Pointwise("round"), sums)


def _by_steps_of_the_call(write: Writer, call: Call, weight: Value) -> Value | None:
    """The sums, if x comes from DynamicQuantizeLinear and int8 holds the weights; else None."""
    known, steps = write.known(weight), write.dynamic_steps.get(call.value(write, 0))
    if known is None or steps is None or call.operand(2) is not steps[2]:
        return None
    fits = np.abs(known).max(initial=0) <= LARGEST_INT8
    is_exact = quantisation.LARGEST_CENTRED * LARGEST_INT8 * prod(known.shape[1:]) < 1 << 31
    widths, rank = _around(call, steps[0].shape[2:], known.shape[2:]), len(known.shape) - 2
    is_even = all(before == after and before >= 0 for before, after in widths)
    is_window = rank <= 2 and call.attribute("group", 1) == 1 and is_even
    if not (fits and is_exact and is_window) or len(steps[0].shape) != rank + 2:
        return None
    strides, spans = (tuple(call.attribute(name) or [1] * rank) for name in _STEPS)
    op = DynamicConvolution(strides, tuple(before for before, _ in widths), spans)
    return write.one(op, *steps, weight)


def _conv(write: Writer, call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    rank = len(weight.shape) - 2
    if len(x.shape) != len(weight.shape):
        raise Unmapped(f"has sizes {list(x.shape)} and weights of {list(weight.shape)}")
    widths = _around(call, x.shape[2:], weight.shape[2:])
    even = all(before == after and before >= 0 for before, after in widths)
    if not even:
        x = arranging.padded(write, x, [(0, 0), (0, 0), *widths])
    padding = [before if even else 0 for before, _ in widths]
    strides = call.attribute("strides") or [1] * rank
    spans = call.attribute("dilations") or [1] * rank
    groups = call.attribute("group", 1)
    return convolution.convolution(
        write, x, weight, bias, strides, padding, spans, False, 0, groups
    )


def _wanted(call: Call, spatial: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The result's spatial sizes by `output_shape` or SAME padding; None without either."""
    shape = call.attribute("output_shape")
    if shape:
        return list(shape[-len(spatial) :])
    if call.attribute("auto_pad", "NOTSET").startswith("SAME"):
        return [n * s for n, s in zip(spatial, strides, strict=True)]
    return None


def _cut_off(call: Call, full: Sequence[int], wanted: Sequence[int]) -> Widths:
    """Widths to cut before and after each axis of `full`, which leave the sizes `wanted`."""
    widths = []
    for size, n in zip(full, wanted, strict=True):
        less, more = max(size - n, 0) // 2, ceil_div(max(size - n, 0), 2)
        is_upper = call.attribute("auto_pad") == "SAME_UPPER"
        widths.append((less, more) if is_upper else (more, less))
    return widths


def conv_transpose(write: Writer, call: Call) -> Value:
    """A transposed convolution, cut where its padding differs before and after."""
    x, weight, bias = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    rank = len(weight.shape) - 2
    strides = call.attribute("strides") or [1] * rank
    spans = call.attribute("dilations") or [1] * rank
    extra, groups = call.attribute("output_padding") or [0] * rank, call.attribute("group", 1)
    wanted = _wanted(call, x.shape[2:], strides)
    if wanted is None:
        widths = _around(call, x.shape[2:], weight.shape[2:])
    else:
        axes = zip(x.shape[2:], weight.shape[2:], strides, spans, extra, strict=True)
        full = [(n - 1) * s + more + (k - 1) * d + 1 for n, k, s, d, more in axes]
        widths = _cut_off(call, full, wanted)
        missing = (max(n - size, 0) for n, size in zip(wanted, full, strict=True))
        extra = [more + n for more, n in zip(extra, missing, strict=True)]
    even = all(before == after for before, after in widths)
    padding = [before if even else 0 for before, _ in widths]
    y = convolution.convolution(
        write, x, weight, bias, strides, padding, spans, True, extra, groups
    )
    if even:
        return y
    return arranging.padded(write, y, [(0, 0), (0, 0), *((-a, -b) for a, b in widths)])


def pool(kind: PoolingKind) -> Callable[[Writer, Call], Any]:
    """Mapping of MaxPool and AveragePool."""

    def mapping(write: Writer, call: Call) -> Any:
        x = call.value(write, 0)
        pooled = _pooled(write, call, kind, write.floats(x), call.flag("count_include_pad"))
        result = write.cast(pooled, x.type.element)  # bytes, which float32 holds exactly
        return (result, None) if call.outputs > 1 else result

    return mapping


def power_pool(write: Writer, call: Call) -> Value:
    """Pooling by a norm: (sum |x|^p)^(1 / p) of each window."""
    p, taps = call.attribute("p", 2), prod(call.attribute("kernel_shape"))
    sizes = write.pointwise("abs", write.floats(call.value(write, 0)))
    powers = pointwise.power(write, sizes, float(p))
    means = _pooled(write, call, PoolingKind.AVERAGE, powers, True, counts_beyond=True)
    sums = write.pointwise("mul", means, float(taps))
    return sums if p == 1 else pointwise.power(write, sums, 1 / p)


def _pooled(
    write: Writer,
    call: Call,
    kind: PoolingKind,
    x: Value,
    counts_padding: bool,
    counts_beyond: bool = False,
) -> Value:
    """Pool as the attributes say.

    With `counts_beyond` a mean also counts the places that ceil_mode adds.
    """
    kernel = tuple(call.attribute("kernel_shape"))
    strides, spans = (tuple(call.attribute(name) or [1] * len(kernel)) for name in _STEPS)
    widths, beyond = _around_windows(call, x.shape[2:], kernel), (0,) * len(kernel)
    counts = counts_padding or not any(map(any, widths))
    if call.flag("ceil_mode"):
        geometry = zip(x.shape[2:], kernel, strides, widths, spans, strict=True)
        beyond = tuple(pooling.beyond_the_end(*axis) for axis in geometry)
        widths = [(first, last + n) for (first, last), n in zip(widths, beyond, strict=True)]
    windows = kernel, strides, tuple(widths), spans, counts
    return pooling.over_windows(write, kind, x, *windows, () if counts_beyond else beyond)


def power_over_positions(write: Writer, call: Call) -> Value:
    """(sum |x|^p)^(1 / p) over all spatial axes, which are kept with one element."""
    x = call.value(write, 0)
    axes = list(range(2, len(x.shape)))
    return reductions.vector_norm(write, x, call.attribute("p", 2), axes, True)


def over_positions(reduce: Callable[..., Value]) -> Callable[[Writer, Call], Value]:
    """Mapping of a reduction over all spatial axes, which are kept with one element."""

    def mapping(write: Writer, call: Call) -> Value:
        x = call.value(write, 0)
        return reduce(write, x, list(range(2, len(x.shape))), True)

    return mapping


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "AveragePool": pool(PoolingKind.AVERAGE),
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "GlobalAveragePool": over_positions(reductions.mean_over),
    "GlobalLpPool": power_over_positions,
    "GlobalMaxPool": over_positions(reductions.largest),
    "LpPool": power_pool,
    "MaxPool": pool(PoolingKind.MAX),
}
