"""Predicted cost of kernels on images of bytes and by windows, and choices between their forms.

    price_direct          windows by channel
    price_sparse_windows  windows with weights as code; `price_dense_windows` with all weights
    plan_quads            the form of quads
    byte_convolution_ns   a convolution from bytes to bytes
    takes_columns         whether a linear layer is faster as a convolution of its columns
    norm_cost             layer norms; also `attention_cost`, `byte_depthwise_cost`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.panels import shared_window_loads
from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.int8_attention import ByteHeads
from sparsejit.asm_templates.convolution.int8_convolution import (
    QUAD,
    ROW,
    ROWS_IN_LANES,
    QuadForm,
    expected_quads,
    quads_of_rows,
)
from sparsejit.asm_templates.convolution.int8_depthwise import (
    ByteChannelWindows,
    byte_channel_windows,
    gaps_for,
)
from sparsejit.asm_templates.convolution.int8_norm import ByteNorm
from sparsejit.asm_templates.convolution.int8_pair_code import (
    HALF,
    ONE_INPUT,
    Shape,
    choose_shapes,
    keeps_offsets,
    sums_operations,
    turns_of_positions,
)
from sparsejit.asm_templates.convolution.int8_planes import (
    LINE,
    BytePhase,
    BytePlanes,
    ByteWindows,
    lines,
    windows_of,
)
from sparsejit.asm_templates.convolution.int8_row_pairs import (
    MOST_SHAPES,
    bins_of_rows,
    rows_of_one_input,
)
from sparsejit.asm_templates.convolution.int8_tap_pairs import turns_of
from sparsejit.asm_templates.convolution.int8_tap_words import words_of, words_operations
from sparsejit.asm_templates.convolution.int8_taps import (
    MOST_INPUTS,
    fitting_order,
    in_order,
    tap_fours,
)
from sparsejit.asm_templates.convolution.int8_tiles import (
    ROWS_OF_TILE,
    VECTORS,
    last_width,
    turns_fit,
)
from sparsejit.asm_templates.convolution.sparse_windows import WindowCounts
from sparsejit.asm_templates.convolution.window_rows import DirectCounts
from sparsejit.asm_templates.gather.int8_boundary import quantised_nonzeros
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul
from sparsejit.machine.price_records import QuadPrices
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import Chosen, TableRow, cheapest, choose
from sparsejit.planner.cost import Cost, cache_level
from sparsejit.planner.layer_planner import LayerPlanner
from sparsejit.whole_numbers import ceil_div


@dataclass(frozen=True)
class QuadCounts:
    """Work of one call of a product of bytes: vectors of positions, and rows and quads for each.

    A quad is four weights of a row, multiplied at once by four inputs.

    multiplied: vectors for which products are computed; a part of the last one with tiles.
    shifted: the share of inputs whose vectors cross cache lines.
    met_bytes: bytes of x under the windows of one vector of positions.
    looked_up: the code of a table, as a share of a table's whose parts are all looked up; 0 without
        a table.
    """

    form: QuadForm
    vectors: int
    multiplied: float
    rows: int
    quads: int
    shifted: float
    met_bytes: int
    adds: bool
    moved_bytes: int
    looked_up: float = 0.0


def price_direct(counts: DirectCounts, target: Target) -> Cost:
    """Cost of depthwise convolution or pooling that reads the image in place.

    It is the longest of products, loads, and transfers beyond L1.
    """
    core = target.core
    cycles = {
        "execution": max(
            counts.products / core.multipliers,
            counts.loads * core.loops.across_lines[target.isa] / core.batch.loads,
        )
        + counts.stores * core.batch.store_cycles
    }
    level = cache_level(counts.moved_bytes, 0, target, target.l1d_bytes)
    cycles[f"data from {level}"] = counts.moved_bytes / core.rates.data[level]
    bound = max(cycles, key=lambda resource: cycles[resource])
    ns = cycles[bound] / core.rates.cycles_per_ns
    return Cost(counts.products, 0, counts.moved_bytes, ns, bound)


def price_sparse_windows(counts: WindowCounts, target: Target) -> Cost:
    """Cost of a convolution over a padded image whose nonzero weights are instructions.

    Code is fetched once a call: a part of it stays in L1 while it runs over all positions.
    """
    core, prices = target.core, target.core.batch
    share = shared_window_loads(target, counts.panels)
    inputs = counts.inputs * core.loops.across_lines[target.isa]
    loading = (counts.nnz * (1 - 0.75 * share) + inputs) / prices.loads
    products = counts.nnz * (1 + share * prices.spreading[target.isa]) / prices.products
    stores = counts.outputs * prices.store_cycles
    computing = counts.panels * (prices.windows[target.isa] * max(loading, products) + stores)
    level = cache_level(counts.code_bytes, counts.moved_bytes, target, target.l1i_bytes)
    fetching = 0.0 if level in ("L1", "L2") else counts.code_bytes / core.rates.code[level]
    bound = "execution" if computing >= fetching else f"code from {level}"
    ns = (computing + fetching) / core.rates.cycles_per_ns
    products_in_all = counts.panels * counts.nnz
    return Cost(products_in_all, counts.code_bytes, counts.moved_bytes, ns, bound)


def price_dense_windows(
    cycles: float, weight_bytes: int, moved_bytes: int, target: Target, passes: int = 1
) -> Cost:
    """Cost of a convolution over a padded image with all weights, loaded `passes` times.

    Loads from L2 overlap with execution, loads from beyond L2 in part.
    """
    core = target.core
    level = cache_level(weight_bytes, moved_bytes, target, 0)
    fetching = passes * weight_bytes / core.rates.data[level]
    exposed = 0.0 if level == "L2" else core.batch.dense_fetch * fetching
    bound = "execution" if cycles >= exposed else f"data from {level}"
    ns = (cycles + exposed) / core.rates.cycles_per_ns
    return Cost(int(cycles), 0, weight_bytes + moved_bytes, ns, bound)


# Instructions of a turn of rows of pairs, without its sums, and where bytes are added; and where it
# has no weights; cycles of each, and of a row. Measured by layers of 3x3 and 5x5 windows, and of 16
# to 96 channels.
_TURN_OPERATIONS, _ADDING_OPERATIONS, _FILLING_OPERATIONS = 24.0, 60.0, 5.0
_CYCLES_AN_OPERATION, _ROW_CYCLES = 0.29, 20.0
_MOST_BY_ROW = 64  # weights
_AVX_VNNI = "avx_vnni"  # `vpdpbusd` at the level of AVX2


def price_quads(counts: QuadCounts, target: Target) -> Cost:
    """Cost of a product of bytes, four inputs of a row at a time (a quad).

    Weights are fetched in order, in parallel with the products.
    """
    rates, form = target.core.rates, counts.form
    is_vex = target.isa == "avx2" and not form.paired
    prices = target.core.quads[_AVX_VNNI if is_vex else target.isa]
    stream_bytes = form.dtype.itemsize * counts.quads + ROW.itemsize * counts.rows
    quad = _quad_cycles(counts, prices, counts.met_bytes >= target.l1d_bytes)
    row = prices.row + (prices.added if counts.adds else 0.0)
    row += prices.table * counts.looked_up
    row += (prices.spilling if form.is_tile else 0.0) + (prices.turning if form.is_turned else 0.0)
    computing = counts.multiplied * counts.quads * quad + counts.vectors * counts.rows * row
    level = cache_level(stream_bytes, counts.moved_bytes, target, 0)
    fetching = stream_bytes / rates.data[level]
    bound = "execution" if computing >= fetching else f"data from {level}"
    ns = max(computing, fetching) / rates.cycles_per_ns
    return Cost(counts.vectors * counts.quads, 0, stream_bytes + counts.moved_bytes, ns, bound)


def _quad_cycles(counts: QuadCounts, prices: QuadPrices, is_far: bool) -> float:
    """Cycles of a quad at 64 positions, for all rows that share it.

    is_far: whether x under the windows of these positions leaves no room in L1.
    """
    form = counts.form
    if form.is_tile:
        return prices.tile * form.together
    in_line, across = prices.fours if form.fours else (prices.quad, prices.shifted)
    number = form.together - 1
    cycles = in_line[number] + counts.shifted * (across[number] - in_line[number])
    return cycles + (prices.far if is_far else 0.0)


def price_fours(lines: int, moved_bytes: int, target: Target) -> Cost:
    """Cost of interleaving channels by four: `lines` groups of four channels by 64 positions."""
    ns = lines * target.core.quads[target.isa].making / target.core.rates.cycles_per_ns
    return Cost(lines, 0, moved_bytes, ns, "execution")


def price_copy(moved_bytes: int, target: Target, is_far: bool = False) -> Cost:
    """Cost of reading and writing `moved_bytes` in all, in order; `is_far`: from beyond L2."""
    others = target.l2_bytes if is_far else 0
    level = cache_level(moved_bytes, others, target, 0 if is_far else target.l1d_bytes)
    ns = moved_bytes / target.core.rates.data[level] / target.core.rates.cycles_per_ns
    return Cost(0, 0, moved_bytes, ns, f"data from {level}")


def price_gathering(elements: int, is_strided: bool, target: Target) -> Cost:
    """Cost of gathering columns of `elements` floats, which are read again if they leave L2."""
    moved, core = price_copy(8 * elements, target), target.core
    copying = elements * core.loops.gathered[is_strided] / core.rates.cycles_per_ns
    again = 0.0 if moved.bound.endswith(("L1", "L2")) else moved.ns / 2
    return Cost(elements, 0, 8 * elements, max(copying, moved.ns) + again, moved.bound)


@dataclass(frozen=True)
class QuadPrice:
    """Cost of a product of bytes in a form.

    before_ns: time to convert x for that form first.
    """

    cost: Cost
    before_ns: float = 0.0

    @property
    def ns(self) -> float:
        """Time with the conversion of x."""
        return self.before_ns + self.cost.ns


@dataclass(frozen=True)
class QuadWork:
    """A product of bytes, four inputs of a row at a time.

    adds: whether y gets an operand.
    looked_up: as in `QuadCounts`.
    to_sums: whether y is sums in float32.
    """

    matrix: SparseMatrix
    windows: ByteWindows
    y: BytePlanes
    adds: bool
    target: Target
    looked_up: float = 0.0
    to_sums: bool = False


def order_of_taps(matrix: SparseMatrix) -> npt.NDArray[np.int64]:
    """Return the order in which inputs lie side by side where these are copied by four."""
    return matrix.memoised(
        "order of taps", lambda: fitting_order(quantised_nonzeros(matrix)[0])
    )


def _quads_by_taps(form: QuadForm, work: QuadWork) -> QuadPrice:
    """Price of quads over copied inputs, which are ordered to fit 16 bits."""
    order, y, target = order_of_taps(work.matrix), work.y, work.target
    integers = in_order(quantised_nonzeros(work.matrix)[0], order)
    windows = tap_fours(work.windows, y, order).windows
    moved = windows.planes.bytes + (1 + work.adds) * y.bytes
    quads = quads_of_rows(integers, 1, form)
    sizes = y.samples * y.vectors, y.samples * y.vectors, work.matrix.out_features, quads
    last = windows.met_bytes, work.adds, moved, work.looked_up
    counts = QuadCounts(form, *sizes, 0.0, *last)
    return QuadPrice(price_quads(counts, target), fours_cost(windows.planes, target).ns)


def _quads(form: QuadForm, work: QuadWork) -> QuadPrice:
    if form.by_taps:
        return _quads_by_taps(form, work)
    windows, y = work.windows, work.y
    taps = np.array(windows.taps)
    moved = windows.planes.bytes + (1 + work.adds) * y.bytes
    quads = expected_quads(work.matrix, len(taps), form)
    across = float(np.mean(taps % (LINE * form.offsets // QUAD) != 0))
    multiplied = y.samples * _multiplied(form, y)
    sizes = y.samples * y.vectors, multiplied, work.matrix.out_features, quads
    last = windows.met_bytes, work.adds, moved, work.looked_up
    counts = QuadCounts(form, *sizes, across, *last)
    before = fours_cost(windows.planes, work.target).ns if form.fours else 0.0
    return QuadPrice(price_quads(counts, work.target), before)


def _multiplied(form: QuadForm, y: BytePlanes) -> float:
    """Vectors of 64 positions of a sample for which a form computes products."""
    if form.is_turned:
        return y.rows * y.columns / LINE
    return y.vectors - (1 - last_width(y) / VECTORS if form.is_tile and form.fours else 0.0)


def _pairs(work: QuadWork) -> QuadPrice:
    """Price of rows in turn, by pairs: each is computed at all positions before the next one."""
    if work.matrix.row_counts.max(initial=0) > _MOST_BY_ROW:
        return QuadPrice(Cost(0, 0, 0, inf, "execution"))
    y, samples = work.y, work.y.samples
    integers = quantised_nonzeros(work.matrix)[0]
    sizes, counted = bins_of_rows(integers).sizes, list[tuple[Shape, int]]()
    if work.looked_up and not work.adds:
        alone = rows_of_one_input(integers)
        sizes, counted = np.delete(sizes, alone, axis=0), [(ONE_INPUT, len(alone))]
    if len(sizes):
        shapes, kinds = choose_shapes(sizes, MOST_SHAPES, work.adds)
        counted += zip(shapes, np.bincount(kinds).tolist(), strict=True)
    moved = work.windows.planes.bytes + (1 + work.adds) * y.bytes
    work_of = RowsWork(counted, turns_of_positions(y).parts, samples, moved, work.looked_up)
    return QuadPrice(_rows_cost(work_of, work.target, 2, work.adds))


class RowsWork(NamedTuple):
    """Rows of pairs: shapes with their numbers of rows, each in `turns` of 32 positions.

    looked_up: as in `QuadCounts`.
    """

    shapes: Sequence[tuple[Shape, int]]
    turns: int
    samples: int
    moved_bytes: int
    looked_up: float


def _table_cycles(target: Target) -> float:
    """Cycles to look up all parts of a table for 32 bytes."""
    return target.core.quads[target.isa].table * HALF / LINE


def _rows_cost(work: RowsWork, target: Target, inputs: int = 1, adds: bool = False) -> Cost:
    """Cost of rows of pairs.

    inputs: offsets of a pair, whose bytes are interleaved if there are two.
    """
    cycles, pairs, core = 0.0, 0, target.core
    table = _table_cycles(target)
    for shape, count in work.shapes:
        reloading = 0.0 if keeps_offsets(inputs * sum(shape)) else 1.5 * inputs
        each = sums_operations(shape) + (2.5 + inputs / 2 + reloading) * sum(shape)
        each += _TURN_OPERATIONS + (_ADDING_OPERATIONS if adds else 0.0)
        turn = each * _CYCLES_AN_OPERATION + table * work.looked_up
        if not sum(shape):
            filling = _FILLING_OPERATIONS * _CYCLES_AN_OPERATION
            turn = filling + (table if shape == ONE_INPUT else 0.0)
        cycles += count * (work.turns * turn + _ROW_CYCLES)
        pairs += count * sum(shape)
    ns = work.samples * cycles / core.rates.cycles_per_ns
    products = work.samples * work.turns * pairs
    return Cost(products, 0, work.moved_bytes, ns, "execution")


# Forms in which weights are read: quads of one row or of two, over taps or over four channels, or
# tiles; with AVX2 quads of one row, in pairs that fit 16 bits unless there is AVX-VNNI, or rows in
# turn.
_WIDE = [QuadForm(together, fours) for fours in (False, True) for together in (1, 2)]
_TILES = [
    QuadForm(ROWS_OF_TILE),
    *(QuadForm(together, fours=True) for together in (ROWS_OF_TILE, ROWS_IN_LANES)),
]
_NARROW = [QuadForm(1, fours, paired=True) for fours in (False, True)]
_BY_ROW = QuadForm(1, paired=True, by_row=True)
_BY_TAPS = [QuadForm(1, fours=True, paired=paired, by_taps=True) for paired in (False, True)]


def _has_code(form: QuadForm, work: QuadWork) -> bool:
    is_window = len(work.windows.taps) > 1 and work.matrix.in_features <= MOST_INPUTS
    if form.by_taps and (work.target.isa != "avx2" or not is_window or work.to_sums):
        return False
    if work.target.isa == "avx2":
        return form.paired != work.target.has(_AVX_VNNI) and form.together == 1
    return not form.paired and (not form.is_turned or turns_fit(work.y))


QUAD_FORMS: tuple[TableRow[QuadWork, QuadPrice], ...] = (
    *(
        TableRow(
            f"{'taps' if form.by_taps else 'channels' if form.fours else 'inputs'} by four, "
            + ("in pairs" if form.paired else f"rows by {form.together}"),
            partial(_quads, form),
            partial(_has_code, form),
            emitter=form,
        )
        for form in (*_WIDE, *_TILES, *_NARROW, *_BY_TAPS)
    ),
    TableRow(
        "inputs by two, rows in turn",
        _pairs,
        lambda work: _has_code(_BY_ROW, work) and not work.to_sums,
        emitter=_BY_ROW,
    ),
)


def plan_quads(work: QuadWork, form: QuadForm | None = None) -> Chosen[QuadWork, QuadPrice]:
    """Choose the form of a product of bytes by predicted time, or price `form` if one is given."""
    name = "" if form is None else next(row.name for row in QUAD_FORMS if row.emitter == form)
    return choose("quads", QUAD_FORMS, work, name)


class ByteConvolution(NamedTuple):
    """A convolution from bytes to bytes.

    axes: rows and columns of its windows.
    adds: whether it adds an operand.
    matrix: returns the weights.
    looked_up: as in `QuadCounts`.
    """

    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    axes: tuple[Axis, Axis]
    groups: int
    adds: bool
    matrix: Callable[[], SparseMatrix]
    planner: LayerPlanner
    looked_up: float = 0.0


def byte_convolution_ns(work: ByteConvolution) -> float:
    """Predicted nanoseconds from bytes to bytes; infinite if there is no code."""
    planes, target = BytePlanes.plain(work.x_shape), work.planner.target
    if by_channel(work):
        return _byte_depthwise_ns(work)
    windows = windows_of(planes, *work.axes)
    result = BytePlanes.plain(work.y_shape, windows.planes.pitch)
    matrix = work.matrix()
    near = work.planner.beside(matrix).target
    quads = QuadWork(matrix, windows, result, False, near, work.looked_up)
    ns = cheapest(QUAD_FORMS, quads).price.ns
    if windows.in_place:
        return ns
    return ns + copy_cost(planes.bytes + 2 * windows.planes.bytes, target).ns


def by_channel(work: ByteConvolution) -> bool:
    """Whether a convolution with groups is for the kernel by channel.

    With AVX2 the others are rows of quads with zeros outside of their groups.
    """
    if work.groups == 1 or work.planner.target.isa == "avx512":
        return work.groups > 1
    return _channel_windows(work) is not None


def _channel_windows(work: ByteConvolution) -> tuple[float, ByteChannelWindows] | None:
    """Return windows by channel, and the time of a copy of x for them; None without code."""
    x, target = BytePlanes.plain(work.x_shape), work.planner.target
    if work.adds or not work.groups == work.x_shape[1] == work.y_shape[1]:
        return None
    windows = byte_channel_windows(x, work.y_shape, *work.axes)
    if windows is not None:
        return 0.0, windows
    planes = gaps_for(*work.axes, x)
    windows = byte_channel_windows(planes, work.y_shape, *work.axes)
    copying = copy_cost(x.bytes + 2 * planes.bytes, target).ns
    return None if windows is None else (copying, windows)


def _byte_depthwise_ns(work: ByteConvolution) -> float:
    target = work.planner.target
    found = _channel_windows(work) if has_byte_depthwise(target) else None
    if found is None:
        return inf
    copying, windows = found
    return copying + byte_depthwise_cost(windows, target, looked_up=work.looked_up).ns


class ByteColumns(NamedTuple):
    """A linear layer in int8 that may run as a convolution of bytes (features, columns)."""

    layer: MatMul
    matrix: SparseMatrix
    planner: LayerPlanner


def _product_ns(work: ByteColumns) -> float:
    return work.planner.alone.expected_ns(work.layer, work.matrix)


def _columns_ns(work: ByteColumns) -> float:
    sizes = work.layer.in_features, work.layer.out_features
    planes, y = (BytePlanes.plain((1, size, work.layer.batch)) for size in sizes)
    alone = (BytePhase(0, 1, 1),)
    windows = ByteWindows(planes, alone, alone, (0,), in_place=True)
    quads = QuadWork(work.matrix, windows, y, False, work.planner.target)
    return cheapest(QUAD_FORMS, quads).price.ns


BY_COLUMN = "columns in bytes"
LINEAR_FORMS: tuple[TableRow[ByteColumns, float], ...] = (
    TableRow("int8 of floats", _product_ns),
    TableRow(BY_COLUMN, _columns_ns),
)


def takes_columns(work: ByteColumns) -> bool:
    """Whether a linear layer is faster as a convolution of bytes, with its rows of x as columns.

    The convolution makes no copies of x, sums and y.
    """
    return choose("linear layer", LINEAR_FORMS, work).name == BY_COLUMN


def fills_vectors(columns: int) -> bool:
    """Whether rows of `columns` positions leave at most half of their vectors' lanes empty."""
    return 2 * columns >= LINE * lines(columns)


