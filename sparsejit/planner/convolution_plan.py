"""How a convolution is computed, by price: windows of a padded image or gathered columns, or int8.

Windows are read by weights as code, by a loop over channels with all weights, or by Winograd's
algorithm. Where code is so long that it comes from far, columns gathered after all may be cheaper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sparsejit.asm_templates.convolution.dense_windows import MOST_TAPS, tile_shape
from sparsejit.asm_templates.convolution.padded_image import PaddedImage
from sparsejit.asm_templates.convolution.sparse_windows import expect_windows
from sparsejit.asm_templates.convolution.window_loop import DirectCounts
from sparsejit.asm_templates.convolution.window_panels import window_panels
from sparsejit.asm_templates.convolution.winograd import (
    U_A_WEIGHT,
    has_winograd,
    winograd_cycles,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.convolution_price import (
    price_copy,
    price_dense_windows,
    price_direct,
    price_gathering,
    price_sparse_windows,
)
from sparsejit.planner.cost import Cost
from sparsejit.planner.layer_planner import LayerPlanner

DENSE_WINDOWS, SPARSE_WINDOWS, WINOGRAD = "dense-windows", "sparse-windows", "winograd"

_LEAST_FILLED = 0.4  # of the lanes of windows, by positions
_LEAST_SPREAD = 0.5  # of a channel's cache lines, by what it holds
_LEAST_POSITIONS = 4  # of pooling, in a row: of fewer, chains keep more lanes busy
_LARGE = 0.5  # of L2: what images between layers exceed where bands pay
_MOST_WEIGHTS = 10_000  # nonzeros of a convolution that has its code once a band
_MOST_BANDS = 16


@dataclass(frozen=True)
class WindowPlan:
    """The cost of each kernel that there is code for, without the copy; `name` is the choice."""

    costs: Mapping[str, Cost]
    name: str

    @property
    def cost(self) -> Cost:
        return self.costs[self.name]

    def shared_by(self, samples: int) -> "WindowPlan":
        """The part of each of some samples: what code costs to arrive, it costs once."""
        costs = {name: replace(cost, ns=cost.ns / samples) for name, cost in self.costs.items()}
        return replace(self, costs=costs)


@dataclass(frozen=True)
class FilterProduct:
    """A convolution as a product.

    matrix: W, (out_channels, in_channels * taps).
    each: what is computed at a position.
    positions: how many a sample has.
    gathers: whether columns are not x itself.
    is_strided: whether their windows lie more than one apart.
    """

    matrix: SparseMatrix
    each: MatVec
    positions: int
    gathers: bool
    is_strided: bool

    @property
    def layer(self) -> MatVec | MatMul:
        """The product of a sample."""
        many = self.positions > 1
        return MatMul(self.each, self.positions, Layout.FEATURE_MAJOR) if many else self.each


def plan_windows(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner, name: str = ""
) -> WindowPlan:
    """The cheapest kernel, or that of a name; none that rounds otherwise where that is asked."""
    target = planner.target
    counts = expect_windows(image, matrix, target)
    costs = {SPARSE_WINDOWS: price_sparse_windows(counts, target)}
    if image.by_tap:
        return WindowPlan(costs, SPARSE_WINDOWS)
    if image.rows.kernel * image.columns.kernel <= MOST_TAPS:
        cycles = image.samples * tile_shape(each, window_panels(image, target), target).cycles
        moved = counts.moved_bytes
        costs[DENSE_WINDOWS] = price_dense_windows(cycles, 4 * matrix.size, moved, target)
    # Some rows of a layer keep its kernel, also where they alone would be too few for it.
    if name == WINOGRAD or (has_winograd(image, each) and not planner.exact):
        cycles, passes = winograd_cycles(image, each, target)
        weight_bytes = round(4 * U_A_WEIGHT * matrix.size)
        moved = counts.moved_bytes
        costs[WINOGRAD] = price_dense_windows(cycles, weight_bytes, moved, target, passes)
    return WindowPlan(costs, name or min(costs, key=lambda one: costs[one].ns))


def cheapest_planes(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner
) -> PaddedImage:
    """The image with planes of its own for each tap of a row, where sparse windows gain by that."""
    plain = plan_windows(image, matrix, each, planner).name
    if image.columns.kernel == 1 or plain != SPARSE_WINDOWS:
        return image
    target, by_tap = planner.target, replace(image, by_tap=True)
    windows = [
        price_sparse_windows(expect_windows(one, matrix, target), target).ns
        for one in (image, by_tap)
    ]
    copies = [padding_cost(one, target).ns for one in (image, by_tap)]
    times = target.core.loops.by_tap[target.isa][image.columns.stride - 1]
    return by_tap if copies[1] + times * windows[1] < copies[0] + windows[0] else image


def fills_windows(image: PaddedImage, target: Target) -> bool:
    """Whether enough lanes of windows would be positions."""
    lanes = window_panels(image, target).count * target.lanes
    return image.rows.positions * image.columns.positions >= _LEAST_FILLED * lanes


def fills_spread(places: int, pitch: int) -> bool:
    """Whether channels of so many floats are to lie `pitch` floats apart."""
    return places >= _LEAST_SPREAD * pitch


def pools_by_windows(columns: int) -> bool:
    """Whether pooling of so many positions in a row takes one kernel for all taps."""
    return columns >= _LEAST_POSITIONS


def gains_by_bands(image_bytes: int, target: Target) -> bool:
    """Whether an image between two convolutions is so large that bands pay."""
    return image_bytes >= _LARGE * target.l2_bytes


def repeats_in_bands(nnz: int) -> bool:
    """Whether code for so many weights is short enough to be there once a band."""
    return nnz <= _MOST_WEIGHTS


def band_count(
    rows: int, threads: int, live_bytes: Callable[[int], int], target: Target
) -> int | None:
    """As few bands of rows as keep what lies between convolutions near, so many for each thread.

    live_bytes: the most that lies between two of them, by the number of bands.
    None where no number of bands keeps it near.
    """
    counts = range(threads, min(rows, _MOST_BANDS) + 1, threads)
    near = target.core.layouts.bands_near * target.l2_bytes
    return next((count for count in counts if live_bytes(count) <= near), None)


def columns_are_cheaper(
    image: PaddedImage,
    matrix: SparseMatrix,
    each: MatVec,
    windows: WindowPlan,
    planner: LayerPlanner,
) -> bool:
    """Whether a product of gathered columns is; asked of long code only.

    Both cost what they do inside the model, whose other layers may drive their code from L3.
    """
    if windows.name != SPARSE_WINDOWS or windows.cost.code_bytes < planner.target.l2_bytes // 2:
        return False
    target = planner.beside(matrix).target
    inside = price_sparse_windows(expect_windows(image, matrix, target), target)
    positions = image.rows.positions * image.columns.positions
    layer = MatMul(each, positions, Layout.FEATURE_MAJOR) if positions > 1 else each
    product = planner.plan(layer, matrix).chosen.cost.ns
    gathering = price_copy(2 * 4 * matrix.in_features * positions, target).ns
    return image.samples * (product + gathering) < inside.ns


def int8_is_cheaper(
    int8: FilterProduct,
    floats: FilterProduct,
    image: PaddedImage | None,
    x_shape: tuple[int, ...],
    planner: LayerPlanner,
) -> bool:
    """Whether int8 is expected to be faster than float32 and the rounding of x, float32 too.

    `image` is what float32 would read by windows, if it may.
    """
    return _gathered_ns(int8, planner) < float_ns(floats, image, x_shape, planner)


def quantised_ns(
    int8: FilterProduct,
    floats: FilterProduct,
    image: PaddedImage | None,
    x_shape: tuple[int, ...],
    planner: LayerPlanner,
) -> float:
    """What all samples of a quantised convolution take between float32 images, the cheaper way."""
    each = min(_gathered_ns(int8, planner), float_ns(floats, image, x_shape, planner))
    return x_shape[0] * each


def float_ns(
    floats: FilterProduct,
    image: PaddedImage | None,
    x_shape: tuple[int, ...],
    planner: LayerPlanner,
) -> float:
    """What a sample takes in float32, the rounding of x included."""
    samples, *sizes = x_shape
    elements = samples
    for size in sizes:
        elements *= size
    rounding = price_copy(2 * 4 * elements, planner.target).ns / samples
    in_floats = _gathered_ns(floats, planner)
    if image is not None:
        one = replace(image, samples=1)
        windows = plan_windows(one, floats.matrix, floats.each, planner).cost.ns
        copied = price_copy(4 * (elements // samples + one.floats), planner.target).ns
        in_floats = min(windows + copied, in_floats)
    return in_floats + rounding


def _gathered_ns(product: FilterProduct, planner: LayerPlanner) -> float:
    """Nanoseconds of a sample as a product, of gathered columns where they are not x itself."""
    ns = planner.of_one_layer.expected_ns(product.layer, product.matrix)
    if not product.gathers:
        return ns
    elements = product.matrix.in_features * product.positions
    return ns + price_gathering(elements, product.is_strided, planner.target).ns


def padding_cost(image: PaddedImage, target: Target) -> Cost:
    """To copy x into the planes that windows are read from."""
    elements = image.samples * image.channels * image.rows.size * image.columns.size
    return price_copy(4 * (elements + image.floats), target)


def channel_windows_cost(counts: DirectCounts, target: Target) -> Cost:
    """The cost of windows by channel, whose taps or largest are taken where the image lies."""
    return price_direct(counts, target)
