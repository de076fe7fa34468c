"""A convolution over a padded image with few zero weights: taps as code, channels as a loop.

    vmovups      zmm0, [rdi+place]     x at 16 positions, shifted by a tap; two or three vectors
    vbroadcastss zmm3, [rcx+4*d]       a weight, for each output channel of the tile
    vfmadd231ps  zmm31, zmm0, zmm3     once a vector

A tile is some output channels by some vectors of positions. Its weights are stored in the order of
use.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.padded_image import (
    ENTRY_BYTES,
    AddedOperand,
    PaddedImage,
    WindowPanels,
    set_masks,
    store_panel,
    window_panels,
)
from sparsejit.asm_templates.shared.activation import SCRATCH_PER_VECTOR
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.routines import pop, push

_X, _Y, _ENTRY, _WEIGHTS, _TILE_WEIGHTS = rdx, r9, r11, rcx, r12
_PANELS_LEFT, _CHANNELS_LEFT, _TILES_LEFT, _SAMPLES_LEFT = rax, rbx, r13, r14
_POINTERS = rdi, rsi, r10, r8  # x of each vector of a tile
_SAVED = rbx, r12, r13, r14
# Weights are prefetched a page ahead, which hardware prefetchers do not reach.
_AHEAD_BYTES, _WEIGHTS_A_LINE = 4096, CACHE_LINE_BYTES // 4
MOST_TAPS = 128  # a tile's code has all taps of a channel


@dataclass(frozen=True)
class TileShape:
    """Tiles of output channels by `vectors` vectors of positions, and their predicted `cycles`.

    `tall` and `short`: (output channels of a tile, number of such tiles), tall ones first.
    """

    tall: tuple[int, int]
    short: tuple[int, int]
    vectors: int
    cycles: float


@dataclass(frozen=True, eq=False)
class DenseWindows:
    """A convolution ready to emit: y = activation(W x + bias) over a padded image.

    y is (samples, out_features, positions). `weights` are (out_features, channels * taps) in the
    order of use, each tile's bias before them. `y_pitches` are bytes from sample to sample, and
    from output channel to output channel.
    """

    image: PaddedImage
    each: MatVec
    y_pitches: tuple[int, int]
    weights: npt.NDArray[np.float32]
    panels: WindowPanels
    shape: TileShape
    scratch_bytes: int = 0


def lower_dense_windows(
    image: PaddedImage,
    each: MatVec,
    matrix: SparseMatrix,
    y_pitches: tuple[int, int],
    target: Target,
) -> DenseWindows:
    """Choose the tile shape, and order weights by tile: its bias, then input by input."""
    panels = window_panels(image, target)
    shape = tile_shape(each, panels, target)
    bias = np.zeros(each.out_features, np.float32) if each.bias is None else each.bias
    whole = np.concatenate([bias[:, None], rounded(matrix.dense, each.dtype)], axis=1)
    heights = [height for height, count in (shape.tall, shape.short) for _ in range(count)]
    tiles = np.split(whole, np.cumsum(heights)[:-1])
    stream = np.concatenate([tile.T.ravel() for tile in tiles])
    return DenseWindows(image, each, y_pitches, stream, panels, shape)


def tile_shape(each: MatVec, panels: WindowPanels, target: Target) -> TileShape:
    """Return the tile shape with the fewest predicted cycles."""
    most, core = target.vector_registers, target.core
    shapes = []
    for vectors in range(1, min(len(_POINTERS), panels.count) + 1):
        height = min(most - SCRATCH_PER_VECTOR, most - 1 - vectors) // vectors
        tiles = ceil_div(each.out_features, height)
        height, taller = divmod(each.out_features, tiles)
        groups, rest = divmod(panels.count, vectors)
        cycles = 0.0
        for rows, count in ((height + 1, taller), (height, tiles - taller)):
            for width, times in ((vectors, groups), (rest, min(rest, 1))):
                loads = core.layouts.window_load * (rows + width)
                step = max(rows * width / core.layouts.products[target.isa], loads, 4.0)
                tile = each.in_features * step + 3 * rows * width + core.loops.tile
                cycles += count * times * tile
        shapes.append(TileShape((height + 1, taller), (height, tiles - taller), vectors, cycles))
    return min(shapes, key=lambda shape: shape.cycles)


def emit_dense_windows(
    asm: Assembler,
    lowered: DenseWindows,
    scratch: Location | None = None,
    added: AddedOperand | None = None,
) -> None:
    """Append the kernel: planes at rdi, y at rsi; keeps callee-saved registers.

    It needs no scratch memory.
    """
    _DenseCode(asm, lowered, added).emit()


class _DenseCode:
    """Appends the code of a convolution with few zero weights over a padded image."""

    def __init__(self, asm: Assembler, lowered: DenseWindows, added: AddedOperand | None) -> None:
        self.asm, self.lowered, self.added = asm, lowered, added
        self.image, self.each = lowered.image, lowered.each
        self.places = 4 * self.image.tap_offsets()
        self.table = asm.literal(lowered.panels.table)

    def emit(self) -> None:
        asm, image = self.asm, self.image
        weights = asm.literal(self.lowered.weights)
        push(asm, _SAVED)
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)
        y_sample, y_channel = self.lowered.y_pitches

        def sample() -> None:
            asm.emit("lea", _TILE_WEIGHTS, Literal(weights))
            for height, count in (self.lowered.shape.tall, self.lowered.shape.short):
                repeat(asm, count, _TILES_LEFT, partial(self._tiles, height))
            asm.emit("add", _X, 4 * image.channels * image.channel)
            asm.emit("add", _Y, y_sample - self.each.out_features * y_channel)

        repeat(asm, image.samples, _SAMPLES_LEFT, sample)
        pop(asm, _SAVED)

    def _tiles(self, height: int) -> None:
        """Append code for the next `height` output channels at all positions of a sample.

        It leaves the pointers to weights and y at the channels after them, so it can be repeated.
        """
        asm, vectors = self.asm, self.lowered.shape.vectors
        groups, rest = divmod(self.lowered.panels.count, vectors)
        asm.emit("lea", _ENTRY, Literal(self.table))
        repeat(asm, groups, _PANELS_LEFT, lambda: self._tile(height, vectors))
        if rest:
            self._tile(height, rest)
        asm.emit("add", _TILE_WEIGHTS, 4 * height * (1 + self.each.in_features))
        asm.emit("add", _Y, height * self.lowered.y_pitches[1])

    def _tile(self, height: int, width: int) -> None:
        asm, image = self.asm, self.image
        for number, pointer in enumerate(_POINTERS[:width]):
            asm.emit("mov", dword(pointer), Memory(_ENTRY, number * ENTRY_BYTES))
            asm.emit("add", pointer, _X)
        asm.emit("mov", _WEIGHTS, _TILE_WEIGHTS)
        self._start(height, width)
        asm.emit("add", _WEIGHTS, 4 * height)

        def channel() -> None:
            self._taps(height, width)
            for pointer in _POINTERS[:width]:
                asm.emit("add", pointer, 4 * image.channel)
            asm.emit("add", _WEIGHTS, 4 * height * len(self.places))

        repeat(asm, image.channels, _CHANNELS_LEFT, channel)
        free = [vector(asm, n) for n in range(asm.target.vector_registers - height * width)]
        for number in range(width):
            asm.emit("mov", dword(rdi), Memory(_ENTRY, number * ENTRY_BYTES + 4))
            asm.emit("add", rdi, _Y)
            set_masks(asm, self.lowered.panels, _ENTRY, number)
            sums = [
                (self._sum(row * width + number), Memory(rdi, row * self.lowered.y_pitches[1]))
                for row in range(height)
            ]
            if self.added is not None:
                self.added.point(asm, rsi, rdi, _WEIGHTS)
            added = None if self.added is None else rsi
            store_panel(asm, self.lowered.panels, self.each.activation, sums, free, added)
        asm.emit("add", _ENTRY, width * ENTRY_BYTES)

    def _sum(self, number: int | npt.NDArray[np.int64]) -> Register:
        top = self.asm.target.vector_registers - 1
        return vector(self.asm, top - number)

    def _start(self, height: int, width: int) -> None:
        asm = self.asm
        for row in range(height):
            for number in range(width):
                total = self._sum(row * width + number)
                if self.each.bias is None:
                    zero(asm, total)
                else:
                    asm.emit("vbroadcastss", total, Memory(_WEIGHTS, 4 * row))

    def _taps(self, height: int, width: int) -> None:
        """Append the products of all taps of a channel."""
        asm = self.asm
        steps = np.arange(len(self.places) * height)
        tap, row = np.divmod(steps, height)
        weight = vector(asm, width)
        loads: list[Line] = [
            line("vmovups", vector(asm, n), Memory(pointer, self.places[tap]), when=row == 0)
            for n, pointer in enumerate(_POINTERS[:width])
        ]
        place = Memory(_WEIGHTS, 4 * steps)
        # In AVX-512, a weight that is used once is a memory operand of its product.
        comes_with = width == 1 and asm.target.isa == "avx512"
        broadcast = [] if comes_with else [line("vbroadcastss", weight, place)]
        from_weights = place._replace(broadcast=16) if comes_with else weight
        products = [
            line("vfmadd231ps", self._sum(row * width + n), vector(asm, n), from_weights)
            for n in range(width)
        ]
        ahead = Memory(_WEIGHTS, 4 * steps + _AHEAD_BYTES)
        fetch = line("prefetcht0", ahead, when=steps % _WEIGHTS_A_LINE == 0)
        asm.stamp(len(steps), [*loads, fetch, *broadcast, *products])
