"""Random kernels, each derived from a seed and a number alone, so that each can be repeated.

    random_weights   weights with zeros in every structure that a kernel has to handle
    ProductCase      a kernel of a matrix product, with its weights and its x
    GraphCase        a kernel of another operator, in a graph of `graphs.py`
    derive           the case with a number

One number in `GRAPHS_EVERY` is a graph. These walk the table of kernels in its order, so that a few
hundred numbers have every kernel, with each of its dtypes, at each level.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.ir.spec import Activation, DType, Layer, Layout, MatMul, MatVec, Quantisation
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.planner.kernel_choice import AUTO
from sparsejit.planner.kernels import OTHER_KERNELS, KernelRow, families_for
from sparsejit.selftest.graphs import KERNEL_GRAPHS, Drawn, KernelGraph
from sparsejit.whole_numbers import ceil_div

FloatArray = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Shape = tuple[int, int]
Generator = np.random.Generator


def _unstructured(random: Generator, shape: Shape, density: float) -> Mask:
    return random.random(shape) < density


def _blocks(rows: int) -> Callable[[Generator, Shape, float], Mask]:
    def mask(random: Generator, shape: Shape, density: float) -> Mask:
        kept = random.random((ceil_div(shape[0], rows), shape[1])) < density
        return np.repeat(kept, rows, axis=0)[: shape[0]]

    return mask


def _lane16(random: Generator, shape: Shape, density: float) -> Mask:
    """A mask of kept weights: the 16 rows of a group keep equally many of each 16 inputs."""
    groups = ceil_div(shape[1], 16)
    kept = random.binomial(16, density, (ceil_div(shape[0], 16), groups))
    places = random.random((shape[0], groups, 16)).argsort(axis=2)
    mask = places < np.repeat(kept, 16, axis=0)[: shape[0], :, None]
    return mask.reshape(shape[0], -1)[:, : shape[1]]


def _power_law_rows(random: Generator, shape: Shape, density: float) -> Mask:
    """Keep most of the weights in a few rows."""
    shares = (1 + np.arange(shape[0])) ** -1.2
    random.shuffle(shares)
    each = np.minimum(shares / shares.mean() * density, 1)
    return random.random(shape) < each[:, None]


def _empty_rows_and_columns(random: Generator, shape: Shape, density: float) -> Mask:
    rows, columns = (random.random(size) < 0.6 for size in shape)
    return _unstructured(random, shape, density) & rows[:, None] & columns


def _all_zero(random: Generator, shape: Shape, density: float) -> Mask:
    return np.zeros(shape, bool)


def _all_kept(random: Generator, shape: Shape, density: float) -> Mask:
    return np.ones(shape, bool)


def _one_weight(random: Generator, shape: Shape, density: float) -> Mask:
    mask = np.zeros(shape, bool)
    mask[random.integers(shape[0]), random.integers(shape[1])] = True
    return mask


# Structures of nonzeros by name: the share of kernels that have it, and the function of its mask.
STRUCTURES: dict[str, tuple[float, Callable[[Generator, Shape, float], Mask]]] = {
    "unstructured": (0.3, _unstructured),
    "1x8": (0.15, _blocks(8)),
    "1x16": (0.15, _blocks(16)),
    "lane16": (0.15, _lane16),
    "power-law rows": (0.08, _power_law_rows),
    "empty rows and columns": (0.08, _empty_rows_and_columns),
    "all zero": (0.02, _all_zero),
    "dense": (0.05, _all_kept),
    "one weight": (0.02, _one_weight),
}


def random_weights(
    random: Generator, structure: str, shape: Shape, density: float, scale: float
) -> FloatArray:
    """Draw float32 weights (out_features, in_features), with zeros in a structure of `STRUCTURES`.

    They are normal values times `scale`; in 15 % of the draws some are denormal, all are equal, or
    all are whole numbers times `scale`.
    """
    _, mask = STRUCTURES[structure]
    values = random.standard_normal(shape, np.float32) * np.float32(scale)
    kind = random.random()
    if kind < 0.05:
        values[random.random(shape) < 0.3] = np.float32(1e-40)
    elif kind < 0.1:
        values[:] = np.float32(scale)
    elif kind < 0.15:
        values = np.rint(8 * values / np.float32(scale)) * np.float32(scale)
    return np.where(mask(random, shape, density), values, np.float32(0))


AWKWARD_SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 33, 127, 256, 257)
# Largest size of a class: share of the kernels drawn from it. Compiling takes longer the more
# weights there are: 5 ms for half of the kernels, a second for the largest.
SIZE_CLASSES = {32: 0.34, 96: 0.26, 300: 0.25, 700: 0.1, 1200: 0.05}
DTYPES = {"float32": 0.4, "bfloat16": 0.2, "float16": 0.15, "int8": 0.25}
LARGEST_BATCH = 70
SHARED_OVER_THREADS = 0.03
# Range of sizes of a layer worth sharing among threads, and strategies that compile it quickly.
SHARED_SIZES = (160, 420)
SHARED_STRATEGIES = {"dense", "broadcast", "broadcast-loop"}
# Families whose code grows with every weight (or zero), and the most weights to give them.
MOST_WEIGHTS = {"immediate": 4_000, "dense": 130_000, "panels": 20_000, "mixed": 20_000}
MOST_NONZEROS = 60_000
# Largest exponents of two that weights and x are scaled by; float16 has a smaller range.
WEIGHT_EXPONENT = {DType.FLOAT16: 10}
LARGEST_EXPONENT = 40


GRAPHS_EVERY = 5


@dataclass(frozen=True, eq=False)
class GraphCase:
    """A kernel of an operator other than products, in a graph of these sizes."""

    seed: int
    number: int
    target: Target
    row: KernelRow
    dtype: DType
    sizes: dict[str, int]
    made: Drawn

    @property
    def kernel(self) -> str:
        """The operator and the kernel."""
        return f"{self.row.operator}: {self.row.name}"

    @property
    def inputs(self) -> list[FloatArray]:
        return self.made.inputs

    @property
    def y_shape(self) -> tuple[int, ...]:
        (y,) = self.made.graph.outputs
        return len(self.inputs[0]), *y.shape

    @property
    def about(self) -> KernelGraph:
        """The graph's row of the table."""
        return KERNEL_GRAPHS[self.row.name]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        where = f"{self.target.isa} ({self.target.model})"
        return f"{self.kernel}, {self.dtype.value}, {sizes}, {where}"


