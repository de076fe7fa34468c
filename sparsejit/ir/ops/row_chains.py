"""Chains of named functions over the last axis: softmax and normalisations.

Constants are operands of one element, so that a chain holds no numbers of its own.
"""

from functools import lru_cache

import numpy as np

from sparsejit.ir.ops.pointwise import Chain, ChainStep

# `safe_softmax`: the least shift of a row's scores, and the least sum of its powers. The shift is
# the least finite number, which masks are made of: a row of these has equal shares.
LEAST_SCORE, LEAST_TOTAL = float(np.finfo(np.float32).min), 1e-30


class ChainWriter:
    """Writes the steps of a chain over `shape` in the order in which they run."""

    def __init__(self, shape: tuple[int, ...], operands: int) -> None:
        self.shape, self.operands = shape, operands
        self._steps: list[ChainStep] = []

    def step(self, kind: str, *arguments: int) -> int:
        """Append a step and return its number."""
        self._steps.append(ChainStep(kind, arguments))
        return self.operands + len(self._steps) - 1

    def finish(self, *results: int, title: str = "chain") -> Chain:
        """The chain of the steps so far; its outputs are the values of these numbers."""
        return Chain(self.shape, self.operands, tuple(self._steps), results, title)


def mean(shape: tuple[int, ...]) -> Chain:
    """Mean over the last axis. Operands: x of `shape`, and 1 / length."""
    write = ChainWriter(shape, 2)
    return write.finish(write.step("mul", write.step("row_sum", 0), 1), title="mean")


@lru_cache(maxsize=64)  # layers are alike
def softmax(shape: tuple[int, ...]) -> Chain:
    """Softmax over the last axis. Operand: x of `shape`."""
    write = ChainWriter(shape, 1)
    powers = write.step("exp", write.step("sub", 0, write.step("row_max", 0)))
    total = write.step("row_sum", powers)
    scale = write.step("reciprocal", total)
    return write.finish(write.step("mul", powers, scale), title="softmax")


def safe_softmax(shape: tuple[int, ...]) -> Chain:
    """Softmax that maps rows of -infinity to zeros. Operands: x, LEAST_SCORE and LEAST_TOTAL.

    The two constants bound a row's largest element and its sum of powers from below.
    """
    write = ChainWriter(shape, 3)
    return write.finish(_safe_softmax(write, 0, 1, 2), title="masked_softmax")


@lru_cache(maxsize=64)  # layers are alike
def masked_softmax(shape: tuple[int, ...]) -> Chain:
    """`safe_softmax` of a sum. Operands: x of `shape`, its addend, LEAST_SCORE and LEAST_TOTAL."""
    write = ChainWriter(shape, 4)
    result = _safe_softmax(write, write.step("add", 0, 1), 2, 3)
    return write.finish(result, title="masked_softmax")


def _safe_softmax(write: ChainWriter, x: int, least_score: int, least_total: int) -> int:
    shift = write.step("maximum", write.step("row_max", x), least_score)
    powers = write.step("exp", write.step("sub", x, shift))
    total = write.step("maximum", write.step("row_sum", powers), least_total)
    return write.step("mul", powers, write.step("reciprocal", total))


def log_softmax(shape: tuple[int, ...]) -> Chain:
    """Logarithm of the softmax over the last axis. Operand: x of `shape`."""
    write = ChainWriter(shape, 1)
    shifted = write.step("sub", 0, write.step("row_max", 0))
    total = write.step("row_sum", write.step("exp", shifted))
    return write.finish(write.step("sub", shifted, write.step("log", total)), title="log_softmax")


def layer_norm(shape: tuple[int, ...], has_weight: bool, has_bias: bool) -> Chain:
    """Layer norm. Operands: x, 1 / length, epsilon, then weight and bias of the last axis, if any.

    torch.nn.functional.layer_norm's formula: (x - mean) / sqrt(variance + epsilon).
    """
    write = ChainWriter(shape, 3 + has_weight + has_bias)
    mean = write.step("mul", write.step("row_sum", 0), 1)
    centred = write.step("sub", 0, mean)
    variance = write.step("mul", write.step("row_sum", write.step("square", centred)), 1)
    scale = write.step("rsqrt", write.step("add", variance, 2))
    result = write.step("mul", centred, scale)
    return write.finish(_affine(write, result, has_weight, has_bias), title="layer_norm")


def rms_norm(shape: tuple[int, ...], has_weight: bool) -> Chain:
    """RMS norm. Operands: x, 1 / length, epsilon, then the weight of the last axis, if any.

    torch.nn.functional.rms_norm's formula: x / sqrt(mean(x^2) + epsilon).
    """
    write = ChainWriter(shape, 3 + has_weight)
    mean = write.step("mul", write.step("row_sum", write.step("square", 0)), 1)
    scale = write.step("rsqrt", write.step("add", mean, 2))
    result = write.step("mul", 0, scale)
    return write.finish(_affine(write, result, has_weight, False), title="rms_norm")


def _affine(write: ChainWriter, x: int, has_weight: bool, has_bias: bool) -> int:
    if has_weight:
        x = write.step("mul", x, 3)
    return write.step("add", x, 3 + has_weight) if has_bias else x