def has_quads(target: Target) -> bool:
    """Whether the target has the instructions for products of bytes."""
    return target.isa == "avx2" or target.has("avx512_vnni")


def has_byte_depthwise(target: Target) -> bool:
    """Whether the target has the instructions for convolutions of bytes by channel."""
    return target.isa == "avx2" or target.has("avx512vbmi")


def fours_cost(planes: BytePlanes, target: Target) -> Cost:
    """Cost of interleaving all channels of planes by four, so that aligned loads read them."""
    lines = planes.samples * ceil_div(planes.channels, QUAD) * planes.channel // LINE
    return price_fours(lines, 2 * planes.bytes, target)


def copy_cost(moved_bytes: int, target: Target, is_far: bool = False) -> Cost:
    """Cost of converting images to bytes or floats, or of separating even and odd positions.

    is_far: whether they come from beyond L2, as what a model is called with.
    """
    return price_copy(moved_bytes, target, is_far)


class _VectorPrices(NamedTuple):
    """Cycles of norms and attention of bytes, by vector.

    norm: a part of the cycles with AVX-512.
    product: of a tile of queries and a key, or of shares and a feature.
    score: all that is computed between the two products.
    """

    norm: float
    product: float
    score: float


_VECTOR_PRICES = {
    "avx512": _VectorPrices(1.0, 1.0, 16.0),
    "avx2": _VectorPrices(0.75, 0.64, 13.5),
}


