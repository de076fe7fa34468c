"""ATen's normalisations and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.writing.normalisation import (
    batch_norm,
    group_norm,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Value


def legitimate_batch_norm(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Results of aten's legit batch norm: as `batch_norm`, and None for the batch's statistics."""
    result = batch_norm(write, x, weight, bias, mean, variance, False, momentum, eps)
    return result, None, None


def native_layer_norm(write: Writer, *operands: Any) -> tuple[Any, ...]:
    """Results of aten.native_layer_norm: as `layer_norm`, and None for mean and deviation."""
    return layer_norm(write, *operands), None, None


def native_group_norm(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand,
    samples: int,
    channels: int,
    positions: int,
    group: int,
    eps: float,
) -> tuple[Any, ...]:
    """Results of aten.native_group_norm: as `group_norm`, and None for mean and deviation."""
    return group_norm(write, x, group, weight, bias, eps), None, None


def instance_norm(
    write: Writer,
    x: Operand,
    weight: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Value:
    """Normalise over the positions of each channel, or with known statistics as `batch_norm`."""
    if not use_input_stats:
        return batch_norm(write, x, weight, bias, mean, variance, False, momentum, eps)
    return group_norm(write, x, write.shape(x)[1], weight, bias, eps)


OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit_no_training.default": legitimate_batch_norm,
    "aten.layer_norm.default": layer_norm,
    "aten.native_layer_norm.default": native_layer_norm,
    "aten.rms_norm.default": rms_norm,
    "aten.group_norm.default": group_norm,
    "aten.native_group_norm.default": native_group_norm,
    "aten.instance_norm.default": instance_norm,
    "aten.softmax.int": softmax,
    "aten._softmax.default": softmax,
    "aten.log_softmax.int": log_softmax,
    "aten._log_softmax.default": log_softmax,
}
