"""Products of columns of x, and rows divided by their norms, in float64.

    products   y[j] = x[a] x[b] ..., the factors by number; one without factors is 1
    norms      y = x / sum |x|, x / sqrt(sum x x), or x / max |x|; a row of zeros stays as it is

Both loops read one number at a time. A record of a product has the byte offset of each factor, and
-1 behind the last.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    r9,
    r10,
    r11,
    rax,
    rdi,
    rsi,
    xmm,
)

_DOUBLE = 8
NORMS = ("l1", "l2", "max")


@dataclass(frozen=True, eq=False)
class ColumnFactors:
    """`rows` of x with `features` float64; `factors` int64 (outputs, degree), -1 for none."""

    rows: int
    features: int
    factors: Array


def emit_column_products(asm: Assembler, spec: ColumnFactors) -> None:
    """Append code for all rows. rdi: x; rsi: y. Clobbers these, rax, r8, r10, r11 and xmm0."""
    offsets = np.where(spec.factors < 0, -1, _DOUBLE * spec.factors).astype(np.int64)
    records = asm.literal(offsets)
    one = asm.literal(np.ones(1), _DOUBLE)
    outputs, degree = spec.factors.shape

    def row() -> None:
        asm.emit("lea", r8, Literal(records))
        with counted_down(asm, dword(r11), outputs):
            done = asm.label("done")
            asm.emit("vmovsd", xmm(0), Literal(one))
            for place in range(degree):
                asm.emit("mov", rax, Memory(r8, _DOUBLE * place))
                asm.emit("test", rax, rax)
                asm.jump("js", done)
                asm.emit("vmulsd", xmm(0), xmm(0), Memory(rdi, 0, rax, 1))
            asm.bind(done)
            asm.emit("vmovsd", Memory(rsi), xmm(0))
            asm.emit("add", r8, _DOUBLE * degree)
            asm.emit("add", rsi, _DOUBLE)
        asm.emit("add", rdi, _DOUBLE * spec.features)

    repeat(asm, spec.rows, r10, row)


def emit_row_norms(asm: Assembler, rows: int, features: int, norm: str) -> None:
    """Append code for all rows. rdi: x; rsi: y. Clobbers these, r9 to r11 and xmm0 to xmm3."""
    total, value, sign, zero = map(xmm, range(4))
    mask = np.array([2**63 - 1, 2**63 - 1], np.int64)

    def add() -> None:
        if norm == "l2":
            asm.emit("vfmadd231sd", total, value, value)
            return
        asm.emit("vandpd", value, value, sign)
        asm.emit("vaddsd" if norm == "l1" else "vmaxsd", total, total, value)

    def divide() -> None:
        asm.emit("vdivsd", value, value, total)
        asm.emit("vmovsd", Memory(rsi), value)
        asm.emit("add", rsi, _DOUBLE)

    def row() -> None:
        asm.emit("vmovupd", sign, Literal(asm.literal(mask)))
        asm.emit("vxorpd", total, total, total)
        _each(asm, features, value, add)
        if norm == "l2":
            asm.emit("vsqrtsd", total, total, total)
        some = asm.label("some")
        asm.emit("vxorpd", zero, zero, zero)
        asm.emit("vucomisd", total, zero)
        asm.jump("jne", some)
        asm.emit("vmovsd", total, Literal(asm.literal(np.ones(1), _DOUBLE)))
        asm.bind(some)
        _each(asm, features, value, divide)
        asm.emit("add", rdi, _DOUBLE * features)

    repeat(asm, rows, r10, row)


def _each(asm: Assembler, features: int, value: Register, body: Callable[[], None]) -> None:
    """Append a loop over a row of x, which loads each number into `value` and runs `body`."""
    asm.emit("mov", r9, rdi)
    with counted_down(asm, dword(r11), features):
        asm.emit("vmovsd", value, Memory(r9))
        body()
        asm.emit("add", r9, _DOUBLE)
