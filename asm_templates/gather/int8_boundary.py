"""Conversion between float32 and int8: x and weights to -127 .. 127, int32 sums to outputs.

    emit_scale, emit_integers   x to integers
    emit_output                 int32 sums to outputs
    start_sums, finish_block_rows   sums of a vector of outputs each, in several chains
    quantised_rows              weights as signed bytes; their int32 sums cannot overflow
    output_scales               the factors of sums

The formulas:

    q = round(x / scale)            `shared.int8_inputs` has the scale
    y = sum * scale * scale of the row + bias

Dynamic: a first pass over x finds the largest magnitude. NaN in x is the largest and makes the
scale and every output NaN. An infinity makes every output infinite or NaN, depending on the kernel:
for batches `csr` gives NaN where `rows` may give an infinity. With a fixed scale, values beyond 127
times the scale are clipped, and NaN counts as the largest.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.int8_inputs import (
    PACKED_ORDER,
    begin_largest,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    pack_to_bytes,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import counted_up
from sparsejit.errors import InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, MatVec
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, rax, rdi, rsi, xmm

# Swaps of a vector's halves, then of quarters, down to single lanes: mnemonic, sources, order.
_SWAPS = {
    "avx512": (
        ("vshufi64x2", 2, 0x4E), ("vshufi64x2", 2, 0xB1), ("vpshufd", 1, 0x4E), ("vpshufd", 1, 0xB1)
    ),
    "avx2": (("vpermq", 1, 0x4E), ("vpshufd", 1, 0x4E), ("vpshufd", 1, 0xB1)),
}  # fmt: skip
LANES = 16  # outputs of a block row, or of a vector of sums, with AVX-512
OFFSET = 128  # added to x to make it unsigned
SCALE_SCRATCH = 6  # registers that `emit_scale` clobbers


def emit_scale(
    asm: Assembler, spec: MatVec, reciprocal: Register, scale: Register, scratch: list[Register]
) -> None:
    """Append code for the scale of x in all lanes: `reciprocal` and, if it is dynamic, `scale`.

    A dynamic scale takes a pass over x at rdi.
    """
    if spec.x_steps is not None:
        fixed_reciprocal(asm, spec, reciprocal)
        return
    *largest, magnitude_bits, loaded = scratch[:SCALE_SCRATCH]
    begin_largest(asm, largest, magnitude_bits)
    for number, first in enumerate(range(0, spec.in_features, asm.target.lanes)):
        _load_bits(asm, spec, first, loaded, magnitude_bits)
        sink = largest[number % len(largest)]
        asm.emit("vpmaxud", sink, sink, loaded)
    over_lanes(asm, "vpmaxud", largest)
    emit_scale_of(asm, largest[0], reciprocal, scale)


def emit_integers(
    asm: Assembler,
    spec: MatVec,
    register: Register,
    first: int,
    reciprocal: Register,
    index: Register | None = None,
) -> None:
    """register = x[first : first + lanes] over its scale, int32, zeros past the end of x.

    Never above 127, and below -127 only with a fixed scale, for which the caller clips. In a loop
    `first` counts from the element that `index` has reached.
    """
    lanes = asm.target.lanes
    if first >= spec.in_features:
        rows.zero(asm, register)
        return
    if first + lanes <= spec.in_features:
        place = Memory(rdi, 4 * first) if index is None else Memory(rdi, 4 * first, index, 4)
        asm.emit("vmulps", register, reciprocal, place)
    else:
        rows.load(asm, register, rdi, first, spec.in_features, register)
        asm.emit("vmulps", register, reciprocal, register)
    to_int32(asm, spec, register)


def store_quantised(
    asm: Assembler,
    spec: MatVec,
    into: Register,
    reciprocal: Register,
    scale: Register,
    scratch: list[Register],
    offset: int = OFFSET,
    met: Callable[[Register, int], None] | None = None,
) -> None:
    """Write x at rdi as bytes (q + offset) to `into`, up to a multiple of the lanes, in order.

    Bytes past the end of x have an x of 0. `scale` as from `emit_scale`. `met` may append code for
    each vector of q, int32, and its number of elements; it must keep the vector. AVX2 clobbers rax.
    """
    emit_scale(asm, spec, reciprocal, scale, scratch[:SCALE_SCRATCH])
    lanes = asm.target.lanes

    def integers(part: Register, first: int, index: Register | None = None) -> None:
        emit_integers(asm, spec, part, first, reciprocal, index)
        clip_negative(asm, spec, part)
        if met is not None:
            met(part, lanes if index else min(lanes, spec.in_features - first))
        if offset:
            asm.emit("vpaddd", part, part, asm.constant(offset))

    done = 0
    if asm.target.isa == "avx2":
        done = spec.in_features // _LANES_A_TURN * _LANES_A_TURN
        _store_in_turns(asm, done, into, scratch, integers, signed=not offset)
    part, upper = scratch[0], xmm(scratch[1].number)
    for first in range(done, spec.in_features, lanes):
        integers(part, first)
        if asm.target.isa == "avx512":
            asm.emit("vpmovdb", Memory(into, first), part)
            continue
        lower = xmm(part.number)
        asm.emit("vextracti128", upper, part, 1)
        asm.emit("vpackssdw", lower, lower, upper)
        asm.emit("vpackuswb" if offset else "vpacksswb", lower, lower, lower)
        asm.emit("vmovq", Memory(into, first), lower)


_LANES_A_TURN = 32


def _store_in_turns(
    asm: Assembler,
    count: int,
    into: Register,
    scratch: list[Register],
    integers: Callable[[Register, int, Register | None], None],
    signed: bool,
) -> None:
    """Write the first `count` inputs to `into` in a loop, four vectors of `integers` a turn."""
    if not count:
        return
    parts, order = scratch[:4], scratch[4]
    asm.emit("vmovdqu", order, Literal(asm.literal(PACKED_ORDER)))
    asm.emit("xor", dword(rax), dword(rax))
    with counted_up(asm, rax, _LANES_A_TURN, count):
        for number, part in enumerate(parts):
            integers(part, asm.target.lanes * number, rax)
        pack_to_bytes(asm, parts, signed)
        asm.emit("vpermd", parts[0], order, parts[0])
        asm.emit("vmovdqu", Memory(into, 0, rax), parts[0])


def emit_output(
    asm: Assembler,
    spec: MatVec,
    register: Register,
    operands: Iterator[Memory | Literal],
    scale: Register,
    scratch: Register,
) -> None:
    """register = sums (int32) times scales plus bias, float32.

    `operands` are the vector of `output_scales`, then the vector of the bias, if there
    is one, or one number of each in all lanes; `scale` as from `emit_scale`.
    """
    dynamic = spec.x_steps is None
    asm.emit("vcvtdq2ps", register, register)
    if spec.bias is None:
        asm.emit("vmulps", register, register, next(operands))
        if dynamic:
            asm.emit("vmulps", register, register, scale)
        return
    if dynamic:
        asm.emit("vmulps", register, register, next(operands))
    else:
        factor = next(operands)
        load = "vbroadcastss" if factor.broadcast else "vmovups"
        asm.emit(load, scratch, factor._replace(broadcast=0))
    asm.emit("vfmadd213ps", register, scale if dynamic else scratch, next(operands))


def start_sums(
    asm: Assembler, block_rows: npt.NDArray[np.int8], chains: int, first_sum: int
) -> None:
    """Start the sums of block rows (rows, lanes, inputs) so that they cancel the offset of x.

    Each block row has `chains` sums, in registers `first_sum` and later, chain after chain; all but
    the first chain start at 0.
    """
    starts = -OFFSET * block_rows.sum(axis=2, dtype=np.int64)
    for position, start in enumerate(starts):
        place = Literal(asm.literal(start.astype(np.int32)))
        asm.emit("vmovups", rows.vector(asm, first_sum + position), place)
    for position in range(len(starts), chains * len(starts)):
        rows.zero(asm, rows.vector(asm, first_sum + position))


def finish_block_rows(
    asm: Assembler,
    spec: MatVec,
    scales: npt.NDArray[np.float32],
    block_rows: npt.NDArray[np.integer],
    chains: int,
    first_sum: int,
    scale: Register,
    scratch: list[Register],
) -> None:
    """Add up the sums of `start_sums`, turn these into outputs, and store them at rsi.

    `scales`: the factors of all outputs, padded to whole block rows; `scale` as from `emit_scale`.
    """
    count, lanes = len(block_rows), asm.target.lanes
    sums = [rows.vector(asm, first_sum + position) for position in range(count)]
    for position in range(count, chains * count):
        total = sums[position % count]
        asm.emit("vpaddd", total, total, rows.vector(asm, first_sum + position))
    for register, block_row in zip(sums, block_rows.tolist(), strict=True):
        emit_output(asm, spec, register, _factors(asm, spec, scales, block_row), scale, scratch[0])
    apply_activation(asm, spec.activation, sums, scratch)
    for register, block_row in zip(sums, block_rows.tolist(), strict=True):
        rows.store(asm, register, rsi, lanes * block_row, spec.out_features, scratch[0])


def _factors(
    asm: Assembler, spec: MatVec, scales: npt.NDArray[np.float32], block_row: int
) -> Iterator[Literal]:
    """Yield the scales of a block row, then its biases if there are any."""
    lanes = asm.target.lanes
    first = lanes * block_row
    yield Literal(asm.literal(scales[first : first + lanes]))
    if spec.bias is not None:
        own = np.zeros(lanes, np.float32)
        part = spec.bias[first : first + lanes]
        own[: len(part)] = part
        yield Literal(asm.literal(own))


def _load_bits(
    asm: Assembler, spec: MatVec, first: int, register: Register, magnitude_bits: Register
) -> None:
    """register = the bits of |x[first : first + lanes]|."""
    if first + asm.target.lanes <= spec.in_features:
        asm.emit("vandps", register, magnitude_bits, Memory(rdi, 4 * first))
    else:
        rows.load(asm, register, rdi, first, spec.in_features, register)
        asm.emit("vandps", register, magnitude_bits, register)


def over_lanes(asm: Assembler, combine: str, registers: list[Register]) -> None:
    """All lanes of the first register = all lanes of all registers, combined. Clobbers the rest."""
    total, other, *rest = registers
    for register in (other, *rest):
        asm.emit(combine, total, total, register)
    for mnemonic, sources, order in _SWAPS[asm.target.isa]:
        asm.emit(mnemonic, other, *[total] * sources, order)
        asm.emit(combine, total, total, other)


_LARGEST_SUM = 2**31 - 1


def quantised_rows(
    matrix: SparseMatrix,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return weights (out, in) as int8 and each row's scale (out,); see `quantised_nonzeros`."""
    integers, scales = quantised_nonzeros(matrix)
    return integers.dense(), scales


