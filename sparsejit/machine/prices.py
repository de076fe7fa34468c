"""What work costs on a design of core, as records: their values are data of `processors`.

By level is by that of instructions: "avx512" or "avx2".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class StepPrice(NamedTuple):
    """Cycles that one step of a kernel takes in L1, and where the figure comes from."""

    cycles: float
    source: str


@dataclass(frozen=True)
class BatchPrices:
    """What the parts of a batch cost.

    loads, products: how many start in a cycle.
    store_cycles: cycles to store a vector of outputs.
    l2_code, l3_code: times the rate that `Rates` has for code from L2 and L3, at which the long
        instructions of batches come.
    far_code: bytes a cycle at which code comes that takes more than `near_l3` of L3.
    near_l3: a share of L3.
    square: by level, (cycles, cycles a column) to transpose lanes of features by n columns.
    feature_major_square: the same where x and y are feature-major.
    repeated: times its price that a kernel takes for each column, run on column after column.
    copy: by level, cycles to bring a vector of x into line.
    into_integers: times `CsrPrices.into_panel` that a panel's x takes to become integers.
    dense_fetch: the share of fetching weights from beyond L2 that dense code does not hide.
    spreading: by level, products whose place a weight takes that comes by a shared load.
    late_inputs, late_stores: how many times as long as L2's rate says what is read, and what is
        written, takes beside the products, where x and y exceed L1.
    unhidden_code: the share of the lesser of these that adds to the other, of panels too few to ask
        for code ahead: the products of the first one, and fetching its code from beyond L2.
    from_memory: cycles a byte of code and weights of panels that come from memory takes beside the
        products: it drives x from L2 on its way.
    windows: how many times as long as those of panels products of windows over a padded image
        take, whose vectors lie across lines.
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
    l3_code: float = 1.0
    late_inputs: float = 0.0
    late_stores: float = 0.0
    unhidden_code: float = 0.0
    from_memory: float = 0.3
    windows: float = 1.4


class CsrPrices(NamedTuple):
    """Cycles of a batch by a loop over compressed rows; with bytes, a weight means four.

    weight: to load one and its offset.
    product: to multiply one by a vector of x in L1.
    far_product: what more that takes where the vector comes from L2.
    sums: to load and store a vector of sums.
    group: to change over to rows with another number of weights.
    into_panel: to bring a vector of x into the panel, as integers where the arithmetic is theirs;
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

    By the number of rows that share them, 1 and 2.

    quad: four inputs whose vectors lie in line.
    shifted: the same where they lie across lines.
    far: what more that takes where what windows meet at once comes from L2.
    fours: as quad and shifted, where x lies by fours.
    making: to bring four channels side by side.
    row: to start and end a row of the matrix.
    added: what more that takes where bytes are added.
    """

    quad: tuple[float, float]
    shifted: tuple[float, float]
    far: float
    fours: tuple[tuple[float, float], tuple[float, float]]
    making: float
    row: float
    added: float


