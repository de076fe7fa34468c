"""int8 layers whose x has a fixed scale and a zero point."""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.gather.int8_weights import int8_sums
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec


def with_input_scale(each: MatVec, matrix: SparseMatrix, op: Linear | Convolution) -> MatVec:
    """The layer with the operator's scale and zero point of x, where it has them.

    Kernels multiply shifted integers, W (q + shift); W shift is subtracted from the bias.
    """
    if op.dtype is not DType.INT8 or op.input_scale is None:
        return each
    scaled = replace(each, input_scale=op.input_scale, input_shift=op.input_shift)
    if not op.input_shift:
        return scaled
    scales, sums = int8_sums(matrix)
    of_sums = (scales * np.float32(op.input_scale)).astype(np.float64)
    taken = of_sums * op.input_shift * sums
    bias = 0.0 if each.bias is None else each.bias.astype(np.float64)
    return replace(scaled, bias=(bias - taken).astype(np.float32))
