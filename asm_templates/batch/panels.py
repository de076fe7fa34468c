"""A panel: a vector of columns of a batch, multiplied by the whole matrix.

x is feature-major. A tile of rows has its sums in registers; the code follows the columns of W:

    vmovups      zmm0, [r8+64*d]                x[column], 16 of the batch    7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, [rcx+4*d]{1to16}  += weight * x                 7 bytes, 1 load

    vbroadcastf32x4 zmm2, [r10+16*d]            or four weights by one load   7 bytes, 1 load
    vbroadcastss zmm1, xmm2                     the first of them             6 bytes
    vpermilps    zmm1, zmm2, 0x55               another                       7 bytes
    vfmadd231ps  zmm31, zmm1, [r8+64*d]         the only use of x[column]     7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, zmm1              or one of several             6 bytes

Either loads or code limit the kernel (docs/kernels/batch.md). So a share of the weights has each
form, a tile runs several panels one after another, and `fetch_redirects` let the second panel run
from the decoded code of the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.ahead import Ahead, spread_evenly
from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panel_sums import PanelSums, emit_outputs
from sparsejit.asm_templates.batch.row_tiles import BoolArray, IntArray, Products
from sparsejit.asm_templates.batch.tile_weights import (
    TileWeights,
    tile_weights,
    weights_by_four,
    weights_one_by_one,
)
from sparsejit.asm_templates.shared.activation import COSTLY, apply_activation
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.stream import addresses
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    k,
    r8,
    r9,
    r11,
    r14,
    r15,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.placement import Placement
from sparsejit.x86.stack import pop, push

# Arguments of the subroutine: x and y of the first panel, the number of panels, and y of the last
# panel, which may overlap the one before it; in AVX-512 also the mask of columns that exist.
PANEL_X, PANEL_Y, PANELS, LAST_Y = rdx, r9, r11, r15
PANEL_MASK = k(1)
# Each of fewer panels would have to prefetch more than it gains.
_FEWEST_TO_ASK_AHEAD = 4
_AHEAD_OF_CODE, _AHEAD_OF_WEIGHTS = r14, rbx

RESERVED = 3  # x, a weight, four weights

# Placement of the code of one panel with at most `_PLACED_WEIGHTS` weights: with more, gaps cost
# more than they save.
_PLACEMENT = Placement(32 << 10, 1024)
_PLACED_WEIGHTS = 30_000
# Weights from one jump to the next, some 200 bytes.
_REDIRECT_EVERY = 20


@dataclass(frozen=True)
class Panels:
    """Layout of x and y: bytes from one feature to the next, and from one panel to the next.

    `count` is the number of panels computed at once; `masked` whether only the columns in
    PANEL_MASK exist in y; `x_padding` the stride padding of the features of x; `added` the operand
    added to y.
    """

    count: int
    x_pitch: int
    x_step: int
    y_pitch: int
    y_step: int
    masked: bool = False
    x_padding: StridePadding = DENSE
    added: "AddedRows | None" = None


@dataclass(frozen=True)
class AddedRows:
    """An operand that is added to y before the activation; it may be y itself if no panels overlap.

    `distance` holds the bytes from a panel of y to its operand, whose rows are `pitch` bytes apart.
    `is_far`: y exceeds L2, so that a panel's lines of y are prefetched a panel ahead.
    """

    distance: Memory
    pitch: int
    is_far: bool


def shared_loads(target: Target, panels: int) -> float:
    """Return the share of weights loaded by four, if `panels` panels are computed at once."""
    return _for_count(target.core.shared_panel_loads[target.isa], panels)


def shared_window_loads(target: Target, vectors: int) -> float:
    """Return the share of weights loaded by four, for `vectors` vectors of an image's positions."""
    return _for_count(target.core.shared_window_loads[target.isa], vectors)


def _for_count(shares: tuple[float, ...], count: int) -> float:
    return shares[min(count, len(shares)) - 1]


def asks_ahead(count: int) -> bool:
    """Whether each tile of `count` panels prefetches the next tile's code and weights."""
    return count >= _FEWEST_TO_ASK_AHEAD


def emit_panels(
    asm: Assembler, spec: MatVec, tiles: list[Products], sums: PanelSums, panels: Panels
) -> None:
    """Append a subroutine that multiplies PANELS panels from PANEL_X to PANEL_Y and LAST_Y.

    Clobbers rdi, rsi and the registers that templates may clobber.
    """
    few = sum(len(tile) for tile in tiles) <= _PLACED_WEIGHTS
    can_stay = asm.target.core.placement and asm.target.isa == "avx512"
    stays = can_stay and panels.count == 1 and few
    with asm.placed(_PLACEMENT if stays else None):
        if asks_ahead(panels.count):
            _tiles(asm, spec, tiles, sums, panels)
        else:
            for tile in tiles:
                decoded = stays and asm.position < 0.9 * _PLACEMENT.whole
                share = shared_loads(asm.target, panels.count)
                share = asm.target.core.layouts.decoded_loads if decoded else share
                _tile(asm, spec, tile, sums, panels, tile_weights(asm, tile, share))
        asm.emit("ret")