def quantised_nonzeros(matrix: SparseMatrix) -> tuple[CompressedRows, npt.NDArray[np.float32]]:
    """Return the weights that are not 0 as int8, and the scale of each row (out,).

    `reference` defines both. Raises InvalidInput naming a row for which some x overflows an int32
    sum.
    """
    scales, nonzeros = matrix.int8_steps, matrix.nonzeros
    integers = np.rint(nonzeros.values / scales[nonzeros.rows]).astype(np.int8)
    sums = LARGEST_INT8 * nonzeros.sums_by_row(np.abs(integers)).astype(np.int64)
    worst = int(sums.argmax())
    if sums[worst] > _LARGEST_SUM:
        raise InvalidInput(
            f"weights[{worst}] has {matrix.row_counts[worst]} nonzeros whose int8 products can "
            f"sum to {sums[worst]}, more than int32 holds; prune the row or use another dtype"
        )
    return nonzeros.with_values(integers), scales


def int8_sums(
    matrix: SparseMatrix,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the scale of each row, and the sum of its weights as int8; both (out,)."""

    def made() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        integers, scales = quantised_nonzeros(matrix)
        return scales, integers.sums_by_row(integers.values).astype(np.int64)

    return matrix.memoised("int8 sums", made)


def output_scales(spec: MatVec, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return each row's factor from an int32 sum to an output.

    It includes the scale of x only if that is fixed; a dynamic one is known when the kernel runs.
    """
    return scales if spec.x_steps is None else scales * np.float32(spec.x_steps.scale)
