"""Convolutions, transposed ones, and pooling, over one or two spatial axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import BatchPlace, Node, Operator
from sparsejit.ir.reference import ACTIVATIONS, on_steps
from sparsejit.ir.signature import Bound, Signature, signature
from sparsejit.ir.spec import Activation, Choice, DType, Quantisation
from sparsejit.ir.time_rules import Apart, Overlap, TimeRule, Whole, Window
from sparsejit.ir.values import Array

Sizes = tuple[int, ...]


def windows(x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Array:
    """The windows of x (..., *spatial) as views (..., *positions, *kernel)."""
    rank = len(kernel)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(-rank, 0)))
    every = [slice(None, None, step) for step in (*stride, *dilation)]
    return _at(views, every)


def _at(x: Array, places: list[slice]) -> Array:
    """The view of x that these slices of its last axes select."""
    return x[(slice(None),) * (x.ndim - len(places)) + tuple(places)]


def positions(spatial: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Sizes:
    """Number of windows along each axis of a padded input."""
    sizes = zip(spatial, kernel, stride, dilation, strict=True)
    return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in sizes)


def _space_of(places: Sequence[BatchPlace | None]) -> int | None:
    """The number of the spatial axis that time has in the first operand; None for another axis."""
    place = places[0]
    return None if place is None or place.axis < 2 else place.axis - 2


def _with(sizes: tuple[Any, ...], axis: int, size: Any) -> tuple[Any, ...]:
    """The sizes with another one for an axis."""
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _check_axes(op: object, axes: int, *others: Sequence[object]) -> None:
    """Raise InvalidInput unless there are 1 or 2 axes, and a number for each in `others`."""
    if not 1 <= axes <= 2 or any(len(other) != axes for other in others):
        raise InvalidInput(f"{op}: give one number for each spatial axis, for 1 or 2 axes")


def _check_sizes(op: object, least: int, *sizes: Sizes) -> None:
    """Raise InvalidInput if any of these sizes (kernels, strides, padding ...) is below `least`."""
    if any(size < least for each in sizes for size in each):
        raise InvalidInput(f"{op} has a size below {least}; give one of at least {least}")


@dataclass(frozen=True)
class RoundedResult:
    """Rounding of a convolution's result, after its activation, to the steps of `result`.

    Steps are a scale and a zero point (`Quantisation`).

    Attributes:
        result: the steps of the result
        own: the steps to which the product is rounded first, if an operation follows that rounding
        added: the steps of an operand, which is added to the product, rounded to `own` if given
        late: whether the bias is added after the rounding to `own`, not before it
        summed: the steps to which the sum with `added` or a late bias is rounded before a table
        table: a function of one byte: integers of `result` for the integers -128 to 127 of
            `summed` or, without a sum, of `own`
    """

    result: Quantisation
    own: Quantisation | None = None
    added: Quantisation | None = None
    late: bool = field(default=False, metadata={"newer": True})
    summed: Quantisation | None = field(default=None, metadata={"newer": True})
    table: tuple[int, ...] | None = field(default=None, metadata={"newer": True})

    def __post_init__(self) -> None:
        """Raise InvalidInput for fields that do not fit each other."""
        has_table, adds = self.table is not None, self.added is not None
        if self.own is None and (self.late or (has_table and not adds)):
            raise InvalidInput(f"{self} has operations after the product; give `own` its steps")
        is_whole = self.table is None or len(self.table) == 256
        if not is_whole or (adds and self.late):
            raise InvalidInput(f"{self}: give `added` or `late`, and a table of 256 integers")
        if (self.summed is not None) != ((self.late or adds) and has_table):
            raise InvalidInput(f"{self}: give `summed` where a table follows a sum, and only there")

    @property
    def read(self) -> Quantisation:
        """The scale and zero point of the table's input; without a table, of the result."""
        if self.table is None:
            return self.result
        found = self.summed or self.own
        assert found is not None
        return found

    def of(self, y: Array) -> Array:
        """Round a product that includes its bias or added operand, and apply the table."""
        scale, shift = self.read.scale, self.read.zero_point
        rounded = on_steps(y, scale, shift)
        if self.table is None:
            return rounded
        numbers = np.rint(rounded / scale) + shift
        made = np.array(self.table)[(numbers + 128).astype(np.int64)]
        return np.asarray((made - self.result.zero_point) * self.result.scale)


