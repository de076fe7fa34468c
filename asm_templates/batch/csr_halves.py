"""float16 products of compressed rows: x to float16 and sums of float16 to y; AVX512-FP16.

    CsrHalves      the code of a pass: scales, x to float16, sums to float32 outputs
    halves_words   weights as words: float16, twice side by side, so that 32 bits spread at once
    halves_ends    each row's factor from a sum to y, and its bias

`vfmadd231ph` multiplies 32 columns at once and rounds each sum to 11 bits. Nothing can overflow,
whatever x is, because powers of two scale both sides:

    x of a column    by 2^-e, with 2^e <= max |x| < 2^(e+1)       below 4 (e is at most 126)
    weights of a row by 2^f, so that their magnitudes add up to   at most 2^13
    sums                                                          at most 2^15, of 65504
    y                = sum * 2^-f * 2^e + bias                    in float32

Elements below 2^-14 of the largest of their column lose digits: each is wrong by 2^-25 of it at
most. A column with NaN or infinity is NaN in every row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_core import PANEL, ScaledInputs
from sparsejit.asm_templates.batch.transpose import MatrixPlace
from sparsejit.asm_templates.shared.int8_inputs import broadcast
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import rounded_matrix
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.x86.operands import Memory, Register, dword, r8, r10

# More inputs could add up, rounding by rounding, to twice the sum of the magnitudes.
MOST_INPUTS = 1 << 15
# Some 30 roundings of a sum, by 2^-11 each, all of them in one direction.
ROUNDING = 2.0**-6
_LARGEST_SUM = 13  # a power of two: of the magnitudes of a row's weights
_SMALLEST = 0x00800000  # bits of 2^-126, and of the largest scale, 2^126
_LARGEST = 0x7E800000
_EXPONENT = 0x7F800000
_BOTH_EXPONENTS = 0x7F000000  # the exponent bits of 2^e and of 2^-e, added
_TO_NEAREST = 0


def _row_exponents(weights: CompressedRows) -> npt.NDArray[np.int64]:
    """Return f of each row: its weights times 2^f add up to at most 2^13, and to over 2^12."""
    magnitudes = np.abs(weights.values.astype(np.float64))
    sums = np.bincount(weights.rows, magnitudes, minlength=weights.shape[0])
    _, exponents = np.frexp(np.where(sums > 0, sums, 1.0))  # sums < 2^exponent
    return _LARGEST_SUM - exponents.astype(np.int64)


def halves_words(matrix: SparseMatrix) -> CompressedRows:
    """Return each weight, rounded to float16 and then scaled with its row, as a word."""
    weights = rounded_matrix(matrix, DType.FLOAT16).nonzeros
    scaled = np.ldexp(weights.values.astype(np.float64), _row_exponents(weights)[weights.rows])
    bits = scaled.astype(np.float16).view(np.uint16).astype(np.uint32)
    return weights.with_values(bits << 16 | bits)


def halves_ends(spec: MatVec, matrix: SparseMatrix) -> npt.NDArray[np.float32]:
    """Return (out_features, 2): each row's factor 2^-f, and its bias."""
    weights = rounded_matrix(matrix, DType.FLOAT16).nonzeros
    ends = np.zeros((spec.out_features, 2), np.float32)
    ends[:, 0] = np.ldexp(1.0, -_row_exponents(weights))
    ends[:, 1] = 0 if spec.bias is None else spec.bias
    return ends


class CsrHalves(ScaledInputs):
    """Appends the float16 code of a pass; two vectors of columns are one vector of float16."""

    least = np.int32(_SMALLEST)

    def scales(self) -> None:
        asm, largest, scale = self.asm, vector(self.asm, 0), vector(self.asm, 1)
        both, reciprocal = vector(self.asm, 2), vector(self.asm, 3)
        broadcast(asm, both, np.int32(_BOTH_EXPONENTS))
        for number in range(self.vectors):
            asm.emit("vmovups", largest, self.reciprocal(number))
            asm.emit("vpminud", scale, largest, asm.constant(_LARGEST))
            asm.emit("vpandd", scale, scale, asm.constant(_EXPONENT))
            asm.emit("vpsubd", reciprocal, both, scale)
            asm.emit("vmovups", self.reciprocal(number), reciprocal)
            asm.emit("vsubps", largest, largest, largest)  # NaN of NaN and infinity, else 0
            asm.emit("vaddps", scale, scale, largest)
            asm.emit("vmovups", self.scale(number), scale)

    def convert(self, source: MatrixPlace, starts: Sequence[int], inputs: int) -> None:
        asm, vectors = self.asm, self.vectors
        reciprocals = [vector(asm, vectors + number) for number in range(vectors)]
        for number, register in enumerate(reciprocals):
            asm.emit("vmovups", register, self.reciprocal(number))
        half_bytes = asm.target.vector_bytes // 2
        asm.emit("lea", r8, Memory(source.base, source.offset))
        with counted_down(asm, dword(r10), inputs):
            for number, start in enumerate(starts):
                value = vector(asm, number)
                asm.emit("vmulps", value, reciprocals[number], Memory(r8, start))
                place = Memory(PANEL, number * half_bytes)
                asm.emit("vcvtps2ph", place, value, _TO_NEAREST)
            asm.emit("add", r8, source.pitch)
            asm.emit("add", PANEL, self.shape.panel_pitch)

    def outputs(self, values: list[Register], row: Register, scratch: list[Register]) -> None:
        asm = self.asm
        factor, bias = scratch[:2]
        asm.emit("vbroadcastss", factor, Memory(row))
        if self.spec.bias is not None:
            asm.emit("vbroadcastss", bias, Memory(row, 4))
        for number, value in enumerate(values):
            asm.emit("vmulps", value, value, factor)
            if self.spec.bias is None:
                asm.emit("vmulps", value, value, self.scale(number))
            else:
                asm.emit("vfmadd132ps", value, bias, self.scale(number))
