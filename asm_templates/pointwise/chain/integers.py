"""Functions of int64, sixteen or eight lanes of which fill two registers, lower lanes first."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.pointwise.chain.lanes import (
    FIRST_MASK,
    SECOND_MASK,
    extreme_of_longs,
    high_half,
    is_wide,
    join,
    low,
    move,
)
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register

_LAST_BITS = (1 << 11) - 1  # of an int64, more than a double holds
_TRUNCATE, _FLOOR = 11, 9  # of vroundpd, without exception flags

Pair = list[Register]
# Writes a pair (or, of truths and floats, one register) from pairs; may not write over them.
Emit = Callable[[Assembler, list[Register], list[list[Register]], list[Register]], None]


@dataclass(frozen=True)
class PairFunction:
    """A function of pairs that needs so many scratch registers."""

    emit: Emit
    scratch: int = 0


def _both(mnemonic: str) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for half, register in enumerate(d):
            asm.emit(mnemonic, register, *(pair[half] for pair in args))

    return PairFunction(emit)


def _multiply(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a, b in zip(d, *args, strict=True):
        if is_wide(asm):
            asm.emit("vpmullq", register, a, b)
            continue
        # a b modulo 2^64 = low a low b + 2^32 (low a high b + high a low b)
        cross = scratch[0]
        asm.emit("vpsrlq", cross, b, 32)
        asm.emit("vpmuludq", cross, cross, a)
        asm.emit("vpsrlq", register, a, 32)
        asm.emit("vpmuludq", register, register, b)
        asm.emit("vpaddq", cross, cross, register)
        asm.emit("vpsllq", cross, cross, 32)
        asm.emit("vpmuludq", register, a, b)
        asm.emit("vpaddq", register, register, cross)


def _negate(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    zero(asm, scratch[0])
    for register, a in zip(d, args[0], strict=True):
        asm.emit("vpsubq", register, scratch[0], a)


def _compared(wide_predicate: int, narrow: str, swap: bool, invert: bool) -> PairFunction:
    """By a predicate of vpcmpq; or by `narrow`, arguments swapped or the result inverted."""

    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        if is_wide(asm):
            for mask, a, b in zip((FIRST_MASK, SECOND_MASK), *args, strict=True):
                asm.emit("vpcmpq", mask, a, b, wide_predicate)
            asm.emit("kunpckbw", FIRST_MASK, SECOND_MASK, FIRST_MASK)
            asm.emit("vpmovm2d", d[0], FIRST_MASK)
            return
        first, second = reversed(args) if swap else args
        for half, register in enumerate((d[0], scratch[0])):
            asm.emit(narrow, register, first[half], second[half])
        asm.emit("vshufps", d[0], d[0], scratch[0], 0x88)
        asm.emit("vpermq", d[0], d[0], 0xD8)
        if invert:
            asm.emit("vxorps", d[0], d[0], asm.constant(-1))

    return PairFunction(emit, scratch=1)


def _extreme(mnemonic: str) -> PairFunction:
    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for register, a, b in zip(d, *args, strict=True):
            extreme_of_longs(asm, mnemonic, register, a, b, register)

    return PairFunction(emit)


def _square(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    _multiply(asm, d, [args[0], args[0]], scratch)


def _absolute(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a in zip(d, args[0], strict=True):
        if is_wide(asm):
            asm.emit("vpabsq", register, a)
            continue
        zero(asm, register)
        asm.emit("vpcmpgtq", register, register, a)
        asm.emit("vxorps", scratch[0], a, register)
        asm.emit("vpsubq", register, scratch[0], register)


def _where(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    truth, then, otherwise = args[0][0], args[1], args[2]
    if is_wide(asm):
        asm.emit("vpmovd2m", FIRST_MASK, truth)
        asm.emit("kshiftrw", SECOND_MASK, FIRST_MASK, 8)
        for half, mask in enumerate((FIRST_MASK, SECOND_MASK)):
            asm.emit("vpblendmq", d[half].masked(mask), otherwise[half], then[half])
        return
    asm.emit("vpmovsxdq", d[0], low(truth))
    high_half(asm, d[1], truth)
    asm.emit("vpmovsxdq", d[1], low(d[1]))
    for half, register in enumerate(d):
        asm.emit("vblendvpd", register, otherwise[half], then[half], register)


def _to_float(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    halves = (d[0], scratch[0])
    if is_wide(asm):
        for register, a in zip(halves, args[0], strict=True):
            asm.emit("vcvtqq2ps", low(register), a)
        join(asm, d[0], d[0], scratch[0])
        return
    # The lower and the upper 32 bits as the mantissas of doubles: 2^52 + low, 2^84 + 2^63 + high.
    for register, a in zip(halves, args[0], strict=True):
        upper, odd = scratch[1:]
        _rounded_to_odd(asm, odd, a, upper)
        a = odd
        asm.emit("vpsrlq", upper, a, 32)
        asm.emit("vxorps", upper, upper, _longs(asm, 0x4530000080000000))
        asm.emit("vsubpd", upper, upper, _longs(asm, 0x4530000080100000))
        asm.emit("vmovups", register, _longs(asm, 0x4330000000000000))
        asm.emit("vblendps", register, register, a, 0x55)
        asm.emit("vaddpd", register, register, upper)
        asm.emit("vcvtpd2ps", low(register), register)
    join(asm, d[0], d[0], scratch[0])


def _rounded_to_odd(asm: Assembler, d: Register, a: Register, spare: Register) -> None:
    """d = a; beyond 2^53 without its last 11 bits, the lowest bit left telling whether one was set.

    A double holds that, and what is rounded from it to float32 is rounded as if from a.
    """
    asm.emit("vandps", d, a, _longs(asm, _LAST_BITS))
    asm.emit("vpaddq", d, d, _longs(asm, _LAST_BITS))
    asm.emit("vorps", d, d, a)
    asm.emit("vandps", d, d, _longs(asm, ~_LAST_BITS))
    asm.emit("vpaddq", spare, a, _longs(asm, 1 << 53))
    asm.emit("vpsrlq", spare, spare, 54)
    asm.emit("vpcmpgtq", spare, spare, _longs(asm, 0))
    asm.emit("vblendvpd", d, a, d, spare)


def _longs(asm: Assembler, pattern: int) -> Literal:
    return Literal(asm.literal(np.full(4, pattern, np.int64)))


def _from_bool(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    move(asm, scratch[0], args[0][0])
    asm.emit("vpsrld", scratch[0], scratch[0], 31)
    asm.emit("vpmovsxdq", d[0], low(scratch[0]))
    high_half(asm, d[1], scratch[0])
    asm.emit("vpmovsxdq", d[1], low(d[1]))


def _from_float(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    """Towards zero; the smallest int64 where there is none, NaN too, as x86 and torch have it."""
    source = args[0][0]
    for register, is_upper in zip(d, (False, True), strict=True):
        if is_upper:
            high_half(asm, register, source)
        half = low(register if is_upper else source)
        if is_wide(asm):
            asm.emit("vcvttps2qq", register, half)
            continue
        # x = 2^32 upper + rest with upper whole and 0 <= rest < 2^32, all of them exact doubles.
        upper, whole = scratch
        asm.emit("vcvtps2pd", register, half)
        asm.emit("vroundpd", register, register, _TRUNCATE)
        asm.emit("vmulpd", upper, register, _doubles(asm, 2.0**-32))
        asm.emit("vroundpd", upper, upper, _FLOOR)
        asm.emit("vcvttpd2dq", low(whole), upper)
        asm.emit("vmulpd", upper, upper, _doubles(asm, 2.0**32))
        asm.emit("vsubpd", register, register, upper)
        zero(asm, upper)
        asm.emit("vmaxpd", register, register, upper)  # 0 for what is NaN
        asm.emit("vaddpd", register, register, _doubles(asm, 2.0**52))
        asm.emit("vxorps", register, register, _doubles(asm, 2.0**52))
        asm.emit("vpmovsxdq", upper, low(whole))
        asm.emit("vpsllq", upper, upper, 32)
        asm.emit("vpaddq", register, register, upper)


def _doubles(asm: Assembler, number: float) -> Literal:
    return Literal(asm.literal(np.full(4, number)))


INT_FUNCTIONS: dict[str, PairFunction] = {
    "add": _both("vpaddq"),
    "sub": _both("vpsubq"),
    "mul": PairFunction(_multiply, 1),
    "neg": PairFunction(_negate, 1),
    "abs": PairFunction(_absolute, 1),
    "square": PairFunction(_square, 1),
    "maximum": _extreme("vpmaxsq"),
    "minimum": _extreme("vpminsq"),
    "equal": _compared(0, "vpcmpeqq", swap=False, invert=False),
    "not_equal": _compared(4, "vpcmpeqq", swap=False, invert=True),
    "less": _compared(1, "vpcmpgtq", swap=True, invert=False),
    "less_equal": _compared(2, "vpcmpgtq", swap=False, invert=True),
    "greater": _compared(6, "vpcmpgtq", swap=False, invert=False),
    "greater_equal": _compared(5, "vpcmpgtq", swap=True, invert=True),
    "where": PairFunction(_where),
    "to_float32": PairFunction(_to_float, 3),
}
FROM_BOOL = PairFunction(_from_bool, 1)
FROM_FLOAT = PairFunction(_from_float, 2)