@dataclass(frozen=True)
class Convolution(Operator):
    """torch's convolution and activation: x (batch, in, *spatial), W (out, in / groups, *kernel).

    The bias (out,) may be left out. An optional fourth operand of y's shape is added before the
    activation. Transposed, W is (in, out / groups, *kernel).

    Attributes:
        stride: positions from window to window, for each spatial axis
        padding: zeros before and after each spatial axis
        dilation: positions from tap to tap, for each spatial axis
        groups: number of groups into which channels are divided
        transposed: whether it is torch's transposed convolution
        output_padding: positions added at the end of each spatial axis, where transposed
        activation: applied to each output
        dtype: storage of W; with int8 x is quantised too
        x_steps: the scale and zero point of x; None is, with int8, the scale of x's largest
            magnitude / 127. With a zero point any dtype rounds x to its steps
        rounding: rounding of the result to steps, where its readers take it rounded; needs int8 and
            `x_steps`
    """

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int = 1
    transposed: bool = False
    output_padding: Sizes = ()
    activation: Activation = Activation.NONE
    dtype: DType = DType.FLOAT32
    x_steps: Quantisation | None = None
    rounding: RoundedResult | None = field(default=None, metadata={"newer": True})

    needs: ClassVar[str] = ", at least as large as the kernel"
    mixes: ClassVar[tuple[str, ...]] = ("groups*each",)
    mixing: ClassVar[str] = "convolves over the batch"

    def __post_init__(self) -> None:
        extra = self.output_padding or self.padding
        _check_axes(self, len(self.stride), self.padding, self.dilation, extra)
        _check_sizes(self, 1, self.stride, self.dilation, (self.groups,))
        _check_sizes(self, 0, self.padding, self.output_padding)

    def signature(self, operands: int) -> Signature:
        weights = "groups*in, each" if self.transposed else "groups*each, in"
        result = "float32 [batch, groups*each, *positions]"
        return signature(
            f"x float32 [batch, groups*in, *space], weights float32 [{weights}, *kernel], "
            f"bias? float32 [groups*each], added? {result} -> {result}"
        )

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        space, kernel = bound["*space"], bound["*kernel"]
        if not len(space) == len(kernel) == len(self.stride):
            return None
        spatial = self._spatial(space, kernel)
        fits = min(spatial) > 0 and bound.get("*positions", spatial) == spatial
        return {"*positions": spatial} if fits else None

    def _spatial(self, size: Sizes, kernel: Sizes) -> Sizes:
        if self.transposed:
            extra = self.output_padding or (0,) * len(size)
            parts = zip(size, kernel, self.stride, self.padding, self.dilation, extra, strict=True)
            return tuple((n - 1) * s - 2 * p + (k - 1) * d + e + 1 for n, k, s, p, d, e in parts)
        padded = tuple(n + 2 * p for n, p in zip(size, self.padding, strict=True))
        return positions(padded, kernel, self.stride, self.dilation)

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        axis = _space_of(places)
        if axis is None:
            return Apart()
        if len(node.inputs) > 3 or self.activation is not Activation.NONE or self.rounding:
            return Whole("has further operations fused with it", "give the model before any pass")
        stride, before = self.stride[axis], self.padding[axis]
        reach = (node.inputs[1].shape[2 + axis] - 1) * self.dilation[axis] + 1
        op = replace(self, padding=_with(self.padding, axis, 0))
        if not self.transposed:
            return Window(reach, stride, before, 0.0, op)
        extra = _with(self.output_padding, axis, 0) if self.output_padding else ()
        return Overlap(reach, stride, before, replace(op, output_padding=extra))

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, weights, *bias = operands
        if self.x_steps is not None and not self.x_steps.symmetric:
            x = on_steps(x, self.x_steps.scale, self.x_steps.zero_point)
        y = self._transposed(x, weights) if self.transposed else self._direct(x, weights)
        ends = self.rounding
        if ends is not None and ends.late:
            y = _rounded(y, ends.own)
        if bias:
            y = y + bias[0].reshape(-1, *(1,) * len(self.stride))
        for added in bias[1:]:
            y = y + added if ends is None else _rounded(y, ends.own) + _rounded(added, ends.added)
        y = ACTIVATIONS[self.activation](y)
        return (y if ends is None else ends.of(y),)

    def _direct(self, x: Array, weights: Array) -> Array:
        rank, groups = len(self.stride), self.groups
        padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])
        views = windows(padded, weights.shape[2:], self.stride, self.dilation)
        views = views.reshape(len(x), groups, -1, *views.shape[2:])
        taps = weights.reshape(groups, -1, *weights.shape[1:])
        place, tap = "hw"[:rank], "uv"[:rank]
        y = np.einsum(f"bgi{place}{tap},goi{tap}->bgo{place}", views, taps, optimize=True)
        return y.reshape(len(x), -1, *y.shape[3:])

    def _transposed(self, x: Array, weights: Array) -> Array:
        batch, kernel, groups = len(x), weights.shape[2:], self.groups
        spatial = self._spatial(x.shape[2:], kernel)
        reach = [n + 2 * p for n, p in zip(spatial, self.padding, strict=True)]
        y = np.zeros((batch, groups, weights.shape[1], *reach))
        grouped = x.reshape(batch, groups, -1, *x.shape[2:])
        taps = weights.reshape(groups, -1, *weights.shape[1:])
        for tap in np.ndindex(*kernel):
            one_tap = _at(taps, [slice(t, t + 1) for t in tap]).reshape(taps.shape[:3])
            ranges = zip(tap, self.dilation, self.stride, x.shape[2:], strict=True)
            where = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in ranges]
            _at(y, where)[:] += np.einsum("bgi...,gio->bgo...", grouped, one_tap)
        inside = [slice(p, p + n) for p, n in zip(self.padding, spatial, strict=True)]
        return _at(y, inside).reshape(batch, -1, *spatial)


