"""A case for every operator that is registered: the record, operands, and which are constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.columns import (
    ColumnProducts,
    Distances,
    DoubleProduct,
    JoinedColumns,
    Measure,
    PiecewiseColumns,
    PowerColumns,
    RowNorm,
    ScaledColumns,
)
from sparsejit.ir.ops.convolution import (
    Convolution,
    DynamicConvolution,
    Pooling,
    PoolingKind,
)
from sparsejit.ir.ops.forest import Contributions, Forest
from sparsejit.ir.ops.int8_columns import (
    ByteAttention,
    ChannelMeans,
    NormalisedColumns,
    ScaledChannels,
)
from sparsejit.ir.ops.pointwise import Cast, Pointwise
from sparsejit.ir.ops.products import Attention, Bmm, CachedAttention, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.row_chains import layer_norm, log_softmax, softmax
from sparsejit.ir.ops.sampling import (
    PREDICTION_WINDOW,
    THRESHOLDS,
    Draw,
    GruStep,
    Predict,
    Quantise,
    Reconstruct,
    SumOfRows,
    TreeDraw,
    Uniform,
    UniformRow,
)
from sparsejit.ir.ops.selection import (
    ArgMax,
    BagKind,
    Embedding,
    EmbeddingBag,
    OwnRows,
    PlacedRows,
    Reduction,
    TopK,
    TruePlaces,
)
from sparsejit.ir.ops.turns import BodyNode, Turns
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.ir.spec import Activation, DType, Quantisation
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value
from sparsejit.machine.target import Target

_RANDOM = np.random.default_rng(4)


def graph_of(op: Operator, *operands: Array, constants: Iterable[int] = ()) -> Graph:
    """One operator, of whose operands some are known at compile time."""
    builder, known = GraphBuilder(), set(constants)
    values: list[Value] = []
    for number, array in enumerate(operands):
        origin, element = Origin(f"x{number}"), Element(array.dtype.name)
        if number in known:
            values.append(builder.constant(array, origin, element))
        else:
            values.append(builder.input(TensorType(array.shape, element), origin))
    return builder.finish(builder.add(op, *values, origin=Origin("y")))


@dataclass(frozen=True, eq=False)
class OperatorCase:
    """`constants`: how many of the last operands are known at compile time.

    `needs`: the instruction set that AVX-512 needs besides.
    """

    op: Operator
    operands: tuple[Array, ...]
    constants: int = 0
    tolerance: float = 2e-6
    needs: str = ""

    def has_code(self, target: Target) -> bool:
        """Whether there is some for a target."""
        return not self.needs or target.isa == "avx2" or target.has(self.needs)

    def graph(self) -> Graph:
        """The operator alone."""
        known = len(self.operands) - self.constants
        return graph_of(self.op, *self.operands, constants=range(known, len(self.operands)))

    @property
    def inputs(self) -> list[Array]:
        return list(self.operands[: len(self.operands) - self.constants])


def floats(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape, np.float32)


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def number(value: float) -> Array:
    return np.array(value, np.int64 if isinstance(value, int) else np.float32)


def truths(*shape: int) -> Array:
    return _RANDOM.random(shape) > 0.5


def case(
    op: Operator,
    *operands: Array,
    constants: int = 0,
    tolerance: float = 2e-6,
    needs: str = "",
) -> OperatorCase:
    return OperatorCase(op, operands, constants, tolerance, needs)


TREES = (
    floats(2),
    np.array([[0, -2, -1, 0], [2, -2, -3, 1]]),
    floats(3, 1),
    np.array([[0, 0], [1, 1]]),
    floats(2),
)
_BYTES = Quantisation(0.02, 3)
DOUBLE_TREES = (TREES[0].astype(np.float64), *TREES[1:])
PLAYED = (
    np.array([[0, 1, -1, 0, 2], [2, -2, -3, 1, 0]]),
    np.float64(floats(3)),
    np.array([[0, 1]]),
    np.float64(floats(2)),
    np.array([[0.3, 0.7], [1, 0]]),
)
KNOWN = np.float64(floats(21, 3))
SCALES = np.array([[0.1, 0.2], [2, 1], [0, 1], [-2, -2], [2, 2], [0, 1]])
CASES = [
    case(Pointwise("tanh"), floats(3, 5)),
    case(Pointwise("add"), floats(3, 5), floats(5)),
    case(Pointwise("where"), truths(3, 1), floats(3, 5), floats(5)),
    case(Pointwise("logical_or"), truths(3, 5), floats(3, 5)),
    case(softmax((3, 4)), floats(3, 4)),
    case(
        layer_norm((2, 5), True, True),
        *(floats(2, 5), number(0.2), number(1e-5), floats(5), floats(5)),
    ),
    case(log_softmax((3, 1)), floats(3, 1)),
    case(softmax((3, 20)), np.float64(floats(3, 20)), tolerance=1e-15),
    case(Pointwise("sub"), np.float64(floats(3, 5)), np.float64(floats(5)), tolerance=1e-15),
    case(Cast(Element.FLOAT32), np.float64(floats(3, 5))),
    case(Cast(Element.BOOL), floats(2, 3)),
    case(Cast(Element.INT64), 9 * floats(2, 3)),
    case(Cast(Element.FLOAT32), whole(3, -4)),
    case(Linear(Activation.RELU), floats(2, 3, 4), floats(5, 4), floats(5), constants=2),
    case(
        Linear(dtype=DType.INT8, x_steps=Quantisation(1 / 40, 0, symmetric=True)),
        *(floats(3, 8), floats(5, 8)),
        constants=1,
        tolerance=0.2,
    ),
    case(Bmm(), floats(2, 3, 4), floats(4, 5)),
    case(Bmm(transposed=True, scale=0.1), floats(3, 4), floats(2, 5, 4)),
    case(Attention(0.5), floats(2, 3, 4), floats(2, 5, 4), floats(5, 6)),
    case(
        Attention(),
        *(floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 6), truths(2, 3, 5)),
        constants=1,
    ),
    case(
        CachedAttention(0.3), *(floats(2, 3, 16), floats(2, 48, 16), floats(2, 48, 8), floats(48))
    ),
    case(
        Convolution((1, 2), (0, 1), (1, 1), groups=2, activation=Activation.TANH),
        *(floats(2, 4, 5, 6), floats(6, 2, 3, 2), floats(6)),
        constants=2,
    ),
    case(
        Convolution((2,), (1,), (1,), transposed=True, output_padding=(1,)),
        *(floats(2, 3, 5), floats(3, 4, 3)),
        constants=1,
    ),
    case(
        DynamicConvolution((2, 1), (1, 0), (1, 2)),
        *(floats(2, 3, 7, 8), number(0.02), number(100.0)),
        whole(*range(-126, 126, 7)).reshape(2, 3, 3, 2).astype(np.float32),
        constants=1,
        needs="avx512_vnni",
    ),
    case(
        Pooling(PoolingKind.AVERAGE, (2, 2), (2, 2), ((0, 1), (0, 0)), (1, 1), False),
        floats(2, 3, 5, 4),
    ),
    case(Pooling(PoolingKind.MAX, (3,), (1,), ((1, 1),), (1,)), floats(2, 3, 7)),
    case(
        Recurrence(RecurrentCell.LSTM, reverse=True),
        *(floats(3, 2, 20), floats(2, 5), floats(2, 5), floats(20, 5), floats(20)),
        constants=2,
    ),
    case(
        Recurrence(RecurrentCell.LSTM, with_lengths=True),
        *(floats(3, 2, 20), floats(2, 5), floats(2, 5), whole(2, 0)),
        *(floats(20, 5), floats(20)),
        constants=2,
    ),
    case(
        Recurrence(RecurrentCell.GRU, rounds_state=True),
        *(floats(3, 2, 15), floats(2, 5), floats(15, 5), floats(15)),
        constants=2,
    ),
    case(
        Recurrence(RecurrentCell.GRU, dtype=DType.BFLOAT16),
        *(floats(3, 2, 15), floats(2, 5), floats(15, 5), floats(15)),
        constants=2,
        tolerance=0.05,
    ),
    case(
        NormalisedColumns(1e-5, (Quantisation(0.02, 3), None)),
        *(floats(1, 8, 5), floats(1, 8, 5), floats(3, 8)),
        constants=1,
        tolerance=1e-4,
        needs="avx512_vnni",
    ),
    case(
        ByteAttention(2, 5, 0.5, (_BYTES,) * 3, _BYTES, Quantisation(1 / 255, -128), _BYTES),
        *(floats(1, 8, 10), floats(1, 8, 10), floats(1, 8, 10)),
        tolerance=0.0201,
        needs="avx512_vnni",
    ),
    case(
        ByteAttention(2, 5, 0.5, (_BYTES,) * 3, _BYTES, Quantisation(1 / 255, -128), _BYTES),
        *(floats(1, 8, 10), floats(1, 8, 10), floats(1, 8, 10), floats(2, 5)),
        tolerance=0.0201,
        needs="avx512_vnni",
    ),
    case(ChannelMeans(_BYTES), floats(2, 3, 4, 5), tolerance=1e-5, needs="avx512_vnni"),
    case(
        ScaledChannels(_BYTES, _BYTES),
        *(floats(2, 3, 4, 5), floats(2, 3)),
        tolerance=0.0201,
        needs="avx512_vnni",
    ),
    case(Forest(0.5), floats(4, 3), *TREES, constants=5),
    case(Forest(element=Element.FLOAT64), np.float64(floats(4, 3)), *DOUBLE_TREES, constants=5),
    case(Forest(result=Element.FLOAT64), floats(4, 3), *TREES, constants=5),
    case(Contributions(4), floats(4, 3), TREES[0], *PLAYED, constants=6),
    case(
        Contributions(4, Element.FLOAT64),
        *(np.float64(floats(4, 3)), DOUBLE_TREES[0], *PLAYED),
        constants=6,
    ),
    case(JoinedColumns(), floats(4, 3), floats(4, 2)),
    case(JoinedColumns(Element.FLOAT64), np.float64(floats(4, 9)), floats(4, 1)),
    case(ScaledColumns(), floats(4, 3), whole(2, 0), SCALES, constants=2),
    case(
        ColumnProducts(),
        *(floats(4, 3).astype(np.float64), np.array([[-1, -1], [2, -1], [0, 2], [1, 1]])),
        constants=1,
    ),
    case(
        PowerColumns(),
        *(floats(4, 3).astype(np.float64), np.array([[0, 2], [0.5, 1.5], [-1, 3.0]])),
        constants=1,
    ),
    *(case(RowNorm(norm), floats(4, 3).astype(np.float64)) for norm in ("l1", "l2", "max")),
    case(
        PiecewiseColumns(Element.FLOAT32, Element.FLOAT32),
        *(floats(4, 3), whole(2, 0), whole(0, 1, 3), np.array([0.1, -0.5, 0.5])),
        *(floats(5, 3).astype(np.float64), np.zeros(2)),
        constants=5,
    ),
    case(
        ScaledColumns(Element.FLOAT64),
        *(floats(4, 3).astype(np.float64), whole(2, 0), SCALES),
        constants=2,
    ),
    case(
        ScaledColumns(),
        *(np.where(np.eye(4, 3), np.nan, floats(4, 3)).astype(np.float32), whole(2, 0)),
        np.concatenate([SCALES, [[0.5, np.nan]]]),
        constants=2,
    ),
    case(
        DoubleProduct(result=Element.FLOAT64),
        *map(np.float64, (floats(4, 3), floats(2, 3), floats(2))),
        constants=2,
    ),
    case(DoubleProduct(), *map(np.float64, (floats(4, 3), floats(2, 3), floats(2))), constants=2),
    case(
        DoubleProduct(Element.FLOAT32),
        floats(4, 3),
        *map(np.float64, (floats(2, 3), floats(2))),
        constants=2,
    ),
    *(
        case(Distances(measure, element), x.astype(element.value), KNOWN, constants=1)
        for measure in Measure
        for element, x in (
            (Element.FLOAT32, floats(4, 3)),
            (Element.FLOAT64, np.concatenate([floats(3, 3), KNOWN[:1]])),
        )
    ),
    case(Uniform(), number(3), number(7)),
    case(UniformRow(8), number(3), number(7)),
    case(Draw(1 / 0.9), floats(9), number(0.4)),
    case(TreeDraw(3), floats(8), floats(3)),
    case(Quantise(), number(0.1), np.sort(floats(THRESHOLDS)), constants=1),
    case(SumOfRows(), number(1), number(2), floats(3, 8), floats(4, 8), floats(8)),
    case(SumOfRows(DType.FLOAT16), number(1), floats(3, 8), floats(8), constants=2, tolerance=2e-3),
    case(GruStep(), floats(12), floats(12), floats(4)),
    case(Predict(), floats(PREDICTION_WINDOW), floats(PREDICTION_WINDOW), tolerance=1e-5),
    case(Reconstruct(4.0, 0.9), number(2), floats(9), number(0.5), number(0.1), number(0.2)),
    case(Embedding(), whole(0, 4, 2), floats(5, 3), constants=1),
    case(OwnRows(), whole(0, 4, 2, 1, 1, 3).reshape(2, 3), floats(2, 5, 3)),
    *(
        case(
            PlacedRows(reduction),
            whole(0, 4, 4, 1, 1, 1).reshape(2, 3),
            *(floats(2, 3, 9), floats(2, 5, 9)),
        )
        for reduction in Reduction
    ),
    *(
        case(
            PlacedRows(reduction),
            *(whole(1, 0).reshape(1, 2), whole(7, -1).reshape(1, 2, 1)),
            whole(2, 3, 5).reshape(1, 3, 1),
        )
        for reduction in (Reduction.NONE, Reduction.ADD)
    ),
    case(OwnRows(), whole(1, 0).reshape(1, 2), whole(7, -1, 3, 2).reshape(1, 2, 2)),
    case(EmbeddingBag(BagKind.MAX), whole(0, 4, 2, 1).reshape(2, 2), floats(5, 3), constants=1),
    case(EmbeddingBag(BagKind.MEAN, True), whole(0, 4, 2, 1), floats(5, 3), whole(0, 1, 3)),
    case(
        EmbeddingBag(BagKind.SUM, weighted=True),
        *(whole(0, 4, 2, 1).reshape(2, 2), floats(5, 3), floats(2, 2)),
    ),
    case(ArgMax(), floats(2, 3, 4)),
    case(ArgMax(keeps_axis=True), floats(3, 4)),
    case(TopK(3), floats(2, 7)),
    case(TopK(2, least=True), floats(2, 7)),
    case(TopK(3), np.float64(floats(2, 7)), tolerance=0),
    case(TopK(4, least=True), np.round(2 * np.float64(floats(3, 21))), tolerance=0),
    case(
        # state' = tanh(state + part), a table's row at a counter that goes on by one
        Turns(
            5,
            states=2,
            sequences=1,
            nodes=(
                BodyNode(Linear(), (0, 3)),
                BodyNode(Pointwise("add"), (6, 2)),
                BodyNode(Pointwise("tanh"), (7,)),
                BodyNode(Pointwise("add"), (1, 5)),
                BodyNode(Embedding(), (1, 4)),
            ),
            results=(8, 9, 8, 10),
        ),
        *(floats(2, 3), number(0), floats(5, 2, 3), floats(3, 3), floats(5, 2), number(1)),
        constants=3,
    ),
    # min(state + 1, bound) and max(other state, state): unchanged from turn 5 on, of 7 or 8; and of
    # 3, which end before.
    *(
        case(
            Turns(
                count,
                states=2,
                sequences=0,
                nodes=(
                    BodyNode(Pointwise("add"), (0, 2)),
                    BodyNode(Pointwise("minimum"), (4, 3)),
                    BodyNode(Pointwise("maximum"), (1, 0)),
                ),
                results=(5, 6),
            ),
            *(floats(2, 3), floats(2, 3), np.float32([1.0]), 3 + floats(2, 3)),
            constants=2,
        )
        for count in (3, 7, 8)
    ),
    case(TruePlaces(), truths(7)),
    case(TruePlaces(), np.zeros(5, bool)),
    case(TruePlaces(), np.ones(1, bool)),
    case(Reshape((2, 6)), floats(3, 4)),
    case(Reshape(()), floats(1, 1)),
    case(Permute((1, 2, 0)), truths(2, 3, 4)),
    case(Slice(1, 0, 4, 2), whole(1, 2, 3, 4, 5, 6, 7, 8).reshape(2, 4)),
    case(Expand((4, 2, 3)), floats(2, 1)),
    case(Concat(1), floats(2, 3), floats(2, 1)),
    case(Concat(1), floats(2, 3).astype(np.float64), floats(2, 1).astype(np.float64)),
    case(Pad(((0, 1), (2, 0)), -0.0), floats(2, 3)),
    *(case(Pad(((0, 1),), sign * float("inf")), floats(2)) for sign in (1, -1)),
]
