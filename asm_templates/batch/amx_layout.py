"""Layout of int8 weights in the tiles of AMX, and the counts of their product.

A tile of weights is 16 outputs by 64 inputs, 1 KiB. Two tiles of outputs, or the last one, make a
strip; a step of a strip is 64 inputs for which the strip has a nonzero weight. Each strip has a
list of steps, with the offsets of their inputs in the tiles of x.

    feature-major   weights are the left factor: row = output, 64 inputs in order
    batch-major     weights are the right factor: row = four inputs, of each of 16 outputs; in the
                    order in which packing leaves x (`byte_of_input`)

*Dense* tiles are stored whole. If they do not fit L2 they are *compressed*, a bit a weight and the
bytes that are not zero, and expanded when needed: SparAMX (AbouElhamayed et al. 2025).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather.int8_boundary import output_scales, quantised_rows
from sparsejit.asm_templates.gather.int8_layout import byte_of_input
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.routines import LARGEST_WORKSPACE

ROWS, ROW_BYTES = 16, 64
TILE_BYTES = ROWS * ROW_BYTES
STRIP_TILES = 2
MOST_INPUTS = 1 << 14  # 16 columns of x and an expanded strip then take 768 KiB of stack
# The share of L2 that tiles of x may take: strips of weights and y pass through it besides. They
# take no more than half a workspace either, an expanded strip the other half.
_X_SHARE = 1 / 4

_Bytes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class TileCounts:
    """Work of one call of the AMX kernel, for its price.

    For each of `chunks` chunks of at most `chunk_columns` columns of x, all strips together take
    `steps` steps of 64 inputs, which read `weight_tiles` tiles. `stored_bytes` are bytes of
    weights.
    """

    target: Target
    spec: MatMul
    steps: int
    weight_tiles: int
    chunk_columns: int
    compressed: bool
    stored_bytes: int

    @property
    def chunks(self) -> int:
        return ceil_div(self.spec.batch, self.chunk_columns)


@dataclass(frozen=True, eq=False)
class LoweredTiles:
    """Data of strips of two tiles of outputs each; the last strip may have one.

    `steps` has for each strip its number of steps, then for each step the bytes from the first tile
    of x to the step's tile. `weights` are dense tiles or, if `bits` has a bit for each byte, the
    nonzero bytes. `scales` and `bias` are of outputs, padded to whole tiles.
    """

    spec: MatMul
    most_steps: int
    steps: npt.NDArray[np.int32]
    weights: _Bytes
    bits: npt.NDArray[np.uint8] | None
    scales: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    counts: TileCounts


def expect(spec: MatMul, matrix: SparseMatrix, target: Target) -> TileCounts:
    """Return the exact counts: the zero pattern tells which tiles have a weight."""
    used = _used_steps(matrix)
    tiles = np.repeat(STRIP_TILES, len(used))
    tiles[-1] -= _output_tiles(matrix) % STRIP_TILES
    weight_tiles = int(np.sum(used.sum(axis=1) * tiles))
    dense_bytes = TILE_BYTES * weight_tiles
    compressed_bytes = dense_bytes // 8 + matrix.nnz
    chunk = _chunk_columns(spec, target)
    x_bytes = min(chunk, spec.batch) * ROW_BYTES * used.shape[1]
    compressed = dense_bytes + x_bytes > target.l2_bytes and compressed_bytes < dense_bytes
    stored = compressed_bytes if compressed else dense_bytes
    return TileCounts(target, spec, int(used.sum()), weight_tiles, chunk, compressed, stored)


def lower(spec: MatMul, matrix: SparseMatrix, target: Target) -> LoweredTiles:
    """Quantise the weights and put them into tiles.

    Raises InvalidInput if an int32 sum might overflow.
    """
    counts, used = expect(spec, matrix, target), _used_steps(matrix)
    integers, scales = quantised_rows(matrix)
    steps: list[npt.NDArray[np.int64]] = []
    for strip in used:
        (tiles,) = np.nonzero(strip)
        steps += [np.array([len(tiles)]), tiles * TILE_BYTES]
    weights = _tiles(integers, used, spec.layout)
    bits = None
    if counts.compressed:
        bits = np.packbits(weights != 0, bitorder="little")
        # The code reads a whole vector at the last nonzeros.
        weights = np.append(weights[weights != 0], np.zeros(ROW_BYTES, np.int8))
    outputs = _output_tiles(matrix) * ROWS
    bias = None if spec.bias is None else _padded(spec.bias, outputs)
    return LoweredTiles(
        spec,
        int(used.sum(axis=1).max()),
        np.concatenate(steps).astype(np.int32),
        weights,
        bits,
        _padded(output_scales(spec.each, scales), outputs),
        bias,
        counts,
    )


def _output_tiles(matrix: SparseMatrix) -> int:
    return ceil_div(matrix.out_features, ROWS)


def _used_steps(matrix: SparseMatrix) -> npt.NDArray[np.bool_]:
    """Return whether any weight of a strip (first axis) and 64 inputs (second) is not zero."""
    rows = np.arange(0, matrix.out_features, STRIP_TILES * ROWS)
    columns = np.arange(0, matrix.in_features, ROW_BYTES)
    any_row = np.logical_or.reduceat(matrix.dense != 0, rows, axis=0)
    used: npt.NDArray[np.bool_] = np.logical_or.reduceat(any_row, columns, axis=1)
    return used


def _chunk_columns(spec: MatMul, target: Target) -> int:
    """Return the columns of a chunk of x: whole tiles, nearly equally many in every chunk."""
    column_bytes = round_up(spec.in_features, ROW_BYTES)
    x_bytes = min(int(_X_SHARE * target.l2_bytes), LARGEST_WORKSPACE // 2)
    most = max(1, x_bytes // column_bytes // ROWS)
    tiles = ceil_div(spec.batch, ROWS)
    return ROWS * ceil_div(tiles, ceil_div(tiles, most))


def _tiles(integers: _Bytes, used: npt.NDArray[np.bool_], layout: Layout) -> _Bytes:
    """Return the tiles of all steps in order, as one row of bytes."""
    outputs, inputs = round_up(integers.shape[0], ROWS), used.shape[1] * ROW_BYTES
    padded = np.zeros((outputs, inputs), np.int8)
    padded[: integers.shape[0], : integers.shape[1]] = integers
    tiles = padded.reshape(outputs // ROWS, ROWS, -1, ROW_BYTES).swapaxes(1, 2)
    if layout is Layout.BATCH_MAJOR:
        tiles = tiles[..., np.argsort(byte_of_input())]
        fours = tiles.reshape(*tiles.shape[:2], ROWS, ROW_BYTES // 4, 4)
        tiles = fours.swapaxes(2, 3).reshape(tiles.shape)
    parts = [
        tiles[STRIP_TILES * number : STRIP_TILES * (number + 1), strip].swapaxes(0, 1).ravel()
        for number, strip in enumerate(used)
    ]
    return np.concatenate(parts)


def _padded(values: npt.NDArray[np.float32], length: int) -> npt.NDArray[np.float32]:
    padded = np.zeros(length, np.float32)
    padded[: len(values)] = values
    return padded