@dataclass(frozen=True)
class DynamicConvolution(Operator):
    """Sums of products of whole numbers: a convolution of x in steps that the call computes.

        q = clip(round(x / scale) + zero, 0, 255)        y = convolution of q - zero by W

    x is (batch, in, *spatial), W (out, in, *kernel) has whole numbers of at most 127. Sums are
    exact before they are float32.

    Attributes:
        stride: positions from window to window, for each spatial axis
        padding: zeros before and after each spatial axis of q - zero
        dilation: positions from tap to tap, for each spatial axis
    """

    stride: Sizes
    padding: Sizes
    dilation: Sizes

    types: ClassVar[str] = (
        "x float32 [batch, in, *space], scale float32 [], zero float32 [], "
        "weights float32 [out, in, *kernel] -> float32 [batch, out, *positions]"
    )
    needs: ClassVar[str] = Convolution.needs
    mixing: ClassVar[str] = Convolution.mixing

    def __post_init__(self) -> None:
        _check_axes(self, len(self.stride), self.padding, self.dilation)
        _check_sizes(self, 1, self.stride, self.dilation)
        _check_sizes(self, 0, self.padding)

    @property
    def windows(self) -> Convolution:
        """The convolution of q - zero by W, in float32."""
        return Convolution(self.stride, self.padding, self.dilation)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        return self.windows.sizes_of(bound)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        x, scale, zero, weights = operands
        steps = np.rint(np.float32(x) / np.float32(scale)) + zero
        return self.windows.reference(np.clip(steps, 0, 255) - zero, weights)


def _rounded(y: Array, steps: Quantisation | None) -> Array:
    return y if steps is None else on_steps(y, steps.scale, steps.zero_point)


def adds_operand(node: Node) -> bool:
    """Whether a convolution adds an operand of its result's shape."""
    return isinstance(node.op, Convolution) and len(node.inputs) == 4


def rounds(op: Operator) -> bool:
    """Whether a product rounds its result, so that no later operation can be fused with it."""
    return isinstance(op, Convolution) and op.rounding is not None


class PoolingKind(Choice):
    """The function that reduces a pooling window."""

    MAX = "max"
    AVERAGE = "average"


@dataclass(frozen=True)
class Pooling(Operator):
    """The largest or the mean of every window of x (batch, channels, *spatial).

    The average of a window without elements is 0.

    Attributes:
        kind: largest or mean
        kernel: the window's size, for each spatial axis
        stride: positions from window to window, for each spatial axis
        padding: (before, after) for each spatial axis
        dilation: positions from element to element of a window, for each spatial axis
        counts_padding: whether an average divides by the elements of the padding as well
    """

    kind: PoolingKind
    kernel: Sizes
    stride: Sizes
    padding: tuple[tuple[int, int], ...]
    dilation: Sizes
    counts_padding: bool = True

    def __post_init__(self) -> None:
        _check_axes(self, len(self.kernel), self.stride, self.padding, self.dilation)
        _check_sizes(self, 1, self.kernel, self.stride, self.dilation)
        _check_sizes(self, 0, *self.padding)

    types: ClassVar[str] = (
        "x float32 [batch, channels, *space] -> float32 [batch, channels, *positions]"
    )
    needs: ClassVar[str] = ", at least as large as the window"
    mixing: ClassVar[str] = "pools over the batch"

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        if len(bound["*space"]) != len(self.kernel):
            return None
        padded = tuple(n + sum(p) for n, p in zip(bound["*space"], self.padding, strict=True))
        spatial = positions(padded, self.kernel, self.stride, self.dilation)
        return {"*positions": spatial} if min(spatial) > 0 else None

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        axis = _space_of(places)
        if axis is None:
            return Apart()
        before, _ = self.padding[axis]
        is_mean = self.kind is PoolingKind.AVERAGE
        if is_mean and before and not self.counts_padding:
            return Whole("divides by the number of frames in each window", "count the padding")
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        op = replace(self, padding=_with(self.padding, axis, (0, 0)))
        return Window(reach, self.stride[axis], before, 0.0 if is_mean else -np.inf, op)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        axes = tuple(range(-len(self.kernel), 0))
        around = [(0, 0), (0, 0), *self.padding]
        geometry = self.kernel, self.stride, self.dilation
        if self.kind is PoolingKind.MAX:
            padded = np.pad(x, around, constant_values=-np.inf)
            return (windows(padded, *geometry).max(axis=axes),)
        total = windows(np.pad(x, around), *geometry).sum(axis=axes)
        if self.counts_padding:
            return (total / prod(self.kernel),)
        counted = windows(np.pad(np.ones_like(x), around), *geometry).sum(axis=axes)
        return (total / np.maximum(counted, 1),)
