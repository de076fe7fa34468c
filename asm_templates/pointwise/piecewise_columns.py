"""Polynomials of columns of x on intervals, in float64.

    for each row, for each output     i = the number of bounds below x, by bisection
                                      t = x - origin[i]
                                      y = (c_d[i] t + ...) t + c_0[i], or a given number for NaN

The loop over outputs reads a record of each: the place of its x, its bounds, its pieces. So the
code is as short for a thousand outputs as for one.
"""

from dataclasses import dataclass, field

import numpy as np

from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    dword,
    r8,
    r9,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)

_FLOAT, _DOUBLE = 4, 8
# A record: byte offsets of x, of the first bound and of the first piece, the number of bounds, and
# the bits of the number for NaN.
_X, _BOUNDS, _PIECES, _COUNT, _MISSING = range(0, 5 * _DOUBLE, _DOUBLE)
_RECORD_BYTES = 5 * _DOUBLE


@dataclass(frozen=True, eq=False)
class Pieces:
    """The sizes and constant operands of a `PiecewiseColumns`.

    Raises InvalidInput unless each column has its ascending bounds, one column after another.
    """

    rows: int
    features: int
    x_bytes: int
    y_bytes: int
    columns: Array
    begins: Array
    bounds: Array
    pieces: Array
    missing: Array
    counts: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        counts = np.diff(self.begins)
        if self.begins[0] or self.begins[-1] != len(self.bounds) or (counts < 0).any():
            raise InvalidInput(
                f"columns have bounds from {self.begins.tolist()} on; give begins that ascend from "
                f"0 to {len(self.bounds)}"
            )
        inner = np.setdiff1d(np.arange(1, len(self.bounds)), self.begins)
        if not (self.bounds[inner] > self.bounds[inner - 1]).all():
            raise InvalidInput("bounds of a column do not ascend; give ascending ones")
        object.__setattr__(self, "counts", counts)

    @property
    def instructions(self) -> int:
        """Instructions of a row."""
        turns = int(np.ceil(np.log2(self.counts + 1)).sum())
        return turns * 8 + len(self.columns) * (12 + 2 * self.pieces.shape[1])

    @property
    def records(self) -> Array:
        """The records of all columns, int64 (outputs, 5)."""
        piece_bytes = _DOUBLE * self.pieces.shape[1]
        firsts = self.begins[:-1]
        pieces = piece_bytes * (firsts + np.arange(len(firsts)))
        bits = self.missing.astype(np.float64).view(np.int64)
        parts = self.x_bytes * self.columns, _DOUBLE * firsts, pieces, self.counts, bits
        return np.stack(parts, axis=1).astype(np.int64)


def emit_piecewise_columns(asm: Assembler, spec: Pieces) -> None:
    """Append all rows. rdi: x; rsi: y. Clobbers these, rax, rcx, rdx, r8 to r11, xmm0 to xmm2."""
    records, bounds, pieces = (
        asm.literal(array) for array in (spec.records, np.append(spec.bounds, 0.0), spec.pieces)
    )

    def row() -> None:
        asm.emit("lea", r8, Literal(records))
        with counted_down(asm, dword(r11), len(spec.columns)):
            _column(asm, spec, bounds, pieces)
        asm.emit("add", rdi, spec.x_bytes * spec.features)

    repeat(asm, spec.rows, r10, row)


def _column(asm: Assembler, spec: Pieces, bounds: int, pieces: int) -> None:
    x, y = xmm(0), xmm(1)
    missing, done = asm.label("missing"), asm.label("done")
    asm.emit("mov", rax, Memory(r8, _X))
    asm.emit("add", rax, rdi)
    if spec.x_bytes == _FLOAT:
        asm.emit("vmovss", x, Memory(rax))
        asm.emit("vcvtss2sd", x, x, x)
    else:
        asm.emit("vmovsd", x, Memory(rax))
    asm.emit("vucomisd", x, x)
    asm.jump("jp", missing)
    asm.emit("lea", r9, Literal(bounds))
    asm.emit("add", r9, Memory(r8, _BOUNDS))
    _search(asm)
    asm.emit("imul", rax, rax, _DOUBLE * spec.pieces.shape[1])
    asm.emit("lea", r9, Literal(pieces))
    asm.emit("add", r9, Memory(r8, _PIECES))
    asm.emit("add", r9, rax)
    _polynomial(asm, spec.pieces.shape[1])
    asm.jump("jmp", done)
    asm.bind(missing)
    asm.emit("vmovsd", y, Memory(r8, _MISSING))
    asm.bind(done)
    if spec.y_bytes == _FLOAT:
        asm.emit("vcvtsd2ss", y, y, y)
    asm.emit("vmovsd" if spec.y_bytes == _DOUBLE else "vmovss", Memory(rsi), y)
    asm.emit("add", rsi, spec.y_bytes)
    asm.emit("add", r8, _RECORD_BYTES)


def _search(asm: Assembler) -> None:
    """Set rax to the number of bounds at r9 below xmm0; changes rcx and rdx."""
    low, high, middle = rax, rcx, rdx
    again, above, end = map(asm.label, ("again", "above", "end"))
    asm.emit("xor", dword(low), dword(low))
    asm.emit("mov", high, Memory(r8, _COUNT))
    asm.bind(again)
    asm.emit("cmp", low, high)
    asm.jump("jae", end)
    asm.emit("lea", middle, Memory(low, 0, high, 1))
    asm.emit("shr", middle, 1)
    asm.emit("vucomisd", xmm(0), Memory(r9, 0, middle, _DOUBLE))
    asm.jump("ja", above)
    asm.emit("mov", high, middle)
    asm.jump("jmp", again)
    asm.bind(above)
    asm.emit("lea", low, Memory(middle, 1))
    asm.jump("jmp", again)
    asm.bind(end)


def _polynomial(asm: Assembler, numbers: int) -> None:
    """Set xmm1 to the polynomial at r9 of the x in xmm0; changes xmm0."""
    y, t = xmm(1), xmm(0)
    asm.emit("vmovsd", y, Memory(r9, _DOUBLE * (numbers - 1)))
    if numbers == 1:
        return
    asm.emit("vsubsd", t, t, Memory(r9))
    for place in range(numbers - 2, 0, -1):
        asm.emit("vfmadd213sd", y, t, Memory(r9, _DOUBLE * place))