def _tiles(
    asm: Assembler, spec: MatVec, tiles: list[Products], sums: PanelSums, panels: Panels
) -> None:
    """Append tiles for several panels; each prefetches the next one's code and weights."""
    share = shared_loads(asm.target, panels.count)
    weights = [tile_weights(asm, tile, share) for tile in tiles]
    labels = [asm.label(f"tile {number}") for number in range(len(tiles))]
    saved = (_AHEAD_OF_CODE, _AHEAD_OF_WEIGHTS)
    push(asm, saved)
    for number, tile in enumerate(tiles):
        asm.bind(labels[number])
        ahead = None
        if number + 1 < len(tiles):
            places = labels[number + 1], weights[number + 1].pool
            ahead = Ahead.of(tiles[number + 1], places, saved, panels.count)
        _tile(asm, spec, tile, sums, panels, weights[number], ahead)
    pop(asm, saved)


def _tile(
    asm: Assembler,
    spec: MatVec,
    tile: Products,
    sums: PanelSums,
    panels: Panels,
    weights: TileWeights,
    ahead: Ahead | None = None,
) -> None:
    asm.emit("mov", rdi, PANEL_X)
    asm.emit("mov", rsi, PANEL_Y)
    asm.emit("mov", rax, PANELS)
    if ahead is not None:
        ahead.begin(asm)
    with counted_down(asm, rax):
        start_sums(asm, sums, tile)
        x_address = panels.x_padding.place(tile.column) * panels.x_pitch
        inputs = _reached(rdi, x_address, asm.target.isa == "avx512")
        add_products(asm, tile, inputs, sums, weights, ahead, _next_outputs(tile, panels))
        _finish(asm, spec, tile, sums, panels)
        asm.emit("add", rdi, panels.x_step)
        asm.emit("add", rsi, panels.y_step)
        asm.emit("cmp", rsi, LAST_Y)
        asm.emit("cmova", rsi, LAST_Y)


def _sums(asm: Assembler, accumulator: IntArray) -> Register:
    return Register(vector(asm, 0).kind, asm.target.vector_registers - 1 - accumulator)


def panel_sum(asm: Assembler, accumulator: int) -> Register:
    """Return the register of a tile's sum."""
    return vector(asm, asm.target.vector_registers - 1 - accumulator)


def start_sums(asm: Assembler, sums: PanelSums, tile: Products) -> None:
    """Set sums to their start values; without any, to zero where no product begins the sum."""
    everyone = np.arange(len(tile.rows))
    if sums.start is None:
        for accumulator in np.setdiff1d(everyone, tile.accumulator):
            zero(asm, panel_sum(asm, int(accumulator)))
        return
    biases = asm.literal(sums.start[tile.rows]) + 4 * everyone
    lines = [line("vbroadcastss", _sums(asm, everyone), Literal(biases))]
    asm.stamp(len(tile.rows), lines)


def _begins(sums: PanelSums, tile: Products) -> BoolArray:
    """Return whether each product is the first of a sum that has no start value."""
    begins = np.zeros(len(tile), bool)
    if sums.start is None:
        begins[np.unique(tile.accumulator, return_index=True)[1]] = True
    return begins


def add_products(
    asm: Assembler,
    tile: Products,
    inputs: tuple[list[Line], Memory],
    sums: PanelSums,
    weights: TileWeights,
    ahead: Ahead | None = None,
    beside: Sequence[Line] = (),
) -> None:
    """Append all products of a tile; `inputs` are lines that come first, and each x's operand.

    `beside` are further lines between products. Clobbers r10, rcx and vectors 0 to 2.
    """
    wide, begins = asm.target.isa == "avx512", _begins(sums, tile)
    in_bytes = sums.arithmetic is Arithmetic.BYTES
    by_four = weights.by_four
    in_register = by_four if wide else np.ones(len(tile), bool)
    x_from_memory = tile.alone & in_register
    x, weight = vector(asm, 0), vector(asm, 1)
    accumulator = _sums(asm, tile.accumulator)
    move_x, x_place = inputs
    fours = weights_by_four(asm, weights)
    move_weights, weight_place = weights_one_by_one(asm, weights)
    load = line("vbroadcastss", weight, weight_place, when=~by_four & in_register)

    def add(first: Register, second: Register | Memory, when: BoolArray) -> list[Line]:
        if in_bytes:
            return [line("vpdpbusd", accumulator, first, second, when=when)]
        return [
            line("vmulps", accumulator, first, second, when=when & begins),
            line("vfmadd231ps", accumulator, first, second, when=when & ~begins),
        ]

    asm.stamp(
        len(tile),
        [
            fetch_redirects(len(tile), asm.target, _REDIRECT_EVERY),
            *([] if ahead is None else ahead.lines(len(tile))),
            *beside,
            *move_x,
            line("vmovups", x, x_place, when=tile.first & ~x_from_memory),
            *fours,
            *move_weights,
            *([] if wide else [load]),
            *add(weight, x_place, x_from_memory),
            *add(x, weight, in_register & ~x_from_memory),
            *(add(x, weight_place, ~by_four) if wide else []),
        ],
    )
    if ahead is not None:
        ahead.advance(asm)


