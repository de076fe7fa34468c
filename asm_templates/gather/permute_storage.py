"""Storage of the permute kernels' weights and indices in the pool."""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.storage import bfloat16_bits
from sparsejit.ir.spec import DType

_Words = npt.NDArray[np.uint32]
_Floats = npt.NDArray[np.float32]


def stored(weights: _Floats, dtype: DType) -> _Words:
    """Return weights (steps, fold, lanes) as vectors of the pool; short ones, two steps a vector.

    float16: one step after the other. bfloat16: an even step's weight is the lower half of a
    lane, an odd step's the upper, so that a shift or a mask makes either a float32.
    """
    if dtype is DType.FLOAT32:
        return weights.view(np.uint32)
    steps, fold, lanes = weights.shape
    even: _Floats = np.zeros((steps + steps % 2, fold, lanes), np.float32)
    even[:steps] = weights
    in_turn = dtype is DType.FLOAT16
    halves = even.astype(np.float16).view(np.uint16) if in_turn else bfloat16_bits(even)
    pairs = halves.reshape(-1, 2, fold, lanes).transpose((0, 2, 1, 3) if in_turn else (0, 2, 3, 1))
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1, fold, lanes)


def with_index(weights: _Floats, index: npt.NDArray[np.integer], bits: int) -> _Words:
    """Return the floats nearest to the weights whose lowest `bits` bits are the index.

    A weight changes by at most 2**(bits - 24) of itself. Zeros, and weights hardly above the
    denormals, become exact zeros: their index is lost, so they multiply an arbitrary input.
    """
    period = 1 << bits
    words = weights.view(np.uint32).astype(np.int64)
    nearest = (words - index + period // 2) // period * period + index
    finite = np.where(nearest & 0x7F800000 == 0x7F800000, nearest - period, nearest)
    normal = np.abs(weights) >= 2 * np.finfo(np.float32).tiny
    return np.where(normal, finite, 0).astype(np.uint32)
