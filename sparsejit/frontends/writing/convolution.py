"""Convolutions over one or two spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sparsejit.frontends.writing.arranging import padded, reshaped
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.ops.convolution import Convolution

if TYPE_CHECKING:
    from sparsejit.frontends.writing.writer import Operand, Writer
    from sparsejit.ir.graph import Value

Sizes = tuple[int, ...]


def each_axis(sizes: int | Sequence[int], rank: int) -> Sizes:
    """One number for each spatial axis, the same where one is given for all."""
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
    """Any of them; x may lack its batch axis."""
    value, weight = write.floats(x), write.floats(weight)
    rank = len(weight.shape) - 2
    if rank not in (1, 2):
        raise Unmapped(f"has {rank} spatial axes")
    op = Convolution(
        each_axis(stride, rank),
        each_axis(padding, rank),
        each_axis(dilation, rank),
        groups,
        transposed,
        each_axis(output_padding, rank) if transposed else (),
    )
    operands = (weight,) if bias is None else (weight, write.floats(bias))
    if len(value.shape) == rank + 2:
        return write.one(op, value, *operands)
    result = write.one(op, reshaped(write, value, (1, *value.shape)), *operands)
    return reshaped(write, result, result.shape[1:])


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
    """conv1d and conv2d; padding "same" adds what is odd at the end."""
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
    """conv_transpose1d and conv_transpose2d."""
    return convolution(
        write, x, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


OPERATORS: dict[str, Callable[..., Value]] = {
    "aten.conv1d.default": direct,
    "aten.conv1d.padding": direct,
    "aten.conv2d.default": direct,
    "aten.conv2d.padding": direct,
    "aten.conv_transpose1d.default": transposed,
    "aten.conv_transpose2d.input": transposed,
    "aten.convolution.default": convolution,
}
