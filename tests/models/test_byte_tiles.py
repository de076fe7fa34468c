"""Dense tiles of bytes alone: exact sums of the largest products, at guard pages."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from guard import EDGES, Edge, GuardedArray, run_in_child
from test_byte_convolutions import NAMES, TARGET, needs_vnni

from sparsejit.asm_templates.convolution.geometry import Axis
from sparsejit.asm_templates.convolution.int8_convolution import (
    QUAD,
    LoweredQuads,
    QuadForm,
    quad_stream,
)
from sparsejit.asm_templates.convolution.int8_planes import (
    BytePlanes,
    ByteWindows,
    ChannelFours,
    windows_of,
)
from sparsejit.asm_templates.convolution.int8_results import ByteEpilogue
from sparsejit.asm_templates.convolution.int8_tiles import emit_tiles, turned_rows, turns_fit
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.values import Array
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.int8_plan import QuadWork, plan_quads
from sparsejit.x86.assembler import Assembler

TILES = [form for form in NAMES if form.is_tile]
ZERO = 119
_LARGEST = np.array([-128, 127, -127, 1, 0], np.int64)


@dataclass(frozen=True)
class Product:
    """A convolution of 3x3 or 1x1, stride 1, of the least and the largest bytes."""

    channels: int
    outputs: int
    space: tuple[int, int]
    taps: int = 3
    samples: int = 1

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.channels, self.outputs, *self.space])

    @property
    def windows(self) -> ByteWindows:
        planes = BytePlanes.plain((self.samples, self.channels, *self.space))
        axes = (Axis(size, size, self.taps, 1, self.taps // 2, 1) for size in self.space)
        return windows_of(planes, *axes)

    @property
    def y(self) -> BytePlanes:
        shape = self.samples, self.outputs, *self.space
        return BytePlanes.plain(shape, self.windows.planes.pitch)

    @property
    def weights(self) -> Array:
        """(out, channels * taps); a row of the largest, a row of the least, a row of zeros."""
        weights = self.random.choice(_LARGEST, (self.outputs, self.channels * self.taps**2))
        for row, weight in enumerate((127, -128, 0)[: self.outputs]):
            weights[row] = weight
        return weights

    @property
    def image(self) -> Array:
        """Bytes 0 and 255; all 255 in the first sample's first rows."""
        image = self.random.choice([0, 255], (self.samples, self.channels, *self.space))
        image[0, :, :2] = 255
        return image

    def layout(self, form: QuadForm) -> BytePlanes | ChannelFours:
        planes = self.windows.planes
        return ChannelFours(planes) if form.fours else planes

    def laid(self, form: QuadForm) -> Array:
        """The image as the kernel reads it, its gaps 0."""
        x, planes = self.layout(form), self.windows.planes
        found = np.zeros(x.bytes, np.uint8)
        n, c, row, column = np.indices(self.image.shape)
        side = QUAD if form.fours else 1
        place = c // side * side * planes.channel + side * (row * planes.pitch + column) + c % side
        found[x.before + n * x.sample + place] = self.image
        return found

    def wanted(self) -> Array:
        around = self.taps // 2
        padded = np.pad(self.image, [(0, 0), (0, 0), *[(around, around)] * 2])
        windows = (self.taps, self.taps)
        seen = np.lib.stride_tricks.sliding_window_view(padded, windows, axis=(2, 3))
        weights = self.weights.reshape(self.outputs, self.channels, *windows)
        sums = np.einsum("ncijuv,ocuv->noij", seen, weights)
        return (np.rint(sums * self.scale) + ZERO).clip(0, 255)

    @property
    def scale(self) -> float:
        """A power of two, which makes ties frequent: these round to even."""
        return 2.0 ** -int(np.ceil(np.log2(300 * self.channels * self.taps**2)))

    def lowered(self, form: QuadForm) -> LoweredQuads:
        windows, weights = self.windows, self.weights
        rows, columns = np.nonzero(weights)
        integers = SparseMatrix((weights != 0).astype(np.float32)).nonzeros
        integers = integers.with_values(weights[rows, columns].astype(np.int8))
        places = windows.places(QUAD // form.offsets)
        before = -min(0, int(places.min()))
        ends = np.tile(np.float32([self.scale, 0.0, 0.0]), (self.outputs, 1))
        where = places + before, self.y.channel
        stream = quad_stream(integers, *where, ends, form, self.taps**2)
        met = windows.met_bytes
        return LoweredQuads(
            self.layout(form), self.y, before, stream, ByteEpilogue(ZERO), form, met
        )


PRODUCTS = [
    Product(5, 37, (7, 7)),
    Product(64, 64, (7, 7), taps=1, samples=2),
    Product(16, 33, (14, 14), samples=2),
    Product(3, 1, (1, 1)),
    Product(9, 3, (5, 13)),
    Product(8, 40, (9, 10), taps=1),
    Product(12, 10, (16, 17), taps=1),
    Product(300, 34, (4, 4), taps=1),
]


CASES = [
    pytest.param(form, product, id=f"{form}-{product}")
    for form in TILES
    for product in PRODUCTS
    if not form.is_turned or turns_fit(product.y)
]


@needs_vnni
@pytest.mark.parametrize(("form", "product"), CASES)
def test_exact_sums_at_guard_pages(form: QuadForm, product: Product) -> None:
    y = product.y
    asm = Assembler(TARGET)
    emit_tiles(asm, product.lowered(form))
    asm.emit("vzeroupper")
    asm.emit("ret")
    memory, wanted = ExecutableMemory(asm.finish().data), product.wanted()
    laid, before = product.laid(form), product.layout(form).before

    def run(edge: Edge) -> None:
        x = GuardedArray(laid.view(np.float32), edge)
        result = GuardedArray(np.zeros(y.bytes // 4, np.float32), edge)
        memory.function(3)(x.address + before, result.address + y.before, 0)
        assert x.surroundings_intact() and result.surroundings_intact()
        found = result.values.view(np.uint8)[y.before :]
        n, c, row, column = np.indices(wanted.shape)
        place = n * y.sample + c * y.channel + row * y.pitch + column
        np.testing.assert_array_equal(found[place], wanted)
        found[place] = ZERO
        assert (found[: y.samples * y.sample] == ZERO).all()

    run_in_child([(f"{edge} of memory", lambda e=edge: run(e)) for edge in EDGES]).assert_clean()


def test_turned_tiles_cover_all_rows_once() -> None:
    for rows in range(1, 30):
        for columns in range(1, 15):
            y = BytePlanes.plain((1, 1, rows, columns))
            kinds = turned_rows(y)
            assert sum(kind.rows * kind.turns for kind in kinds) == rows
            assert all(0 < kind.rows * columns <= 14 and kind.turns > 0 for kind in kinds)


@pytest.mark.plans
@pytest.mark.parametrize("space", [(7, 7), (28, 28)])
def test_tiles_win_dense_weights_and_lose_sparse_ones(space: tuple[int, int]) -> None:
    """Rows lie in the lanes where gaps would take a quarter of them."""
    case = Product(256, 256, space)
    found = {}
    for density in (0.1, 1.0):
        kept = case.random.random((256, 256 * 9)) < density
        matrix = SparseMatrix((case.weights | 1) * kept.astype(np.float32))
        work = QuadWork(matrix, case.windows, case.y, False, TARGET)
        found[density] = plan_quads(work).row.emitter
    assert found[1.0].is_tile and not found[0.1].is_tile
    assert found[1.0].is_turned == (space == (7, 7))
    again = replace(case, samples=3)
    more = QuadWork(matrix, again.windows, again.y, False, TARGET)
    assert plan_quads(more).row.emitter == found[1.0]
