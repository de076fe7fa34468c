"""Storage of a look-up kernel's chunks in the pool.

    ....._....._....._      float32 in less than half of L2: a line after each chunk is never read

So chunks arrive faster (`padding`; runs of three are no faster still, because look-ups are the
limit then). From half of L2 on, and for short weights, padding gains nothing. Figures:
docs/kernels/gather.md.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather import permute_storage
from sparsejit.asm_templates.gather.lookup_layout import LANES, STEPS, WINDOW, Chunks
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target

_Words = npt.NDArray[np.uint32]

LINE = 64


@dataclass(frozen=True)
class Format:
    """The storage format of chunks.

    `far`: they stream from beyond L2, so every byte counts, and float32 holds the index in the
    lowest bits of the weight itself. `padded`: a padding line follows each.
    """

    dtype: DType
    far: bool = False
    padded: bool = False

    @classmethod
    def fitting(cls, dtype: DType, chunks: int, target: Target) -> "Format":
        """Return the fastest format for `chunks` chunks."""
        pool_bytes = chunks * cls(dtype).chunk_bytes
        small = dtype is DType.FLOAT32 and 2 * pool_bytes <= target.l2_bytes
        padded = small and target.core.padding
        return cls(dtype, far=pool_bytes > target.l2_bytes, padded=padded)

    @property
    def index_in_weight(self) -> bool:
        return self.far and self.dtype is DType.FLOAT32

    @property
    def weight_lines(self) -> int:
        return STEPS if self.dtype is DType.FLOAT32 else STEPS // 2

    @property
    def lines(self) -> int:
        """Lines of a chunk that are read."""
        return self.weight_lines + (0 if self.index_in_weight else 1)

    @property
    def chunk_bytes(self) -> int:
        """Bytes from one chunk to the next."""
        return self.padding.room(self.lines) * LINE

    @property
    def padding(self) -> StridePadding:
        """Stride padding of the lines of all chunks."""
        return StridePadding(self.lines, self.lines + 1) if self.padded else DENSE


def stored(chunks: Chunks, form: Format) -> _Words:
    """Return the chunks as uint32 (chunks, lines, LANES).

    A chunk is a line of indices, unless they lie in the weights, then the weights.
    """
    in_window = (chunks.inputs % WINDOW).astype(np.uint8)
    if form.index_in_weight:
        return permute_storage.with_index(chunks.weights, in_window, WINDOW.bit_length() - 1)
    # Unpacking brings byte b of lane 4q + s to lane 4q + b of step s.
    quads = in_window.reshape(-1, STEPS, LANES // 4, 4).transpose(0, 2, 1, 3)
    indices = np.ascontiguousarray(quads).reshape(-1, 1, LINE).view(np.uint32)
    steps = permute_storage.stored(chunks.weights.reshape(-1, 1, LANES), form.dtype)
    weights = steps.reshape(-1, form.weight_lines, LANES)
    return form.padding.spread(np.concatenate([indices, weights], axis=1))
