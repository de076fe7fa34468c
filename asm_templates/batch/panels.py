"""Panels: vectors of columns of a batch, each multiplied by the whole matrix.

    Ahead                     prefetching of the next tile's code and weights
    tile_weights              a tile's weights in the pool, and the loads of them
    panel_sums, emit_outputs  start and end of sums; int8: sums of integers become outputs
    PanelIntegers             int8: x becomes integers
    emit_panels               the subroutine that multiplies panels

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
from the decoded code of the first. Prefetching:

    prefetcht1 [r14+64*k]     a line of the next tile's code; each panel prefetches a share
    prefetcht1 [rbx+64*k]     a line of its weights

Code that comes from beyond L2 as it runs arrives at a third of the speed at which data does;
prefetching all of it at once would stall the running code.

int8: every column has its own scale, as in `reference.quantised_input`; scales lie behind the
panel's integers. As bytes, four inputs lie side by side as in `csr_core`. Integers in float32 add
up exactly below 2^24, which `MOST_INTEGERS` inputs cannot exceed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_core import first_sums, int8_ends, side_by_side
from sparsejit.asm_templates.batch.csr_shape import Arithmetic, short_words
from sparsejit.asm_templates.batch.row_tiles import BoolArray, IntArray, Products, products
from sparsejit.asm_templates.batch.transpose import Masks, MatrixPlace
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.asm_templates.shared.activation import COSTLY, apply_activation
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    to_int32,
)
from sparsejit.asm_templates.shared.loops import counted_down, fetch_redirects
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES, DENSE, StridePadding
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.asm_templates.shared.storage import addresses, rounded_matrix
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import LARGEST_INT8, DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label, Line, line
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
    r14,
    r15,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)
from sparsejit.x86.placement import Placement
from sparsejit.x86.routines import pop, push

_CODE_A_WEIGHT, _CODE_AN_INPUT = 8, 7


@dataclass(frozen=True)
class Ahead:
    """Prefetching, while one tile runs, of the next tile's code and weights.

    `code` is the label of that code, `weights` the literal of its weights; each panel prefetches
    `code_lines` and `weight_lines` cache lines. `pointers` are two registers that advance with the
    panels.
    """

    code: Label
    weights: int
    code_lines: int
    weight_lines: int
    pointers: tuple[Register, Register]

    @classmethod
    def of(
        cls,
        tile: Products,
        places: tuple[Label, int],
        pointers: tuple[Register, Register],
        panels: int,
    ) -> "Ahead":
        """Return the prefetch of a tile's code and weights, spread over `panels` panels."""
        inputs = int(np.count_nonzero(tile.first))
        code_bytes = _CODE_A_WEIGHT * len(tile) + _CODE_AN_INPUT * inputs
        sizes = (code_bytes, tile.weight.nbytes)
        code, weights = (ceil_div(size, CACHE_LINE_BYTES * panels) for size in sizes)
        return cls(*places, code, weights, pointers)

    def begin(self, asm: Assembler) -> None:
        """Append code that points both registers at the next tile, before the first panel."""
        asm.address(self.pointers[0], self.code)
        asm.emit("lea", self.pointers[1], Literal(self.weights))

    def lines(self, steps: int) -> list[Line]:
        """Return lines that prefetch a panel's share, spread evenly over its `steps` steps."""
        counts = zip(self.pointers, (self.code_lines, self.weight_lines), strict=True)
        return [_spread(pointer, count, steps) for pointer, count in counts]

    def advance(self, asm: Assembler) -> None:
        """Append code behind a panel that moves both registers past the lines it prefetched."""
        for pointer, count in zip(
            self.pointers, (self.code_lines, self.weight_lines), strict=True
        ):
            asm.emit("add", pointer, CACHE_LINE_BYTES * count)


def spread_evenly(count: int, steps: int) -> BoolArray:
    """Choose `count` of `steps` steps at equal distances; return a mask (steps,)."""
    asked = np.zeros(steps, bool)
    if steps:  # a tile may have no weights
        asked[np.linspace(0, steps, count, endpoint=False).astype(int)] = True
    return asked


