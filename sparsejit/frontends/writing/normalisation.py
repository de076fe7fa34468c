"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.writing.arranging import moved, reshaped
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.values import Value, axis_of

# rms_norm's default: torch.finfo(torch.float32).eps.
_FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


def batch_norm(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    """x scale + shift for each channel, axis 1, with scale = weight / sqrt(variance + eps)."""
    if training or mean is None:
        raise Unmapped("takes its statistics from the batch; use model.eval()")
    given = 1.0 if weight is None else weight, 0.0 if bias is None else bias, mean, variance
    parts = [known for part in given if (known := write.known(part)) is not None]
    if len(parts) < len(given):
        raise Unmapped("its statistics are computed")
    scale, offset, middle, square = parts
    factor = np.asarray(scale / np.sqrt(square + eps))
    return channelwise(write, write.floats(x), factor, np.asarray(offset - middle * factor))


def channelwise(write: Writer, x: Value, factor: Operand, shift: Operand) -> Value:
    """x factor + shift; each is a number for every channel, axis 1, or None."""
    shape = (-1, *(1,) * (len(x.shape) - 2))
    for kind, part in (("mul", factor), ("add", shift)):
        if part is not None:
            known = write.known(part)
            operand = reshaped(write, part, shape) if known is None else known.reshape(shape)
            x = write.pointwise(kind, x, operand)
    return x


def rows_of(write: Writer, x: Value, axes: int) -> Value:
    """x with its last `axes` axes merged."""
    kept = x.shape[: len(x.shape) - axes]
    return reshaped(write, x, (*kept, prod(x.shape[len(kept) :])))


def layer_norm(
    write: Writer,
    x: Operand,
    normalized_shape: Sequence[int],
    weight: Operand = None,
    bias: Operand = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """Normalise over the last axes together."""
    value = write.floats(x)
    if not value.type.size:
        return value
    rows = rows_of(write, value, len(normalized_shape))
    affine = [reshaped(write, part, (-1,)) for part in (weight, bias) if part is not None]
    chain = row_chains.layer_norm(rows.shape, weight is not None, bias is not None)
    normal = write.one(chain, rows, 1.0 / rows.shape[-1], float(eps), *affine)
    return reshaped(write, normal, value.shape)


def rms_norm(
    write: Writer,
    x: Operand,
    normalized_shape: Sequence[int],
    weight: Operand = None,
    eps: float | None = None,
) -> Value:
    """x / sqrt(mean(x^2) + eps) weight over the last axes together."""
    value = write.floats(x)
    if not value.type.size:
        return value
    rows = rows_of(write, value, len(normalized_shape))
    affine = [] if weight is None else [reshaped(write, weight, (-1,))]
    chain = row_chains.rms_norm(rows.shape, weight is not None)
    least = _FLOAT32_EPSILON if eps is None else float(eps)
    normal = write.one(chain, rows, 1.0 / rows.shape[-1], least, *affine)
    return reshaped(write, normal, value.shape)


def group_norm(
    write: Writer,
    x: Operand,
    num_groups: int,
    weight: Operand = None,
    bias: Operand = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    """Normalise over each group of channels together with all positions."""
    value = write.floats(x)
    if not value.type.size:
        return value
    groups = (value.shape[0], num_groups, value.type.size // (value.shape[0] * num_groups))
    normal = layer_norm(write, reshaped(write, value, groups), groups[2:], eps=eps)
    return channelwise(write, reshaped(write, normal, value.shape), weight, bias)


def over_rows(chain: Callable[[tuple[int, ...]], Chain]) -> Callable[..., Value]:
    """A function of any axis by a chain over the last axis, such as softmax."""

    def mapping(write: Writer, x: Operand, dim: int, *_: Any, **__: Any) -> Value:
        value = write.floats(x)
        if not value.shape:
            return reshaped(write, mapping(write, reshaped(write, value, (1,)), 0), ())
        axis = axis_of(dim, len(value.shape))
        rows = moved(write, value, axis, -1)
        return moved(write, write.one(chain(rows.shape), rows), -1, axis)

    return mapping


softmax, log_softmax = over_rows(row_chains.softmax), over_rows(row_chains.log_softmax)
