"""Products of matrices."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from sparsejit.frontends.writing.arranging import permuted, reshaped
from sparsejit.ir.ops.products import Bmm, Linear

if TYPE_CHECKING:
    from sparsejit.frontends.writing.writer import Operand, Writer
    from sparsejit.ir.graph import Value


def linear(write: Writer, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    """x W^T + bias."""
    operands = [write.floats(each) for each in (x, weight) + (() if bias is None else (bias,))]
    return write.one(Linear(), *operands)


def matmul(write: Writer, a: Operand, b: Operand) -> Value:
    """numpy's `a @ b`; with a known b of two axes a Linear."""
    a, b = write.floats(a), write.floats(b)
    if len(b.shape) == 1:
        product = matmul(write, a, reshaped(write, b, (*b.shape, 1)))
        return reshaped(write, product, product.shape[:-1])
    if len(a.shape) == 1:
        product = matmul(write, reshaped(write, a, (1, *a.shape)), b)
        return reshaped(write, product, (*product.shape[:-2], product.shape[-1]))
    if len(b.shape) == 2 and (known := write.known(b)) is not None:
        weights = write.constant(np.ascontiguousarray(known.T), b.origin.name)
        return write.one(Linear(), a, weights)
    if len(b.shape) == 2 and len(a.shape) > 2:
        flat = reshaped(write, a, (prod(a.shape[:-1]), a.shape[-1]))
        return reshaped(write, write.one(Bmm(), flat, b), (*a.shape[:-1], b.shape[-1]))
    return write.one(Bmm(), a, b)


def scaled_sum(
    write: Writer, x: Operand, product: Value, beta: float = 1, alpha: float = 1
) -> Value:
    """beta x + alpha product."""
    scaled = product if alpha == 1 else write.pointwise("mul", product, float(alpha))
    if beta == 0:
        return scaled
    addend = write.floats(x) if beta == 1 else write.pointwise("mul", x, float(beta))
    return write.pointwise("add", scaled, addend)


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
    "aten.addmm.default": addmm,
    "aten.addmv.default": addmm,
    "aten.baddbmm.default": addmm,
    "aten.addbmm.default": addbmm,
}
