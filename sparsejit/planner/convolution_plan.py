"""Choices by cost between ways to compute a convolution.

    plan_windows       the kernel over a padded image
    cheapest_planes    the planes of the padded image
    pools_by_windows   pooling: whether one kernel serves all taps
    gains_by_bands     whether convolutions are computed by bands of rows; also `band_count`
    gathers_columns    whether a product of gathered columns is cheaper than windows
    plan_channels      depthwise: channels or positions in the lanes
    joins_samples      one product for the columns of all samples, or one for each sample
    takes_int8         int8 or float32, for a quantised convolution of float32 images
    takes_bytes        bytes to bytes, or floats with rounding between convolutions
    takes_sums         bytes to sums in float32, or float32, for steps that a call computes

Windows are read by weights as code, by a loop over channels with all weights, or by Winograd's
algorithm. Where code is so long that it comes from beyond L2, gathered columns may be cheaper.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, prod
from typing import NamedTuple

from sparsejit.asm_templates.convolution.dense_windows import MOST_TAPS, tile_shape
from sparsejit.asm_templates.convolution.padded_image import PaddedImage, window_panels
from sparsejit.asm_templates.convolution.sparse_windows import WindowCounts, expect_windows
from sparsejit.asm_templates.convolution.window_rows import (
    DirectCounts,
    WindowLoop,
    count_lanes,
    count_windows,
)
from sparsejit.asm_templates.convolution.winograd import (
    U_A_WEIGHT,
    has_winograd,
    winograd_cycles,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import Chosen, TableRow, cheapest, choose
from sparsejit.planner.cost import Cost
from sparsejit.planner.int8_plan import (
    price_copy,
    price_dense_windows,
    price_direct,
    price_gathering,
    price_sparse_windows,
)
from sparsejit.planner.layer_planner import LayerPlanner

DENSE_WINDOWS, SPARSE_WINDOWS, WINOGRAD = "dense-windows", "sparse-windows", "winograd"

_LEAST_FILLED = 0.4  # of the lanes of windows, by positions
_LEAST_SPREAD = 0.5  # of a channel's pitch, by its values
_LEAST_POSITIONS = 4  # of pooling, in a row: with fewer, chains keep more lanes busy
_LARGE = 0.5  # of L2: bands gain for images between layers from this size on
_MOST_WEIGHTS = 10_000  # nonzeros of a convolution whose code is repeated for each band
_MOST_BANDS = 16


@dataclass(frozen=True, eq=False)
class WindowWork:
    """A convolution that reads windows of a padded copy of the image, without gathered columns."""

    image: PaddedImage
    matrix: SparseMatrix
    each: MatVec
    planner: LayerPlanner

    @property
    def target(self) -> Target:
        return self.planner.target

    @cached_property
    def counts(self) -> WindowCounts:
        """Counts of the kernel whose weights are instructions."""
        return expect_windows(self.image, self.matrix, self.target)

    def by_tap(self) -> "WindowWork":
        """The same convolution over an image that is stored once for each tap of a filter's row."""
        return replace(self, image=replace(self.image, by_tap=True))


@dataclass(frozen=True)
class FilterProduct:
    """A convolution as a matrix product.

    matrix: W, (out_channels, in_channels * taps).
    each: the product at one position.
    positions: number of positions of a sample.
    gathers: whether columns are gathered; else they are x itself.
    is_strided: whether windows lie more than one element apart.
    """

    matrix: SparseMatrix
    each: MatVec
    positions: int
    gathers: bool
    is_strided: bool

    @property
    def layer(self) -> MatVec | MatMul:
        """The spec of one sample's product: `each`, or for several positions a batch of them."""
        many = self.positions > 1
        return MatMul(self.each, self.positions, Layout.FEATURE_MAJOR) if many else self.each


def _sparse_cost(work: WindowWork) -> Cost:
    return price_sparse_windows(work.counts, work.target)


def _has_dense(work: WindowWork) -> bool:
    few = work.image.rows.kernel * work.image.columns.kernel <= MOST_TAPS
    return few and not work.image.by_tap


def _dense_cost(work: WindowWork) -> Cost:
    image, target = work.image, work.target
    cycles = image.samples * tile_shape(work.each, window_panels(image, target), target).cycles
    return price_dense_windows(cycles, 4 * work.matrix.size, work.counts.moved_bytes, target)