def norm_cost(norm: ByteNorm, target: Target) -> Cost:
    """Cost of a layer norm over channels, which reads each vector of floats three times."""
    vectors = norm.channels * ceil_div(norm.columns, target.lanes)
    each = 4.0 + 2.0 * len(norm.added) + 2.0 * len(norm.results)
    cycles = vectors * each * _VECTOR_PRICES[target.isa].norm
    moved = norm.channels * norm.columns * (len(norm.added) + len(norm.results))
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def attention_cost(heads: ByteHeads, target: Target) -> Cost:
    """Cost of an attention of bytes: two products, and the work on each score between them."""
    form, prices = heads.form, _VECTOR_PRICES[target.isa]
    tiles = heads.samples * heads.heads * ceil_div(heads.length, form.queries)
    vectors = tiles * heads.rows * form.queries // target.lanes
    products = 2 * heads.features / form.together
    cycles = vectors * (products * prices.product + prices.score)
    moved = sum(planes.bytes for planes in heads.planes)
    return Cost(vectors, 0, moved, cycles / target.core.rates.cycles_per_ns, "execution")


def byte_depthwise_cost(
    windows: ByteChannelWindows,
    target: Target,
    shapes: Sequence[tuple[Shape, int]] = (),
    looked_up: float = 0.0,
) -> Cost:
    """Cost of a depthwise convolution of bytes: four taps by 16 positions, and ends of 64.

    With AVX2: pairs of taps by 32 positions, in bins of `shapes`, each with its number of
    channels; by default two pairs of each row and two pairs a bin. looked_up: as in `QuadCounts`.
    """
    y = windows.y
    if takes_words(target):
        return _tap_words_cost(windows, target, looked_up)
    if target.isa == "avx2":
        counted = shapes or ((_usual(windows), y.channels),)
        sizes = turns_of(windows).parts, y.samples, windows.x.bytes + y.bytes
        return _rows_cost(RowsWork(counted, *sizes, looked_up), target)
    runs, quarters = y.vectors, 4 * y.vectors
    if not windows.is_whole:
        runs, quarters = y.rows * lines(y.columns), y.rows * ceil_div(y.columns, 16)
    each = quarters * windows.groups * 1.0 + runs * 16.0
    vectors = y.samples * y.channels * quarters
    ns = y.samples * y.channels * each / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, windows.x.bytes + y.bytes, ns, "execution")


