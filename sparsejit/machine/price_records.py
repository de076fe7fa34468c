"""Records of the cost of work on a design of core; their values are data of `processors`.

Levels are levels of instructions: "avx512" or "avx2".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import NamedTuple


class StepPrice(NamedTuple):
    """Cycles that one step of a kernel takes in L1, and the source of the figure."""

    cycles: float
    source: str


@dataclass(frozen=True)
class BatchPrices:
    """Costs of the parts of a batch.

    loads, products: the number that starts in a cycle.
    store_cycles: cycles to store a vector of outputs.
    l2_code, l3_code: rate of the batch's code from L2 and L3, over the rate in `Rates`: its
        instructions are longer.
    far_code: bytes a cycle of code that takes more than `near_l3` of L3.
    near_l3: a share of L3.
    square: by level, (cycles, cycles a column) to transpose lanes of features by n columns.
    feature_major_square: the same where x and y are feature-major.
    repeated: slowdown of a kernel that is repeated for every column, relative to one call.
    copy: by level, cycles to copy a vector of x into a panel.
    into_integers: cycles to convert a panel's x to integers, over `CsrPrices.into_panel`.
    dense_fetch: the share of fetching weights from beyond L2 that dense code does not hide.
    spreading: by level, the cost, in products, of a weight that comes by a shared load.
    windows: by level, time of products of windows over a padded image, whose vectors lie across
        lines, over the time of panels' products.
    late_inputs, late_stores: time that reading, and writing, takes beside the products where x and
        y exceed L1, over the time by L2's rate.
    unhidden_code: for panels too few to prefetch code, the share of the shorter of two times that
        adds to the other: the first panel's products, and fetching its code from beyond L2.
    from_memory: cycles that a byte of panels' code and weights from memory takes beside the
        products: it evicts x from L2.
    """

    loads: float
    products: float
    store_cycles: float
    l2_code: float
    far_code: float
    near_l3: float
    square: Mapping[str, tuple[float, float]]
    feature_major_square: Mapping[str, tuple[float, float]]
    repeated: float
    copy: Mapping[str, float]
    into_integers: float
    dense_fetch: float
    spreading: Mapping[str, float]
    windows: Mapping[str, float]
    l3_code: float = 1.0
    late_inputs: float = 0.0
    late_stores: float = 0.0
    unhidden_code: float = 0.0
    from_memory: float = 0.3


class CsrPrices(NamedTuple):
    """Cycles of a batch by a loop over compressed rows; with bytes, a weight means four.

    weight: to load a weight and its offset.
    product: to multiply a weight by a vector of x in L1.
    far_product: additional cycles of a product where the vector comes from L2.
    sums: to load and store a vector of sums.
    group: to change over to rows with another number of weights.
    into_panel: to copy a vector of x into the panel, as integers for integer arithmetic;
        feature-major, batch-major.
    to_y: to write a vector of y; feature-major, batch-major.
    fetch: the share of fetching weights from beyond L2 that is not hidden.
    """

    weight: float
    product: float
    far_product: float
    sums: float
    group: float
    into_panel: tuple[float, float]
    to_y: tuple[float, float]
    fetch: float


class QuadPrices(NamedTuple):
    """Cycles of products of bytes, four inputs at a time, for 64 positions.

    Pairs are by the number of rows that share the inputs, 1 and 2.

    quad: four inputs whose vectors lie within cache lines.
    shifted: the same where they lie across lines.
    far: additional cycles where x under the windows of one vector fills L1, except for tiles.
    fours: as quad and shifted, where x lies by fours.
    tile: four inputs of a row in a tile of more than two rows, where x lies by fours.
    spilling: additional cycles of a row of a tile, whose sums go through the stack.
    turning: the same where they are transposed there, besides.
    making: to bring four channels side by side.
    row: to start and end a row of the matrix.
    added: additional cycles of a row where bytes are added.
    table: the same where they are looked up in a table; 0 where that is not priced.
    """

    quad: tuple[float, float]
    shifted: tuple[float, float]
    far: float
    fours: tuple[tuple[float, float], tuple[float, float]]
    making: float
    row: float
    added: float
    tile: float = inf
    spilling: float = inf
    turning: float = inf
    table: float = 0.0


class ForestPrices(NamedTuple):
    """Cycles of decision trees; `rank` to `group` apply to the kernel of blocks only.

    Bytes are the size of a number of x: 4 or 8.

    gather: by level, to gather a vector of 32-bit numbers in L1.
    rank: a step of the search for the rank of a number of x: how many thresholds are below it.
    first_pair: to compare with two trees, whose blocks come one after another.
    pair: the same, whose blocks are anywhere in L1.
    group: to lead 32 trees on to their next blocks.
    leaf: to add a vector of outputs.
    row: all other work of a row.
    farther: by cache, the time of gathers and pairs over their time in L1.
    level_gathers: by bytes, gathers for a level of a vector of trees or rows: thresholds, x and
        the next nodes. A gather of doubles takes 0.6 of one of floats, for half the numbers.
    search: by bytes, ranks that a search of sixteen thresholds takes: nine instructions for
        doubles, seven for floats.
    """

    gather: Mapping[str, float]
    rank: float
    first_pair: float
    pair: float
    group: float
    leaf: float
    row: float
    farther: Mapping[str, float]
    level_gathers: Mapping[int, float] = MappingProxyType({4: 3.0, 8: 1 + 4 * 0.6})
    search: Mapping[int, float] = MappingProxyType({4: 1.0, 8: 9 / 7})


class AttentionPrices(NamedTuple):
    """Cycles of attention by its own kernel, in L1 and L2.

    score: a vector multiplied and added, where a tile has one vector of queries.
    wide_score: the same, where it has two.
    value: the same for values.
    power: a vector of scores raised.
    square: a square of lanes by lanes of a tile's queries, transposed.
    result: a vector of results written.
    copy: a vector of values copied beside the others.
    apart: time of two products around a softmax, over their costs as separate steps.
    """

    score: float
    wide_score: float
    value: float
    power: float
    square: float
    result: float
    copy: float
    apart: float


class SharingPrices(NamedTuple):
    """Costs of sharing work with another core.

    barrier_ns: nanoseconds to start its part and to await the end.
    crossing_bytes: bytes a nanosecond that a core reads of data that another core wrote last.
    torn_line_bytes: cost of a cache line of which two cores write a part each, in crossing bytes.
    least_gain: predicted speedup over one thread from which work is shared.
    """

    barrier_ns: float
    crossing_bytes: float
    torn_line_bytes: float = 512.0
    least_gain: float = 1.25


class LoopPrices(NamedTuple):
    """Costs of plain loops over vectors: the same on every core, as far as was measured.

    instructions: vector instructions in a cycle.
    transposed: instructions to transpose a vector: a load, four exchanges of lanes, a store.
    across_lines: by level, the cost of a load, in loads within lines, where all but one load in
        `lanes` touch two cache lines.
    gathered: cycles of an element of gathered columns, whose rows are short: for windows one apart,
        and farther.
    tile: cycles to begin and end a tile of a dense product, beside starting and storing its sums.
    far_load: cycles more for a vector of its second matrix, which mostly comes from L2.
    far_element: by level, the same for an element of its first, which may come from farther.
    csr_call: cycles of a loop over compressed rows to save registers and make room.
    csr_near: size of its panel of x, over L1, up to which the panel comes from L1.
    winograd: cycles to bring a vector of tiles of an image into Winograd's form, a channel, and
        a vector of products out of it.
    by_tap: by level, time of sparse windows with planes for each tap of a row, over their predicted
        cost, for windows one apart and two: more lines to keep in L1, but none across rows.
    panels_from: cost of panels, over the next family's, below which a layer changes its layouts for
        panels: it has no other family to fall back to.
    """

    instructions: float = 2.0
    transposed: float = 6.0
    across_lines: Mapping[str, float] = MappingProxyType({"avx512": 1.7, "avx2": 1.35})
    gathered: tuple[float, float] = (0.75, 1.5)
    tile: float = 12.0
    far_load: float = 0.05
    far_element: Mapping[str, float] = MappingProxyType({"avx512": 0.0, "avx2": 0.0})
    csr_call: float = 300.0
    csr_near: float = 1.1
    winograd: tuple[float, float] = (45.0, 45.0)
    by_tap: Mapping[str, tuple[float, float]] = MappingProxyType(
        {"avx512": (1.09, 0.93), "avx2": (1.2, 0.93)}
    )
    panels_from: float = 0.85


class LayoutPrices(NamedTuple):
    """Figures by which templates choose layouts: the same on every core, as far as was measured.

    Steps are steps of the kernel.

    square: by level, cycles to transpose a square of lanes by lanes of a dense product.
    lane_sums: by level, cycles to reduce a register of partial sums for each lane to one vector.
    products, loads: of a dense product, the number that starts in a cycle; products by level.
    pair_products: the same of products of pairs of bfloat16, with AVX-512.
    paired: cycles to round two vectors of float32 to a vector of pairs, loads and store included.
    quantised_row, quantised_vector: cycles to quantise a row of x to bytes: for its scale, and for
        each vector of float32.
    window_load: cycles of a load of dense windows: half of one, more where it touches two lines.
    exchange: steps that an exchange of rows takes, 1.55 cycles where a step takes 0.85.
    int8_exchange: the same in int8, within L1; beyond it none, for larger blocks save about that
        much more than the bound of the steps shows.
    staged_trip: steps to bring the inputs of a trip together.
    staged_group: steps to start, to leave and to finish a group.
    dense_group: by level, the same of dense weights in int8.
    move: steps to move the outputs of a vector.
    loop_ends: steps to start and to leave a loop, the misprediction included.
    halves: time of a vector of two block rows, over the time of a vector of one.
    dot_end: cost of the end of a group of inner products, in rows.
    pushed: the share of weights in pushed blocks from which pushing several at a time is quicker.
    decoded_loads: the share of weights that are loaded by four where the code of a single panel
        stays decoded: loads bind there, code elsewhere.
    csr_far: the share of L2 beyond which a loop over compressed rows prefetches weights.
    csr_block: the share of L1 that the inputs of its block may take.
    quads_block: the same for bytes, four at a time: L2 delivers them nearly as fast.
    windows_near: the share of L1 that the code, and the inputs, of a part of sparse windows may
        take.
    bands_near: the share of L2 that two neighbouring images of a band of rows may take.
    panels_spread: by level, the bytes over which a panel's lines may spread in the sets of L1, as a
        multiple of L1's size, where x stays in place; from there on x is copied.
    """

    square: Mapping[str, float] = MappingProxyType({"avx512": 57.0, "avx2": 27.0})
    lane_sums: Mapping[str, float] = MappingProxyType({"avx512": 32.0, "avx2": 12.0})
    products: Mapping[str, float] = MappingProxyType({"avx512": 2.0, "avx2": 2.0})
    loads: float = 2.0
    pair_products: float = 1.0
    paired: float = 4.0
    quantised_row: float = 60.0
    quantised_vector: float = 4.0
    window_load: float = 0.8
    exchange: float = 1.8
    int8_exchange: float = 1.5
    staged_trip: int = 6
    staged_group: int = 40
    dense_group: Mapping[str, int] = MappingProxyType({"avx512": 40, "avx2": 20})
    move: int = 5
    loop_ends: int = 20
    halves: float = 1.5
    dot_end: int = 4
    pushed: float = 0.5
    decoded_loads: float = 0.4
    csr_far: float = 0.5
    csr_block: float = 1.0
    quads_block: float = 1.5
    windows_near: float = 0.6
    bands_near: float = 0.6
    panels_spread: Mapping[str, float] = MappingProxyType({"avx512": 2.0, "avx2": 2.0})
