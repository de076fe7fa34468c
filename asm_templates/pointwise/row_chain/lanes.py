"""Building blocks of vector functions, with one interface for AVX2 and AVX-512.

A truth value fills its 32-bit lane: all ones or all zeros.
"""

from typing import overload

import numpy as np

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Operand, Register, k, xmm, ymm

FIRST_MASK, SECOND_MASK = k(1), k(2)
_ORDERED = 7  # predicate of vcmpps: neither is NaN


def is_wide(asm: Assembler) -> bool:
    """Whether vectors have 64 bytes and k registers hold truth values."""
    return asm.target.isa == "avx512"


def same(first: Operand, second: Operand) -> bool:
    """Whether both are one register."""
    if not isinstance(first, Register) or not isinstance(second, Register):
        return False
    return int(first.number) == int(second.number)


def move(asm: Assembler, destination: Register, source: Operand) -> None:
    """destination = source: a register, or a constant as `Assembler.constant` gives it."""
    if isinstance(source, Literal) and source.broadcast:
        # The first lane of an xmm register will do: see `narrowed`.
        mnemonic = "vmovss" if destination.kind == "xmm" else "vbroadcastss"
        asm.emit(mnemonic, destination, Literal(source.offset))
    elif isinstance(source, Literal):
        asm.emit("vmovups", destination, source)
    elif not same(destination, source):
        asm.emit("vmovaps", destination, source)


def bits(asm: Assembler, pattern: int) -> Literal:
    """A vector operand with this 32-bit pattern in every lane."""
    return asm.constant(int(np.array(pattern, np.uint32).astype(np.int32)))


def extreme_of_longs(
    asm: Assembler,
    mnemonic: str,
    destination: Register,
    first: Register,
    second: Register,
    spare: Register,
) -> None:
    """destination = vpmaxsq or vpminsq of two. AVX2 clobbers spare, which may be destination."""
    if is_wide(asm):
        asm.emit(mnemonic, destination, first, second)
        return
    asm.emit("vpcmpgtq", spare, *((first, second) if mnemonic == "vpmaxsq" else (second, first)))
    asm.emit("vblendvpd", destination, second, first, spare)


def longs(asm: Assembler, value: float) -> Literal:
    """A vector operand with this int64 in every 64-bit lane."""
    values = np.full(asm.target.lanes // 2, int(value), np.int64)
    return Literal(asm.literal(values))


def doubles(asm: Assembler, value: float) -> Literal:
    """A vector operand with this float64 in every 64-bit lane."""
    return Literal(asm.literal(np.full(asm.target.lanes // 2, value)))


def low(register: Register, kind: str = "half") -> Register:
    """The lower half of a vector register, or its lowest quarter of a zmm (`kind` xmm)."""
    if kind == "xmm" or register.kind == "ymm":
        return xmm(register.number)
    return ymm(register.number)


@overload
def narrowed(operand: Register) -> Register: ...
@overload
def narrowed(operand: Operand) -> Operand: ...
def narrowed(operand: Operand) -> Operand:
    """Return the operand's lowest 128 bits."""
    if isinstance(operand, Literal):
        return Literal(operand.offset, 4 if operand.broadcast else 0)
    return xmm(operand.number) if isinstance(operand, Register) else operand


def high_half(asm: Assembler, destination: Register, source: Register) -> None:
    """The lower half of destination = the upper half of source."""
    mnemonic = "vextractf32x8" if is_wide(asm) else "vextractf128"
    asm.emit(mnemonic, low(destination), source, 1)


def join(asm: Assembler, destination: Register, first: Register, second: Register) -> None:
    """destination = the lower half of first, and above it the lower half of second."""
    mnemonic = "vinsertf32x8" if is_wide(asm) else "vinsertf128"
    asm.emit(mnemonic, destination, first, low(second), 1)


def compare(
    asm: Assembler, destination: Register, first: Register, second: Operand, predicate: int
) -> None:
    """destination = truth of a comparison of floats, by a predicate of vcmpps."""
    if is_wide(asm):
        asm.emit("vcmpps", FIRST_MASK, first, second, predicate)
        asm.emit("vpmovm2d", destination, FIRST_MASK)
    else:
        asm.emit("vcmpps", destination, first, second, predicate)


def select(
    asm: Assembler, destination: Register, truth: Register, then: Operand, otherwise: Register
) -> None:
    """destination = then where truth (its lanes' signs) holds, else otherwise."""
    if is_wide(asm):
        asm.emit("vpmovd2m", FIRST_MASK, truth)
        asm.emit("vblendmps", destination.masked(FIRST_MASK), otherwise, then)
    else:
        asm.emit("vblendvps", destination, otherwise, then, truth)


def extreme(
    asm: Assembler, mnemonic: str, destination: Register, arguments: list[Operand], spare: Register
) -> None:
    """destination = a maximum or minimum of two, NaN where either is NaN. AVX2 clobbers spare.

    `mnemonic` ends with ps or pd.
    """
    first, second = arguments
    compared = f"vcmp{mnemonic[-2:]}"
    if not is_wide(asm):
        assert isinstance(first, Register)
        asm.emit(compared, spare, first, first, 3)  # unordered: first is NaN
        asm.emit(mnemonic, destination, first, second)
        asm.emit("vorps", destination, destination, spare)
        return
    if same(destination, second):
        first, second = second, first
    move(asm, destination, first)
    # The second source is the result where either is NaN; a NaN in the first is kept by the mask.
    asm.emit(compared, FIRST_MASK, destination, destination, _ORDERED)
    asm.emit(mnemonic, destination.masked(FIRST_MASK), destination, second)