def takes_words(target: Target) -> bool:
    """Whether convolutions by channel take four taps at a time: with `vpdpbusd` at AVX2's level."""
    return target.isa == "avx2" and target.has(_AVX_VNNI)


def _usual(windows: ByteChannelWindows) -> Shape:
    rows, columns = windows.taps
    return (2,) * max(1, rows * ceil_div(columns + 1, 4))


def _tap_words_cost(windows: ByteChannelWindows, target: Target, looked_up: float) -> Cost:
    y, turns = windows.y, turns_of(windows).parts
    each = words_operations(windows) + _TURN_OPERATIONS
    rows = y.samples * y.channels
    turn = each * _CYCLES_AN_OPERATION + looked_up * _table_cycles(target)
    cycles = rows * (turns * turn + _ROW_CYCLES)
    moved, ns = windows.x.bytes + y.bytes, cycles / target.core.rates.cycles_per_ns
    return Cost(rows * turns * len(words_of(windows)), 0, moved, ns, "execution")


def byte_scaling_cost(y: BytePlanes, target: Target) -> Cost:
    """Cost of channels of bytes times a number each: 64 positions at a time."""
    vectors = y.samples * y.channels * y.vectors
    ns = 20.0 * vectors / target.core.rates.cycles_per_ns
    return Cost(vectors, 0, 2 * y.bytes, ns, "execution")