@dataclass(frozen=True, eq=False)
class ProductCase:
    """A kernel of a product: its options, its weights, and its x."""

    seed: int
    number: int
    target: Target
    structure: str
    weights: FloatArray
    spec: Layer
    strategy: str
    threads: int
    x: FloatArray

    @property
    def kernel(self) -> str:
        """The family that is asked for, or "auto"."""
        return self.strategy

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def inputs(self) -> list[FloatArray]:
        return [self.x]

    @property
    def y_shape(self) -> tuple[int, ...]:
        return self.spec.y_shape

    @property
    def each(self) -> MatVec:
        """The product for a single x."""
        return self.spec.each if isinstance(self.spec, MatMul) else self.spec

    @property
    def batch(self) -> int:
        return self.spec.batch if isinstance(self.spec, MatMul) else 1

    @property
    def layout(self) -> Layout:
        return self.spec.layout if isinstance(self.spec, MatMul) else Layout.BATCH_MAJOR

    def __str__(self) -> str:
        size = f"{self.spec.out_features} x {self.spec.in_features}"
        return (
            f"{size}, {self.structure}, {np.count_nonzero(self.weights)} nonzeros, "
            f"{self.spec.case}, {self.strategy}, {self.target.isa} "
            f"({self.target.model}), threads={self.threads}"
        )


Case = ProductCase | GraphCase


def derive(seed: int, number: int) -> Case:
    """Return the kernel with that number."""
    turn, place = divmod(number, GRAPHS_EVERY)
    return derive_product(seed, number) if place < GRAPHS_EVERY - 1 else _graph(seed, number, turn)


class GraphKind(NamedTuple):
    """A kernel with a dtype at a level."""

    row: KernelRow
    dtype: DType
    isa: str