class ForestPrices(NamedTuple):
    """Cycles of decision trees; `rank` to `group` are of the kernel of blocks alone.

    By bytes is by those of a number of x: 4 or 8.

    gather: by level, to gather a vector of 32-bit numbers in L1.
    rank: a step of the search for one x.
    first_pair: to compare with two trees, whose blocks come one after another.
    pair: the same, whose blocks are anywhere in L1.
    group: to lead 32 trees on to their next blocks.
    leaf: to add a vector of outputs.
    row: what else a row takes.
    farther: by cache, times as long that gathers and pairs take.
    level_gathers: by bytes, gathers for a level of a vector of trees or rows: thresholds, x and
        the next nodes. One of doubles takes 0.6 of one of floats for half as many.
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
    square: as many elements of a tile's queries as there are lanes, transposed.
    result: a vector of results written.
    copy: a vector of values brought to where others are.
    apart: times as long as priced by themselves that two products around a softmax take.
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
    """What it costs to share work with another core.

    barrier_ns: nanoseconds to hand it a part and to hear of its end.
    crossing_bytes: bytes a nanosecond at which it gets what another core wrote last.
    torn_line_bytes: as long as so many bytes take, a cache line passes back and forth of which two
        cores write a part each.
    least_gain: times faster than on one thread that work must be predicted to be.
    """

    barrier_ns: float
    crossing_bytes: float
    torn_line_bytes: float = 512.0
    least_gain: float = 1.25


class LoopPrices(NamedTuple):
    """What plain loops over vectors take: on every core alike, as far as was measured.

    instructions: of vectors, in a cycle.
    transposed: instructions to transpose a vector: a load, four exchanges of lanes, a store.
    across_lines: by level, the loads that one counts for where all but one in `lanes` touch two
        cache lines.
    gathered: cycles of an element of gathered columns, whose rows are short: of windows one apart,
        and farther.
    tile: cycles to begin and end a tile of a dense product, beside starting and storing its sums.
    far_load: cycles more for a vector of its second matrix, which mostly comes from L2.
    far_element: by level, the same for an element of its first, which may come from farther.
    csr_call: cycles of a loop over compressed rows to save registers and make room.
    csr_near: the share of L1 up to which its panel of x comes from there.
    winograd: cycles to bring a vector of tiles of an image into Winograd's form, a channel, and
        a vector of products out of it.
    by_tap: by level, times the price of sparse windows where each tap of a row has planes of its
        own, for windows one apart and two: more lines to keep in L1, but none across rows.
    panels_from: times the next family's price from which panels are taken for a layer that changes
        layouts: it has nothing else to fall back to.
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
    """What templates weigh when they lay a layer out: on every core alike, as far as was measured.

    Steps are those of the kernel.

    square: by level, cycles to transpose a square of lanes by lanes of a dense product.
    lane_sums: by level, cycles to add the lanes of as many sums.
    products: by level, how many of a dense product start in a cycle; loads: the same of its loads.
    window_load: cycles of a load of dense windows: half of one, more where it touches two lines.
    exchange: steps that an exchange of rows takes, 1.55 cycles where a step takes 0.85.
    int8_exchange: the same of int8, within L1; beyond it larger blocks save more than the bound of
        the steps can tell, about so much more.
    staged_trip: steps to bring the inputs of a trip together.
    staged_group: steps to start, to leave and to finish a group.
    move: steps to move the outputs of a vector.
    loop_ends: steps to start and to leave a loop, the misprediction included.
    halves: times as long as one that two block rows in a register take.
    dot_end: rows that take as long as what ends any group of inner products.
    pushed: the share of weights in what is pushed from which pushing several at a time is quicker.
    decoded_loads: the share of weights of shared inputs that come by fours where code of a single
        panel stays decoded: loads bind there, code elsewhere.
    csr_far: the share of L2 beyond which a loop over compressed rows asks for weights ahead.
    csr_block: the share of L1 that the inputs of its block may take.
    quads_block: the same of bytes, four at a time: L2 delivers them nearly as fast.
    windows_near: the share of L1 that code takes, and inputs, of a part of sparse windows.
    bands_near: times L2, what two neighbouring images of a band of rows may take.
    panels_spread: by level, times L1, the sets of it that the lines of a panel may fall into where
        x stays as it lies; from there on it is copied into line.
    """

    square: Mapping[str, float] = MappingProxyType({"avx512": 57.0, "avx2": 27.0})
    lane_sums: Mapping[str, float] = MappingProxyType({"avx512": 32.0, "avx2": 12.0})
    products: Mapping[str, float] = MappingProxyType({"avx512": 2.0, "avx2": 2.0})
    loads: float = 2.0
    window_load: float = 0.8
    exchange: float = 1.8
    int8_exchange: float = 1.5
    staged_trip: int = 6
    staged_group: int = 40
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
