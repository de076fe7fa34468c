"""Attention in bytes: the shapes that its code depends on, and the constants that it reads."""

from dataclasses import dataclass
from math import e, log2

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.byte_planes import LINE, BytePlanes
from sparsejit.asm_templates.convolution.byte_rows import ByteSteps
from sparsejit.whole_numbers import ceil_div, round_up

FOUR, BLOCK, LANES = 4, 64, 16  # keys or features side by side; columns; floats
TILE_BYTES = FOUR * LINE
_SIGN = 0x80808080
# In steps of scores: the lowest addend of a mask, so that scores of a row whose keys are all masked
# are equal; and the addend of keys beyond the length, which is lower still.
_FORBIDDEN, _MISSING = -1e30, -3e38
_SURELY_NOTHING = 200.0  # 2^-200 is 0
NAMES = (
    *("score", "least", "most", "power", "share", "result"),
    *("key zero", "query zero", "both zeros", "value zero", "zero", "ones", "sign"),
    *("of mask", "nothing", "missing"),
)
PLACE = {name: 4 * number for number, name in enumerate(NAMES)}


@dataclass(frozen=True)
class ByteHeads:
    """Shapes that the code depends on: planes of query, key, value and result, heads, length."""

    planes: tuple[BytePlanes, BytePlanes, BytePlanes, BytePlanes]
    heads: int
    length: int
    is_masked: bool = False

    @property
    def samples(self) -> int:
        return self.planes[0].columns // self.length

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.planes[0].channels // self.heads

    @property
    def blocks(self) -> int:
        return ceil_div(self.length, BLOCK)

    @property
    def keys(self) -> int:
        """Keys of whole blocks; the last block may be longer than the sample."""
        return self.blocks * BLOCK

    @property
    def rows(self) -> int:
        """Keys up to the last one of the sample in interleaved order, a multiple of four."""
        order = _interleaved_order(self.keys)
        return round_up(int(np.flatnonzero(order < self.length)[-1]) + 1, FOUR)

    @property
    def places(self) -> dict[str, int]:
        """Byte offsets of the parts of the scratch, and of its end."""
        sizes = {
            "queries": self.features // FOUR * TILE_BYTES,
            "keys": self.features * self.keys,
            "starts": 4 * self.keys,
            "values": self.features * self.keys,
            "scores": self.keys * TILE_BYTES,
            "shares": self.keys // FOUR * TILE_BYTES,
            "mask": 4 * self.keys * self.is_masked,
        }
        ends = np.cumsum([0, *sizes.values()])
        return dict(zip([*sizes, "end"], ends.tolist(), strict=True))


@dataclass(frozen=True)
class AttentionSteps:
    """Quantisation of the query, the key, the value, scores, shares and the result.

    scale: factor of the scores after they are rounded.
    """

    query: ByteSteps
    key: ByteSteps
    value: ByteSteps
    scores: ByteSteps
    shares: ByteSteps
    result: ByteSteps
    scale: float


def attention_constants(heads: ByteHeads, steps: AttentionSteps) -> npt.NDArray[np.uint8]:
    """Return the code's constants: numbers, a permutation, masks of blocks, addends of scores."""
    key_zero, value_zero = steps.key.zero - 128, steps.value.zero - 128
    power = steps.scores.scale * steps.scale * log2(e)
    floats = {
        "score": steps.query.scale * steps.key.scale / steps.scores.scale,
        "least": -steps.scores.zero,
        "most": 255 - steps.scores.zero,
        "power": power,
        "share": 1 / steps.shares.scale,
        "result": steps.shares.scale * steps.value.scale / steps.result.scale,
    }
    integers = {
        "key zero": -key_zero,
        "query zero": -steps.query.zero,
        "both zeros": heads.features * steps.query.zero * key_zero,
        "value zero": -value_zero,
        "zero": steps.result.zero * 0x10001,
        "ones": 0x01010101,
        "sign": np.uint32(_SIGN).astype(np.int32),
    }
    masks = 1 / (steps.scores.scale * steps.scale), _FORBIDDEN, _MISSING
    words = [np.array([n], np.float32).tobytes() for n in floats.values()]
    words += [np.array([n], np.int32).tobytes() for n in integers.values()]
    words.append(np.array(masks, np.float32).tobytes())
    order = np.arange(16)
    words.append((order % 4 * 4 + order // 4).astype(np.int32).tobytes())
    there = np.arange(heads.keys) < heads.length
    words.append(np.packbits(there, bitorder="little").tobytes())
    far = np.where(there, 0, -(_SURELY_NOTHING / abs(power) + 1024)).astype(np.float32)
    words.append(far[_interleaved_order(heads.keys)].tobytes())
    return np.frombuffer(b"".join(words), np.uint8)


def constant_places(heads: ByteHeads) -> tuple[int, int, int]:
    """Return the byte offsets of the permutation, the masks and the addends of scores."""
    masks = 4 * len(NAMES) + LINE
    return 4 * len(NAMES), masks, masks + heads.keys // 8


def _interleaved_order(columns: int) -> npt.NDArray[np.integer]:
    """Return the column at each place after interleaving, which begins 0 to 3, 16 to 19."""
    places = np.arange(columns).reshape(-1, 4, 4, 4)  # blocks, lanes of 128 bits, fours, columns
    return places.swapaxes(1, 2).reshape(-1)