def _has_winograd(work: WindowWork) -> bool:
    may_change = not (work.planner.exact or work.image.by_tap)
    return may_change and has_winograd(work.image, work.each)


def _winograd_cost(work: WindowWork) -> Cost:
    cycles, passes = winograd_cycles(work.image, work.each, work.target)
    weight_bytes = round(4 * U_A_WEIGHT * work.matrix.size)
    moved = work.counts.moved_bytes
    return price_dense_windows(cycles, weight_bytes, moved, work.target, passes)


# Kernels over the padded image; Winograd's changes weights.
WINDOW_KERNELS: tuple[TableRow[WindowWork, Cost], ...] = (
    TableRow(SPARSE_WINDOWS, _sparse_cost),
    TableRow(DENSE_WINDOWS, _dense_cost, _has_dense),
    TableRow(WINOGRAD, _winograd_cost, _has_winograd),
)


def plan_windows(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner, name: str = ""
) -> Chosen[WindowWork, Cost]:
    """Choose the kernel over a padded image; its price leaves out the copy that pads the image.

    `name` sets the kernel: a part of a layer's rows keeps the layer's, even where it is too small
    to choose it.
    """
    work, name = WindowWork(image, matrix, each, planner), "" if image.by_tap else name
    return choose("windows", WINDOW_KERNELS, work, name)


def _shared_planes_ns(work: WindowWork) -> float:
    return padding_cost(work.image, work.target).ns + _sparse_cost(work).ns


def _planes_by_tap_ns(work: WindowWork) -> float:
    image, target, by_tap = work.image, work.target, work.by_tap()
    times = target.core.loops.by_tap[target.isa][image.columns.stride - 1]
    return padding_cost(by_tap.image, target).ns + times * _sparse_cost(by_tap).ns


def _may_have_planes_by_tap(work: WindowWork) -> bool:
    if work.image.columns.kernel == 1:
        return False
    return cheapest(WINDOW_KERNELS, work).name == SPARSE_WINDOWS


BY_TAP = "by tap"
PLANES: tuple[TableRow[WindowWork, float], ...] = (
    TableRow("shared by taps", _shared_planes_ns),
    TableRow(BY_TAP, _planes_by_tap_ns, _may_have_planes_by_tap),
)


def cheapest_planes(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner
) -> PaddedImage:
    """Return the image, with a plane for each tap of a row if sparse windows gain by them."""
    work = WindowWork(image, matrix, each, planner)
    by_tap = choose("planes of the image", PLANES, work).name == BY_TAP
    return replace(image, by_tap=True) if by_tap else image


def fills_windows(image: PaddedImage, target: Target) -> bool:
    """Whether an output's positions fill enough lanes of the vectors that compute windows."""
    lanes = window_panels(image, target).count * target.lanes
    return image.rows.positions * image.columns.positions >= _LEAST_FILLED * lanes


def fills_spread(places: int, pitch: int) -> bool:
    """Whether channels of `places` floats waste little memory when stored `pitch` floats apart."""
    return places >= _LEAST_SPREAD * pitch


def pools_by_windows(columns: int) -> bool:
    """Whether rows of `columns` positions are long enough to pool by one kernel for all taps."""
    return columns >= _LEAST_POSITIONS


def gains_by_bands(image_bytes: int, target: Target) -> bool:
    """Whether an image between two convolutions is so large that bands gain."""
    return image_bytes >= _LARGE * target.l2_bytes


def repeats_in_bands(nnz: int) -> bool:
    """Whether the code of `nnz` weights is short enough to be repeated for each band."""
    return nnz <= _MOST_WEIGHTS


def band_count(
    rows: int, threads: int, live_bytes: Callable[[int], int], target: Target
) -> int | None:
    """Least number of bands of rows, a multiple of `threads`, with images between layers in L2.

    live_bytes: the most bytes between two convolutions, by the number of bands.
    None where no number of bands keeps them there.
    """
    counts = range(threads, min(rows, _MOST_BANDS) + 1, threads)
    near = target.core.layouts.bands_near * target.l2_bytes
    return next((count for count in counts if live_bytes(count) <= near), None)


