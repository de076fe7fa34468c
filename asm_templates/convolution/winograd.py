"""A 3x3 convolution with few zeros by Winograd's F(2x2, 3x3): 16 products for 4 outputs, not 36.

    TileBlocks, cut_tiles    tiles in the planes of an image, and blocks of tiles
    lower_winograd           the transformed weights U, and the tiles of the products
    emit_winograd            the kernel

Tiles and blocks:

    x       planes of even and odd rows and columns, so that neighbouring tiles read neighbours
    tiles   row after row of a plane, gaps between rows included; a block is consecutive tiles
    y       each row of tiles in vectors of its own, two rows of y from each

The algorithm:

    V = B^T d B     of 4x4 elements of x, two apart, a tile a lane: 16 matrices (channels, tiles)
    M = U V         matrix by matrix a dense product; U = G g G^T of the weights g, known before
    y = A^T M A     the 2x2 outputs of each tile, two vectors to a row of y

Tiles pass through all three in blocks, so that V and M stay in L2. Lavin and Gray, "Fast
algorithms for convolutional neural networks", 2016.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.lowered_batch import spread_pitch
from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.padded_image import AddedOperand, PaddedImage
from sparsejit.asm_templates.dense_product.tiled_product import emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import Packed, Tiling, pack_rows, tiling
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.asm_templates.shared.storage import rounded
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DenseProduct, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.routines import pop, push

SIDE = 4  # of a tile's input
_MOST_LINES = 15  # cache lines of tiles in a block: more gain nothing
# A block: offset into a plane of x in bytes; number of its vectors of outputs, and the byte offset
# of the first one's row in the table of outputs.
BLOCK_ROW = np.dtype([("x", "<i4"), ("count", "<i4"), ("first", "<i8")])
# A vector of tiles: offsets into M and y in bytes, and masks of the stored lanes of four vectors of
# outputs: bits for AVX-512, byte offsets into `SLIDING` for AVX2.
OUTPUTS_ROW = np.dtype([("m", "<i4"), ("y", "<i4"), ("stored", "<i4", 4)])
SLIDING = np.repeat([-1, 0], 8).astype(np.int32)


@dataclass(frozen=True, eq=False)
class TileBlocks:
    """Blocks of `tiles` neighbouring tiles (2x2 outputs each) in a plane of x, and their tables.

    `rows` has an entry for each block, `outputs` one for each vector of a block's tiles.
    """

    tiles: int
    rows: npt.NDArray[np.void]
    outputs: npt.NDArray[np.void]


def winograd_image(image: PaddedImage) -> PaddedImage:
    """Return the padded image with the planes that tiles read: 4x4 windows, two elements apart."""

    def tiles(axis: Axis) -> Axis:
        return replace(axis, kernel=SIDE, stride=2, positions=ceil_div(axis.positions, 2))

    return replace(image, rows=tiles(image.rows), columns=tiles(image.columns))


def cut_tiles(image: PaddedImage, outputs: int, target: Target) -> TileBlocks:
    """Cut an image's tiles into blocks whose transformed inputs and products fit half of L2."""
    read, line = winograd_image(image), CACHE_LINE_BYTES // 4
    rows, columns = read.rows.positions, read.columns.positions
    tiles = (rows - 1) * read.pitch + columns
    every = ceil_div(tiles, line)
    fitting = target.l2_bytes // 2 // (SIDE * SIDE * (image.channels + outputs) * CACHE_LINE_BYTES)
    count = ceil_div(every, max(3, min(_MOST_LINES, fitting)))
    size = line * ceil_div(every, count)
    starts = [min(first, max(0, line * every - size)) for first in range(0, tiles, size)]
    table = np.zeros(len(starts), BLOCK_ROW)
    outputs_rows: list[tuple[int, int, tuple[int, ...]]] = []
    for number, start in enumerate(starts):
        own = _outputs(image, read, range(number * size, (number + 1) * size), start, target)
        before = len(outputs_rows)
        outputs_rows += own
        table[number] = 4 * start, len(outputs_rows) - before, before * OUTPUTS_ROW.itemsize
    return TileBlocks(size, table, np.array(outputs_rows, OUTPUTS_ROW))