@cache
def graph_kinds() -> tuple[GraphKind, ...]:
    """Return the kinds of graphs that this machine runs, in the order of the table of kernels."""
    return tuple(
        GraphKind(row, dtype, isa)
        for row in OTHER_KERNELS.values()
        for isa in levels()
        for dtype in row.dtypes
        if _targets_of(isa, row, dtype)
    )


def _targets_of(isa: str, row: KernelRow, dtype: DType) -> list[Target]:
    return [each for each in _targets() if each.isa == isa and row.made_for(each, dtype)]


def _graph(seed: int, number: int, turn: int) -> GraphCase:
    """Return the graph of that number, the kinds taking turns."""
    random = np.random.default_rng([seed, number])
    kinds = graph_kinds()
    row, dtype, isa = kinds[turn % len(kinds)]
    target = _drawn_target(random, _targets_of(isa, row, dtype))
    graph = KERNEL_GRAPHS[row.name]
    sizes = {name: _size_within(random, *span[:2]) for name, span in graph.spans.items()}
    made = graph.drawn(random, dtype, sizes)
    return GraphCase(seed, number, target, row, dtype, sizes, made)


def timed_graph(row: KernelRow, dtype: DType, target: Target) -> GraphCase:
    """Return the graph of a kernel in the sizes of a benchmark."""
    graph = KERNEL_GRAPHS[row.name]
    sizes = {name: span.timed for name, span in graph.spans.items()}
    made = graph.drawn(np.random.default_rng(0), dtype, sizes)
    return GraphCase(0, 0, target, row, dtype, sizes, made)


def _size_within(random: Generator, least: int, most: int) -> int:
    """Draw a size: half are awkward where there are such, the others are spread evenly."""
    awkward = [size for size in AWKWARD_SIZES if least <= size <= most]
    if awkward and random.random() < 0.5:
        return int(random.choice(awkward))
    return int(random.integers(least, most + 1))


def derive_product(seed: int, number: int) -> ProductCase:
    """Return a kernel of a matrix product for any number."""
    random = np.random.default_rng([seed, number])
    target = _random_target(random)
    dtype = DType(_choose(random, DTYPES))
    batch, threads = _random_batch_and_threads(random)
    strategy = _random_strategy(random, dtype, target, batch, threads)
    shape, density = _random_shape(random, strategy, threads, batch)
    structure = _choose(random, {name: often for name, (often, _) in STRUCTURES.items()})
    weight_exponent, x_exponent = _random_exponents(random, dtype)
    weights = random_weights(random, structure, shape, density, 2.0**weight_exponent)
    bias = random.standard_normal(shape[0], np.float32)
    each = MatVec(
        *shape,
        bias * np.float32(2.0 ** (weight_exponent + x_exponent)) if random.random() < 0.5 else None,
        Activation(random.choice([member.value for member in Activation])),
        dtype,
        _random_steps(random, x_exponent) if dtype is DType.INT8 else None,
    )
    layout = Layout(random.choice([member.value for member in Layout]))
    spec = each if batch == 1 else MatMul(each, batch, layout)
    x = _random_x(random, spec.x_shape, 2.0**x_exponent)
    return ProductCase(seed, number, target, structure, weights, spec, strategy, threads, x)


@cache
def _targets() -> tuple[Target, ...]:
    """Targets that this machine runs: the minimum of each level, then the machine itself."""
    machine = Target.detect()
    levels = (Target.named(isa) for isa in ISA_LEVELS)
    return (*(level for level in levels if level.runs_on(machine)), machine)


def levels() -> tuple[str, ...]:
    """Return the instruction set levels to try."""
    return tuple(dict.fromkeys(target.isa for target in _targets()))


def _random_target(random: np.random.Generator) -> Target:
    """Draw a target, each level equally often; a quarter have small caches: code differs then."""
    isa = str(random.choice(levels()))
    return _drawn_target(random, [target for target in _targets() if target.isa == isa])


