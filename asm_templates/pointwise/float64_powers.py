"""Yeo-Johnson powers of columns, in float64.

    t = |x|, a = the power of the sign of x
    L = log1p(t) = log(u) t / (u - 1) with u = 1 + t
    log(u) = e ln 2 + 2 s (1 + s^2 / 3 + s^4 / 5 + ...), u = 2^e m, s = (m - 1) / (m + 1)
    y = L for a = 0, else expm1(a L) / a, with the sign of x
    expm1(v) = 2^n expm1(r) + 2^n - 1, v = n ln 2 + r

Series are cut where terms fall below the last bit of float64. ln 2 has two parts, the first with
zeros at its end, so that products with whole numbers are exact.
"""

from collections.abc import Sequence
from math import factorial, log, sqrt

import numpy as np

from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.ir.values import Array
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rsi,
    xmm,
)

_DOUBLE = 8
_ONE_BITS, _FRACTION_BITS = 0x3FF0_0000_0000_0000, 52
_HIGH = float.fromhex("0x1.62e42feep-1")
_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG_TERMS = [2 / (2 * place + 1) for place in range(12)]
_EXP_TERMS = [1 / factorial(place + 1) for place in range(14)]
_LEAST, _MOST = -700.0, 709.0  # exponents: below, expm1 is -1; float32 is infinite long before


def emit_powers(asm: Assembler, rows: int, powers: Array) -> None:
    """Append code for all rows; `powers` (columns, 2) are for x >= 0 and for x < 0.

    rdi: x; rsi: y. Clobbers these, rax, rcx, r8, r10, r11 and xmm0 to xmm5.
    """
    writer = _PowerCode(asm)
    table = asm.literal(np.ascontiguousarray(powers, np.float64))

    def row() -> None:
        asm.emit("lea", r8, Literal(table))
        with counted_down(asm, dword(r11), len(powers)):
            writer.column()
            asm.emit("add", rdi, _DOUBLE)
            asm.emit("add", rsi, _DOUBLE)
            asm.emit("add", r8, 2 * _DOUBLE)

    repeat(asm, rows, r10, row)


