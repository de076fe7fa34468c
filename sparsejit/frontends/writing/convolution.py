"""Convolutions over one or two spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.frontends.writing.window_products import by_windows
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.graph import Value
from sparsejit.ir.ops.convolution import Convolution

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
    convolved = write.one if write.is_fixed(weight) else partial(by_windows, write)
    if len(value.shape) == rank + 2:
        return convolved(op, value, *operands)
    result = convolved(op, reshaped(write, value, (1, *value.shape)), *operands)
    return reshaped(write, result, result.shape[1:])


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