def _spread(pointer: Register, count: int, steps: int) -> Line:
    asked = spread_evenly(count, steps)
    place = Memory(pointer, CACHE_LINE_BYTES * (np.cumsum(asked) - asked))
    return line("prefetcht1", place, when=asked)


@dataclass(frozen=True, eq=False)
class TileWeights:
    """Places of a tile's weights in the pool.

    Weights in the mask `by_four` lie at `fours`, and one load brings four of them. The others lie
    at `pool`, and are loaded one by one.
    """

    by_four: BoolArray
    pool: int
    fours: int


def tile_weights(asm: Assembler, tile: Products, shared: float) -> TileWeights:
    """Put a tile's weights into the pool; `shared` is the share to be loaded four at a time."""
    by_four = _come_by_four(tile, shared, asm.target.isa == "avx512")
    pool = asm.literal(tile.weight[~by_four])
    fours = asm.literal(np.append(tile.weight[by_four], np.zeros(4, tile.weight.dtype)))
    return TileWeights(by_four, pool, fours)


def _come_by_four(tile: Products, shared: float, wide: bool) -> BoolArray:
    """Return for each weight whether one load brings it with three others.

    One load does so for a share `shared` of the weights whose input other weights use too, and in
    AVX-512 for all weights whose input no other weight uses.
    """
    rank = np.cumsum(~tile.alone)
    chosen = ~tile.alone & (np.floor(rank * shared) > np.floor((rank - 1) * shared))
    return chosen | tile.alone if wide else chosen


