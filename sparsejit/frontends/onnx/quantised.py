"""What is known of a value that was quantised and is read as the floats it stands for."""

from dataclasses import dataclass

from sparsejit.ir.graph import Array, Value
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8

# Inputs of a sum whose integers int32 surely holds.
_MOST_INPUTS = 2**31 // (LARGEST_INT8 * (LARGEST_INT8 + 1))


@dataclass(frozen=True)
class Quantised:
    """Steps of one scale: those of `source`, or where it is None, of a tensor in the file.

    `shift` is the zero point `zero` among -128 .. 127.
    """

    source: Value | None = None
    scale: float = 1.0
    zero: int = 0
    shift: int = 0


def fits_int8(rows: Array) -> bool:
    """Whether int8 holds weights (out, in) as they are, and int32 their sums."""
    return rows.shape[1] <= _MOST_INPUTS and SparseMatrix(rows).is_whole_steps