def _next_outputs(tile: Products, panels: Panels) -> list[Line]:
    """Return lines between products that prefetch the next panel's y, a cache line a row."""
    rows = len(tile.rows)
    if panels.added is None or not panels.added.is_far or len(tile) < rows:
        return []
    asked = spread_evenly(rows, len(tile))
    row = tile.rows[np.maximum(np.cumsum(asked) - 1, 0)]
    place = Memory(rsi, row * panels.y_pitch + panels.y_step)
    return [line("prefetcht0", place, when=asked)]


def _reached(base: Register, address: IntArray, in_windows: bool) -> tuple[list[Line], Memory]:
    """Return lines that come first, and the memory operand `address` bytes after `base`.

    `in_windows`: use one-byte displacements, in whole vectors.
    """
    if not in_windows:
        return [], Memory(base, address)
    places = addresses(address, 64)
    move = line("lea", r8, Memory(base, places.base), when=places.moves)
    return [move], Memory(r8, places.displacement)


def _finish(
    asm: Assembler, spec: MatVec, tile: Products, sums: PanelSums, panels: Panels
) -> None:
    """Store the sums; a costly activation takes them in two halves, for more free registers."""
    everyone = np.arange(len(tile.rows))
    if panels.added is not None:
        _add(asm, everyone, tile.rows, panels, panels.added)
    halves = 2 if spec.activation in COSTLY else 1
    half = ceil_div(len(everyone), halves)
    if halves > 1:
        _store(asm, everyone[half:], tile.rows[half:], panels)
    for first in range(0, len(everyone), half):
        rows = tile.rows[first : first + half]
        own = everyone[: len(rows)]
        if first:
            _load(asm, own, rows, panels)
        if sums.ends is not None:
            emit_outputs(asm, spec, sums, _sums(asm, own), rows)
        free = [vector(asm, n) for n in range(asm.target.vector_registers - half)]
        apply_activation(asm, spec.activation, [panel_sum(asm, int(n)) for n in own], free)
        _store(asm, own, rows, panels)


def _add(
    asm: Assembler, accumulator: IntArray, rows: IntArray, panels: Panels, added: AddedRows
) -> None:
    """Add the operand to the sums. Clobbers rcx and r8."""
    asm.emit("mov", rcx, added.distance)
    asm.emit("add", rcx, rsi)
    in_windows = asm.target.isa == "avx512" and added.pitch % 64 == 0
    move, place = _reached(rcx, rows * added.pitch, in_windows)
    sums = _sums(asm, accumulator)
    target = sums.masked(PANEL_MASK) if panels.masked else sums
    asm.stamp(len(rows), [*move, line("vaddps", target, sums, place)])


def _store(asm: Assembler, accumulator: IntArray, rows: IntArray, panels: Panels) -> None:
    move, place = _outputs(asm, rows, panels)
    target = place.masked(PANEL_MASK) if panels.masked else place
    asm.stamp(len(rows), [*move, line("vmovups", target, _sums(asm, accumulator))])


def _load(asm: Assembler, accumulator: IntArray, rows: IntArray, panels: Panels) -> None:
    move, place = _outputs(asm, rows, panels)
    sums = _sums(asm, accumulator)
    target = sums.masked(PANEL_MASK, zeroing=True) if panels.masked else sums
    asm.stamp(len(rows), [*move, line("vmovups", target, place)])


def _outputs(asm: Assembler, rows: IntArray, panels: Panels) -> tuple[list[Line], Memory]:
    """Return lines that come first, and the memory operand of these rows of y."""
    in_windows = asm.target.isa == "avx512" and panels.y_pitch % 64 == 0
    return _reached(rsi, rows * panels.y_pitch, in_windows)
