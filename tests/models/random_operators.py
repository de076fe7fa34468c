"""The operators that random graphs grow by, each applied to operands that it is steady for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from growing import SIZES, Growing
from hypothesis import strategies as st

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import Cast, Chain, ChainStep, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.selection import ArgMax, BagKind, Embedding, EmbeddingBag, TopK
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element, Value

ROWS_OF_TABLE = 5
# Elements of a row whose order is asked for differ by more.
GAP = 1e-3

Choice = Callable[[Growing], Any]
# Functions of one operand, and where they are steady.
UNARY: dict[str, Callable[[Array], Any]] = {
    **dict.fromkeys(("neg", "abs", "relu", "tanh", "sigmoid", "erf", "sin", "cos"), np.isfinite),
    **dict.fromkeys(("exp", "exp2", "expm1"), lambda x: x < 4),
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
    """A value that broadcasts with x: a number, a vector, a vector of channels, a value."""
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
    grow.apply(Linear(grow.one(list(Activation))), x, weights, *bias)


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
    makers: list[tuple[Operator, list[Value]]] = [
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
    rank, channels = len(x.shape) - 2, x.shape[1]
    groups = grow.one([1, 1, channels])
    out = groups * grow.one([1, 2, 4])
    kernel = tuple(min(grow.one([1, 2, 3]), n) for n in x.shape[2:])
    transposed = grow.one([False, False, True])
    shape = (channels, out // groups) if transposed else (out, channels // groups)
    ones = (1,) * rank
    padding = tuple(grow.one([0, k // 2]) for k in kernel)
    dilation = ones if transposed else tuple(grow.one([1, 1 + (p > 0)]) for p in padding)
    if any(
        (k - 1) * d >= n + 2 * p
        for k, d, n, p in zip(kernel, dilation, x.shape[2:], padding, strict=True)
    ):
        dilation = ones
    stride = tuple(grow.one([1, 1, 2]) for _ in kernel)
    added = tuple(s - 1 for s in stride) if transposed and grow.one([False, True]) else ()
    bias = [grow.constant(grow.numbers(out), "bias")] if grow.one([True, False]) else []
    activation = grow.one(list(Activation))
    op = Convolution(stride, padding, dilation, groups, transposed, added, activation)
    weights = grow.weights(*shape, *kernel)
    try:
        op.infer(x.type, weights.type, *(each.type for each in bias))
    except InvalidInput:  # a transposed one whose padding takes all of its result
        return
    grow.apply(op, x, weights, *bias)


def pooling(grow: Growing) -> None:
    x = grow.operand(3, 4)
    if x is None:
        return
    kernel = tuple(min(grow.one([1, 2, 3]), n) for n in x.shape[2:])
    padding = tuple((grow.one([0, k // 2]), k // 2) for k in kernel)
    strides = tuple(grow.one([1, 2]) for _ in kernel)
    kind = grow.one([PoolingKind.MAX, PoolingKind.AVERAGE])
    counts = grow.one([False, True])
    grow.apply(Pooling(kind, kernel, strides, padding, (1,) * len(kernel), counts), x)


def table_of(grow: Growing) -> Value:
    """A constant table, or an input."""
    size = grow.one(list(SIZES))
    if grow.one([True, True, False]):
        return grow.weights(ROWS_OF_TABLE, size)
    return grow.input(grow.numbers(ROWS_OF_TABLE, size))


def places_in(grow: Growing, *shape: int) -> Value:
    """A new input of indices into a table."""
    return grow.input(grow.random.integers(0, ROWS_OF_TABLE, shape))


def known_places(grow: Growing) -> list[Value]:
    """Computed indices that a table has rows for."""

    def fits(value: Value) -> bool:
        known = grow.known[value]
        return bool(np.all((known >= 0) & (known < ROWS_OF_TABLE)))

    return [value for value in grow.indices if fits(value)]


def embedding(grow: Growing) -> None:
    places = places_in(grow, grow.one([1, 3]), grow.one([2, 8]))
    grow.indices.append(places)
    grow.apply(Embedding(), grow.one([places, *known_places(grow)]), table_of(grow))


def bags(grow: Growing) -> None:
    kind = grow.one(list(BagKind))
    weighted = kind is BagKind.SUM and grow.one([False, True])
    shape, offsets = (grow.one([1, 3]), grow.one([1, 5])), []
    if grow.one([False, True]):
        shape = (grow.one([1, 6]),)
        first = np.sort(grow.random.integers(0, shape[0] + 1, grow.one([1, 4])))
        first[0] = 0
        offsets = [grow.input(first)]
    weights = [grow.input(grow.numbers(*shape))] if weighted else []
    op = EmbeddingBag(kind, bool(offsets), weighted)
    grow.apply(op, places_in(grow, *shape), table_of(grow), *offsets, *weights)


def largest(grow: Growing) -> None:
    """The largest elements of rows without near equals, and their places."""
    x = grow.operand(least_rank=1)
    if x is None:
        return
    gaps = np.diff(np.sort(grow.known[x], axis=-1), axis=-1)
    if np.all(gaps > GAP):
        count = min(grow.one([1, 2, 5]), x.shape[-1])
        ops = [TopK(count), TopK(count, least=True), ArgMax(), ArgMax(True)]
        grow.apply(grow.one(ops), x)


def whole_numbers(grow: Growing) -> None:
    """Arithmetic, a view, a cast of indices."""
    x = grow.wholes()
    if x is None:
        return
    other = grow.constant(np.int64(grow.one([0, 1, 2, -3])))
    binary = Pointwise(grow.one(["add", "sub", "mul", "maximum", "minimum"]))
    applied: list[tuple[Operator, list[Value]]] = [
        (binary, [x, other]),
        (Pointwise(grow.one(["neg", "abs"])), [x]),
        (Cast(Element.FLOAT32), [x]),
        (Reshape((x.type.size, 1)), [x]),
        (Expand((2, *x.shape)), [x]),
    ]
    op, operands = grow.one(applied)
    grow.apply(op, *operands)


def truths(grow: Growing) -> None:
    """A comparison of whole numbers, as number or choice."""
    x = grow.wholes()
    if x is None:
        return
    other = grow.constant(np.int64(grow.one([0, 1, 3])))
    kind = grow.one(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
    truth = grow.apply(Pointwise(kind), x, other)
    if truth is None:
        return
    if grow.one([False, True]):
        truth = grow.apply(Pointwise("logical_not"), truth)
    two = [grow.constant(np.float32(n)) for n in (0.5, -2)]
    applied = [(Cast(Element.FLOAT32), [truth]), (Cast(Element.INT64), [truth])]
    applied += [(Pointwise("where"), [truth, *two])]
    op, operands = grow.one(applied)
    grow.apply(op, *operands)


def to_whole(grow: Growing) -> None:
    """A cast of floats that are near no whole number."""
    x = grow.operand()
    if x is not None and np.all(np.abs(grow.known[x] - np.rint(grow.known[x])) > GAP):
        grow.apply(Cast(Element.INT64), x)


def fused(grow: Growing) -> None:
    """A chain of drawn steps with several results, over operands that broadcast."""
    x = grow.operand(least_rank=1)
    if x is None:
        return
    other = partner(grow, x)
    shape = np.broadcast_shapes(x.shape, other.shape)
    write = row_chains.ChainWriter(shape, 2)
    made = [0, 1, write.step("mul", 0, 1)]
    for _ in range(grow.one([1, 3, 6])):
        kind = grow.one(
            ["add", "mul", "sub", "maximum", "tanh", "relu", "row_sum", "row_max", "fma"]
        )
        arity = {"tanh": 1, "relu": 1, "row_sum": 1, "row_max": 1, "fma": 3}.get(kind, 2)
        made.append(write.step(kind, *(grow.one(made) for _ in range(arity))))
    # A chain that does not read all of its operands would come from no pass.
    results = [write.step("add", made[2], made[-1])]
    results += [grow.one(made[2:])] * grow.one([0, 1])
    grow.apply(write.finish(*dict.fromkeys(results)), x, other)


def recurrence(grow: Growing) -> None:
    x = grow.operand(3, 3)
    if x is None or x.shape[0] > 8:
        return
    cell, hidden = grow.one(list(RecurrentCell)), grow.one([1, 8, 9])
    rows = cell.gates * hidden
    bias, second = (grow.constant(grow.numbers(rows), "bias") for _ in range(2))
    gates = grow.apply(Linear(), x, grow.weights(rows, x.shape[-1]), bias)
    state = (x.shape[1], hidden)
    zero = grow.constant(np.zeros(state, np.float32), "zero")
    states = [grow.one([zero, grow.input(grow.numbers(*state))]) for _ in range(cell.states)]
    if gates is not None:
        op = Recurrence(cell, grow.one([False, True]))
        grow.apply(op, gates, *states, grow.weights(rows, hidden), second)


# The more often an entry, the more often it is drawn.
OPERATORS: tuple[Choice, ...] = (
    *(unary, unary, binary, binary, binary, select, linear, linear, affine, rows, rows, fused),
    *(view, view, view, view, concat, bmm, convolution, pooling, embedding, bags, largest),
    *(recurrence, whole_numbers, truths, to_whole),
)
# Operators with several results, and the nodes before and behind such a node.
WITH_SEVERAL_RESULTS: tuple[Choice, ...] = (
    *(fused, fused, fused, largest, largest, recurrence, linear, convolution, pooling),
    *(unary, binary, view, rows, embedding),
)
