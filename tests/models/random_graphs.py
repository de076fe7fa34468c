"""Random small graphs over the operator table, with inputs for them, for hypothesis.

Each value is computed while the graph grows, so that a function is applied only where small errors
of its operand stay small: no logarithm near zero, no rounding near a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sparsejit.ir.graph import Array, Element, Graph, GraphBuilder, Op, Origin, TensorType, Value
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.selection import Embedding, TopK
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.spec import Activation

SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17)
MOST_ELEMENTS = 4096
LARGEST = 1e3
ROWS_OF_TABLE = 5


class Growing:
    """A graph under construction and the float64 content of its values."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = GraphBuilder()
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.known: dict[Value, Array] = {}
        self.inputs: list[Array] = []
        self.pool: list[Value] = []

    def input(self, shape: tuple[int, ...]) -> Value:
        """A new float input of numbers around 1 in size."""
        array = self.numbers(*shape)
        value = self.builder.input(TensorType(shape), Origin(f"input_{len(self.inputs)}"))
        self.inputs.append(array)
        return self.remember(value, array)

    def numbers(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(np.float32)

    def remember(self, value: Value, array: Array) -> Value:
        wide = array.astype(np.float64) if array.dtype.kind == "f" else array
        self.known[value] = wide
        return value

    def constant(self, array: Array, name: str = "constant") -> Value:
        return self.remember(self.builder.constant(array, Origin(name)), array)

    def weights(self, *shape: int) -> Value:
        """A pruned matrix or kernel whose products stay around 1 in size."""
        array = self.numbers(*shape) / np.float32(np.sqrt(max(1, np.prod(shape[1:]))))
        return self.constant(array * (self.random.random(shape) < 0.7), "weight")

    def apply(self, op: Op, *inputs: Value) -> Value | None:
        """The first result, in the pool of operands to come; None where it is too large."""
        results = op.reference(*(self.known[value] for value in inputs))
        largest = max(float(np.abs(r).max(initial=0)) for r in results)
        if results[0].size > MOST_ELEMENTS or not largest < LARGEST:
            return None
        name = type(op).__name__.lower()
        outputs = self.builder.add(op, *inputs, origin=Origin(name, f"layer.{name}"))
        for value, array in zip(outputs, results, strict=True):
            self.remember(value, np.asarray(array))
        if outputs[0].type.element is Element.FLOAT32:
            self.pool.append(outputs[0])
        return outputs[0]

    def one(self, values: list[Any]) -> Any:
        return self.draw(st.sampled_from(values))

    def operand(self, least_rank: int = 0, most_rank: int = 9) -> Value | None:
        """Any float value of that many axes, most often the last."""
        fits = [v for v in reversed(self.pool) if least_rank <= len(v.shape) <= most_rank]
        return self.one([*fits[:1] * len(fits), *fits]) if fits else None


Choice = Callable[[Growing], Any]
# Functions of one operand, and where they are steady.
UNARY: dict[str, Callable[[Array], Any]] = {
    **dict.fromkeys(("neg", "abs", "relu", "tanh", "sigmoid", "erf", "sin", "cos"), np.isfinite),
    **dict.fromkeys(("exp", "expm1"), lambda x: x < 4),
    **dict.fromkeys(("log", "sqrt", "rsqrt"), lambda x: x > 0.1),
    "log1p": lambda x: x > -0.5,
    "reciprocal": lambda x: np.abs(x) > 0.1,
    "square": lambda x: np.abs(x) < 30,
    **dict.fromkeys(("floor", "ceil", "trunc", "sign"), lambda x: abs(x - np.rint(x)) > 1e-3),
    "round": lambda x: abs(x - np.floor(x) - 0.5) > 1e-3,
}
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")


def unary(grow: Growing) -> None:
    x = grow.operand()
    if x is not None:
        kinds = [kind for kind, steady in UNARY.items() if np.all(steady(grow.known[x]))]
        grow.apply(Pointwise(grow.one(kinds)), x)


def partner(grow: Growing, x: Value) -> Value:
    """What broadcasts with x: a number, a vector, a vector of channels, a value."""
    last = x.shape[-1:]
    same = [v for v in grow.pool if _broadcasts(v.shape, x.shape)]
    channels = (x.shape[1], *(1 for _ in x.shape[2:])) if len(x.shape) > 2 else last
    makers: list[Callable[[], Value]] = [
        lambda: grow.constant(np.float32(grow.one([0, 1, -1, 0.5, 2, 3.7, 6]))),
        lambda: grow.constant(grow.numbers(*last)),
        lambda: grow.constant(grow.numbers(*channels)),
        lambda: grow.one(same),
    ]
    return grow.one(makers)()


def _broadcasts(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(one, other)) > 0
    except ValueError:
        return False


def binary(grow: Growing) -> None:
    x = grow.operand(least_rank=1)
    if x is None:
        return
    pair = [x, partner(grow, x)]
    if grow.one([True, False]):
        pair.reverse()
    kinds = [k for k in BINARY if k != "div" or np.all(np.abs(grow.known[pair[1]]) > 0.1)]
    grow.apply(Pointwise(grow.one(kinds)), *pair)


def select(grow: Growing) -> None:
    """where(x < y, x, y) if no x is near its y."""
    x = grow.operand(least_rank=1)
    if x is None:
        return
    y = partner(grow, x)
    if np.all(np.abs(grow.known[x] - grow.known[y]) > 1e-3):
        condition = grow.apply(Pointwise(grow.one(["less", "greater_equal"])), x, y)
        if condition is not None:
            grow.apply(Pointwise("where"), condition, x, y)


def linear(grow: Growing) -> None:
    x = grow.operand(least_rank=1)
    if x is None:
        return
    out, inner = grow.one(list(SIZES)), x.shape[-1]
    weights = grow.weights(out, inner)
    if grow.one([True, False]):
        mask = grow.constant((grow.random.random((out, inner)) < 0.5).astype(np.float32), "mask")
        weights = grow.apply(Pointwise("mul"), weights, mask) or weights
    bias = [grow.constant(grow.numbers(out), "bias")] if grow.one([True, False]) else []
    grow.apply(Linear(grow.one([Activation.NONE, Activation.TANH])), x, weights, *bias)


def affine(grow: Growing) -> None:
    """Batch-norm, written out for any layout."""
    x = grow.operand(least_rank=2)
    if x is not None:
        vector = (x.shape[1], *(1 for _ in x.shape[2:]))
        scaled = grow.apply(Pointwise("mul"), x, grow.constant(grow.numbers(*vector)))
        if scaled is not None:
            grow.apply(Pointwise("add"), scaled, grow.constant(grow.numbers(*vector)))


def rows(grow: Growing) -> None:
    """Softmax, a normalisation, or a plain reduction."""
    x = grow.operand(least_rank=1)
    if x is None:
        return
    numbers = [grow.constant(np.float32(n)) for n in (1 / x.shape[-1], 0.1)]
    vectors = [grow.constant(grow.numbers(x.shape[-1])) for _ in range(2)]
    reduce = Chain(x.shape, 1, (ChainStep(grow.one(["row_sum", "row_max"]), (0,)),), (1,))
    makers: list[tuple[Op, list[Value]]] = [
        (row_chains.softmax(x.shape), []),
        (row_chains.log_softmax(x.shape), []),
        (row_chains.layer_norm(x.shape, True, True), [*numbers, *vectors]),
        (row_chains.rms_norm(x.shape, False), numbers),
        (reduce, []),
    ]
    op, rest = grow.one(makers)
    grow.apply(op, x, *rest)


def view(grow: Growing) -> None:
    x = grow.operand(least_rank=1)
    if x is None:
        return
    shape, rank = x.shape, len(x.shape)
    axis = grow.one(list(range(rank)))
    first = grow.draw(st.integers(0, shape[axis] - 1))
    end = grow.draw(st.integers(first + 1, shape[axis]))
    axes = tuple(grow.draw(st.permutations(range(rank))))
    flat = (*shape[:axis], -1) if axis else (shape[0], -1)
    shapes = [np.empty(shape).reshape(flat).shape, (1, *shape), (*shape, 1), x.type.size]
    shapes[-1] = (x.type.size,)
    widths = tuple((i % 2, (i + axis) % 2) for i in range(rank))
    grow.apply(
        grow.one(
            [
                Reshape(grow.one(shapes)),
                Permute(axes),
                Slice(axis, first, end, grow.one([1, 1, 2])),
                Expand((grow.one([1, 2]), *shape)),
                Pad(widths, grow.one([0.0, 1.5])),
            ]
        ),
        x,
    )


def concat(grow: Growing) -> None:
    x = grow.operand(least_rank=1)
    if x is None:
        return
    axis = grow.one(list(range(len(x.shape))))
    others = [v for v in grow.pool if _differs_along(v.shape, x.shape, axis)]
    shape = (*x.shape[:axis], 2, *x.shape[axis + 1 :])
    pieces = [x, grow.one(others), grow.constant(grow.numbers(*shape))]
    grow.apply(Concat(axis), *pieces[: grow.one([1, 2, 3])])


def _differs_along(one: tuple[int, ...], other: tuple[int, ...], axis: int) -> bool:
    same_rank = len(one) == len(other)
    return same_rank and (*one[:axis], *one[axis + 1 :]) == (*other[:axis], *other[axis + 1 :])


def bmm(grow: Growing) -> None:
    """With itself, turned, as in attention; or with a constant."""
    x = grow.operand(least_rank=2)
    if x is None:
        return
    inner, scale = x.shape[-1], grow.one([1.0, 0.25])
    constant = grow.constant(grow.numbers(inner, 4) / np.float32(inner))
    op, other = grow.one([(Bmm(True, scale), x), (Bmm(False, scale), constant)])
    grow.apply(op, x, other)


def convolution(grow: Growing) -> None:
    x = grow.operand(3, 4)
    if x is None:
        return
    rank, out = len(x.shape) - 2, grow.one([1, 4, 9])
    kernel = tuple(min(3, n) for n in x.shape[2:])
    padding = (grow.one([0, 1]),) * rank
    bias = [grow.constant(grow.numbers(out), "bias")] if grow.one([True, False]) else []
    op = Convolution((1,) * rank, padding, (1,) * rank)
    grow.apply(op, x, grow.weights(out, x.shape[1], *kernel), *bias)


def pooling(grow: Growing) -> None:
    x = grow.operand(3, 4)
    if x is not None:
        kernel = tuple(min(2, n) for n in x.shape[2:])
        kind = grow.one([PoolingKind.MAX, PoolingKind.AVERAGE])
        ones = (1,) * len(kernel)
        grow.apply(Pooling(kind, kernel, ones, ((0, 0),) * len(kernel), ones), x)


def embedding(grow: Growing) -> None:
    indices = grow.random.integers(0, ROWS_OF_TABLE, (grow.one([1, 3]), grow.one([2, 8])))
    kind = TensorType(indices.shape, Element.INT64)
    value = grow.builder.input(kind, Origin(f"input_{len(grow.inputs)}"))
    grow.inputs.append(indices)
    grow.remember(value, indices)
    grow.apply(Embedding(), value, grow.weights(ROWS_OF_TABLE, grow.one(list(SIZES))))


def largest(grow: Growing) -> None:
    x = grow.operand(least_rank=1)
    if x is not None:
        grow.apply(TopK(min(2, x.shape[-1])), x)


def recurrence(grow: Growing) -> None:
    x = grow.operand(3, 3)
    if x is None or x.shape[0] > 8:
        return
    cell, hidden = grow.one(list(RecurrentCell)), grow.one([1, 8, 9])
    rows = cell.gates * hidden
    bias, second = (grow.constant(grow.numbers(rows), "bias") for _ in range(2))
    gates = grow.apply(Linear(), x, grow.weights(rows, x.shape[-1]), bias)
    zero = grow.constant(np.zeros((x.shape[1], hidden), np.float32), "zero")
    if gates is not None:
        op = Recurrence(cell, grow.one([False, True]))
        grow.apply(op, gates, *[zero] * cell.states, grow.weights(rows, hidden), second)


# The more often an entry, the more often it is drawn.
OPERATORS: tuple[Choice, ...] = (
    *(unary, unary, binary, binary, binary, select, linear, linear, affine, rows, rows),
    *(view, view, view, view, concat, bmm, convolution, pooling, embedding, largest, recurrence),
)


class GraphCase:
    """A graph, float32 and int64 inputs for it, and the largest number that occurs on the way."""

    def __init__(self, graph: Graph, inputs: list[Array], largest: float) -> None:
        self.graph, self.inputs, self.largest = graph, inputs, largest

    def __repr__(self) -> str:
        return f"GraphCase, numbers up to {self.largest:.3g}:\n{self.graph}"


@st.composite
def graphs(draw: st.DrawFn, most: int = 10) -> tuple[Graph, list[Array]]:
    """(graph, inputs): up to `most` applications of OPERATORS, and one to three outputs."""
    case = draw(graph_cases(most))
    return case.graph, case.inputs


@st.composite
def graph_cases(draw: st.DrawFn, most: int = 10) -> GraphCase:
    """As `graphs`, with what tests need to know of its numbers."""
    grow = Growing(draw)
    for rank in draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2)):
        shape = tuple(grow.one(list(SIZES[: 9 if rank < 3 else 5])) for _ in range(rank))
        grow.pool.append(grow.input(shape))
    for _ in range(draw(st.integers(1, most))):
        grow.one(list(OPERATORS))(grow)
    others = draw(st.lists(st.sampled_from(grow.pool), max_size=2))
    graph = grow.builder.finish([grow.pool[-1], *others])
    largest = max(float(np.abs(array).max(initial=1)) for array in grow.known.values())
    return GraphCase(graph, grow.inputs, largest)
