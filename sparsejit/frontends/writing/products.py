"""Products of matrices."""

from __future__ import annotations

from math import prod

import numpy as np

from sparsejit.frontends.writing.arranging import at, reshaped, sliced, swapped
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Array, Element, Value


def linear(write: Writer, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    """x W^T + bias."""
    operands = [write.floats(each) for each in (x, weight) + (() if bias is None else (bias,))]
    return write.one(Linear(), *operands)


def matmul(write: Writer, a: Operand, b: Operand) -> Value:
    """numpy's `a @ b`; a Linear where b is known and has two axes; exact for whole numbers."""
    if write.element(a) is write.element(b) is Element.INT64:
        return _whole_matmul(write, *write.promoted(a, b))
    a, b = write.floats(a), write.floats(b)
    if len(b.shape) == 1:
        product = matmul(write, a, reshaped(write, b, (*b.shape, 1)))
        return reshaped(write, product, product.shape[:-1])
    if len(a.shape) == 1:
        product = matmul(write, reshaped(write, a, (1, *a.shape)), b)
        return reshaped(write, product, (*product.shape[:-2], product.shape[-1]))
    if not a.shape[-1]:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return write.zeros((*lead, a.shape[-2], b.shape[-1]))
    if len(b.shape) == 2 and (known := write.known(b)) is not None:
        weights = write.constant(np.ascontiguousarray(known.T), b.origin.name)
        return write.one(Linear(), a, weights)
    if len(b.shape) == 2 and len(a.shape) > 2:
        flat = reshaped(write, a, (prod(a.shape[:-1]), a.shape[-1]))
        return reshaped(write, write.one(Bmm(), flat, b), (*a.shape[:-1], b.shape[-1]))
    return write.one(Bmm(), a, b)


def product_and_sums(
    write: Writer, steps: Value, weights: Array, dtype: DType = DType.INT8
) -> tuple[Value, Array]:
    """steps W^T of whole numbers of int8 (..., in), and the sum of each row of W (out,).

    W (out, in) is held in `dtype`. A reader adds m sum(W) for steps that are m less than bytes.
    """
    product = write.one(Linear(dtype=dtype, x_steps=Quantisation(1.0, 0)), steps, weights)
    return product, weights.sum(axis=1, dtype=np.float64).astype(np.float32)


def _whole_matmul(write: Writer, a: Value, b: Value) -> Value:
    """The product of whole numbers: the lowest 64 bits of sums of products."""
    rows = reshaped(write, a, (1, *a.shape)) if len(a.shape) == 1 else a
    columns = reshaped(write, b, (*b.shape, 1)) if len(b.shape) == 1 else b
    columns = swapped(write, columns, -2, -1)
    depth = rows.shape[-1]
    if depth != columns.shape[-1]:
        raise Unmapped(f"multiplies {list(a.shape)} by {list(b.shape)}")
    lead = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    shape = (*lead, rows.shape[-2], columns.shape[-2])
    one = reshaped(write, rows, (*rows.shape[:-1], 1, depth))
    other = reshaped(write, columns, (*columns.shape[:-2], 1, *columns.shape[-2:]))
    f = write.formula("whole product")
    sums = f.finish(f("row_sum", f("mul", one, other)), shape=(*shape, depth))
    left = [n for n, x in ((-2, a), (-1, b)) if len(x.shape) > 1]
    return reshaped(write, sums, (*lead, *(shape[n] for n in left)))


def grouped(write: Writer, x: Operand, weights: Operand, ends: Operand) -> Value:
    """Rows of x times the matrix of their group: group g has the rows before `ends[g]`.

    x is (rows, in), weights are (groups, in, out); rows after the last group give zeros. Every
    matrix is multiplied with all rows, since only a call knows the rows of each group.
    """
    rows, columns = write.shape(x)[0], write.shape(weights)[-1]
    places = write.constant(np.arange(rows)[:, None], "rows")
    limits = write.cast(ends, Element.INT64)
    result = write.zeros((rows, columns))
    for group in reversed(range(write.shape(weights)[0])):
        product = matmul(write, x, at(write, weights, 0, group))
        is_before = write.pointwise("less", places, sliced(write, limits, 0, group, group + 1))
        result = write.pointwise("where", is_before, product, result)
    return result


def scaled_sum(
    write: Writer, x: Operand, product: Value, beta: float = 1, alpha: float = 1
) -> Value:
    """beta x + alpha product."""
    scaled = product if alpha == 1 else write.pointwise("mul", product, float(alpha))
    if beta == 0:
        return scaled
    addend = write.floats(x) if beta == 1 else write.pointwise("mul", x, float(beta))
    return write.pointwise("add", scaled, addend)
