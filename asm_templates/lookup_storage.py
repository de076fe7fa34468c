"""The chunks of a look-up kernel as they lie in the pool, and where its loop finds them.

In order, where the core then reads as fast as it can. Float32 chunks that fill less than half of L2
it reads at 43 bytes a cycle so, larger ones at 58, whatever is prefetched and however often it
slides. Scattered, a line between each and the next, they come at 54:

    slot           0            1            2            3
    lines          ....._       ....._       ....._       ....._      five, and one never read
    chunk          2            0            3            1           by chance
    place of 0     its rows' sums | slot 1 | the slot of the chunk to prefetch by then

512x1024 at 90 % takes 1650 ns instead of 1860, 1024x1024 at 95 % 2010 instead of 2140; from half
of L2 on, and for short weights, scattering loses 2-5 %. Why is not known: steps of any one size,
be it 100 KB, fetch exactly 32 bytes a cycle, so the hardware seems to prefetch every line again.
Without the spare line the gain is a third.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates import permute_storage
from sparsejit.asm_templates.lookup_layout import LANES, STEPS, WINDOW, Chunks
from sparsejit.spec import DType

_Words = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.integer]

LINE = 64

# Fields of a scattered chunk's place, a uint64: the bytes before its rows' sums, and the eights of
# bytes before itself and before the chunk that comes `_AHEAD` later.
CHUNK_BIT, AHEAD_BIT, UNIT = 16, 40, 8
# 6 to 16 do not differ.
_AHEAD = 12
# Neighbours share pages: 90 of 4 KB is all that the first translation cache holds.
_SCATTERED_AMONG = 160


@dataclass(frozen=True)
class Format:
    """How chunks are stored.

    `far`: they stream from beyond L2, so every byte counts, and float32 holds the index in the
    lowest bits of the weight itself. `scattered`: out of order.
    """

    dtype: DType
    far: bool = False
    scattered: bool = False

    @classmethod
    def fitting(cls, dtype: DType, chunks: int, l2_bytes: int) -> "Format":
        """The fastest for so many chunks."""
        pool_bytes = chunks * cls(dtype).chunk_bytes
        small = dtype is DType.FLOAT32 and 2 * pool_bytes <= l2_bytes
        return cls(dtype, far=pool_bytes > l2_bytes, scattered=small)

    @property
    def index_in_weight(self) -> bool:
        return self.far and self.dtype is DType.FLOAT32

    @property
    def index_bytes(self) -> int:
        return 0 if self.index_in_weight else LINE

    @property
    def weight_lines(self) -> int:
        return STEPS if self.dtype is DType.FLOAT32 else STEPS // 2

    @property
    def chunk_bytes(self) -> int:
        return self.index_bytes + self.weight_lines * LINE

    @property
    def place_bytes(self) -> int:
        return 8 if self.scattered else 4


def stored(chunks: Chunks, form: Format) -> tuple[_Words, _Numbers]:
    """The chunks as uint32 (slots, lines, LANES), and the place of each in order of execution.

    A place is uint32, the bytes before its rows' sums, or if scattered uint64 with all fields.
    """
    lines = _packed(chunks, form)
    sums = (chunks.group * LINE).astype(np.uint32)
    if not form.scattered:
        return lines, sums
    count, used, _ = lines.shape
    neighbourhood = np.arange(count) // _SCATTERED_AMONG
    slot = np.lexsort((np.random.default_rng(0).permutation(count), neighbourhood))
    spread = np.zeros((count, used + 1, LANES), np.uint32)
    spread[slot, :used] = lines
    at = slot.astype(np.uint64) * np.uint64((used + 1) * LINE // UNIT)
    later = np.roll(at, -_AHEAD)  # the last ones fetch what the next call begins with
    return spread, sums | at << np.uint64(CHUNK_BIT) | later << np.uint64(AHEAD_BIT)


def _packed(chunks: Chunks, form: Format) -> _Words:
    """The chunks in order: a line of indices unless they lie in the weights, then the weights."""
    in_window = (chunks.inputs % WINDOW).astype(np.uint8)
    if form.index_in_weight:
        return permute_storage.with_index(chunks.weights, in_window, WINDOW.bit_length() - 1)
    # Unpacking brings byte b of lane 4q + s to lane 4q + b of step s.
    quads = in_window.reshape(-1, STEPS, LANES // 4, 4).transpose(0, 2, 1, 3)
    indices = np.ascontiguousarray(quads).reshape(-1, 1, LINE).view(np.uint32)
    steps = permute_storage.stored(chunks.weights.reshape(-1, 1, LANES), form.dtype)
    weights = steps.reshape(-1, form.weight_lines, LANES)
    packed: _Words = np.concatenate([indices, weights], axis=1)
    return packed
