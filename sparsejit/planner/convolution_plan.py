"""Choose by cost how a convolution is computed: windows of a padded image, columns, or int8.

Windows are read by weights as code, by a loop over channels with all weights, or by Winograd's
algorithm. Where code is so long that it comes from beyond L2, gathered columns may be cheaper.
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
_LEAST_SPREAD = 0.5  # of a channel's pitch, by its values
_LEAST_POSITIONS = 4  # of pooling, in a row: with fewer, chains keep more lanes busy
_LARGE = 0.5  # of L2: bands gain for images between layers from this size on
_MOST_WEIGHTS = 10_000  # nonzeros of a convolution whose code is repeated for each band
_MOST_BANDS = 16


@dataclass(frozen=True)
class WindowPlan:
    """Cost of each possible kernel, without the copy of the image; `name` is the chosen one."""

    costs: Mapping[str, Cost]
    name: str

    @property
    def cost(self) -> Cost:
        return self.costs[self.name]

    def shared_by(self, samples: int) -> "WindowPlan":
        """The plan for each of `samples` samples; the code is fetched once for all."""
        costs = {name: replace(cost, ns=cost.ns / samples) for name, cost in self.costs.items()}
        return replace(self, costs=costs)


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
        """The product of one sample."""
        many = self.positions > 1
        return MatMul(self.each, self.positions, Layout.FEATURE_MAJOR) if many else self.each


def plan_windows(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner, name: str = ""
) -> WindowPlan:
    """Choose the cheapest kernel, or the kernel `name`; no Winograd if weights must be exact."""
    target = planner.target
    counts = expect_windows(image, matrix, target)
    costs = {SPARSE_WINDOWS: price_sparse_windows(counts, target)}
    if image.by_tap:
        return WindowPlan(costs, SPARSE_WINDOWS)
    if image.rows.kernel * image.columns.kernel <= MOST_TAPS:
        cycles = image.samples * tile_shape(each, window_panels(image, target), target).cycles
        moved = counts.moved_bytes
        costs[DENSE_WINDOWS] = price_dense_windows(cycles, 4 * matrix.size, moved, target)
    # A part of a layer's rows keeps the layer's kernel, even where it is too small to choose it.
    if name == WINOGRAD or (has_winograd(image, each) and not planner.exact):
        cycles, passes = winograd_cycles(image, each, target)
        weight_bytes = round(4 * U_A_WEIGHT * matrix.size)
        moved = counts.moved_bytes
        costs[WINOGRAD] = price_dense_windows(cycles, weight_bytes, moved, target, passes)
    return WindowPlan(costs, name or min(costs, key=lambda one: costs[one].ns))


def cheapest_planes(
    image: PaddedImage, matrix: SparseMatrix, each: MatVec, planner: LayerPlanner
) -> PaddedImage:
    """Return the image, with planes for each tap of a row if sparse windows gain by them."""
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
    """Whether positions fill enough lanes of the windows."""
    lanes = window_panels(image, target).count * target.lanes
    return image.rows.positions * image.columns.positions >= _LEAST_FILLED * lanes


def fills_spread(places: int, pitch: int) -> bool:
    """Whether channels of `places` floats are stored `pitch` floats apart."""
    return places >= _LEAST_SPREAD * pitch


def pools_by_windows(columns: int) -> bool:
    """Whether pooling of `columns` positions in a row takes one kernel for all taps."""
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
    """Least number of bands, a multiple of `threads`, that keeps images between convolutions in L2.

    live_bytes: the most bytes between two convolutions, by the number of bands.
    None where no number of bands keeps them there.
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
    """Whether a product of gathered columns is cheaper than long code; False for short code.

    Both costs are those inside the model, whose other layers may evict the code to L3.
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
    """Whether int8 is predicted to be faster than float32 with the rounding of x.

    `image`: the padded image that float32 may read by windows, or None.
    """
    return _gathered_ns(int8, planner) < float_ns(floats, image, x_shape, planner)


def quantised_ns(
    int8: FilterProduct,
    floats: FilterProduct,
    image: PaddedImage | None,
    x_shape: tuple[int, ...],
    planner: LayerPlanner,
) -> float:
    """Nanoseconds of all samples of a quantised convolution of float32 images, the cheaper way."""
    each = min(_gathered_ns(int8, planner), float_ns(floats, image, x_shape, planner))
    return x_shape[0] * each


def float_ns(
    floats: FilterProduct,
    image: PaddedImage | None,
    x_shape: tuple[int, ...],
    planner: LayerPlanner,
) -> float:
    """Nanoseconds of a sample in float32, with the rounding of x."""
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
    """Nanoseconds of a sample as a product, with the gathering of columns unless they are x."""
    ns = planner.of_one_layer.expected_ns(product.layer, product.matrix)
    if not product.gathers:
        return ns
    elements = product.matrix.in_features * product.positions
    return ns + price_gathering(elements, product.is_strided, planner.target).ns


def padding_cost(image: PaddedImage, target: Target) -> Cost:
    """Cost of copying x into the planes that windows are read from."""
    elements = image.samples * image.channels * image.rows.size * image.columns.size
    return price_copy(4 * (elements + image.floats), target)


def channel_windows_cost(counts: DirectCounts, target: Target) -> Cost:
    """Cost of windows by channel, whose sums or maxima read the image in place."""
    return price_direct(counts, target)
