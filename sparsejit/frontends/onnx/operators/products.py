"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.quantised import fits_int8
from sparsejit.frontends.writing import arranging, products
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Value
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType


def matmul(write: Writer, call: Call) -> Value:
    """numpy's `a @ b`; with a known b of two axes a layer."""
    a, b = call.values(write)
    weights = write.known(b)
    if weights is None or weights.ndim != 2 or not a.shape:
        return products.matmul(write, a, b)
    matrix = write.constant(np.ascontiguousarray(weights.T), b.origin.name)
    return _layer(write, call, a, matrix, None)


def _layer(write: Writer, call: Call, x: Value, matrix: Value, bias: Value | None) -> Value:
    """W x + bias, in int8 where the file has both in bytes."""
    given, stored = (call.quantised.get(call.name(place)) for place in (0, 1))
    weights = write.known(matrix)
    if given is None or given.source is None or stored is None or weights is None:
        return products.linear(write, x, matrix, bias)
    if not fits_int8(weights):
        return products.linear(write, x, matrix, bias)
    op = Linear(dtype=DType.INT8, input_scale=given.scale, input_shift=given.shift)
    operands = (matrix,) if bias is None else (matrix, bias)
    return write.one(op, write.floats(given.source), *operands)


def gemm(write: Writer, call: Call) -> Value:
    """alpha A B + beta C; a Linear where B is known and C its bias."""
    a, b, c = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    if call.flag("transA"):
        a = arranging.swapped(write, a, 0, 1)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    weights, bias = write.known(b), None if c is None else write.known(c)
    if weights is None or (c is not None and bias is None):
        b = arranging.swapped(write, b, 0, 1) if call.flag("transB") else b
        product = products.matmul(write, a, b)
        return products.scaled_sum(write, 0.0 if c is None else c, product, beta if c else 0, alpha)
    rows = weights if call.flag("transB") else weights.T
    # A factor of one leaves the value as it is, shared by all its readers.
    if alpha == 1 and call.flag("transB"):
        matrix = b
    else:
        matrix = write.constant(np.ascontiguousarray(alpha * rows), b.origin.name)
    if bias is None:
        return _layer(write, call, a, matrix, None)
    if bias.size not in (1, len(rows)) or bias.size != max(bias.shape, default=1):
        product = _layer(write, call, a, matrix, None)
        return write.pointwise("add", product, beta * bias)
    whole = np.broadcast_to(beta * bias.reshape(-1), (len(rows),))
    name = "bias" if c is None else c.origin.name
    constant = write.constant(np.ascontiguousarray(whole), name)
    return _layer(write, call, a, matrix, constant)


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {"Gemm": gemm, "MatMul": matmul}
