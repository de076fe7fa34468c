"""A panel: as many columns of a batch as a vector has lanes, multiplied by the whole matrix.

x lies feature-major. A tile of rows has its sums in registers, columns of W are taken in turn:

    vmovups      zmm0, [r8+64*d]                x[column], 16 of the batch    7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, [rcx+4*d]{1to16}  += weight * x                 7 bytes, 1 load

    vbroadcastf32x4 zmm2, [r10+16*d]            or four weights by one load   7 bytes, 1 load
    vbroadcastss zmm1, xmm2                     the first of them             6 bytes
    vpermilps    zmm1, zmm2, 0x55               another                       7 bytes
    vfmadd231ps  zmm31, zmm1, [r8+64*d]         the only use of x[column]     7 bytes, 1 load
    vfmadd231ps  zmm31, zmm0, zmm1              or one of several             6 bytes

Loads and code bind in turn (docs/kernels/batch.md), hence shares of both forms, several panels one
after another within a tile, and `fetch_redirects` that let the second run as the first was decoded.
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
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.stream import addresses
from sparsejit.ir.spec import MatVec
from sparsejit.machine.target import Target
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

# What the subroutine is called with: x and y of the first panel, how many panels there are, and y
# of the last one, which may overlap the one before it. In AVX-512 besides, which columns exist.
PANEL_X, PANEL_Y, PANELS, LAST_Y = rdx, r9, r11, r15
PANEL_MASK = k(1)
# Each of fewer panels would ask for so much that it loses more than it gains.
_FEWEST_TO_ASK_AHEAD = 4
_AHEAD_OF_CODE, _AHEAD_OF_WEIGHTS = r14, rbx

RESERVED = 3  # x, a weight, four weights

# Where the code of one panel lies, up to so many weights: beyond, gaps cost more than they save.
_PLACEMENT = Placement(32 << 10, 1024)
_PLACED_WEIGHTS = 30_000
# Weights from one jump to the next, some 200 bytes.
_REDIRECT_EVERY = 20


@dataclass(frozen=True)
class Panels:
    """How x and y lie: bytes from one feature to the next, and from one panel to the next.

    `count` is how many panels are computed at once; `masked` whether only the columns in
    PANEL_MASK exist in y; `x_padding` that of the features of x; `added` what is added to y.
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
    """What is added to y before the activation; it may be y itself where no panels overlap.

    `distance` has the bytes from a panel of y to what is added to it, whose rows lie `pitch` bytes
    apart. `is_far`: y exceeds L2, so that a panel's lines of it are asked for a panel ahead.
    """

    distance: Memory
    pitch: int
    is_far: bool


def shared_loads(target: Target, panels: int) -> float:
    """The share of weights with a load for four, where so many panels are computed at once."""
    return _for_count(target.core.shared_panel_loads[target.isa], panels)


def shared_window_loads(target: Target, vectors: int) -> float:
    """The same for so many vectors of positions of an image."""
    return _for_count(target.core.shared_window_loads[target.isa], vectors)


def _for_count(shares: tuple[float, ...], count: int) -> float:
    return shares[min(count, len(shares)) - 1]


def asks_ahead(count: int) -> bool:
    """Whether the code of so many panels asks for that of the next tile."""
    return count >= _FEWEST_TO_ASK_AHEAD


def emit_panels(
    asm: Assembler, spec: MatVec, tiles: list[Products], sums: PanelSums, panels: Panels
) -> None:
    """Append a subroutine that multiplies PANELS panels from PANEL_X to PANEL_Y and LAST_Y.

    Clobbers what templates may, rdi and rsi.
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
    """Tiles for several panels; during each the next one's code and weights are asked for."""
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
    again = asm.label("again")
    asm.bind(again)
    start_sums(asm, sums, tile)
    x_address = panels.x_padding.place(tile.column) * panels.x_pitch
    inputs = _reached(rdi, x_address, asm.target.isa == "avx512")
    add_products(asm, tile, inputs, sums, weights, ahead, _next_outputs(tile, panels))
    _finish(asm, spec, tile, sums, panels)
    asm.emit("add", rdi, panels.x_step)
    asm.emit("add", rsi, panels.y_step)
    asm.emit("cmp", rsi, LAST_Y)
    asm.emit("cmova", rsi, LAST_Y)
    asm.emit("sub", rax, 1)
    asm.jump("jnz", again)


def _sums(asm: Assembler, accumulator: IntArray) -> Register:
    return Register(vector(asm, 0).kind, asm.target.vector_registers - 1 - accumulator)


def panel_sum(asm: Assembler, accumulator: int) -> Register:
    """The register of a tile's sum."""
    return vector(asm, asm.target.vector_registers - 1 - accumulator)


def start_sums(asm: Assembler, sums: PanelSums, tile: Products) -> None:
    """Begin at the start; without, at the first product, or at zero where there is none."""
    everyone = np.arange(len(tile.rows))
    if sums.start is None:
        for accumulator in np.setdiff1d(everyone, tile.accumulator):
            zero(asm, panel_sum(asm, int(accumulator)))
        return
    biases = asm.literal(sums.start[tile.rows]) + 4 * everyone
    lines = [line("vbroadcastss", _sums(asm, everyone), Literal(biases))]
    asm.stamp(len(tile.rows), lines)


def _begins(sums: PanelSums, tile: Products) -> BoolArray:
    """Whether a product is the first of a sum that has no start."""
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
    """Append all products of a tile; `inputs` are lines that come before, and where each x is.

    `beside` are lines between products. Clobbers r10, rcx and vectors 0 to 2.
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
    """Between products: ask for what the next panel adds to, a line a row."""
    rows = len(tile.rows)
    if panels.added is None or not panels.added.is_far or len(tile) < rows:
        return []
    asked = spread_evenly(rows, len(tile))
    row = tile.rows[np.maximum(np.cumsum(asked) - 1, 0)]
    place = Memory(rsi, row * panels.y_pitch + panels.y_step)
    return [line("prefetcht0", place, when=asked)]


def _reached(base: Register, address: IntArray, in_windows: bool) -> tuple[list[Line], Memory]:
    """Lines to come first, and what lies `address` bytes after `base` then.

    `in_windows`: of whole vectors, by one-byte displacements.
    """
    if not in_windows:
        return [], Memory(base, address)
    places = addresses(address, 64)
    move = line("lea", r8, Memory(base, places.base), when=places.moves)
    return [move], Memory(r8, places.displacement)


def _finish(
    asm: Assembler, spec: MatVec, tile: Products, sums: PanelSums, panels: Panels
) -> None:
    """Store the sums; those of a costly activation in two halves, the later with more scratch."""
    everyone = np.arange(len(tile.rows))
    if panels.added is not None:
        _add(asm, everyone, tile.rows, panels, panels.added)
    halves = 2 if spec.activation in COSTLY else 1
    half = -(-len(everyone) // halves)
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
    """Add to the sums what lies as far from y as `added` says. Clobbers rcx and r8."""
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
    """Lines to come first, and where these rows of y are then."""
    in_windows = asm.target.isa == "avx512" and panels.y_pitch % 64 == 0
    return _reached(rsi, rows * panels.y_pitch, in_windows)
