"""ATen's products of matrices."""

from __future__ import annotations

import numpy as np

from sparsejit.frontends.writing.arranging import permuted, reshaped
from sparsejit.frontends.writing.products import grouped, linear, matmul, scaled_sum
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.values import Value


def addmm(
    write: Writer, x: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1
) -> Value:
    """beta x + alpha a b; a Linear where x is its bias."""
    weights = write.known(b)
    if weights is not None and write.known(x) is not None and beta == alpha == 1:
        bias = write.floats(x)
        if bias.shape == weights.shape[1:]:
            name = write.value(b).origin.name
            return linear(write, a, write.constant(np.ascontiguousarray(weights.T), name), bias)
    return scaled_sum(write, x, matmul(write, a, b), beta, alpha)


def addbmm(
    write: Writer, x: Operand, a: Operand, b: Operand, beta: float = 1, alpha: float = 1
) -> Value:
    """beta x + alpha times the sum of all products of a stack: one longer product."""
    a, b = write.floats(a), write.floats(b)
    count, rows, depth = a.shape
    beside = reshaped(write, permuted(write, a, (1, 0, 2)), (rows, count * depth))
    below = reshaped(write, b, (count * depth, b.shape[2]))
    return scaled_sum(write, x, write.one(Bmm(), beside, below), beta, alpha)


def outer(write: Writer, a: Operand, b: Operand) -> Value:
    """Every element of a with every one of b."""
    return write.pointwise("mul", reshaped(write, a, (*write.shape(a), 1)), b)


def dot(write: Writer, a: Operand, b: Operand) -> Value:
    """The sum of products of two vectors."""
    a, b = write.floats(a), write.floats(b)
    columns = reshaped(write, b, (1, *b.shape))
    product = write.one(Bmm(transposed=True), reshaped(write, a, (1, *a.shape)), columns)
    return reshaped(write, product, ())


OPERATORS = {
    "aten.linear.default": linear,
    "aten.matmul.default": matmul,
    "aten.mm.default": matmul,
    "aten.bmm.default": matmul,
    "aten.mv.default": matmul,
    "aten.dot.default": dot,
    "aten.outer.default": outer,
    # As transformers computes mixtures of experts.
    "transformers.grouped_mm_fallback.default": grouped,
    "aten.addmm.default": addmm,
    "aten.addmv.default": addmm,
    "aten.baddbmm.default": addmm,
    "aten.addbmm.default": addbmm,
}
