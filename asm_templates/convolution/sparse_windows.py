"""A convolution over a padded image, weights as code: each tap of a channel is an input of its own.

    vmovups      zmm0, [rdi+place]              x at 16 positions, shifted by a tap
    vfmadd231ps  zmm31, zmm0, [rcx+4*d]{1to16}  += weight * x, for an output channel
    vfmadd231ps  zmm28, zmm0, [rcx+4*d+4]{1to16}

As `batch.panels`, but an input's vectors are not gathered into columns before: a tap's lie a fixed
distance from the position's. A tile of output channels runs over all positions.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.panel_sums import PanelSums, panel_products
from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panels import (
    RESERVED,
    add_products,
    panel_sum,
    shared_loads,
    start_sums,
)
from sparsejit.asm_templates.batch.row_tiles import Products
from sparsejit.asm_templates.convolution.padded_image import PaddedImage
from sparsejit.asm_templates.convolution.window_panels import (
    ENTRY_BYTES,
    WindowPanels,
    set_masks,
    store_panel,
    window_panels,
)
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    dword,
    r8,
    r9,
    r11,
    rax,
    rdi,
    rdx,
    rsi,
)

_X, _Y, _ENTRY, _SAMPLES_LEFT = rdx, r9, r11, r8


@dataclass(frozen=True, eq=False)
class SparseWindows:
    """y (samples, out_features, positions) = activation(W x + bias) over a padded image.

    W is (out_features, channels * taps) in `tiles` of rows. `y_pitches` are bytes from a sample and
    an output channel to the next; positions follow each other.
    """

    image: PaddedImage
    each: MatVec
    y_pitches: tuple[int, int]
    tiles: list[Products]
    sums: PanelSums
    panels: WindowPanels


def lower_sparse_windows(
    image: PaddedImage,
    each: MatVec,
    matrix: SparseMatrix,
    y_pitches: tuple[int, int],
    target: Target,
) -> SparseWindows:
    """Output channels that share inputs in a tile."""
    accumulators = target.vector_registers - RESERVED
    tiles, sums = panel_products(Arithmetic.FLOATS, each, matrix, accumulators)
    return SparseWindows(image, each, y_pitches, tiles, sums, window_panels(image, target))


def emit_sparse_windows(asm: Assembler, lowered: SparseWindows) -> None:
    """Append the kernel from planes in rdi to y in rsi."""
    image, panels = lowered.image, lowered.panels
    table = asm.literal(panels.table)
    places = input_places(image)
    share = shared_loads(asm.target, panels.count)
    asm.emit("mov", _X, rdi)
    asm.emit("mov", _Y, rsi)

    def sample() -> None:
        for tile in lowered.tiles:
            asm.emit("lea", _ENTRY, Literal(table))

            def panel(tile: Products = tile) -> None:
                _panel(asm, lowered, tile, places[tile.column], share)

            repeat(asm, panels.count, rax, panel)
        asm.emit("add", _X, 4 * image.channels * image.channel)
        asm.emit("add", _Y, lowered.y_pitches[0])

    repeat(asm, image.samples, _SAMPLES_LEFT, sample)


def input_places(image: PaddedImage) -> npt.NDArray[np.int64]:
    """Bytes from a panel's place in the first plane to each input: channels, of each its taps."""
    channels = np.arange(image.channels)[:, None] * image.channel
    return (4 * (channels + image.tap_offsets())).ravel()


def _panel(
    asm: Assembler,
    lowered: SparseWindows,
    tile: Products,
    places: npt.NDArray[np.int64],
    share: float,
) -> None:
    """All products of a tile for one vector of positions."""
    asm.emit("mov", dword(rdi), Memory(_ENTRY))
    asm.emit("mov", dword(rsi), Memory(_ENTRY, 4))
    asm.emit("add", rdi, _X)
    asm.emit("add", rsi, _Y)
    start_sums(asm, lowered.sums, tile)
    add_products(asm, tile, ([], Memory(rdi, places)), lowered.sums, share)
    rows = len(tile.rows)
    sums = [
        (panel_sum(asm, n), Memory(rsi, int(row) * lowered.y_pitches[1]))
        for n, row in enumerate(tile.rows)
    ]
    free = [vector(asm, n) for n in range(asm.target.vector_registers - rows)]
    set_masks(asm, lowered.panels, _ENTRY)
    store_panel(asm, lowered.panels, lowered.each.activation, sums, free)
    asm.emit("add", _ENTRY, ENTRY_BYTES)
