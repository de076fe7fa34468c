"""Functions of int64: sixteen lanes (AVX2: eight) fill a pair of registers, lower lanes first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.asm_templates.pointwise.row_chain.lanes import (
    FIRST_MASK,
    SECOND_MASK,
    doubles,
    extreme_of_longs,
    high_half,
    is_wide,
    join,
    longs,
    low,
    move,
)
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.ir.ops.pointwise import WRAPS
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register

_LAST_BITS = (1 << 11) - 1  # bits of an int64 beyond the precision of a double
_TRUNCATE, _FLOOR = 11, 9  # of vroundpd, without exception flags

Pair = list[Register]
# Writes a pair (or, for a bool or float32 result, one register) from pairs; may not overwrite them.
Emit = Callable[[Assembler, list[Register], list[list[Register]], list[Register]], None]


@dataclass(frozen=True)
class PairFunction:
    """A function of int64 vectors, each a pair of registers: code, and scratch registers needed."""

    emit: Emit
    scratch: int = 0


def both(mnemonic: str) -> PairFunction:
    """The function that is one instruction on each half of its arguments."""

    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        for half, register in enumerate(d):
            asm.emit(mnemonic, register, *(pair[half] for pair in args))

    return PairFunction(emit)


def _multiply(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a, b in zip(d, *args, strict=True):
        _product(asm, register, a, b, scratch[0])


def _product(asm: Assembler, d: Register, a: Register, b: Register, cross: Register) -> None:
    """d = a b. AVX2 clobbers cross; d may be neither factor."""
    if is_wide(asm):
        asm.emit("vpmullq", d, a, b)
        return
    # a b modulo 2^64 = low a low b + 2^32 (low a high b + high a low b)
    asm.emit("vpsrlq", cross, b, 32)
    asm.emit("vpmuludq", cross, cross, a)
    asm.emit("vpsrlq", d, a, 32)
    asm.emit("vpmuludq", d, d, b)
    asm.emit("vpaddq", cross, cross, d)
    asm.emit("vpsllq", cross, cross, 32)
    asm.emit("vpmuludq", d, a, b)
    asm.emit("vpaddq", d, d, cross)


def _negate(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    zero(asm, scratch[0])
    for register, a in zip(d, args[0], strict=True):
        asm.emit("vpsubq", register, scratch[0], a)


def _compared(wide_predicate: int, narrow: str, swap: bool, invert: bool) -> PairFunction:
    """Compare by a predicate of vpcmpq; AVX2 by `narrow`, arguments swapped, result inverted."""

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
        join_truths(asm, d[0], scratch[0])
        if invert:
            asm.emit("vxorps", d[0], d[0], asm.constant(-1))

    return PairFunction(emit, scratch=1)


def join_truths(asm: Assembler, d: Register, upper: Register) -> None:
    """AVX2: d = the truth values of d, in 64-bit lanes, and above them those in `upper`."""
    asm.emit("vshufps", d, d, upper, 0x88)
    asm.emit("vpermq", d, d, 0xD8)


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
    for register, a in zip((d[0], scratch[0]), args[0], strict=True):
        if is_wide(asm):
            asm.emit("vcvtqq2ps", low(register), a)
            continue
        upper, odd = scratch[1:]
        _rounded_to_odd(asm, odd, a, upper)
        _double_of_long(asm, register, odd, upper)
        asm.emit("vcvtpd2ps", low(register), register)
    join(asm, d[0], d[0], scratch[0])


def _to_double(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    for register, a in zip(d, args[0], strict=True):
        _double_of_long(asm, register, a, scratch[0])


def _double_of_long(asm: Assembler, d: Register, a: Register, upper: Register) -> None:
    """d = a in float64, rounded. AVX2 clobbers upper; d may be neither."""
    if is_wide(asm):
        asm.emit("vcvtqq2pd", d, a)
        return
    # The lower and the upper 32 bits as the mantissas of doubles: 2^52 + low, 2^84 + 2^63 + high.
    asm.emit("vpsrlq", upper, a, 32)
    asm.emit("vxorps", upper, upper, _longs(asm, 0x4530000080000000))
    asm.emit("vsubpd", upper, upper, _longs(asm, 0x4530000080100000))
    asm.emit("vmovups", d, _longs(asm, 0x4330000000000000))
    asm.emit("vblendps", d, d, a, 0x55)
    asm.emit("vaddpd", d, d, upper)


def _rounded_to_odd(asm: Assembler, d: Register, a: Register, spare: Register) -> None:
    """d = a; beyond 2^53 the last 11 bits are cleared, and the next is set if one of them was set.

    A double holds d exactly, and d rounded to float32 equals a rounded to float32.
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
    """Append the conversion of float32 to int64, towards zero.

    NaN and numbers out of range give the smallest int64, as in torch.
    """
    source = args[0][0]
    for register, is_upper in zip(d, (False, True), strict=True):
        if is_upper:
            high_half(asm, register, source)
        half = low(register if is_upper else source)
        if is_wide(asm):
            asm.emit("vcvttps2qq", register, half)
        else:
            asm.emit("vcvtps2pd", register, half)
            long_of_double(asm, register, scratch)