def _windows_inside_ns(windows: Chosen[WindowWork, Cost]) -> float:
    """Nanoseconds of windows with weights as code, if the model's other layers evict that code."""
    work = windows.work
    target = work.planner.beside(work.matrix).target
    return price_sparse_windows(expect_windows(work.image, work.matrix, target), target).ns


def _columns_ns(windows: Chosen[WindowWork, Cost]) -> float:
    """Nanoseconds of gathering columns and of their products."""
    work = windows.work
    image, matrix, planner = work.image, work.matrix, work.planner
    positions = image.rows.positions * image.columns.positions
    layer = MatMul(work.each, positions, Layout.FEATURE_MAJOR) if positions > 1 else work.each
    product = planner.plan(layer, matrix).chosen.cost.ns
    target = planner.beside(matrix).target
    gathering = price_copy(2 * 4 * matrix.in_features * positions, target).ns
    return image.samples * (product + gathering)


def _is_long(windows: Chosen[WindowWork, Cost]) -> bool:
    is_code = windows.name == SPARSE_WINDOWS
    return is_code and windows.price.code_bytes >= windows.work.target.l2_bytes // 2


COLUMNS = "columns"
IMAGES: tuple[TableRow[Chosen[WindowWork, Cost], float], ...] = (
    TableRow("windows", _windows_inside_ns),
    TableRow(COLUMNS, _columns_ns, _is_long),
)


def gathers_columns(windows: Chosen[WindowWork, Cost]) -> bool:
    """Whether a product of gathered columns is cheaper than long code; False for short code."""
    return choose("reading of the image", IMAGES, windows).name == COLUMNS


class JoinedSamples(NamedTuple):
    """A convolution of several samples: one product of all columns, or one for each sample."""

    joined: MatMul
    alone: MatVec | MatMul
    samples: int
    matrix: SparseMatrix
    planner: LayerPlanner


def joins_samples(work: JoinedSamples, most_times: float) -> bool:
    """Whether the joined product takes less than `most_times` the time of separate products."""
    rows = (
        TableRow("a product for each sample", _separate_ns, margin=most_times),
        TableRow(_JOINED, _joined_ns),
    )
    return choose("samples", rows, work).name == _JOINED


_JOINED = "one product"


def _separate_ns(work: JoinedSamples) -> float:
    return work.samples * work.planner.expected_ns(work.alone, work.matrix)


def _joined_ns(work: JoinedSamples) -> float:
    return work.planner.expected_ns(work.joined, work.matrix)


@dataclass(frozen=True, eq=False)
class QuantisedWork:
    """A quantised convolution of float32 images, in int8 and in float32.

    image: the padded image that float32 may read by windows, or None.
    bytes_ns: nanoseconds from bytes to bytes; infinite if there is no code.
    rounding_bytes: bytes that are moved to round the result to steps.
    channels: the work of a sample by channel in float32; None without such code.
    rounds: whether float32 rounds x to its steps first.
    """

    int8: FilterProduct
    floats: FilterProduct
    image: PaddedImage | None
    x_shape: tuple[int, ...]
    planner: LayerPlanner
    bytes_ns: float = inf
    rounding_bytes: int = 0
    channels: DirectCounts | None = None
    rounds: bool = True


def _int8_ns(work: QuantisedWork) -> float:
    return _gathered_ns(work.int8, work.planner)


def _float_ns(work: QuantisedWork) -> float:
    """Nanoseconds of a sample in the cheapest float32 form, and of rounding x if it is rounded."""
    samples, elements = work.x_shape[0], prod(work.x_shape)
    rounding = price_copy(2 * 4 * elements, work.planner.target).ns / samples
    return cheapest(_FLOAT_FORMS, work).price + rounding * work.rounds


def _float_columns_ns(work: QuantisedWork) -> float:
    return _gathered_ns(work.floats, work.planner)


def _float_windows_ns(work: QuantisedWork) -> float:
    assert work.image is not None
    one, planner = replace(work.image, samples=1), work.planner
    windows = plan_windows(one, work.floats.matrix, work.floats.each, planner).price.ns
    elements = prod(work.x_shape) // work.x_shape[0]
    return windows + price_copy(4 * (elements + one.floats), planner.target).ns


def _float_channels_ns(work: QuantisedWork) -> float:
    assert work.channels is not None
    return channel_windows_cost(work.channels, work.planner.target).ns


