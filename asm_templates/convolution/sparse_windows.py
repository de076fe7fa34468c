"""A convolution over a padded image, weights as code: each tap of a channel is a separate input.

    prefetch_code         prefetching of code before it runs
    lower_sparse_windows  the output channels as tiles
    emit_sparse_windows   the kernel

The code:

    vmovups      zmm0, [rdi+place]              x at 16 positions, shifted by a tap
    vfmadd231ps  zmm31, zmm0, [rcx+4*d]{1to16}  += weight * x, for an output channel
    vfmadd231ps  zmm28, zmm0, [rcx+4*d+4]{1to16}

As `batch.panels`, but inputs are not copied into columns: the vector under a tap is a fixed
distance from the position. A tile of output channels runs over all positions.

Code that is not prefetched would come from beyond L2 a line at a time. No prefetcher fetches long
straight-line code ahead, while a hundred lines that are prefetched as data come almost as fast as
one. They wait in L2, from where code is fetched quickly.
"""

from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panels import (
    RESERVED,
    PanelSums,
    add_products,
    panel_sum,
    panel_sums,
    panel_tiles,
    shared_window_loads,
    start_sums,
    tile_weights,
)
from sparsejit.asm_templates.batch.row_tiles import Products, inputs_by_tile
from sparsejit.asm_templates.convolution.padded_image import (
    ENTRY_BYTES,
    AddedOperand,
    PaddedImage,
    WindowPanels,
    set_masks,
    store_panel,
    window_panels,
)
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import counted_up, repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label, Line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r11,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.routines import pop, push

_AT_ONCE = 4


def prefetch_code(
    asm: Assembler, first: Label, end: Label, place: Register, last: Register
) -> None:
    """Prefetch the code between two labels unless the model stays in L2; clobbers both registers.
    """
    if not asm.prefetch_distance:
        return
    asm.address(place, first)
    asm.address(last, end)
    with counted_up(asm, place, _AT_ONCE * CACHE_LINE_BYTES, last):
        for number in range(_AT_ONCE):
            asm.emit("prefetcht1", Memory(place, number * CACHE_LINE_BYTES))


_X, _Y, _ENTRY, _SAMPLES_LEFT, _WAITING = rdx, r9, r11, r8, rbx
_CODE_A_WEIGHT = 11  # bytes, its input included


@dataclass(frozen=True, eq=False)
class SparseWindows:
    """A convolution ready to emit: y = activation(W x + bias) over a padded image, weights as code.

    y is (samples, out_features, positions). W is (out_features, channels * taps) in tiles of rows,
    each cut into `parts` of neighbouring input channels, so that the code of a part and the
    elements that it reads for a vector of positions stay in L1. `scratch_bytes` of memory keep the
    sums between parts. `y_pitches` are bytes from sample to sample, and from output channel to
    output channel; positions are consecutive.
    """

    image: PaddedImage
    each: MatVec
    y_pitches: tuple[int, int]
    parts: list[list[Products]]
    sums: PanelSums
    panels: WindowPanels
    scratch_bytes: int


@dataclass(frozen=True)
class WindowCounts:
    """Work of one call of a sparse convolution over a padded image, for its price.

    For each of `panels` vectors of positions there are `nnz` products and `inputs` loads of x;
    inputs that two tiles read count twice. `moved_bytes` are the bytes of the planes and of y.
    """

    panels: int
    nnz: int
    inputs: int
    outputs: int
    code_bytes: int
    moved_bytes: int


def expect_windows(image: PaddedImage, matrix: SparseMatrix, target: Target) -> WindowCounts:
    """Return the expected counts, as if tiles held consecutive output channels."""
    panels = image.samples * window_panels(image, target).count
    inputs = inputs_by_tile(matrix, target.vector_registers - RESERVED)
    y_bytes = panels * target.vector_bytes * matrix.out_features
    code = _CODE_A_WEIGHT * matrix.nnz
    counts = panels, matrix.nnz, inputs, matrix.out_features
    return WindowCounts(*counts, code, 4 * image.floats + y_bytes)


def lower_sparse_windows(
    image: PaddedImage,
    each: MatVec,
    matrix: SparseMatrix,
    y_pitches: tuple[int, int],
    target: Target,
) -> SparseWindows:
    """Lower the convolution; output channels that share inputs form a tile."""
    accumulators = target.vector_registers - RESERVED
    tiles = panel_tiles(Arithmetic.FLOATS, each.dtype, matrix, accumulators)
    sums = panel_sums(Arithmetic.FLOATS, each, matrix)
    panels = window_panels(image, target)
    parts = [_parts(tile, image, target) for tile in tiles]
    waiting = max((len(own[0].rows) for own in parts if len(own) > 1), default=0)
    scratch = waiting * panels.count * target.vector_bytes
    return SparseWindows(image, each, y_pitches, parts, sums, panels, scratch)


