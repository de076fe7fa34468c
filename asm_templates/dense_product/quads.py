"""Operands of a dense product in int8: quads of bytes along the depth.

    quads                  converts weights: neighbours on the last axis form a quad of signed bytes
    emit_quantised_rows    quantises A (rows, depth) in a call: neighbours in a row form a quad
    emit_quantised_strip   quantises a strip of B (depth, columns): four rows interleave

`vpdpbusd sum, x, w` adds the four products of each quad of unsigned x and signed weights to the sum
of its lane, in int32. Behind the bytes of a row of A or of a strip of B lie their own scales, if
these are dynamic.
"""


import numpy as np

from sparsejit.asm_templates.batch.transpose import MatrixPlace
from sparsejit.asm_templates.dense_product.pairs import StripColumns
from sparsejit.asm_templates.dense_product.tiling import LARGEST_STRIP, FloatArray, copied_pitch
from sparsejit.asm_templates.gather.int8_boundary import (
    LANES,
    OFFSET,
    output_scales,
    quantised_rows,
    store_quantised,
)
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import set_tail_mask
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DenseProduct, MatVec
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    r8,
    r9,
    r10,
    rax,
    rbx,
    rcx,
    rdi,
    rsp,
    xmm,
    zmm,
)

_RECIPROCAL, _SCALE = zmm(14), zmm(15)
_FREE = [zmm(number) for number in range(14)]
_ROW, _INTO, _LEFT = r9, r10, rbx
_PACKED, _LOADED, _BITS = (zmm(number) for number in range(3))
_FROM, _TO, _LEFT_OF_STRIP = rax, rcx, r8


def _reciprocals(number: int) -> Register:
    """Return the register of the reciprocals of a vector of columns."""
    return zmm(LANES + number)


def scale_offset(depth: int) -> int:
    """Return the offset of a row's own scale behind its bytes."""
    return round_up(depth, LANES)


def quad_pitch(depth: int) -> int:
    """Return the bytes from one row of A and its scale to the next, by `copied_pitch`."""
    return copied_pitch(scale_offset(depth) + 4)


def fits_stack(rows: int, depth: int) -> bool:
    """Whether the bytes of A have room on the stack."""
    return rows * quad_pitch(depth) <= LARGEST_STRIP


def quads(spec: MatVec, matrix: SparseMatrix) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a layer's weights in quads (out, steps), the start of sums (out,), and their ends.

    A float32 of weights has the bits of four int8, one of the start has the bits of an int32. The
    start cancels the offset of x. The ends are the factor of each sum and, with a bias, the bias.
    """
    integers, scales = quantised_rows(matrix)
    padded = np.pad(integers, ((0, 0), (0, -matrix.in_features % 4)))
    words = np.ascontiguousarray(padded).view(np.float32)
    start = -OFFSET * integers.sum(axis=1, dtype=np.int64)
    ends = [output_scales(spec, scales), *([] if spec.bias is None else [spec.bias])]
    return words, start.astype(np.int32).view(np.float32), np.stack(ends)


def emit_quantised_rows(
    asm: Assembler, product: DenseProduct, each: MatVec, into: Register
) -> None:
    """Append code that quantises the rows of A at rdi to `into`, as `each` quantises its x.

    Clobbers r9, r10, rbx and the vector registers.
    """
    pitch, dynamic = quad_pitch(product.depth), each.x_steps is None
    asm.emit("mov", _ROW, rdi)
    asm.emit("mov", _INTO, into)

    def row() -> None:
        store_quantised(asm, each, _INTO, _RECIPROCAL, _SCALE, _FREE)
        if dynamic:
            place = Memory(_INTO, scale_offset(product.depth))
            asm.emit("vmovss", place, xmm(_SCALE.number))
        asm.emit("add", rdi, product.a_pitch)
        asm.emit("add", _INTO, pitch)

    repeat(asm, product.rows, _LEFT, row)
    asm.emit("mov", rdi, _ROW)



def emit_quantised_strip(
    asm: Assembler, product: DenseProduct, each: MatVec, strip: MatrixPlace, columns: StripColumns
) -> None:
    """Append code that quantises a strip of B to rsp, as `each` quantises its x.

    Four rows become a vector of quads for each vector of columns. A depth that is no multiple of
    four ends with zeros. Dynamic scales lie behind the strip, a vector for each vector of columns.
    Clobbers rax, rcx, r8, k7 and the vector registers.
    """
    if columns.lanes_of_last:
        set_tail_mask(asm, columns.lanes_of_last)
    if each.x_steps is None:
        behind = product.steps * columns.vectors * CACHE_LINE_BYTES
        _find_scales(asm, product.depth, strip, columns, behind)
    else:
        for number in range(columns.vectors):
            fixed_reciprocal(asm, each, _reciprocals(number))
    offset = asm.constant(int.from_bytes([OFFSET] * 4, "little", signed=True))
    asm.emit("mov", _FROM, strip.base)
    asm.emit("mov", _TO, rsp)

    def quad(rows: int) -> None:
        for number in range(columns.vectors):
            for row in reversed(range(rows)):
                last = row == rows - 1
                into = _PACKED if last else _LOADED
                columns.load(asm, into, number, row * strip.pitch)
                asm.emit("vmulps", into, into, _reciprocals(number))
                to_int32(asm, each, into)
                clip_negative(asm, each, into)
                if not last:
                    asm.emit("vpslld", _PACKED, _PACKED, 8)
                    asm.emit("vpaddd", _PACKED, _PACKED, _LOADED)
            asm.emit("vpaddd", _PACKED, _PACKED, offset)
            asm.emit("vmovups", Memory(_TO, CACHE_LINE_BYTES * number), _PACKED)
        asm.emit("add", _FROM, rows * strip.pitch)
        asm.emit("add", _TO, CACHE_LINE_BYTES * columns.vectors)

    repeat(asm, product.depth // 4, _LEFT_OF_STRIP, lambda: quad(4))
    if product.depth % 4:
        quad(product.depth % 4)


def _find_scales(
    asm: Assembler, depth: int, strip: MatrixPlace, columns: StripColumns, behind: int
) -> None:
    """Find the scale of each column, `behind` bytes from rsp, and its reciprocal in a register."""
    every = [_reciprocals(number) for number in range(columns.vectors)]
    begin_largest(asm, every, _BITS)
    asm.emit("mov", _FROM, strip.base)

    def row() -> None:
        for number, largest in enumerate(every):
            columns.load(asm, _LOADED, number, 0)
            asm.emit("vandps", _LOADED, _LOADED, _BITS)
            asm.emit("vpmaxud", largest, largest, _LOADED)
        asm.emit("add", _FROM, strip.pitch)

    repeat(asm, depth, _LEFT_OF_STRIP, row)
    for number, largest in enumerate(every):
        emit_scale_of(asm, largest, _LOADED, _PACKED)
        asm.emit("vmovups", Memory(rsp, behind + CACHE_LINE_BYTES * number), _PACKED)
        asm.emit("vmovaps", largest, _LOADED)