def _drawn_target(random: np.random.Generator, of_level: list[Target]) -> Target:
    """Draw the last target or the first, perhaps with small caches."""
    target = of_level[-1] if random.random() < 0.7 else of_level[0]
    if random.random() < 0.75:
        return target
    return replace(
        target,
        l1d_bytes=target.l1d_bytes // 8,
        l1i_bytes=target.l1i_bytes // 8,
        l2_bytes=target.l2_bytes // 16,
        l3_bytes=target.l3_bytes // 16,
        model=f"{target.model} with small caches",
    )


def _random_batch_and_threads(random: np.random.Generator) -> tuple[int, int]:
    """Draw the batch and the number of threads that may share the kernel; one of them is 1."""
    if random.random() < SHARED_OVER_THREADS:
        return 1, int(random.integers(2, 4))
    return (int(random.integers(2, LARGEST_BATCH + 1)) if random.random() < 0.3 else 1), 1


def _random_strategy(
    random: np.random.Generator, dtype: DType, target: Target, batch: int, threads: int
) -> str:
    families = _families(dtype, target, batch)
    if threads > 1:
        families = [name for name in families if name in SHARED_STRATEGIES] or families
    return str(random.choice([AUTO, *families]))


def _families(dtype: DType, target: Target, batch: int) -> list[str]:
    """Return the names of the strategies for this dtype, target and batch."""
    names = families_for(target, dtype, batch)
    has_remainder = batch == 1 or (batch > target.lanes and batch % target.lanes != 0)
    return [name for name in names if name != "mixed" or has_remainder]


def _random_shape(
    random: np.random.Generator, strategy: str, threads: int, batch: int
) -> tuple[tuple[int, int], float]:
    """Draw (out_features, in_features) and a density, such that the compile time stays bounded."""
    density = float(random.choice([random.random() ** 3, 0.05, 0.1, 0.2, 1.0]))
    if threads > 1:
        rows, columns = random.integers(*SHARED_SIZES, 2).tolist()
        return (rows, columns), max(density, 0.2)
    largest = int(_choose(random, {str(size): often for size, often in SIZE_CLASSES.items()}))
    rows, columns = (_random_size(random, largest) for _ in range(2))
    most = MOST_WEIGHTS.get(strategy, MOST_WEIGHTS["panels"] if batch > 1 else 10**9)
    while rows * columns > most:
        rows, columns = (rows // 2, columns) if rows > columns else (rows, columns // 2)
    return (rows, columns), min(density, MOST_NONZEROS / (rows * columns))


def _random_size(random: np.random.Generator, largest: int) -> int:
    """Draw a size: half are awkward, the logarithms of the others are spread evenly."""
    if random.random() < 0.5:
        return int(random.choice([size for size in AWKWARD_SIZES if size <= largest]))
    return int(np.exp(random.uniform(0, np.log(largest + 1))))


def _random_exponents(random: np.random.Generator, dtype: DType) -> tuple[int, int]:
    """Draw exponents of the scales of weights and x: mostly 0, else such that no sum overflows."""
    if random.random() < 0.8:
        return 0, 0
    most = WEIGHT_EXPONENT.get(dtype, LARGEST_EXPONENT)
    weight = random.integers(-most, most + 1)
    return int(weight), int(random.integers(-LARGEST_EXPONENT, LARGEST_EXPONENT + 1))


def _random_steps(random: np.random.Generator, x_exponent: int) -> Quantisation | None:
    """Draw fixed steps of x, or None."""
    scale = 2.0**x_exponent / 40
    return Quantisation(scale, 0, symmetric=True) if random.random() < 0.3 else None


def _random_x(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> FloatArray:
    """Draw normal values times `scale`; 2 % are all zero, 8 % partly zero or denormal."""
    x = random.standard_normal(shape, np.float32) * np.float32(scale)
    kind = random.random()
    if kind < 0.02:
        x[:] = 0
    elif kind < 0.1:
        x[random.random(shape) < 0.4] = random.choice(np.array([0.0, -0.0, 1e-40, -1e-45]))
    return x


def _choose(random: np.random.Generator, often: dict[str, float]) -> str:
    """Draw a key with a probability in proportion to its value."""
    shares = np.array(list(often.values()))
    return str(random.choice(list(often), p=shares / shares.sum()))
