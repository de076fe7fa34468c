"""Epilogues of convolutions of bytes: scales, biases and rounding of each row's sums."""

from dataclasses import replace

import numpy as np

from sparsejit.asm_templates.convolution.byte_results import ByteEpilogue
from sparsejit.asm_templates.gather.int8_weights import quantised_nonzeros
from sparsejit.ir.ops.convolution import Convolution, RoundedResult
from sparsejit.ir.quantised_steps import QuantisedSteps
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType
from sparsejit.lowering.convolution.byte_images import ZERO

_WORTH_CUTTING = 2.0**31  # what an int32 holds


def plain(op: Convolution) -> Convolution:
    """The operator in float32, with weights and bias as the model has them."""
    return replace(op, dtype=DType.FLOAT32, input_scale=None, input_shift=None, rounding=None)


def ends_of(
    matrix: SparseMatrix, bias: np.ndarray | None, op: Convolution, x: QuantisedSteps
) -> tuple[ByteEpilogue, np.ndarray]:
    """The epilogue of sums, and (out, 3): each row's scale, and biases before and after `own`."""
    integers, scales = quantised_nonzeros(matrix)
    assert op.rounding is not None
    first = op.rounding.own or op.rounding.result
    of_sums = scales.astype(np.float64) * x.scale / first.scale
    weights = integers.sums_by_row(integers.values)
    added = np.zeros(len(of_sums)) if bias is None else bias.astype(np.float64)
    late = added / op.rounding.read.scale
    start = 0.0 if op.rounding.late else added / first.scale
    ends = np.stack([of_sums, start - of_sums * (x.shift + ZERO) * weights, late], axis=1)
    most = 255 * integers.sums_by_row(np.abs(integers.values.astype(np.int32))) * of_sums
    cuts = bool((most + np.abs(ends[:, 1])).max(initial=0) >= _WORTH_CUTTING)
    return _epilogue(op.rounding, op.activation, cuts), ends.astype(np.float32)


def _epilogue(rounding: RoundedResult, activation: Activation, cuts: bool) -> ByteEpilogue:
    zero, cut = rounding.result.shift + ZERO, rounding.read
    least = cut.shift + ZERO if activation in (Activation.RELU, Activation.RELU6) else 0
    is_cut = activation is Activation.RELU6
    six = int(min(255, np.rint(6.0 / cut.scale) + cut.shift + ZERO)) if is_cut else 255
    own, added = (
        None if each is None else (each.scale / cut.scale, each.shift + ZERO)
        for each in (rounding.own, rounding.added)
    )
    table = None
    if rounding.table is not None:
        table = (np.array(rounding.table) + ZERO).astype(np.uint8), cut.shift + ZERO
    return ByteEpilogue(zero, least, six, cuts, own, added, rounding.late, table)
