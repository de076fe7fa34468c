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

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panel_sums import PanelSums, emit_outputs
from sparsejit.asm_templates.batch.row_tiles import BoolArray, IntArray, Products
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.asm_templates.shared.redirects import fetch_redirects
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.stream import addresses
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    k,
    r8,
    r9,
    r10,
    r11,
    r15,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)
from sparsejit.x86.placement import Placement

# What the subroutine is called with: x and y of the first panel, how many panels there are, and y
# of the last one, which may overlap the one before it. In AVX-512 besides, which columns exist.
PANEL_X, PANEL_Y, PANELS, LAST_Y = rdx, r9, r11, r15
PANEL_MASK = k(1)

RESERVED = 3  # x, a weight, four weights

# Share of the weights of shared inputs that come by fours in the first tiles of one panel, where
# they stay decoded: loads bind there, code elsewhere.
_SHARED_WHERE_DECODED = 0.4
# Where the code of one panel lies, up to so many weights: beyond, gaps cost more than they save.
_PLACEMENT = Placement(32 << 10, 1024)
_PLACED_WEIGHTS = 30_000
# Weights from one jump to the next, some 200 bytes.
_REDIRECT_EVERY = 20


@dataclass(frozen=True)
class Panels:
    """How x and y lie: bytes from one feature to the next, and from one panel to the next.

    `count` is how many panels are computed at once; `masked` whether only the columns in
    PANEL_MASK exist in y; `x_padding` that of the features of x.
    """

    count: int
    x_pitch: int
    x_step: int
    y_pitch: int
    y_step: int
    masked: bool = False
    x_padding: StridePadding = DENSE


def shared_loads(target: Target, panels: int) -> float:
    """The share of weights with a load for four, where so many panels are computed at once."""
    shares = target.core.shared_panel_loads[target.isa]
    return shares[min(panels, len(shares)) - 1]


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
        for tile in tiles:
            decoded = stays and asm.position < 0.9 * _PLACEMENT.whole
            share = _SHARED_WHERE_DECODED if decoded else shared_loads(asm.target, panels.count)
            _tile(asm, spec, tile, sums, panels, share)
        asm.emit("ret")


def _tile(
    asm: Assembler,
    spec: MatVec,
    tile: Products,
    sums: PanelSums,
    panels: Panels,
    shared: float,
) -> None:
    asm.emit("mov", rdi, PANEL_X)
    asm.emit("mov", rsi, PANEL_Y)
    asm.emit("mov", rax, PANELS)
    again = asm.label("again")
    asm.bind(again)
    start_sums(asm, sums, tile)
    x_address = panels.x_padding.place(tile.column) * panels.x_pitch
    add_products(asm, tile, _reached(rdi, x_address, asm.target.isa == "avx512"), sums, shared)
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
    shared: float,
) -> None:
    """Append all products of a tile; `inputs` are lines that come before, and where each x is.

    `shared` is the share of weights with a load for four. Clobbers r10, rcx and vectors 0 to 2.
    """
    wide, begins = asm.target.isa == "avx512", _begins(sums, tile)
    in_bytes = sums.arithmetic is Arithmetic.BYTES
    by_four = _come_by_four(tile, shared, wide)
    in_register = by_four if wide else np.ones(len(tile), bool)
    x_from_memory = tile.alone & in_register
    x, weight = vector(asm, 0), vector(asm, 1)
    accumulator = _sums(asm, tile.accumulator)
    move_x, x_place = inputs
    fours = _weights_by_four(asm, tile, by_four)
    move_weights, weight_place = _weights_one_by_one(asm, tile, ~by_four)
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


def _come_by_four(tile: Products, shared: float, wide: bool) -> BoolArray:
    """Which weights share a load with three others; AVX2 needs none for its lone inputs."""
    rank = np.cumsum(~tile.alone)
    chosen = ~tile.alone & (np.floor(rank * shared) > np.floor((rank - 1) * shared))
    return chosen | tile.alone if wide else chosen


def _reached(base: Register, address: IntArray, in_windows: bool) -> tuple[list[Line], Memory]:
    """Lines to come first, and what lies `address` bytes after `base` then.

    `in_windows`: of whole vectors, by one-byte displacements.
    """
    if not in_windows:
        return [], Memory(base, address)
    places = addresses(address, 64)
    move = line("lea", r8, Memory(base, places.base), when=places.moves)
    return [move], Memory(r8, places.displacement)


def _weights_by_four(asm: Assembler, tile: Products, by_four: BoolArray) -> list[Line]:
    """Bring such weights into register 1."""
    wide = asm.target.isa == "avx512"
    rank: IntArray = np.cumsum(by_four) - by_four
    pool = asm.literal(np.append(tile.weight[by_four], np.zeros(4, tile.weight.dtype)))
    places = addresses(rank // 4 * 16, 16 if wide else 1)
    weight, four = vector(asm, 1), vector(asm, 2)
    load = "vbroadcastf32x4" if wide else "vbroadcastf128"
    begins = by_four & (rank % 4 == 0)
    return [
        line("lea", r10, Literal(pool + places.base), when=places.moves),
        line(load, four, Memory(r10, places.displacement), when=begins),
        line("vbroadcastss", weight, xmm(2), when=begins),
        line("vpermilps", weight, four, rank % 4 * 0x55, when=by_four & ~begins),
    ]


def _weights_one_by_one(
    asm: Assembler, tile: Products, own: BoolArray
) -> tuple[list[Line], Memory]:
    """Lines to come first, and where the weights are then, AVX-512 broadcasting as it reads."""
    wide = asm.target.isa == "avx512"
    rank: IntArray = np.cumsum(own) - own
    pool = asm.literal(tile.weight[own])
    places = addresses(4 * rank, 4 if wide else 1)
    move = line("lea", rcx, Literal(pool + places.base), when=places.moves)
    return [move], Memory(rcx, places.displacement, broadcast=16 if wide else 0)


def _finish(
    asm: Assembler, spec: MatVec, tile: Products, sums: PanelSums, panels: Panels
) -> None:
    """Store the sums; those of a costly activation in two halves, the later with more scratch."""
    everyone = np.arange(len(tile.rows))
    halves = 1 if spec.activation in (Activation.NONE, Activation.RELU) else 2
    half = -(-len(everyone) // halves)
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