class _PowerCode:
    """Appends the code for one number: x at rdi, its powers at r8, y at rsi.

    Before y is stored, its place holds bits of intermediate results.
    """

    def __init__(self, asm: Assembler) -> None:
        self._asm = asm

    def column(self) -> None:
        asm, t, a, zero = self._asm, xmm(0), xmm(1), xmm(5)
        below, chosen, end = map(asm.label, ("below", "chosen", "end"))
        asm.emit("vmovsd", t, Memory(rdi))
        asm.emit("vxorpd", zero, zero, zero)
        asm.emit("vucomisd", t, t)
        asm.jump("jp", end)
        asm.emit("vmovsd", a, Memory(r8))
        asm.emit("vucomisd", t, zero)
        asm.jump("jb", below)
        asm.jump("jmp", chosen)
        asm.bind(below)
        asm.emit("vmovsd", a, Memory(r8, _DOUBLE))
        asm.emit("vsubsd", t, zero, t)
        asm.bind(chosen)
        self._log1p()
        self._power()
        asm.emit("vucomisd", zero, Memory(rdi))
        asm.jump("jbe", end)
        asm.emit("vsubsd", t, zero, t)
        asm.bind(end)
        asm.emit("vmovsd", Memory(rsi), t)

    def _log1p(self) -> None:
        """xmm0 = log1p(xmm0); changes xmm2 to xmm4, rax and rcx."""
        asm, t, u, m = self._asm, xmm(0), xmm(2), xmm(3)
        small, end = asm.label("small"), asm.label("end of the logarithm")
        asm.emit("vaddsd", u, t, self._number(1.0))
        asm.emit("vsubsd", m, u, self._number(1.0))
        asm.emit("vucomisd", m, xmm(5))
        asm.jump("je", end)
        asm.emit("vdivsd", t, t, m)
        asm.emit("vmovsd", Memory(rsi), u)
        asm.emit("mov", rax, Memory(rsi))
        asm.emit("mov", rcx, _ONE_BITS)
        asm.emit("sub", rax, rcx)
        asm.emit("mov", rcx, rax)
        asm.emit("shr", rax, _FRACTION_BITS)
        asm.emit("vcvtsi2sd", xmm(4), xmm(4), rax)
        asm.emit("shl", rcx, 64 - _FRACTION_BITS)
        asm.emit("shr", rcx, 64 - _FRACTION_BITS)
        asm.emit("mov", rax, _ONE_BITS)
        asm.emit("add", rcx, rax)
        asm.emit("mov", Memory(rsi), rcx)
        asm.emit("vmovsd", m, Memory(rsi))
        asm.emit("vucomisd", m, self._number(sqrt(2)))
        asm.jump("jbe", small)
        asm.emit("vmulsd", m, m, self._number(0.5))
        asm.emit("vaddsd", xmm(4), xmm(4), self._number(1.0))
        asm.bind(small)
        self._log_of_fraction()
        asm.bind(end)

    def _log_of_fraction(self) -> None:
        """xmm0 *= xmm4 ln 2 + log(xmm3); changes rax, xmm2 and xmm3."""
        asm, s, z = self._asm, xmm(3), xmm(2)
        asm.emit("vaddsd", z, s, self._number(1.0))
        asm.emit("vsubsd", s, s, self._number(1.0))
        asm.emit("vdivsd", s, s, z)
        asm.emit("vmulsd", z, s, s)
        asm.emit("vmovsd", Memory(rsi), s)
        self._series(s, z, _LOG_TERMS)
        asm.emit("vmulsd", s, s, Memory(rsi))
        asm.emit("vfmadd231sd", s, xmm(4), self._number(_LOW))
        asm.emit("vfmadd231sd", s, xmm(4), self._number(_HIGH))
        asm.emit("vmulsd", xmm(0), xmm(0), s)

    def _power(self) -> None:
        """xmm0 = expm1(a xmm0) / a for a in xmm1, which may be 0; changes xmm2 to xmm4 and rax."""
        asm, v, a, n, p, scale = self._asm, xmm(0), xmm(1), xmm(2), xmm(3), xmm(4)
        end = asm.label("end of the power")
        asm.emit("vucomisd", a, xmm(5))
        asm.jump("je", end)
        asm.emit("vmulsd", v, v, a)
        asm.emit("vmaxsd", v, v, self._number(_LEAST))
        asm.emit("vminsd", v, v, self._number(_MOST))
        asm.emit("vmulsd", n, v, self._number(1 / log(2)))
        asm.emit("vroundsd", n, n, n, 8)
        asm.emit("vfnmadd231sd", v, n, self._number(_HIGH))
        asm.emit("vfnmadd231sd", v, n, self._number(_LOW))
        self._series(p, v, _EXP_TERMS)
        asm.emit("vmulsd", p, p, v)
        asm.emit("vcvtsd2si", rax, n)
        asm.emit("shl", rax, _FRACTION_BITS)
        asm.emit("mov", rcx, _ONE_BITS)
        asm.emit("add", rax, rcx)
        asm.emit("mov", Memory(rsi), rax)
        asm.emit("vmovsd", scale, Memory(rsi))
        asm.emit("vsubsd", v, scale, self._number(1.0))
        asm.emit("vfmadd231sd", v, p, scale)
        asm.emit("vdivsd", v, v, a)
        asm.bind(end)

    def _series(self, total: Register, x: Register, terms: Sequence[float]) -> None:
        """total = terms[0] + terms[1] x + ... ."""
        asm, (*others, last) = self._asm, terms
        asm.emit("vmovsd", total, self._number(last))
        for term in reversed(others):
            asm.emit("vfmadd213sd", total, x, self._number(term))

    def _number(self, value: float) -> Literal:
        return Literal(self._asm.literal(np.array([value]), _DOUBLE))
