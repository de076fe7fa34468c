"""Tiling of a dense product, and the order of its constant operands in the pool.

    tiling                    strips of columns, and tiles of rows within each
    pack_columns, pack_rows   a constant operand in the order in which the kernel reads it

A tiling:

    strips   `vectors` vectors of C's columns each, the last with the rest
    tiles    rows of A whose sums are in registers at once, of two heights at most

The tiling that should take the fewest cycles is chosen among all that fit the registers, from the
FMA and loads that start in a cycle, and the wait of an FMA for the one before it in the same sum.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.ir.spec import Activation, DenseProduct
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up

UNROLL = 4  # steps of the depth in a turn of the loop
_SUMS_UNDER_WAY = 8  # sums that keep both multipliers busy: an FMA takes four cycles
# Rows of A that are a multiple of 4096 bytes apart lie in the same set of L1, which has 8 ways.
SET_BYTES, _WAYS = 4096, 8
LARGEST_STRIP = 1 << 20  # bytes of stack, of 8 MiB that threads have by default


@dataclass(frozen=True)
class RowTiles:
    """`count` tiles of `height` rows, one after another."""

    count: int
    height: int


@dataclass(frozen=True)
class Tiling:
    """The cutting of C: strips of `vectors` vectors of columns, and in each the tiles of rows.

    `cycles` are expected for the whole product, with operands in L1 or L2.
    """

    vectors: int
    row_tiles: tuple[RowTiles, ...]
    cycles: float


def tiling(spec: DenseProduct, target: Target, packed_a: bool = False) -> Tiling:
    """Return the tiling with the fewest expected cycles; strips of a copied B fit the stack."""
    return _tiling(spec, target.alone, packed_a)


@lru_cache(maxsize=256)  # layers are alike
def _tiling(spec: DenseProduct, target: Target, packed_a: bool) -> Tiling:
    every = ceil_div(spec.columns, target.lanes)
    most = most_sums(target)
    widths = range(1, min(every, most // 2, widest_strip(spec, target)) + 1)
    tilings = (_with_height(spec, target, v, _most_rows(spec, most, v, packed_a)) for v in widths)
    return min(tilings, key=lambda each: each.cycles)


def widest_strip(spec: DenseProduct, target: Target) -> int:
    """Return the most vectors of a strip: if B is copied to the stack, its strips must fit."""
    fitting = LARGEST_STRIP // (spec.steps * target.vector_bytes)
    return fitting if spec.transposed or spec.together > 1 else spec.columns


def most_sums(target: Target) -> int:
    """Return the registers for sums and vectors of B, without A's element and AVX2's mask."""
    return target.vector_registers - (1 if target.isa == "avx512" else 2)


def chains(sums: int, depth: int) -> int:
    """Return the number of partial sums for each of a tile's `sums` sums over the depth."""
    return max(1, min(UNROLL, depth, _SUMS_UNDER_WAY // sums))


def _most_rows(spec: DenseProduct, most: int, vectors: int, packed_a: bool) -> int:
    """Return the most rows of a tile that is `vectors` wide.

    `most` registers hold its sums, a row of B and the activation's scratch.
    """
    scratch = 0 if spec.activation is Activation.NONE else max(0, SCRATCH_PER_VECTOR - 1 - vectors)
    rows = (most - vectors - scratch) // vectors
    in_place = not (packed_a or spec.together > 1 or spec.a_transposed)
    collide = in_place and spec.a_pitch % SET_BYTES == 0
    return min(rows, _WAYS) if collide else rows


def _with_height(spec: DenseProduct, target: Target, vectors: int, most_rows: int) -> Tiling:
    tiles = ceil_div(spec.rows, most_rows)
    height, higher = divmod(spec.rows, tiles)
    both = RowTiles(higher, height + 1), RowTiles(tiles - higher, height)
    row_tiles = tuple(each for each in both if each.count)
    strips, rest = divmod(ceil_div(spec.columns, target.lanes), vectors)
    widths = [(strips, vectors)] * (strips > 0) + [(1, rest)] * (rest > 0)
    cycles = sum(
        strips * each.count * _tile_cycles(each.height, width, spec, target)
        for strips, width in widths
        for each in row_tiles
    )
    return Tiling(vectors, row_tiles, cycles)


def _tile_cycles(height: int, vectors: int, spec: DenseProduct, target: Target) -> float:
    depth = spec.steps
    sums, loops, prices = height * vectors, target.core.loops, target.core.layouts
    products = prices.pair_products if spec.pairs else prices.products[target.isa]
    waiting = 0.5 * _SUMS_UNDER_WAY / chains(sums, depth)
    step = max(sums / products, (height + vectors) / prices.loads, waiting)
    far = loops.far_load * vectors + loops.far_element[target.isa] * height
    adding = 0.0 if spec.added_pitch is None else sums / prices.loads
    return depth * (step + far) + 2 * sums + adding + loops.tile


FloatArray = npt.NDArray[np.float32]


def copied_pitch(row_bytes: int) -> int:
    """Return the bytes from one copied row of A to the next: whole cache lines.

    Consecutive rows begin in different sets of the cache.
    """
    line = CACHE_LINE_BYTES
    lines = round_up(row_bytes, line)
    return lines + line * (lines % SET_BYTES == 0)


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant operand as one stream, in the product's tiles or strips.

    `biased`: each of these begins with its bias, or the start of its sums. `in_register`: the
    operand's register holds its address, because it is one of several. `ends`: the rows behind each
    strip, or columns behind each tile, that turn sums into outputs.
    """

    stream: FloatArray
    biased: bool
    in_register: bool = False
    ends: int = 0


def pack_columns(
    weights: FloatArray,
    bias: FloatArray | None,
    tiles: Tiling,
    target: Target,
    ends: FloatArray | None = None,
) -> Packed:
    """Pack B (depth, columns): by strip the bias (columns,), then row after row, padded with zeros.

    The rows of `ends` follow. A last strip of fewer vectors is stored in that width.
    """
    lanes = target.lanes
    parts = [None if bias is None else bias[None], weights, ends]
    rows = np.concatenate([part for part in parts if part is not None])
    vectors = ceil_div(rows.shape[1], lanes)
    padded = np.zeros((len(rows), vectors * lanes), np.float32)
    padded[:, : rows.shape[1]] = rows
    strips = [
        padded[:, first * lanes : (first + tiles.vectors) * lanes].ravel()
        for first in range(0, vectors, tiles.vectors)
    ]
    count = 0 if ends is None else len(ends)
    return Packed(np.concatenate(strips), bias is not None, ends=count)


def pack_rows(
    weights: FloatArray, bias: FloatArray | None, tiles: Tiling, ends: FloatArray | None = None
) -> Packed:
    """Pack A (rows, depth): by tile the bias (rows,), then column after column, then the `ends`."""
    every = [None if bias is None else bias[:, None], weights, None if ends is None else ends.T]
    columns = np.concatenate([part for part in every if part is not None], axis=1)
    parts, first = [], 0
    for each in tiles.row_tiles:
        for _ in range(each.count):
            parts.append(columns[first : first + each.height].T.ravel())
            first += each.height
    return Packed(np.concatenate(parts), bias is not None, ends=0 if ends is None else len(ends))
