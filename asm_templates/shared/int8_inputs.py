"""Quantisation of float32 to int8 and to bytes: the steps that all kernels share, to the same bits.

    q = round(x / scale)            scale = max |x| / 127
    q = round(x / scale) + shift    with the spec's `x_steps`; shift is the zero point

The largest magnitude is found by comparing the bits of floats as integers, in which order NaN is
the largest. See `ir.reference.quantised_input`. Unsigned bytes are clip(round(x / scale) + zero).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE, MatVec
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import VECTOR_BYTES, Literal, Memory, Register, xmm

_MAGNITUDE_BITS = np.int32(0x7FFFFFFF)


def broadcast(
    asm: Assembler, register: Register, value: np.generic | npt.NDArray[np.int8]
) -> None:
    """Every 32-bit lane of register = `value`, four bytes in the pool."""
    asm.emit("vbroadcastss", register, Literal(asm.literal(np.asarray(value), 4)))


def begin_largest(asm: Assembler, sinks: list[Register], magnitude_bits: Register) -> None:
    """Set up the comparison of magnitudes: the mask of their bits, and sinks at the least scale."""
    broadcast(asm, magnitude_bits, _MAGNITUDE_BITS)
    for sink in sinks:
        broadcast(asm, sink, np.float32(SMALLEST_SCALE))


def emit_scale_of(
    asm: Assembler, largest: Register, reciprocal: Register, scale: Register
) -> None:
    """scale, reciprocal = the scale of x and 1 / scale, from the largest magnitude in each lane.

    `scale` may be `largest`.
    """
    broadcast(asm, reciprocal, np.float32(LARGEST_INT8))
    asm.emit("vdivps", reciprocal, reciprocal, largest)
    asm.emit("vmulps", scale, largest, asm.constant(1 / LARGEST_INT8))


def fixed_reciprocal(asm: Assembler, spec: MatVec, register: Register) -> None:
    """register = 1 over the spec's own scale."""
    assert spec.x_steps is not None
    broadcast(asm, register, np.float32(1) / np.float32(spec.x_steps.scale))


def to_int32(asm: Assembler, spec: MatVec, register: Register) -> None:
    """register = x over its scale, rounded and shifted, not above 127; NaN becomes 127.

    Only a fixed scale without a shift gives results below the least integer: see `clip_negative`.
    """
    shift = spec.zero_point
    if spec.x_steps is not None:
        asm.emit("vminps", register, register, asm.constant(float(LARGEST_INT8 - shift)))
    if shift:  # numbers far below would wrap around
        asm.emit("vmaxps", register, register, asm.constant(float(spec.least_integer - shift)))
    asm.emit("vcvtps2dq", register, register)
    if shift:
        asm.emit("vpaddd", register, register, asm.constant(shift))


def clip_negative(asm: Assembler, spec: MatVec, register: Register) -> None:
    """register = int32 results, raised to the least integer if the scale is fixed."""
    if spec.x_steps is not None:
        asm.emit("vpmaxsd", register, register, asm.constant(spec.least_integer))


def pack_to_bytes(asm: Assembler, parts: Sequence[Register], signed: bool = True) -> None:
    """The first of four vectors of int32 = the integers of all, as bytes.

    Clobbers the third.
    """
    first, second, third, fourth = parts
    asm.emit("vpackssdw", first, first, second)
    asm.emit("vpackssdw", third, third, fourth)
    asm.emit("vpacksswb" if signed else "vpackuswb", first, first, third)


# The order of the dwords that `pack_to_bytes` makes of four ymm registers, as `vpermd` reads it.
PACKED_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int32)


class ByteRounding(NamedTuple):
    """Registers that round float32 to unsigned bytes, with a constant in every lane.

    `reciprocal`: 1 over the scale; `largest`: the bound of x over its scale, which fits an int32;
    `zero_point`: int32; `empty`: zeros.
    """

    reciprocal: Register
    largest: Register
    zero_point: Register
    empty: Register

    def round(self, asm: Assembler, value: Register, x: Register | Memory) -> None:
        """value = x rounded to int32, which may lie below 0 or above 255."""
        self.scale(asm, value, x)
        asm.emit("vminps", value, value, self.largest)
        asm.emit("vcvtps2dq", value, value)
        asm.emit("vpaddd", value, value, self.zero_point)

    def scale(self, asm: Assembler, value: Register, x: Register | Memory) -> None:
        """value = x over its scale."""
        asm.emit("vmulps", value, self.reciprocal, x)

    def store(self, asm: Assembler, into: Memory, value: Register, x: Register) -> None:
        """Store x as 16 bytes, or the bytes of the mask of `into`. Clobbers `value`."""
        self.round(asm, value, x)
        asm.emit("vpmaxsd", value, value, self.empty)
        asm.emit("vpmovusdb", into, value)

    def store_narrow(
        self, asm: Assembler, into: Memory, value: Register, x: Register | Memory, count: int = 8
    ) -> None:
        """Store the first `count` of eight x as bytes, with AVX2. Clobbers `value` and `empty`.

        The packs cut integers as `store` does: below 0, and above 255.
        """
        low, high = xmm(value.number), xmm(self.empty.number)
        self.round(asm, value, x)
        asm.emit("vextracti128", high, value, 1)
        asm.emit("vpackssdw", low, low, high)
        asm.emit("vpackuswb", low, low, low)
        store_bytes(asm, into, value, count)

    def store_four(
        self,
        asm: Assembler,
        into: Memory,
        parts: Sequence[Register],
        x: Sequence[Memory],
        order: Register,
    ) -> None:
        """Store four vectors of x as 32 bytes, with AVX2. Clobbers `parts`.

        `order` has `PACKED_ORDER`. The packs cut integers as `store` does.
        """
        for value, place in zip(parts, x, strict=True):
            self.round(asm, value, place)
        pack_to_bytes(asm, parts, signed=False)
        asm.emit("vpermd", parts[0], order, parts[0])
        asm.emit("vmovdqu", into, parts[0])


class DividingRounding(ByteRounding):
    """The same with the scale in place of 1 over it: x is divided, as ONNX does."""

    def scale(self, asm: Assembler, value: Register, x: Register | Memory) -> None:
        if isinstance(x, Memory):
            asm.emit("vmovups", value, x)
            x = value
        asm.emit("vdivps", value, x, self.reciprocal)


_STORES = {16: "vmovdqu", 8: "vmovq", 4: "vpextrd", 2: "vpextrw", 1: "vpextrb"}


def store_bytes(asm: Assembler, into: Memory, value: Register, count: int) -> None:
    """Store the first `count` bytes of a ymm register with AVX2, and no others. Clobbers it."""
    if count == VECTOR_BYTES["ymm"]:
        asm.emit("vmovdqu", into, value)
        return
    low, place, taken = xmm(value.number), 0, 0
    for size, store in _STORES.items():
        if not count & size:
            continue
        at = into._replace(displacement=into.displacement + place)
        asm.emit(store, at, low, *([taken // size] if size < 8 else []))
        place, taken = place + size, taken + size
        if size == 16 and count > place:
            asm.emit("vextracti128", low, value, 1)
            taken = 0
