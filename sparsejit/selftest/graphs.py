"""A small graph of random sizes for each kernel of an operator other than products.

    KERNEL_GRAPHS   the graphs, by the name of the kernel's row in `planner/kernels.py`
    KernelGraph     how a graph is built, and the sizes that are drawn or timed
    Drawn           a graph with its inputs

Results that are rounded to steps have one right answer: weights, factors and steps are such that no
sum is halfway between two steps of its result, or so near to it that float32 rounds the other way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind, RoundedResult, Sizes
from sparsejit.ir.ops.forest import Forest
from sparsejit.ir.ops.int8_columns import (
    ByteAttention,
    ChannelMeans,
    NormalisedColumns,
    ScaledChannels,
)
from sparsejit.ir.ops.products import Attention, CachedAttention
from sparsejit.ir.spec import LARGEST_INT8, Activation, DType, Quantisation
from sparsejit.ir.values import TensorType, Value
from sparsejit.planner.attention_plan import ONE_KERNEL, PAIRS
from sparsejit.planner.convolution_plan import DENSE_WINDOWS, SPARSE_WINDOWS, WINOGRAD
from sparsejit.planner.int8_plan import QUAD_FORMS

FloatArray = npt.NDArray[np.float32]

TILES = 2  # samples of a call: the function runs the graph for each
# Weights are whole multiples of it, which all dtypes hold, and int8 with a step of it.
_WEIGHT_STEP = 2.0**-6
# Values in bytes have this step, so products are whole multiples of `_PRODUCT_STEP`.
_BYTE_STEP = 2.0**-5
_PRODUCT_STEP = _WEIGHT_STEP * _BYTE_STEP
# float32 may round an attention's shares either way. A result's step is so wide that such a share
# moves no result by more than one step.
_SHARE_STEP = 2.0**-8
_RESULT_STEP = 257 * _SHARE_STEP * _BYTE_STEP
# Scores and shares of bfloat16 are within some 2 % of the exact ones; values are up to 8.
_PAIRS_ERROR = 0.2


class SizeRange(NamedTuple):
    """Sizes that a selftest draws, from `least` to `most`, and the size that a benchmark times."""

    least: int
    most: int
    timed: int


class Drawn(NamedTuple):
    """A graph of one output, and `TILES` values of each of its inputs, (tiles, ...)."""

    graph: Graph
    inputs: list[FloatArray]


class Drawing(Writer):
    """Writes a graph with random weights, and draws its inputs."""

    def __init__(self, random: np.random.Generator) -> None:
        super().__init__()
        self.random = random
        self.drawn: list[FloatArray] = []

    def x(self, *shape: int, step: float = 0.0, missing: float = 0.0) -> Value:
        """A new input of normal values, in whole steps if given; a share of them is NaN."""
        values = 2 * self.random.standard_normal((TILES, *shape), np.float32)
        if step:
            values = (np.rint(values / step) * step).astype(np.float32)
        values[self.random.random(values.shape) < missing] = np.nan
        self.drawn.append(values)
        return self.input(TensorType(shape), f"x{len(self.drawn)}")

    def weights(self, *shape: int, density: float = 1.0) -> Value:
        """Weights (out, ...) of which a share is not zero; the first of each row is the largest."""
        steps = self.random.integers(-LARGEST_INT8, LARGEST_INT8 + 1, shape)
        steps[self.random.random(shape) >= density] = 0
        steps.reshape(shape[0], -1)[:, 0] = LARGEST_INT8
        return self.constant((steps * _WEIGHT_STEP).astype(np.float32), "weights")

    def bias(self, size: int) -> Value:
        """A bias in whole steps of products."""
        steps = self.random.integers(-(1 << 12), 1 << 12, size)
        return self.constant((steps * _PRODUCT_STEP).astype(np.float32), "bias")

    def steps(self, scale: float = _BYTE_STEP) -> Quantisation:
        """Steps with any zero point."""
        return Quantisation(scale, int(self.random.integers(-128, 128)))

    def odd_steps(self, unit: float, largest: float) -> Quantisation:
        """Steps of an odd multiple of a unit; values up to about `largest` are in range.

        A whole multiple of the unit is never halfway between two.
        """
        count = int(largest / LARGEST_INT8 / unit)
        return self.steps((2 * (count // 2) + 1) * unit)

    def activation(self, *choices: Activation) -> Activation:
        """None, ReLU or one of these.

        Errors are relative to the largest result. Floats must not have activations that cut it.
        """
        choices = (Activation.NONE, Activation.RELU, *choices)
        return choices[int(self.random.integers(len(choices)))]

    def done(self, y: Value) -> Drawn:
        """The graph with its inputs."""
        return Drawn(self.finish(y), self.drawn)


def _windows(size: Mapping[str, int]) -> tuple[Sizes, Sizes, Sizes]:
    """Stride, padding and dilation of a convolution that keeps about all positions."""
    stride, around = size["stride"], size["taps"] // 2
    return (stride, stride), (around, around), (1, 1)


def _image(draw: Drawing, size: Mapping[str, int]) -> Value:
    return draw.x(size["samples"], size["channels"], size["rows"], size["columns"])


def _convolution(
    draw: Drawing, dtype: DType, size: Mapping[str, int], density: float = 1.0
) -> Drawn:
    filters, taps = size["filters"], size["taps"]
    op = Convolution(*_windows(size), activation=draw.activation(), dtype=dtype)
    weights = draw.weights(filters, size["channels"], taps, taps, density=density)
    return draw.done(draw.one(op, _image(draw, size), weights, draw.bias(filters), name="y"))


def _depthwise(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    channels, taps = size["channels"], size["taps"]
    op = Convolution(*_windows(size), channels, activation=draw.activation(), dtype=dtype)
    operands = draw.weights(channels, 1, taps, taps), draw.bias(channels)
    return draw.done(draw.one(op, _image(draw, size), *operands, name="y"))


def _pooling(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    (stride, around, apart), taps = _windows(size), size["taps"]
    kind = PoolingKind.MAX if draw.random.random() < 0.5 else PoolingKind.AVERAGE
    pool = Pooling(kind, (taps, taps), stride, tuple((n, n) for n in around), apart)
    return draw.done(draw.one(pool, _image(draw, size), name="y"))


def _byte_product(draw: Drawing, size: Mapping[str, int], by_channel: bool = False) -> Value:
    """The result of a convolution from bytes to bytes."""
    channels, taps = size["channels"], size["taps"]
    filters, groups = (channels, channels) if by_channel else (size["filters"], 1)
    density = 1.0 if by_channel else 0.3
    spread = 4 * np.sqrt(1 + density * channels // groups * taps**2)
    x_steps = draw.steps()
    op = Convolution(
        *_windows(size),
        groups,
        activation=draw.activation(Activation.RELU6),
        dtype=DType.INT8,
        x_steps=x_steps,
        rounding=RoundedResult(draw.odd_steps(_PRODUCT_STEP, spread)),
    )
    weights = draw.weights(filters, channels // groups, taps, taps, density=density)
    return draw.one(op, _image(draw, size), weights, draw.bias(filters), name="product")


def _byte_convolution(
    draw: Drawing, dtype: DType, size: Mapping[str, int], by_channel: bool = False
) -> Drawn:
    return draw.done(_byte_product(draw, size, by_channel))


def _byte_pooling(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    product = _byte_product(draw, {**size, "stride": 1})
    (stride, around, apart), taps = _windows(size), size["taps"]
    padding = tuple((n, n) for n in around)
    pool = Pooling(PoolingKind.MAX, (taps, taps), stride, padding, apart)
    return draw.done(draw.one(pool, product, name="y"))


def _byte_means(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    return draw.done(draw.one(ChannelMeans(draw.steps()), _image(draw, size), name="y"))


def _byte_scale(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    result = draw.odd_steps(_PRODUCT_STEP, 6.0)
    factors = draw.x(size["samples"], size["channels"], step=_WEIGHT_STEP)
    x = draw.x(size["samples"], size["channels"], size["rows"], size["columns"])
    return draw.done(draw.one(ScaledChannels(draw.steps(), result), x, factors, name="y"))


def _byte_norm(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    shape = 1, size["channels"], size["columns"]
    parameters = draw.random.uniform(0.5, 1.5, (3, size["channels"])).astype(np.float32)
    operands = draw.x(*shape), draw.x(*shape), draw.constant(parameters, "parameters")
    norm = NormalisedColumns(1e-5, (draw.steps(), None))
    return draw.done(draw.one(norm, *operands, name="y"))


def _attention(
    draw: Drawing, dtype: DType, size: Mapping[str, int], is_masked: bool = False
) -> Drawn:
    heads, queries, keys, features = (size[n] for n in ("heads", "queries", "keys", "features"))
    operands = [draw.x(heads, length, features) for length in (queries, keys, keys)]
    if is_masked:
        allowed = draw.random.random((queries, keys)) < 0.3
        operands.append(draw.constant(allowed, "mask"))
    return draw.done(draw.one(Attention(features**-0.5 / 4), *operands, name="y"))


def _cached_attention(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    depth, keys = 8 * size["eights"], 16 * size["sixteens"]
    lengths = size["queries"], keys, keys
    operands = [draw.x(size["heads"], length, depth) for length in lengths]
    filled = np.arange(keys) <= draw.random.integers(keys)
    mask = draw.constant(np.where(filled, 0, -np.inf).astype(np.float32), "mask")
    op = CachedAttention(depth**-0.5 / 4)
    return draw.done(draw.one(op, *operands, mask, name="y"))


def _byte_attention(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    features = 4 * size["fours"]
    shape = 1, size["heads"] * features, size["samples"] * size["length"]
    steps = draw.steps(), draw.steps(), Quantisation(_BYTE_STEP, 0)
    op = ByteAttention(
        *(size["heads"], size["length"], features**-0.5 / 4, steps),
        scores=Quantisation(draw.odd_steps(_BYTE_STEP**2, 10 * features**0.5).scale, 0),
        shares=Quantisation(_SHARE_STEP, -128),
        result=Quantisation(_RESULT_STEP, 0),
    )
    return draw.done(draw.one(op, *(draw.x(*shape) for _ in steps), name="y"))


def _forest(draw: Drawing, dtype: DType, size: Mapping[str, int]) -> Drawn:
    """Trees of which a share of the inner places are leaves; some values are thresholds, or NaN."""
    random, trees, outputs = draw.random, size["trees"], size["outputs"]
    inner = (1 << size["depth"]) - 1
    children = 2 * np.arange(inner)[:, None] + np.array([1, 2])
    children = np.where(children < inner, children, inner + ~children)  # leaves, from ~0 on
    nodes, first = np.empty((trees, inner, 4), np.int64), np.arange(trees)
    nodes[..., 0] = random.integers(size["features"], size=(trees, inner))
    own = np.where(children < 0, -(inner + 1), inner) * first[:, None, None]
    nodes[..., 1:3] = children + own
    is_cut = (random.random((trees, inner, 2)) < 0.1) & (inner > 0)
    nodes[..., 1:3][is_cut] = ~random.integers(trees * (inner + 1), size=is_cut.sum())
    nodes[..., 3] = random.integers(2, size=(trees, inner))
    roots = inner * first if inner else ~first
    thresholds = np.rint(4 * random.standard_normal(trees * inner)) / 4
    operands = (
        thresholds.astype(np.float32),
        nodes.reshape(-1, 4),
        random.standard_normal((trees * (inner + 1), 1), np.float32),
        np.stack([roots, random.integers(outputs, size=trees)], axis=1),
        random.standard_normal(outputs, np.float32),
    )
    x = draw.x(size["samples"], size["features"], step=0.25, missing=0.05)
    return draw.done(draw.one(Forest(0.5), x, *operands, name="y"))


@dataclass(frozen=True)
class KernelGraph:
    """A graph whose steps include the kernel.

    build: writes the graph for a dtype and sizes.
    spans: the sizes, by the names that `build` has for them.
    prefers: the rows of the planner's tables that the kernel needs, whatever they cost.
    steps: the error that is allowed beside others', where float32 may round steps either way, or
        operands are rounded to bfloat16.
    """

    build: Callable[[Drawing, DType, Mapping[str, int]], Drawn]
    spans: Mapping[str, SizeRange]
    prefers: tuple[str, ...] = ()
    steps: float = 0.0

    def drawn(self, random: np.random.Generator, dtype: DType, size: Mapping[str, int]) -> Drawn:
        """The graph of these sizes."""
        return self.build(Drawing(random), dtype, size)


_SPACE = {
    "samples": SizeRange(1, 2, 1),
    "channels": SizeRange(1, 20, 64),
    "rows": SizeRange(1, 20, 28),
    "columns": SizeRange(1, 70, 28),
}
_ANY = {
    **_SPACE,
    "filters": SizeRange(1, 40, 64),
    "taps": SizeRange(1, 3, 3),
    "stride": SizeRange(1, 2, 1),
}
# Positions fill enough lanes of windows in any row of these sizes.
_WINDOWS = {**_ANY, "columns": SizeRange(14, 40, 28), "taps": SizeRange(2, 4, 3)}
_DEPTHWISE = {**_ANY, "channels": SizeRange(2, 20, 64), "taps": SizeRange(1, 5, 3)}
_POOLED = {
    **_SPACE,
    "columns": SizeRange(8, 70, 28),
    "filters": SizeRange(1, 40, 64),
    "taps": SizeRange(2, 3, 2),
    "stride": SizeRange(1, 2, 2),
}
_WINOGRAD = {
    **_WINDOWS,
    "filters": SizeRange(16, 40, 64),
    "taps": SizeRange(3, 3, 3),
    "stride": SizeRange(1, 1, 1),
}
_STRIDED = {**_ANY, "taps": SizeRange(2, 3, 3), "stride": SizeRange(2, 2, 2)}
_TOKENS = {
    "heads": SizeRange(1, 3, 4),
    "queries": SizeRange(1, 40, 128),
    "keys": SizeRange(1, 40, 128),
    "features": SizeRange(1, 33, 32),
}
# With fewer channels a variance may be close to 0; errors are divided by its root.
_COLUMNS = {"channels": SizeRange(8, 48, 128), "columns": SizeRange(1, 130, 128)}
_CACHED = {
    "heads": SizeRange(1, 4, 8),
    "queries": SizeRange(1, 3, 1),
    "sixteens": SizeRange(1, 6, 16),
    "eights": SizeRange(1, 9, 8),
}
_BYTE_TOKENS = {
    "heads": SizeRange(1, 3, 4),
    "fours": SizeRange(1, 9, 8),
    "length": SizeRange(1, 70, 128),
    "samples": SizeRange(1, 3, 1),
}
_TREES = {
    "samples": SizeRange(1, 40, 64),
    "features": SizeRange(1, 32, 32),
    "outputs": SizeRange(1, 9, 1),
    "trees": SizeRange(1, 40, 100),
    "depth": SizeRange(0, 6, 6),
}
_BY_FOUR, _IN_TILES, _IN_QUADS = (
    tuple(row.name for row in QUAD_FORMS if is_one(row.emitter))
    for is_one in (
        lambda form: form.fours,
        lambda form: form.is_tile,
        lambda form: not form.is_tile,
    )
)
_DENSE = KernelGraph(_convolution, _WINDOWS, (DENSE_WINDOWS,))
_SPARSE = partial(_convolution, density=0.1)
_BYTES = KernelGraph(_byte_convolution, _ANY)

KERNEL_GRAPHS: dict[str, KernelGraph] = {
    "depthwise": KernelGraph(_depthwise, _DEPTHWISE),
    SPARSE_WINDOWS: KernelGraph(_SPARSE, _WINDOWS, (SPARSE_WINDOWS, "windows")),
    DENSE_WINDOWS: _DENSE,
    WINOGRAD: KernelGraph(_convolution, _WINOGRAD, (WINOGRAD,)),
    "padding": _DENSE,
    "quads": KernelGraph(_byte_convolution, _ANY, _IN_QUADS),
    "byte-tiles": KernelGraph(_byte_convolution, _ANY, _IN_TILES),
    "fours": KernelGraph(_byte_convolution, _ANY, _BY_FOUR),
    "byte-depthwise": KernelGraph(partial(_byte_convolution, by_channel=True), _DEPTHWISE),
    "phases": KernelGraph(_byte_convolution, _STRIDED),
    "to-bytes": _BYTES,
    "to-floats": _BYTES,
    "pooling": KernelGraph(_pooling, _POOLED),
    "byte-pooling": KernelGraph(_byte_pooling, _POOLED),
    "byte-means": KernelGraph(_byte_means, _SPACE),
    "byte-scale": KernelGraph(_byte_scale, _SPACE),
    "byte-norm": KernelGraph(_byte_norm, _COLUMNS),
    "attention": KernelGraph(_attention, _TOKENS, (ONE_KERNEL,)),
    "masked attention": KernelGraph(partial(_attention, is_masked=True), _TOKENS, (ONE_KERNEL,)),
    "attention-pairs": KernelGraph(
        partial(_attention, is_masked=True), _TOKENS, (PAIRS,), steps=_PAIRS_ERROR
    ),
    "cached attention": KernelGraph(_cached_attention, _CACHED),
    "byte-attention": KernelGraph(_byte_attention, _BYTE_TOKENS, steps=1.01 * _RESULT_STEP),
    **{
        name: KernelGraph(_forest, _TREES, (name,))
        for name in ("forest-blocks", "forest-trees", "forest-rows")
    },
}
