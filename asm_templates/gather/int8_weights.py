"""Weights as signed bytes, and the proof that their int32 sums cannot overflow."""

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, MatVec

_LARGEST_SUM = 2**31 - 1


def quantised_rows(
    matrix: SparseMatrix,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return weights (out, in) as int8 and each row's scale (out,); see `quantised_nonzeros`."""
    integers, scales = quantised_nonzeros(matrix)
    return integers.dense(), scales


def quantised_nonzeros(matrix: SparseMatrix) -> tuple[CompressedRows, npt.NDArray[np.float32]]:
    """Return the weights that are not 0 as int8, and the scale of each row (out,).

    `reference` defines both. Raises InvalidInput naming a row for which some x overflows an int32
    sum.
    """
    scales, nonzeros = matrix.int8_steps, matrix.nonzeros
    integers = np.rint(nonzeros.values / scales[nonzeros.rows]).astype(np.int8)
    sums = LARGEST_INT8 * nonzeros.sums_by_row(np.abs(integers)).astype(np.int64)
    worst = int(sums.argmax())
    if sums[worst] > _LARGEST_SUM:
        raise InvalidInput(
            f"weights[{worst}] has {matrix.row_counts[worst]} nonzeros whose int8 products can "
            f"sum to {sums[worst]}, more than int32 holds; prune the row or use another dtype"
        )
    return nonzeros.with_values(integers), scales


def int8_sums(
    matrix: SparseMatrix,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the scale of each row, and the sum of its weights as int8; both (out,)."""

    def made() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        integers, scales = quantised_nonzeros(matrix)
        return scales, integers.sums_by_row(integers.values).astype(np.int64)

    return matrix.once("int8 sums", made)


def output_scales(spec: MatVec, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the factors of int32 sums, without a scale of x known only when the kernel runs."""
    return scales if spec.input_scale is None else scales * np.float32(spec.input_scale)
