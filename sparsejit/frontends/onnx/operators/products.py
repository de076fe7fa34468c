"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import quantisation
from sparsejit.frontends.writing import arranging, products
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.values import Element, Value


def matmul(write: Writer, call: Call) -> Value:
    """numpy's `a @ b`; a layer where b is known and has two axes."""
    return products.matmul(write, *call.values(write))


def gemm(write: Writer, call: Call) -> Value:
    """alpha A B + beta C, with both factors applied separately; a layer where B is known."""
    a, b, c = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    if call.flag("transA"):
        a = arranging.swapped(write, a, 0, 1)
    weights, is_turned = write.known(b), call.flag("transB")
    if weights is None or write.dtype(a).kind != "f":
        product = products.matmul(write, a, arranging.swapped(write, b, 0, 1) if is_turned else b)
    else:
        turned = b if is_turned else write.constant(np.ascontiguousarray(weights.T), b.origin.name)
        product = products.linear(write, a, turned)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    return products.scaled_sum(write, 0.0 if c is None else c, product, beta if c else 0, alpha)


def matmul_integer(write: Writer, call: Call) -> Value:
    """(a - its zero point) @ (b - its zero point) of bytes, as floats if these are exact."""
    rank = len(call.value(write, 0).shape), len(call.value(write, 1).shape)
    a = quantisation.centred(write, call, 0, 2, -2 if rank[0] > 1 else -1, rank[0])
    b = quantisation.centred(write, call, 1, 3, -1, rank[1])
    if quantisation.sums_are_exact(write, call, b, a.shape[-1]):
        return products.matmul(write, a, b)
    return products.matmul(write, *(write.cast(each, Element.INT64) for each in (a, b)))


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
}
