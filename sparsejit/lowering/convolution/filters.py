"""The filters of a convolution as the matrix of a linear layer."""

from functools import partial
from math import prod

import numpy as np

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.ir.values import Array
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.products.linear import with_x_steps


def filter_matrix(low: Lowering, node: Node) -> tuple[SparseMatrix, MatVec]:
    """The matrix W (out, channels * taps), flipped for a transposed convolution; and its layer."""
    op, (_, weights, *bias) = node.op, node.inputs
    assert isinstance(op, Convolution)
    matrix = low.laid_out(weights, partial(_as_matrix, op))
    values = low.constant(bias[0]) if bias else None
    each = MatVec(matrix.out_features, matrix.in_features, values, op.activation, op.dtype)
    each = with_x_steps(each, matrix, op)
    matrix.check_fits(each)
    return matrix, each


def _as_matrix(op: Convolution, filters: Array) -> Array:
    """The matrix W (out, channels * taps) of a convolution's weights."""
    direct = _as_direct(filters, op.groups) if op.transposed else filters
    return _block_diagonal(direct, op.groups)


def _as_direct(weights: Array, groups: int) -> Array:
    """Filters (in, out / groups, *kernel) as filters of a plain convolution, flipped."""
    inputs, outputs, *kernel = weights.shape
    grouped = weights.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    direct = grouped.reshape(groups * outputs, inputs // groups, *kernel)
    return np.flip(direct, axis=tuple(range(2, direct.ndim)))


def _block_diagonal(filters: Array, groups: int) -> Array:
    """Filters (out, in / groups, *kernel) as a matrix (out, in * taps), zero between groups."""
    outputs, columns = len(filters), prod(filters.shape[1:])
    blocks = filters.reshape(groups, outputs // groups, columns)
    if groups == 1:
        return np.ascontiguousarray(blocks[0])
    matrix = np.zeros((groups, outputs // groups, groups, columns), np.float32)
    every = np.arange(groups)
    matrix[every, :, every] = blocks
    return matrix.reshape(outputs, groups * columns)