def weights_by_four(asm: Assembler, weights: TileWeights) -> list[Line]:
    """Return lines that load the weights of `weights.by_four`, four by one load.

    They leave each in all lanes of vector 1. Clobbers r10 and vector 2.
    """
    wide, by_four = asm.target.isa == "avx512", weights.by_four
    rank: IntArray = np.cumsum(by_four) - by_four
    places = addresses(rank // 4 * 16, 16 if wide else 1)
    weight, four = vector(asm, 1), vector(asm, 2)
    load = "vbroadcastf32x4" if wide else "vbroadcastf128"
    begins = by_four & (rank % 4 == 0)
    return [
        line("lea", r10, Literal(weights.fours + places.base), when=places.moves),
        line(load, four, Memory(r10, places.displacement), when=begins),
        line("vbroadcastss", weight, xmm(2), when=begins),
        line("vpermilps", weight, four, rank % 4 * 0x55, when=by_four & ~begins),
    ]


def weights_one_by_one(
    asm: Assembler, weights: TileWeights
) -> tuple[list[Line], Memory]:
    """Return lines that move rcx, and the memory operand of each weight not loaded by four.

    In AVX-512 the operand is a broadcast.
    """
    wide, own = asm.target.isa == "avx512", ~weights.by_four
    rank: IntArray = np.cumsum(own) - own
    places = addresses(4 * rank, 4 if wide else 1)
    move = line("lea", rcx, Literal(weights.pool + places.base), when=places.moves)
    return [move], Memory(rcx, places.displacement, broadcast=16 if wide else 0)


MOST_INTEGERS = 2**24 // ((LARGEST_INT8 + 1) * LARGEST_INT8)
_AT_ONCE = 4  # inputs, each in a register


@dataclass(frozen=True, eq=False)
class PanelSums:
    """Start and end of a layer's sums in panels.

    A row's sum begins with its element of `start` (out_features,), or with its first product where
    `start` is None. `columns` is the number of words of inputs. For int8, `ends` (out_features, 2)
    has each row's scale and bias.
    """

    arithmetic: Arithmetic
    columns: int
    start: npt.NDArray[np.generic] | None
    ends: npt.NDArray[np.float32] | None = None


def panel_tiles(
    arithmetic: Arithmetic, dtype: DType, matrix: SparseMatrix, accumulators: int
) -> list[Products]:
    """Return the layer's weights as tiles of at most `accumulators` rows each."""
    if dtype is not DType.INT8:
        return products(rounded_matrix(matrix, dtype).nonzeros, accumulators)
    integers, _ = quantised_nonzeros(matrix)
    if arithmetic is Arithmetic.INTEGERS:
        return products(integers.with_values(integers.values.astype(np.float32)), accumulators)
    # Bytes of x must be in a register: no input is a memory operand of its product.
    return [
        replace(tile, alone=np.zeros(len(tile), bool))
        for tile in products(short_words(integers, np.int8), accumulators)
    ]


def panel_sums(arithmetic: Arithmetic, spec: MatVec, matrix: SparseMatrix) -> PanelSums:
    """Return the start values and the ends of a layer's sums."""
    columns = ceil_div(spec.in_features, arithmetic.together)
    if spec.dtype is not DType.INT8:
        return PanelSums(arithmetic, columns, spec.bias)
    return PanelSums(arithmetic, columns, first_sums(arithmetic, matrix), int8_ends(spec, matrix))


def emit_outputs(
    asm: Assembler,
    spec: MatVec,
    sums: PanelSums,
    values: Register,
    rows: IntArray,
) -> None:
    """Turn sums of integers into outputs, for the panel at rdi; clobbers rcx and vectors 0 to 2.

    Operations are in the order of `csr_core`, so that results have the same bits.
    """
    assert sums.ends is not None
    wide = asm.target.isa == "avx512"
    dynamic, has_bias = spec.x_steps is None, spec.bias is not None
    bias, row_scale, scale = (vector(asm, number) for number in range(3))
    asm.emit("lea", rcx, Literal(asm.literal(sums.ends[rows])))
    if dynamic:
        asm.emit("vmovups", scale, Memory(rdi, sums.columns * asm.target.vector_bytes))
    places = [Memory(rcx, 8 * np.arange(len(rows)) + 4 * n, broadcast=16 * wide) for n in range(2)]
    factor, addend = places if wide else (row_scale, bias)
    lines = []
    if sums.arithmetic is Arithmetic.BYTES:
        lines.append(line("vcvtdq2ps", values, values))
    if not wide:
        lines.append(line("vbroadcastss", row_scale, places[0]))
        lines.append(line("vbroadcastss", bias, places[1]))
    if dynamic:
        lines.append(line("vmulps", values, values, factor))
    elif has_bias and wide:  # one of the two memory operands must be in a register
        lines.append(line("vbroadcastss", scale, places[0]._replace(broadcast=0)))
    last = scale if dynamic or (wide and has_bias) else factor
    end = ("vfmadd213ps", values, last, addend) if has_bias else ("vmulps", values, values, last)
    asm.stamp(len(rows), [*lines, line(*end)])


class PanelIntegers:
    """Appends code that turns x of a panel, feature-major float32, into integers."""

    def __init__(self, asm: Assembler, spec: MatVec, arithmetic: Arithmetic) -> None:
        self.asm, self.spec, self.together = asm, spec, arithmetic.together
        self.fixed = spec.x_steps is not None

    def emit(self, source: MatrixPlace, panel: MatrixPlace, columns: int) -> None:
        """Write the panel, and its columns' scales behind it; clobbers rax, r8-r10 and vectors."""
        asm, lanes = self.asm, self.asm.target.lanes
        self.source, self.whole = source, columns == lanes
        self.masks = Masks(asm, columns % lanes, 0)
        self.reciprocal, self.bits = vector(asm, 8), vector(asm, 9)
        asm.emit("lea", r9, Memory(panel.base, panel.offset))
        if self.fixed:
            fixed_reciprocal(asm, self.spec, self.reciprocal)
        else:
            self._scales(panel)
        self._repeat(self._bytes if self.together > 1 else self._floats, _AT_ONCE)

    def _scales(self, panel: MatrixPlace) -> None:
        """Compute scales from the largest magnitudes, compared as integers: NaN is the largest."""
        asm, words = self.asm, ceil_div(self.spec.in_features, self.together)
        sinks = [vector(asm, number) for number in range(4, 8)]
        begin_largest(asm, sinks, self.bits)

        def largest(count: int) -> None:
            for number in range(count):
                loaded, sink = vector(asm, number), sinks[number]
                self.masks.load(loaded, Memory(r8, number * self.source.pitch), self.whole)
                asm.emit("vandps", loaded, loaded, self.bits)
                asm.emit("vpmaxud", sink, sink, loaded)

        self._repeat(largest, _AT_ONCE)
        for first, second in ((0, 1), (2, 3), (0, 2)):
            asm.emit("vpmaxud", sinks[first], sinks[first], sinks[second])
        emit_scale_of(asm, sinks[0], self.reciprocal, sinks[0])
        behind = panel.offset + words * asm.target.vector_bytes
        asm.emit("vmovups", Memory(panel.base, behind), sinks[0])

    def _repeat(self, body: Callable[[int], None], at_once: int) -> None:
        """Append `body` in a loop over `at_once` inputs (r8) at a time, then for the rest."""
        asm = self.asm
        asm.emit("lea", r8, Memory(self.source.base, self.source.offset))
        whole, rest = divmod(self.spec.in_features, at_once)
        if whole:
            with counted_down(asm, dword(r10), whole):
                body(at_once)
                asm.emit("add", r8, at_once * self.source.pitch)
        if rest:
            body(rest)

    def _quantise(self, number: int) -> Register:
        """Append code that quantises a vector of one input, to int32; return its register."""
        asm, register = self.asm, vector(self.asm, number)
        self.masks.load(register, Memory(r8, number * self.source.pitch), self.whole)
        asm.emit("vmulps", register, register, self.reciprocal)
        to_int32(asm, self.spec, register)
        clip_negative(asm, self.spec, register)
        return register

    def _floats(self, count: int) -> None:
        asm, size = self.asm, self.asm.target.vector_bytes
        for number in range(count):
            register = self._quantise(number)
            asm.emit("vcvtdq2ps", register, register)
            asm.emit("vmovups", Memory(r9, number * size), register)
        asm.emit("add", r9, count * size)

    def _bytes(self, count: int) -> None:
        asm, parts = self.asm, [self._quantise(number) for number in range(count)]
        side_by_side(asm, parts)
        asm.emit("vmovups", Memory(r9), parts[0])
        asm.emit("add", r9, asm.target.vector_bytes)


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
    """Layout of x and y for panels.

    Bytes from one feature to the next (`x_pitch`, `y_pitch`), and from one panel to the next
    (`x_step`, `y_step`). `count` is the number of panels computed at once; `masked` whether only
    the columns in PANEL_MASK exist in y; `x_padding` the stride padding of the features of x;
    `added` the operand added to y.
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
    """Return the share of weights for which one load brings four, for `panels` panels at once."""
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
    """Append a subroutine that multiplies PANELS panels of x, from PANEL_X on, by the whole matrix.

    Results go to panels of y from PANEL_Y on; none begins after LAST_Y. Clobbers rdi, rsi and the
    registers that templates may clobber.
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
    """Append code that sets a tile's sums to their start values.

    Without start values, only sums of rows without a weight are set, to zero: the others begin with
    their first product.
    """
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
    """Append the products of a tile for one panel, added to its sums.

    `inputs`: lines that come first, and the operand of each step's x. `beside`: further lines
    between products. `ahead`: prefetches of the next tile. Clobbers r10, rcx and vectors 0 to 2.
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
    """Return memory operands `address` bytes after `base`, and the lines that must come first.

    With `in_windows`, the lines move r8 so that each displacement takes one byte of code, which
    counts whole vectors.
    """
    if not in_windows:
        return [], Memory(base, address)
    places = addresses(address, 64)
    move = line("lea", r8, Memory(base, places.base), when=places.moves)
    return [move], Memory(r8, places.displacement)


def _finish(
    asm: Assembler, spec: MatVec, tile: Products, sums: PanelSums, panels: Panels
) -> None:
    """Turn the sums of a tile into outputs, and store them.

    A costly activation takes them in two halves, so that more registers are free.
    """
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
    """Return memory operands of these rows of y, and the lines that must come first."""
    in_windows = asm.target.isa == "avx512" and panels.y_pitch % 64 == 0
    return _reached(rsi, rows * panels.y_pitch, in_windows)
