"""ATen's convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsejit.frontends.writing.arranging import padded
from sparsejit.frontends.writing.convolution import convolution, each_axis, transposed
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Value


def direct(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """conv1d to conv3d; padding "same" adds an odd element at the end."""
    value = write.value(x)
    around: int | Sequence[int] = 0  # "valid"
    if padding == "same":
        kernel = write.shape(weight)[2:]
        spans = each_axis(dilation, len(kernel))
        reach = [step * (n - 1) for step, n in zip(spans, kernel, strict=True)]
        beyond = [(0, 0)] * (len(value.shape) - len(kernel)) + [(0, n % 2) for n in reach]
        value, around = padded(write, value, beyond), [n // 2 for n in reach]
    elif not isinstance(padding, str):
        around = padding
    return convolution(write, value, weight, bias, stride, around, dilation, False, 0, groups)


OPERATORS: dict[str, Callable[..., Value]] = {
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
}