def long_of_double(asm: Assembler, d: Register, scratch: list[Register]) -> None:
    """Append code: d = d (float64) as int64, towards zero; the smallest int64 if out of range.

    AVX2 clobbers scratch[:2].
    """
    if is_wide(asm):
        asm.emit("vcvttpd2qq", d, d)
        return
    # d = 2^32 upper + rest with upper whole and 0 <= rest < 2^32, all of them exact doubles.
    upper, whole = scratch
    asm.emit("vroundpd", d, d, _TRUNCATE)
    asm.emit("vmulpd", upper, d, doubles(asm, 2.0**-32))
    asm.emit("vroundpd", upper, upper, _FLOOR)
    asm.emit("vcvttpd2dq", low(whole), upper)
    asm.emit("vmulpd", upper, upper, doubles(asm, 2.0**32))
    asm.emit("vsubpd", d, d, upper)
    zero(asm, upper)
    asm.emit("vmaxpd", d, d, upper)  # NaN becomes 0
    asm.emit("vaddpd", d, d, doubles(asm, 2.0**52))
    asm.emit("vxorps", d, d, doubles(asm, 2.0**52))
    asm.emit("vpmovsxdq", upper, low(whole))
    asm.emit("vpsllq", upper, upper, 32)
    asm.emit("vpaddq", d, d, upper)


def _signs(asm: Assembler, d: Register, a: Register) -> None:
    """Append d = -1 where a is below 0, else 0; d and a must be different registers."""
    if is_wide(asm):
        asm.emit("vpsraq", d, a, 63)
    else:
        zero(asm, d)
        asm.emit("vpcmpgtq", d, d, a)


def _shift_right(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    """Arithmetic shift; a count below 0 or above 63 leaves the sign in every bit."""
    for register, a, count in zip(d, *args, strict=True):
        if is_wide(asm):
            asm.emit("vpsravq", register, a, count)
            continue
        _signs(asm, scratch[0], a)
        asm.emit("vxorps", register, a, scratch[0])
        asm.emit("vpsrlvq", register, register, count)
        asm.emit("vxorps", register, register, scratch[0])


def _wrapped(dtype: Any) -> PairFunction:
    """Return the conversion of int64 to a narrower integer dtype, which keeps the lowest bits.

    The result stays int64.
    """
    limits = np.iinfo(dtype)

    def emit(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
        sign = 0 if limits.min == 0 else 1 << (limits.bits - 1)
        for register, a in zip(d, args[0], strict=True):
            asm.emit("vandps", register, a, longs(asm, (1 << limits.bits) - 1))
            if sign:
                asm.emit("vxorps", register, register, longs(asm, sign))
                asm.emit("vpsubq", register, register, longs(asm, sign))

    return PairFunction(emit)


def _quotient(asm: Assembler, d: Pair, args: list[Pair], scratch: list[Register]) -> None:
    """Append the quotient of int64, rounded towards zero, modulo 2^64; 0 where the divisor is 0.

    The quotient in float64 is off by at most 2^12, and its remainder fits int64. The remainder is
    divided once more; if that rounds up, the last remainder has the wrong sign, and 1 is taken off.
    """
    rest, divisor, *more = scratch
    for quotient, a, b in zip(d, *args, strict=True):
        for turn in range(2):
            part = more[2] if turn else quotient
            _double_of_long(asm, divisor, b, more[0])
            _double_of_long(asm, part, rest if turn else a, more[0])
            asm.emit("vdivpd", part, part, divisor)
            long_of_double(asm, part, more[:2])
            _product(asm, divisor, part, b, more[0])
            asm.emit("vpsubq", rest, rest if turn else a, divisor)
        asm.emit("vpaddq", quotient, quotient, more[2])
        # The quotient is 1 too far from 0 where the remainder is not 0 and differs from a in sign.
        _signs(asm, divisor, a)
        asm.emit("vandps", more[2], rest, divisor)
        asm.emit("vxorps", rest, rest, divisor)
        asm.emit("vpsubq", rest, rest, divisor)
        asm.emit("vandnps", rest, more[2], rest)
        _signs(asm, more[0], b)
        asm.emit("vxorps", divisor, divisor, more[0])
        asm.emit("vorps", divisor, divisor, longs(asm, 1))
        _signs(asm, more[0], rest)
        asm.emit("vandps", divisor, divisor, more[0])
        asm.emit("vpsubq", quotient, quotient, divisor)


INT_FUNCTIONS: dict[str, PairFunction] = {
    "add": both("vpaddq"),
    "sub": both("vpsubq"),
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
    "quotient": PairFunction(_quotient, 5),
    "bitwise_and": both("vandps"),
    "bitwise_or": both("vorps"),
    "bitwise_xor": both("vxorps"),
    "shift_left": both("vpsllvq"),
    "shift_right": PairFunction(_shift_right, 1),
    **{name: _wrapped(dtype) for dtype, name in WRAPS.items()},
    "to_float32": PairFunction(_to_float, 3),
    "to_float64": PairFunction(_to_double, 1),
}
FROM_BOOL = PairFunction(_from_bool, 1)
FROM_FLOAT = PairFunction(_from_float, 2)
