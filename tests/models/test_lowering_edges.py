"""Graphs at the edges: tensors without elements or axes, outputs that nothing computes, casts."""


import numpy as np
import pytest
from native import run_graph
from registered_operators import graph_of
from runnable import ISAS
from sketch import Sketch

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.pointwise import Cast, Chain, ChainStep, Pointwise
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.selection import BagKind, EmbeddingBag
from sparsejit.ir.ops.views import Concat, Pad, Reshape, Slice
from sparsejit.ir.values import Array, Element, Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes

INT64 = np.iinfo(np.int64)


def floats(*shape: int) -> Array:
    return np.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 4, 7, 9, 16, 33])
def test_floats_become_whole_numbers_as_in_torch(isa: str, length: int) -> None:
    torch = pytest.importorskip("torch")
    special = [0.0, -0.0, 0.99, -0.99, 1.5, -1.5, 2**31, -(2.0**31) - 256, 2**32, 1e18, -1e18]
    special += [2.0**63, -(2.0**63), 2.0**100, -(2.0**100), np.inf, -np.inf, np.nan, 16777217]
    random = floats(200) * 10.0 ** np.linspace(-3, 19, 200)
    x = np.resize(np.concatenate([special, random]).astype(np.float32), (25, length))
    (found,) = run_graph(graph_of(Cast(Element.INT64), x), [x], Target.named(isa))
    np.testing.assert_array_equal(found, torch.from_numpy(x).long().numpy())
    assert INT64.min in found or length < 16


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        (Pointwise("relu"), [floats(0, 3)]),
        (Pointwise("add"), [floats(3, 0), floats(1)]),
        (Slice(0, 1, 1), [floats(3, 2)]),
        (Reshape((0,)), [floats(0, 3)]),
        (Concat(1), [floats(2, 0), floats(2, 3), floats(2, 0)]),
        (Bmm(), [floats(0, 2), floats(2, 3)]),
    ],
)
def test_tensors_without_elements(op: Operator, arrays: list[Array]) -> None:
    graph = graph_of(op, *arrays)
    for each in (graph, run_passes(graph)):
        (found,) = run_graph(each, arrays, Target.detect())
        np.testing.assert_array_equal(found, op.reference(*arrays)[0])


def test_a_layer_of_no_rows() -> None:
    arrays = [floats(0, 4), floats(3, 4)]
    (found,) = run_graph(graph_of(Linear(), *arrays, constants=[1]), arrays[:1], Target.detect())
    assert found.shape == (0, 3)


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        (Bmm(), [floats(2, 0), floats(0, 3)]),
        (Pad(((0, 2),)), [floats(0)]),
        (Chain((2, 0), 1, (ChainStep("row_sum", (0,)),), (1,)), [floats(2, 0)]),
        (EmbeddingBag(BagKind.SUM), [np.zeros((2, 0), np.int64), floats(3, 4)]),
    ],
)
def test_elements_out_of_none_are_refused(op: Operator, arrays: list[Array]) -> None:
    with pytest.raises(InvalidInput, match=r"y reads x0, which has shape .*0"):
        run_graph(graph_of(op, *arrays), arrays, Target.detect())


@pytest.mark.parametrize("isa", ISAS)
def test_outputs_that_nothing_computes(isa: str) -> None:
    """Inputs, constants, views of either, the same value twice; and an input that is not read."""
    build, arrays = GraphBuilder(), [floats(3, 5), floats(7), floats()]
    x, unread, scalar = (build.input(TensorType(a.shape), Origin("x")) for a in arrays)
    table = build.constant(np.arange(12), Origin("table"))
    part = build.one(Slice(0, 1, 9, 3), table, origin=Origin("part"))
    column = build.one(Slice(1, 2, 3), x, origin=Origin("column"))
    double = build.one(Pointwise("add"), x, x, origin=Origin("double"))
    whole = build.one(Cast(Element.INT64), scalar, origin=Origin("whole"))
    outputs = [x, double, table, part, column, double, x, scalar, whole]
    graph = build.finish(outputs)
    for each in (graph, run_passes(graph)):
        found = run_graph(each, arrays, Target.named(isa))
        for got, wanted in zip(found, graph.evaluate(arrays), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert unread in graph.inputs


@pytest.mark.parametrize("isa", ISAS)
def test_scalars(isa: str) -> None:
    """Tensors without axes, computed, known, and joined with others."""
    build, arrays = GraphBuilder(), [floats(), floats(4)]
    scalar, x = (build.input(TensorType(a.shape), Origin("x")) for a in arrays)
    known = build.constant(np.float32(3), Origin("known"))
    square = build.one(Pointwise("square"), scalar, origin=Origin("square"))
    sum_ = build.one(Pointwise("add"), square, known, origin=Origin("sum"))
    scaled = build.one(Pointwise("mul"), x, sum_, origin=Origin("scaled"))
    first = build.one(Slice(0, 0, 1), scaled, origin=Origin("first"))
    back = build.one(Reshape(()), first, origin=Origin("back"))
    graph = build.finish([sum_, scaled, back])
    for each in (graph, run_passes(graph)):
        found = run_graph(each, arrays, Target.named(isa))
        for got, wanted in zip(found, graph.evaluate(arrays), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_a_value_read_by_a_concat_and_products_is_copied_once(isa: str) -> None:
    """It is written to its part of the concat, and from there put in order for the products."""
    s = Sketch()
    x, z = s.input(3, 8), s.input(3, 5)
    y = s("neg", x)
    products = [s(Linear(), y, s.weight(4, 8)) for _ in range(2)]
    graph = s.finish(s(Concat(1), y, z), *products, s("abs", y))
    target, arrays = Target.named(isa), [floats(3, 8), floats(3, 5)]
    for found, wanted in zip(
        run_graph(graph, arrays, target), graph.evaluate(arrays), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    steps = lower_model(graph, ModelOptions(target)).steps
    copies = [step for step in steps if step.kernel == "copy"]
    assert [copy.reads[0].shape for copy in copies] == [(3, 8), (3, 5)]


@pytest.mark.parametrize("isa", ISAS)
def test_operands_that_repeat_over_rows_are_not_overwritten_by_the_first(isa: str) -> None:
    builder = GraphBuilder()
    x = builder.input(TensorType((40,)), Origin("x"))
    y = builder.input(TensorType((6, 40)), Origin("y"))
    (row,) = builder.add(Chain((40,), 1, (ChainStep("neg", (0,)),), (1,)), x, origin=Origin("row"))
    steps = (ChainStep("add", (0, 0)), ChainStep("mul", (0, 1)))
    results = builder.add(Chain((6, 40), 2, steps, (2, 3)), row, y, origin=Origin("both"))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(value.shape, np.float32) for value in (x, y)]
    graph = builder.finish([builder.one(Pointwise("neg"), v, origin=Origin("o")) for v in results])
    for found, wanted in zip(
        run_graph(graph, inputs, Target.named(isa)), graph.evaluate(inputs), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
