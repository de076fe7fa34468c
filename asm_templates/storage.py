"""Weights as they lie in the pool, and how a vector of them becomes an operand of an FMA.

    float32   one vector a line of the pool, read by the FMA itself
    float16   half a line a vector              vcvtph2ps zmm2, [ymmword]
    bfloat16  two vectors a, b share a line, lane by lane; each is the upper half of a float32:

              line    b15.a15 ... b1.a1 b0.a0    32 bits a lane
              a       vpslld zmm2, [line], 16    clears b
              b       vpandd zmm2, zmm3, [line]  clears a; zmm3 holds 0xFFFF0000

One instruction more than float32, then, for half the bytes. `vdpbf16ps` would save it, but it
flushes denormals and rounds x to bfloat16; sums here are those of float32 arithmetic.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.rows import vector
from sparsejit.assembler import Assembler, Line, line
from sparsejit.operands import Memory, Register
from sparsejit.spec import DType

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

WEIGHT, UPPER_HALVES = 2, 3  # registers, where weights are short


@dataclass(frozen=True)
class Storage:
    """How vectors of weights, numbered from 0, are stored and read in one dtype."""

    asm: Assembler
    dtype: DType

    @property
    def weight_bytes(self) -> int:
        return 4 if self.dtype is DType.FLOAT32 else 2

    @property
    def registers(self) -> int:
        """Registers from `WEIGHT` on that unpacking needs."""
        return {DType.FLOAT32: 0, DType.FLOAT16: 1, DType.BFLOAT16: 2}[self.dtype]

    @property
    def whole(self) -> int:
        """Vectors that cannot be stored apart: two in bfloat16."""
        return 2 if self.dtype is DType.BFLOAT16 else 1

    @property
    def displacement_unit(self) -> int:
        """What a one-byte displacement counts in: the operand in EVEX, bytes in VEX."""
        if self.asm.target.isa != "avx512":
            return 1
        return self.asm.target.vector_bytes // (2 if self.dtype is DType.FLOAT16 else 1)

    def place(self, number: IntArray) -> IntArray:
        """Byte offset of the memory operand that holds each vector."""
        row = number // self.whole * self.whole
        return row * self.asm.target.lanes * self.weight_bytes

    def literal(self, vectors: FloatArray) -> int:
        """Put vectors (count, lanes) into the pool, rounded to the dtype."""
        return self.asm.literal(_packed(self.dtype, vectors))

    def start(self) -> None:
        """Set up what unpacking needs beyond the weights."""
        if self.dtype is DType.BFLOAT16:
            upper = vector(self.asm, UPPER_HALVES)
            if self.asm.target.isa == "avx512":
                self.asm.emit("vpternlogd", upper, upper, upper, 0xFF)
            else:
                self.asm.emit("vpcmpeqd", upper, upper, upper)
            self.asm.emit("vpslld", upper, upper, 16)

    def operand(self, number: IntArray, place: Memory) -> tuple[list[Line], Register | Memory]:
        """Lines that unpack the vectors of those numbers, and the FMA's operand after them."""
        if self.dtype is DType.FLOAT32:
            return [], place
        weight = vector(self.asm, WEIGHT)
        if self.dtype is DType.FLOAT16:
            return [line("vcvtph2ps", weight, place)], weight
        first = number % 2 == 0
        upper = line("vpandd", weight, vector(self.asm, UPPER_HALVES), place, when=~first)
        if self.asm.target.isa == "avx512":
            return [line("vpslld", weight, place, 16, when=first), upper], weight
        return [
            line("vmovups", weight, place, when=first),
            line("vpslld", weight, weight, 16, when=first),
            line("vpand", *upper.operands, when=~first),
        ], weight


def _packed(dtype: DType, vectors: FloatArray) -> npt.NDArray[np.generic]:
    if dtype is DType.FLOAT32:
        return vectors
    if dtype is DType.FLOAT16:
        return vectors.astype(np.float16)
    halves = bfloat16_bits(vectors)
    if len(halves) % 2:
        halves = np.concatenate([halves, np.zeros_like(halves[:1])])
    return np.stack([halves[0::2], halves[1::2]], axis=-1)


def bfloat16_bits(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Upper halves of float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    halfway = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return ((bits + halfway) >> np.uint32(16)).astype(np.uint16)