_FLOAT_FORMS: tuple[TableRow[QuantisedWork, float], ...] = (
    TableRow(COLUMNS, _float_columns_ns),
    TableRow("windows", _float_windows_ns, lambda work: work.image is not None),
    TableRow("by channel", _float_channels_ns, lambda work: work.channels is not None),
)

FLOATS, INT8, BYTES = "float32", "int8", "bytes to bytes"
ELEMENTS: tuple[TableRow[QuantisedWork, float], ...] = (
    TableRow(FLOATS, _float_ns),
    TableRow(INT8, _int8_ns),
)


def _between_floats_ns(work: QuantisedWork) -> float:
    """Nanoseconds of all samples in int8 or float32, the cheaper, and of rounding the result."""
    rounding = price_copy(work.rounding_bytes, work.planner.target).ns
    return work.x_shape[0] * cheapest(ELEMENTS, work).price + rounding


IMAGE_ELEMENTS: tuple[TableRow[QuantisedWork, float], ...] = (
    TableRow(FLOATS, _between_floats_ns),
    TableRow(BYTES, lambda work: work.bytes_ns, lambda work: isfinite(work.bytes_ns)),
)


def takes_int8(work: QuantisedWork) -> bool:
    """Whether int8 is predicted to be faster than float32 with the rounding of x."""
    return choose("weights", ELEMENTS, work).name == INT8


def takes_bytes(work: QuantisedWork) -> bool:
    """Whether a convolution is faster from bytes to bytes than between floats with rounding."""
    return choose("images", IMAGE_ELEMENTS, work).name == BYTES


SUMS = "bytes to sums"
SUM_ELEMENTS: tuple[TableRow[QuantisedWork, float], ...] = (
    TableRow(FLOATS, lambda work: work.x_shape[0] * _float_ns(work)),
    TableRow(SUMS, lambda work: work.bytes_ns, lambda work: isfinite(work.bytes_ns)),
)


def takes_sums(work: QuantisedWork) -> bool:
    """Whether a convolution by steps of the call is faster in bytes than in float32."""
    return choose("sums", SUM_ELEMENTS, work).name == SUMS


def _gathered_ns(product: FilterProduct, planner: LayerPlanner) -> float:
    """Nanoseconds of a sample as a product, with the gathering of columns unless they are x."""
    ns = planner.alone.expected_ns(product.layer, product.matrix)
    if not product.gathers:
        return ns
    elements = product.matrix.in_features * product.positions
    return ns + price_gathering(elements, product.is_strided, planner.target).ns


def padding_cost(image: PaddedImage, target: Target) -> Cost:
    """Cost of copying x into the planes that windows are read from."""
    elements = image.samples * image.channels * image.rows.size * image.columns.size
    return price_copy(4 * (elements + image.floats), target)


def channel_windows_cost(counts: DirectCounts, target: Target) -> Cost:
    """Cost of depthwise convolution or pooling that reads the image in place, by channel."""
    return price_direct(counts, target)


class ChannelWork(NamedTuple):
    """A depthwise convolution, and the bytes of x and y to copy with either order of lanes.

    by_lane: whether there is a kernel with channels in the lanes.
    """

    loop: WindowLoop
    by_lane: bool
    of_positions: int
    of_channels: int
    target: Target


def _positions_ns(work: ChannelWork) -> float:
    return _with_copy(count_windows(work.loop, work.target), work.of_positions, work.target)


def _channels_ns(work: ChannelWork) -> float:
    return _with_copy(count_lanes(work.loop, work.target), work.of_channels, work.target)


def _with_copy(counts: DirectCounts, copied_bytes: int, target: Target) -> float:
    copying = price_copy(2 * copied_bytes, target).ns if copied_bytes else 0.0
    return channel_windows_cost(counts, target).ns + copying


POSITIONS, CHANNELS = "positions", "channels"
LANES: tuple[TableRow[ChannelWork, float], ...] = (
    TableRow(POSITIONS, _positions_ns),
    TableRow(CHANNELS, _channels_ns, lambda work: work.by_lane),
)


def plan_channels(work: ChannelWork) -> str:
    """Return the axis in the lanes of a depthwise convolution: "positions" or "channels"."""
    return choose("lanes", LANES, work).name
