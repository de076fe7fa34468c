"""Blocks of four inputs and four consecutive outputs: four partial sums side by side.

A vector holds the four columns of a block; AVX2 takes two at a time:

    weights    w00 w10 w20 w30 | w01 w11 w21 w31 | w02 ...  | w03 ...     w[output, input]
    x           x0  x0  x0  x0 |  x1  x1  x1  x1 |  x2 ...  |  x3 ...
    sums  +=   of outputs 0..3 | of outputs 0..3 | ...      | ...         added up at the end

The inputs of a block are visited in turn; accumulators of a tile's outputs stay in registers:

    vbroadcastf32x4 zmm0, [rdx+4*input]       x[input .. input+3], four times     7 bytes, 1 load
    vpermilps       zmm0, zmm0, zmm2          each of the four in four lanes      6 bytes
    vfmadd231ps     zmm31, zmm0, [rcx+64*n]   a block of outputs 0..3             7 bytes, 1 load
    vfmadd231ps     zmm30, zmm0, [rcx+64*n]   a block of outputs 4..7

A last window of fewer than four inputs is loaded under a mask.
docs/kernels/broadcast.md explains its bounds.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared.loops import fetch_redirects
from sparsejit.asm_templates.shared.masks import set_mask
from sparsejit.asm_templates.shared.padding import stride_padding
from sparsejit.asm_templates.shared.rows import finish_rows, vector, zero
from sparsejit.asm_templates.shared.storage import (
    UNPACKING_REGISTERS,
    ByteArray,
    Storage,
    addresses,
    stored_dtype,
)
from sparsejit.asm_templates.shared.tiles import BoolArray, FloatArray, IntArray, Tile, add_chains
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    k,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)

BLOCK_ROWS = 4
SUMS = 8  # independent accumulators at least: an FMA takes 4 cycles and two start in each
LAST_INPUTS = k(1)
_FIRST_FREE = 2  # register behind x and a whole line; registers to unpack weights come first


@dataclass(frozen=True, eq=False)
class _FoursTile:
    """Block rows (four outputs each) that are summed at once, and their blocks in order of use.

    For each block, `window` is its window of four inputs (AVX2: two), `block_row` its block row,
    counted from the tile's first; `lines` are the weights.
    """

    tile: Tile
    window: IntArray
    block_row: IntArray
    lines: ByteArray


@dataclass(frozen=True, eq=False)
class Fours:
    """A layer as tiles of straight-line code."""

    spec: MatVec
    storage: Storage
    tiles: list[_FoursTile]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Expected counts: blocks that hold a nonzero, and the inputs that each tile loads for them."""
    used = _block_mask(matrix, target)
    weights = int(used.sum()) * target.lanes
    stored = stored_dtype("broadcast-4x4", spec.dtype, 4 * weights, target)
    height = _tile_height(target, stored)
    inputs = sum(used[at : at + height].any(axis=0).sum() for at in range(0, len(used), height))
    work = Work("broadcast-4x4", int(used.sum() + inputs))
    return Counts.of(matrix, target, stored, work, weights * WEIGHT_BYTES[stored], padded=True)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> Fours:
    """Lower all outputs, in tiles whose block rows fill the accumulators."""
    counts = expect(spec, matrix, target)
    padding = stride_padding(counts.pool_bytes, target)
    storage = Storage(target, counts.stored, padding, spec.dtype)
    used, height = _block_mask(matrix, target), _tile_height(target, counts.stored)
    weights, lowered = _blocks(matrix, target), []
    for first in range(0, len(used), height):
        own = used[first : first + height]
        window, block_row = np.nonzero(own.T)
        chains = min(ceil_div(SUMS, len(own)), height // len(own))
        lines = storage.lines(weights[first + block_row, window])
        lowered.append(_FoursTile(Tile(first, len(own), chains), window, block_row, lines))
    return Fours(spec, storage, lowered, counts)


def emit(asm: Assembler, lowered: Fours) -> None:
    """Append the kernel for blocks of 4x4; see `families` for the contract."""
    spec, storage = lowered.spec, lowered.storage
    columns = _columns(asm.target)
    lanes = np.arange(asm.target.lanes, dtype=np.int32)
    order = Literal(asm.literal(lanes // BLOCK_ROWS))
    if asm.target.isa == "avx512":
        present = lanes % columns < spec.in_features % columns
        set_mask(asm, LAST_INPUTS, int((present << lanes).sum()))
    for part in lowered.tiles:
        for accumulator in part.tile.registers(asm):
            zero(asm, accumulator)
        storage.start(asm)
        asm.emit("vmovups", _order(asm, storage), order)
        last = part.window == spec.in_features // columns
        _multiply(asm, storage, part, _inputs(asm, storage, part.window, last))
        _finish(asm, spec, part.tile)


def _columns(target: Target) -> int:
    """Return the inputs of a block of four outputs that fills a vector: four, or two with AVX2."""
    return target.lanes // BLOCK_ROWS


def _block_mask(matrix: SparseMatrix, target: Target) -> BoolArray:
    """Mask of blocks with a nonzero, (block rows, windows of inputs); whole vectors of outputs."""
    columns = _columns(target)
    mask = matrix.block_mask(BLOCK_ROWS)
    mask = np.pad(mask, ((0, -len(mask) % columns), (0, -mask.shape[1] % columns)))
    return np.any(mask.reshape(len(mask), -1, columns), axis=2)


def _blocks(matrix: SparseMatrix, target: Target) -> FloatArray:
    """Weights (block rows, windows, lanes), with zeros beyond the last output and input."""
    columns = _columns(target)
    missing = -matrix.out_features % target.lanes, -matrix.in_features % columns
    weights = np.pad(matrix.dense, tuple((0, each) for each in missing))
    blocks = weights.reshape(-1, BLOCK_ROWS, weights.shape[1] // columns, columns)
    return blocks.transpose(0, 2, 3, 1).reshape(len(blocks), -1, target.lanes)


def _tile_height(target: Target, dtype: DType) -> int:
    """Block rows of a tile: whole vectors of outputs."""
    free = target.vector_registers - _FIRST_FREE - UNPACKING_REGISTERS[dtype] - 1
    return free // _columns(target) * _columns(target)


def _order(asm: Assembler, storage: Storage) -> Register:
    """Return the register that selects each lane's input, the control of vpermilps."""
    return vector(asm, _FIRST_FREE + storage.registers)


def _inputs(asm: Assembler, storage: Storage, window: IntArray, last: BoolArray) -> list[Line]:
    """Register 0 = each input of a window in four lanes, before its first block.

    `last`: the window has fewer inputs than others.
    """
    evex, columns = asm.target.isa == "avx512", _columns(asm.target)
    inputs = addresses(4 * columns * window, 16 if evex else 1)
    first = np.diff(window, prepend=-1) != 0
    x, place = vector(asm, 0), Memory(rdx, inputs.displacement)
    if evex:
        load, load_part, partly = "vbroadcastf32x4", "vbroadcastf32x4", x.masked(LAST_INPUTS, True)
    else:
        load, load_part, partly = "vbroadcastsd", "vmovss", xmm(0)
    return [
        line("lea", rdx, Memory(rdi, inputs.base), when=inputs.moves),
        line(load, x, place, when=first & ~last),
        line(load_part, partly, place, when=first & last),
        line("vpermilps", x, x, _order(asm, storage), when=first),
    ]


def _multiply(asm: Assembler, storage: Storage, part: _FoursTile, inputs: list[Line]) -> None:
    count, pool = len(part.window), storage.literal(asm, part.lines)
    number = np.arange(count)
    weights = addresses(storage.place(number), storage.displacement_unit)
    unpack, operand = storage.operand(asm, number, Memory(rcx, weights.displacement), True)
    chain = np.cumsum(np.diff(part.window, prepend=-1) != 0) % part.tile.chains
    accumulator = part.tile.accumulator(asm, part.block_row, chain)
    asm.stamp(
        count,
        [
            fetch_redirects(count, asm.target),
            line("lea", rcx, Literal(pool + weights.base), when=weights.moves),
            *inputs,
            *unpack,
            line("vfmadd231ps", accumulator, vector(asm, 0), operand),
        ],
    )


def _finish(asm: Assembler, spec: MatVec, tile: Tile) -> None:
    """Add up the parts of each sum, add the bias, apply the activation and store the outputs."""
    add_chains(asm, tile)
    columns = _columns(asm.target)
    sums = tile.registers(asm)[: tile.groups]
    while len(sums) > tile.groups // columns:
        sums = [_add_parts(asm, *sums[at : at + 2]) for at in range(0, len(sums), 2)]
    first = tile.first * BLOCK_ROWS
    if spec.bias is not None:
        own = spec.bias[first : first + len(sums) * asm.target.lanes]
        bias = asm.literal(np.pad(own, (0, -len(own) % asm.target.lanes)))
        for number, total in enumerate(sums):
            place = Literal(bias + number * asm.target.vector_bytes)
            asm.emit("vaddps", total, total, place)
    held = {total.number for total in sums}
    free = [n for n in range(asm.target.vector_registers) if n not in held]
    finish_rows(asm, spec, sums, first, rsi, [vector(asm, number) for number in free])


def _add_parts(asm: Assembler, a: Register, b: Register) -> Register:
    """a = sums of neighbouring 128-bit parts of a, then of b. Clobbers register 0."""
    evens = vector(asm, 0)
    if a.kind == "zmm":
        shuffle, even, odd = "vshuff32x4", 0x88, 0xDD
    else:
        shuffle, even, odd = "vperm2f128", 0x20, 0x31
    asm.emit(shuffle, evens, a, b, even)
    asm.emit(shuffle, a, a, b, odd)
    asm.emit("vaddps", a, a, evens)
    return a