def _outputs(
    image: PaddedImage, read: PaddedImage, own: range, start: int, target: Target
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield, for each vector of the tiles `own` of a block, its places in M and y and its masks.

    These are the rows of `OUTPUTS_ROW`; M of the block begins at tile `start`.
    """
    height, width, lanes = image.rows.positions, image.columns.positions, target.lanes
    last = min(read.rows.positions - 1, (own.stop - 1) // read.pitch)
    for row in range(own.start // read.pitch, last + 1):
        first = max(0, own.start - row * read.pitch)
        end = min(read.columns.positions, own.stop - row * read.pitch)
        for column in range(first, end, lanes):
            wide = min(2 * min(lanes, end - column), width - 2 * column)
            low, high = min(wide, lanes), max(0, wide - lanes)
            below = 2 * row + 1 < height
            counts = low, high, low * below, high * below
            m = 4 * (row * read.pitch + column - start)
            yield m, 4 * 2 * (row * width + column), tuple(_lanes(n, target) for n in counts)


def _lanes(count: int, target: Target) -> int:
    """Return the mask of the first `count` lanes, as in `OUTPUTS_ROW`."""
    return (1 << count) - 1 if target.isa == "avx512" else 4 * (8 - count)


_PLACES = SIDE * SIDE
U_A_WEIGHT = _PLACES / 9  # numbers for each of a kernel
_FROM_WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G
# Rows of B^T: each adds or subtracts two elements.
_DIFFERENCES = ((0, 2, "vsubps"), (1, 2, "vaddps"), (2, 1, "vsubps"), (1, 3, "vsubps"))
_WITH_BIAS = 5  # the place that A^T and A add to all four outputs
# Fewer outputs do not pay for the transform of x.
_LEAST_OUTPUTS = 16

_X, _Y, _BLOCK, _SCRATCH = r12, r13, r14, r15
_PLACES_LEFT = _LANES = rbx  # while M is computed; then, for outputs, AVX2's masks
_SAVED = rbx, r12, r13, r14, r15
_BLOCKS_LEFT, _SAMPLES_LEFT = Memory(r15), Memory(r15, 8)
_COUNTERS_BYTES = CACHE_LINE_BYTES


@dataclass(frozen=True, eq=False)
class WinogradWindows:
    """A 3x3 convolution ready to emit by Winograd's algorithm, over 4x4 windows of padded planes.

    y (samples, out_features, positions) = activation(W x + bias). `y_pitches` are bytes from sample
    to sample, and from output channel to output channel; `y_row` is the bytes of a row of
    positions; `weights` are U, the transformed weights, packed.
    """

    image: PaddedImage
    each: MatVec
    y_pitches: tuple[int, int]
    y_row: int
    weights: Packed
    product: DenseProduct
    tiles: Tiling
    blocks: TileBlocks

    @property
    def v_bytes(self) -> int:
        """Bytes from one of the 16 matrices of V, the transformed inputs, to the next."""
        return 4 * spread_pitch(self.product.depth * self.product.b_pitch // 4)

    @property
    def m_bytes(self) -> int:
        """Bytes from one of the 16 matrices of M, the products, to the next."""
        return 4 * spread_pitch(self.product.rows * self.product.c_pitch // 4)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of counters, V and M, with a margin because the last load of M may run over."""
        return _COUNTERS_BYTES + _PLACES * (self.v_bytes + self.m_bytes) + CACHE_LINE_BYTES


def has_winograd(image: PaddedImage, each: MatVec) -> bool:
    """Whether Winograd's algorithm applies to these windows."""
    axes = image.rows, image.columns
    plain = all((axis.kernel, axis.stride, axis.dilation) == (3, 1, 1) for axis in axes)
    return plain and each.out_features >= _LEAST_OUTPUTS


def winograd_cycles(image: PaddedImage, each: MatVec, target: Target) -> tuple[float, int]:
    """Return the predicted cycles with U in L2 or nearer, and the number of reads of U."""
    blocks = cut_tiles(image, each.out_features, target)
    product = _product(image.channels, each.out_features, blocks.tiles)
    into, out = target.core.loops.winograd
    vectors = image.channels * blocks.tiles // target.lanes
    cycles = len(blocks.rows) * (_PLACES * tiling(product, target, True).cycles + vectors * into)
    cycles += len(blocks.outputs) * each.out_features * out
    return image.samples * cycles, image.samples * len(blocks.rows)


def lower_winograd(
    image: PaddedImage,
    each: MatVec,
    matrix: SparseMatrix,
    y_pitches: tuple[int, int],
    target: Target,
) -> WinogradWindows:
    """Lower the convolution of `image`'s windows by a matrix (out_features, channels * 9)."""
    blocks = cut_tiles(image, each.out_features, target)
    product = _product(image.channels, each.out_features, blocks.tiles)
    tiles = tiling(product, target, True)
    kernels = rounded(matrix.dense, each.dtype).astype(np.float64)
    kernels = kernels.reshape(each.out_features, image.channels, 3, 3)
    u = np.einsum("ai,kcij,bj->abkc", _FROM_WEIGHTS, kernels, _FROM_WEIGHTS).astype(np.float32)
    streams = [pack_rows(own, None, tiles).stream for own in u.reshape(_PLACES, *u.shape[2:])]
    packed = Packed(np.concatenate(streams), biased=False, in_register=True)
    read = winograd_image(image)
    y_row = 4 * image.columns.positions
    return WinogradWindows(read, each, y_pitches, y_row, packed, product, tiles, blocks)


def _product(channels: int, outputs: int, tiles: int) -> DenseProduct:
    """Return the dense product M = U V of one of the 16 places in a block of tiles."""
    pitch = 4 * spread_pitch(tiles)
    return DenseProduct(outputs, tiles, channels, 4 * channels, pitch, pitch)


def emit_winograd(
    asm: Assembler,
    lowered: WinogradWindows,
    scratch: Location,
    added: AddedOperand | None = None,
) -> None:
    """Append Winograd's convolution: planes at rdi, y at rsi; keeps callee-saved registers."""
    _WinogradCode(asm, lowered, added).emit(scratch)


class _WinogradCode:
    """Appends the code of Winograd's convolution, block of tiles after block."""

    def __init__(
        self, asm: Assembler, lowered: WinogradWindows, added: AddedOperand | None
    ) -> None:
        self.asm, self.lowered, self.added = asm, lowered, added
        self.wide, self.size = asm.target.isa == "avx512", asm.target.vector_bytes
        self.v, self.m = _COUNTERS_BYTES, _COUNTERS_BYTES + _PLACES * lowered.v_bytes
        each = lowered.each
        bias = np.zeros(each.out_features, np.float32) if each.bias is None else each.bias
        self.bias, self.weights = asm.literal(bias), asm.literal(lowered.weights.stream)
        self.block_rows = asm.literal(lowered.blocks.rows)
        self.output_rows = asm.literal(lowered.blocks.outputs)

    def emit(self, scratch: Location) -> None:
        asm, image = self.asm, self.lowered.image
        push(asm, _SAVED)
        scratch.point(asm, _SCRATCH)
        asm.emit("mov", _X, rdi)
        asm.emit("mov", _Y, rsi)

        def block() -> None:
            self._inputs()
            self._products()
            self._outputs()
            asm.emit("add", _BLOCK, BLOCK_ROW.itemsize)

        def sample() -> None:
            asm.emit("lea", _BLOCK, Literal(self.block_rows))
            repeat(asm, len(self.lowered.blocks.rows), _BLOCKS_LEFT, block)
            asm.emit("add", _X, 4 * image.channels * image.channel)
            asm.emit("add", _Y, self.lowered.y_pitches[0])

        repeat(asm, image.samples, _SAMPLES_LEFT, sample)
        pop(asm, _SAVED)

    def _inputs(self) -> None:
        """Compute V of a block, channel after channel."""
        asm, image, pitch = self.asm, self.lowered.image, self.lowered.product.b_pitch
        asm.emit("mov", dword(rdi), Memory(_BLOCK))
        asm.emit("add", rdi, _X)
        asm.emit("lea", rsi, Memory(_SCRATCH, self.v))

        def vector_of_tiles() -> None:
            self._input(rdx, r8)
            asm.emit("add", rdx, self.size)
            asm.emit("add", r8, self.size)

        def channel() -> None:
            asm.emit("mov", rdx, rdi)
            asm.emit("mov", r8, rsi)
            repeat(asm, self.lowered.blocks.tiles // asm.target.lanes, r9, vector_of_tiles)
            asm.emit("add", rdi, 4 * image.channel)
            asm.emit("add", rsi, pitch)

        repeat(asm, image.channels, rcx, channel)

    def _input(self, x: Register, v: Register) -> None:
        """Compute B^T d B of a vector of tiles."""
        asm, places = self.asm, 4 * self.lowered.image.tap_offsets()
        half = [vector(asm, number) for number in range(SIDE)]
        for row, (one, other, operation) in enumerate(_DIFFERENCES):
            for column, register in enumerate(half):
                asm.emit("vmovups", register, Memory(x, int(places[SIDE * one + column])))
                place = Memory(x, int(places[SIDE * other + column]))
                asm.emit(operation, register, register, place)
            for column, (left, right, combined) in enumerate(_DIFFERENCES):
                result = vector(asm, SIDE + column)
                asm.emit(combined, result, half[left], half[right])
                place = Memory(v, (SIDE * row + column) * self.lowered.v_bytes)
                asm.emit("vmovups", place, result)

    def _products(self) -> None:
        """Compute M = U V of a block."""
        asm, lowered = self.asm, self.lowered
        asm.emit("lea", rdi, Literal(self.weights))
        asm.emit("lea", rdx, Memory(_SCRATCH, self.v))
        asm.emit("lea", rsi, Memory(_SCRATCH, self.m))

        def place() -> None:
            emit_dense_product(asm, lowered.product, a=lowered.weights, tiles=lowered.tiles)
            asm.emit("add", rdi, lowered.weights.stream.nbytes // _PLACES)
            asm.emit("add", rdx, lowered.v_bytes)
            asm.emit("add", rsi, lowered.m_bytes)

        repeat(asm, _PLACES, _PLACES_LEFT, place)

    def _outputs(self) -> None:
        """Compute y of a block, channel after channel."""
        asm, lowered = self.asm, self.lowered
        asm.emit("lea", rsi, Memory(_SCRATCH, self.m))
        asm.emit("mov", rdi, _Y)
        asm.emit("lea", r8, Literal(self.bias))
        if self.wide:
            for number, register in enumerate(self._orders):
                lanes = np.arange(8 * number, 8 * number + 8)
                order = np.stack([lanes, lanes + 16], axis=1).ravel().astype(np.int32)
                asm.emit("vmovups", register, Literal(asm.literal(order)))
        else:
            asm.emit("lea", _LANES, Literal(asm.literal(SLIDING)))

        def channel() -> None:
            asm.emit("lea", r9, Literal(self.output_rows))
            asm.emit("add", r9, Memory(_BLOCK, 8))
            with counted_down(asm, dword(rdx), Memory(_BLOCK, 4)):
                self._output()
                asm.emit("add", r9, OUTPUTS_ROW.itemsize)
            asm.emit("add", r8, 4)
            asm.emit("add", rsi, lowered.product.c_pitch)
            asm.emit("add", rdi, lowered.y_pitches[1])

        repeat(asm, lowered.each.out_features, rcx, channel)

    @property
    def _orders(self) -> tuple[Register, Register]:
        """AVX-512's indices that interleave two vectors: for the lower and the upper half."""
        return vector(self.asm, 30), vector(self.asm, 31)

    def _output(self) -> None:
        """Compute A^T M A of a vector of tiles, add the operand, activate, and store y."""
        asm, lowered = self.asm, self.lowered
        asm.emit("mov", dword(r10), Memory(r9))
        asm.emit("add", r10, rsi)
        asm.emit("mov", dword(r11), Memory(r9, 4))
        asm.emit("add", r11, rdi)
        parts = [part for pair in self._sums(r10) for part in self._in_turn(*pair)]
        offsets = [row + half for row in (0, lowered.y_row) for half in (0, self.size)]
        kept = {int(register.number) for register in (*parts, *self._orders)}
        every = map(vector, [asm] * asm.target.vector_registers, range(asm.target.vector_registers))
        free = [register for register in every if int(register.number) not in kept]
        if self.added is not None:
            self.added.point(asm, r10, r11, rax)
            for number, (part, offset) in enumerate(zip(parts, offsets, strict=True)):
                self._move(number, free[0], Memory(r10, offset), free[1])
                asm.emit("vaddps", part, part, free[0])
        apply_activation(asm, lowered.each.activation, parts, free)
        for number, (part, offset) in enumerate(zip(parts, offsets, strict=True)):
            self._move(number, Memory(r11, offset), part, free[0])

    def _sums(self, m: Register) -> list[tuple[Register, Register]]:
        """Compute the even and the odd outputs of both rows, with bias, in registers 0 to 7."""
        asm, (one, two) = self.asm, (vector(self.asm, 8), vector(self.asm, 9))

        def place(number: int) -> Memory:
            return Memory(m, number * self.lowered.m_bytes)

        upper, lower = ([vector(asm, SIDE * row + n) for n in range(SIDE)] for row in range(2))
        for column in range(SIDE):
            above, below = upper[column], lower[column]
            asm.emit("vmovups", one, place(SIDE + column))
            asm.emit("vmovups", two, place(2 * SIDE + column))
            if SIDE + column == _WITH_BIAS:
                asm.emit("vbroadcastss", above, Memory(r8))
                asm.emit("vaddps", one, one, above)
            asm.emit("vaddps", above, one, two)
            asm.emit("vsubps", below, one, two)
            asm.emit("vaddps", above, above, place(column))
            asm.emit("vsubps", below, below, place(3 * SIDE + column))
        for row in (upper, lower):
            asm.emit("vaddps", row[0], row[0], row[1])
            asm.emit("vaddps", row[0], row[0], row[2])
            asm.emit("vsubps", row[1], row[1], row[2])
            asm.emit("vsubps", row[1], row[1], row[3])
        return [(row[0], row[1]) for row in (upper, lower)]

    def _in_turn(self, even: Register, odd: Register) -> tuple[Register, Register]:
        """Interleave even and odd outputs, into `even` and the register two behind it."""
        asm, first, high = self.asm, vector(self.asm, int(even.number) + 2), vector(self.asm, 8)
        if self.wide:
            order, rest = self._orders
            asm.emit("vmovaps", first, even)
            asm.emit("vpermt2ps", first, order, odd)
            asm.emit("vpermt2ps", even, rest, odd)
            return first, even
        asm.emit("vunpckhps", high, even, odd)
        asm.emit("vunpcklps", even, even, odd)
        asm.emit("vperm2f128", first, even, high, 0x20)
        asm.emit("vperm2f128", even, even, high, 0x31)
        return first, even

    def _move(
        self, number: int, to: Register | Memory, what: Register | Memory, spare: Register
    ) -> None:
        """Append a load or store of the lanes of a vector that are stored in y: to = what.

        `number` selects its mask in the table. AVX2 clobbers `spare` and rax, AVX-512 k(1).
        """
        asm, stored = self.asm, Memory(r9, 8 + 4 * number)
        if self.wide:
            asm.emit("kmovw", k(1), stored)
            masked = to.masked(k(1), True) if isinstance(to, Register) else to.masked(k(1))
            asm.emit("vmovups", masked, what)
            return
        asm.emit("mov", dword(rax), stored)
        asm.emit("vmovups", spare, Memory(_LANES, index=rax))
        asm.emit("vmaskmovps", to, spare, what)