def _parts(tile: Products, image: PaddedImage, target: Target) -> list[Products]:
    """Cut the weights of a tile into parts whose code, and the elements they read, fit L1.

    Cuts are between channels or, if there are fewer channels than parts, between taps.
    """
    taps = image.rows.kernel * image.columns.kernel
    lines = image.rows.kernel * len(image.column_phases) * 2
    near = target.core.layouts.windows_near
    most_channels = max(1, int(near * target.l1d_bytes) // (lines * 64))
    most_weights = int(near * target.l1i_bytes) // _CODE_A_WEIGHT
    channels = tile.column // taps
    used = len(np.unique(channels))
    pieces = max(ceil_div(len(tile), most_weights), ceil_div(used, most_channels))
    changes = np.flatnonzero(np.diff(channels if used >= pieces else tile.column)) + 1
    wanted = np.arange(1, pieces) * len(tile) // pieces
    ends = np.unique(changes[np.searchsorted(changes, wanted).clip(0, len(changes) - 1)])
    edges = [0, *ends.tolist(), len(tile)] if len(changes) else [0, len(tile)]
    return [_slice(tile, slice(*pair)) for pair in pairwise(edges)]


def _slice(tile: Products, part: slice) -> Products:
    return replace(
        tile,
        accumulator=tile.accumulator[part],
        column=tile.column[part],
        weight=tile.weight[part],
        first=tile.first[part],
        alone=tile.alone[part],
    )


def emit_sparse_windows(
    asm: Assembler, lowered: SparseWindows, scratch: Location, added: AddedOperand | None = None
) -> None:
    """Append the convolution with weights as code: planes at rdi, y at rsi."""
    image, code = lowered.image, _PartCode(asm, lowered, added)
    push(asm, (rbx,))
    if lowered.scratch_bytes:
        scratch.point(asm, rbx)
    asm.emit("mov", _X, rdi)
    asm.emit("mov", _Y, rsi)

    every = sum(len(parts) for parts in lowered.parts)
    labels = [asm.label(f"part {number}") for number in range(every + 1)]

    def sample() -> None:
        spans = list(pairwise(labels))
        prefetch_code(asm, *spans[0], rdi, rsi)
        numbers = count()
        for parts in lowered.parts:
            for number, part in enumerate(parts):
                at = next(numbers)
                asm.bind(labels[at])
                for ahead in spans[at + 1 : at + 2]:
                    prefetch_code(asm, *ahead, rdi, rsi)
                code.emit(part, number == 0, number == len(parts) - 1)
        asm.bind(labels[-1])
        asm.emit("add", _X, 4 * image.channels * image.channel)
        asm.emit("add", _Y, lowered.y_pitches[0])

    repeat(asm, image.samples, _SAMPLES_LEFT, sample)
    pop(asm, (rbx,))


def input_places(image: PaddedImage) -> npt.NDArray[np.int64]:
    """Return for each input, a tap of a channel, the bytes to its element from a vector's place."""
    channels = np.arange(image.channels)[:, None] * image.channel
    return (4 * (channels + image.tap_offsets())).ravel()


class _PartCode:
    """Appends a part of a tile for all vectors of positions."""

    def __init__(
        self, asm: Assembler, lowered: SparseWindows, added: AddedOperand | None
    ) -> None:
        self.asm, self.lowered, self.added = asm, lowered, added
        self.table = asm.literal(lowered.panels.table)
        self.places = input_places(lowered.image)
        self.share = shared_window_loads(asm.target, lowered.panels.count)
        # With a start, no product begins a sum: sums continue from the scratch.
        started = np.zeros(lowered.each.out_features, np.float32)
        self.waited = replace(lowered.sums, start=started)

    def emit(self, part: Products, is_first: bool, is_last: bool) -> None:
        asm, size = self.asm, self.asm.target.vector_bytes
        asm.emit("lea", _ENTRY, Literal(self.table))
        rows = range(len(part.rows))
        weights = tile_weights(asm, part, self.share)
        waiting = [(panel_sum(asm, n), Memory(_WAITING, n * size)) for n in rows]

        def panel() -> None:
            asm.emit("mov", dword(rdi), Memory(_ENTRY))
            asm.emit("add", rdi, _X)
            if is_first:
                start_sums(asm, self.lowered.sums, part)
            else:
                for total, place in waiting:
                    asm.emit("vmovups", total, place)
            inputs: tuple[list[Line], Memory] = [], Memory(rdi, self.places[part.column])
            sums = self.lowered.sums if is_first else self.waited
            add_products(asm, part, inputs, sums, weights)
            if is_last:
                self._finish(part)
            else:
                for total, place in waiting:
                    asm.emit("vmovups", place, total)
            asm.emit("add", _ENTRY, ENTRY_BYTES)
            asm.emit("add", _WAITING, size * len(part.rows))

        repeat(asm, self.lowered.panels.count, rax, panel)
        asm.emit("sub", _WAITING, size * len(part.rows) * self.lowered.panels.count)

    def _finish(self, part: Products) -> None:
        asm, lowered = self.asm, self.lowered
        asm.emit("mov", dword(rsi), Memory(_ENTRY, 4))
        asm.emit("add", rsi, _Y)
        sums = [
            (panel_sum(asm, n), Memory(rsi, int(row) * lowered.y_pitches[1]))
            for n, row in enumerate(part.rows)
        ]
        free = [vector(asm, n) for n in range(asm.target.vector_registers - len(sums))]
        set_masks(asm, lowered.panels, _ENTRY)
        if self.added is not None:
            self.added.point(asm, rdi, rsi, rcx)
        added = None if self.added is None else rdi
        store_panel(asm, lowered.panels, lowered.each.activation, sums, free, added)
