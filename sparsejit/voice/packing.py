"""Pruned matrices in a file: one bit a weight, and the values that are not zero."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.whole_numbers import ceil_div

Array = npt.NDArray[Any]

# Suffixes of the tensors of a packed matrix: bits in row-major order, eight a byte, the first the
# highest; and the values where a bit is set, in the same order.
BITS, VALUES = ".bits", ".values"


def pack(name: str, matrix: Array) -> dict[str, Array]:
    """Return the tensors to store: the packed form, or the matrix itself where that is smaller."""
    kept = matrix != 0
    packed = {name + BITS: np.packbits(kept), name + VALUES: matrix[kept]}
    size = sum(tensor.nbytes for tensor in packed.values())
    return packed if size < matrix.nbytes else {name: matrix}


def unpack(name: str, bits: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Return the matrix `name` from its packed form; InvalidInput if that does not fit `shape`."""
    elements = int(np.prod(shape))
    if bits.dtype != np.uint8 or bits.shape != (ceil_div(elements, 8),):
        raise InvalidInput(f"{name + BITS} has shape {bits.shape}, {bits.dtype}, for {shape}")
    kept = np.unpackbits(bits, count=elements).astype(bool)
    if values.shape != (np.count_nonzero(kept),):
        raise InvalidInput(
            f"{name + VALUES} has shape {values.shape}, not ({np.count_nonzero(kept)},)"
        )
    matrix = np.zeros(shape, values.dtype)
    matrix[kept.reshape(shape)] = values
    return matrix
