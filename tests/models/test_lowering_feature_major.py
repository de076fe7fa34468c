"""Feature-major values around linear layers: which they are, and that numbers stay right."""

import numpy as np
import pytest
from matvec_checks import block_weights
from native import check_graph
from runnable import ISAS

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.row_chains import layer_norm
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.spec import Activation, DType, Layout, MatMul
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.machine.target import Target

BATCH, FEATURE = Layout.BATCH_MAJOR, Layout.FEATURE_MAJOR


class Chain:
    """Linear layers one after the other."""

    def __init__(self, *shape: int) -> None:
        self.builder = GraphBuilder()
        self.x = self.builder.input(TensorType(shape), Origin("x"))

    def linear(self, x: Value, out: int, dtype: DType = DType.FLOAT32) -> Value:
        weights = block_weights((out, x.shape[-1]), 0.1, 1, seed=out)
        bias = np.linspace(-1, 1, out, dtype=np.float32)
        constants = (self.builder.constant(each, Origin("w")) for each in (weights, bias))
        op = Linear(Activation.RELU, dtype)
        return self.builder.one(op, x, *constants, origin=Origin("linear"))

    def vector(self, length: int) -> Value:
        values = np.linspace(0.5, 1.5, length, dtype=np.float32)
        return self.builder.constant(values, Origin("vector"))

    def number(self, number: float) -> Value:
        return self.builder.constant(np.float32(number), Origin("number"))

    def function(self, kind: str, *operands: Value) -> Value:
        return self.builder.one(Pointwise(kind), *operands, origin=Origin(kind))

    def norm(self, x: Value) -> Value:
        width = x.shape[-1]
        operands = self.number(1 / width), self.number(1e-5), self.vector(width), self.vector(width)
        op = layer_norm(x.shape, True, True)
        return self.builder.one(op, x, *operands, origin=Origin("norm"))

    def layouts(
        self, isa: str, *outputs: Value, tolerance: float = 1e-4
    ) -> list[tuple[Layout, Layout]]:
        """The layouts of x and y of each layer; the graph is checked against float64."""
        graph: Graph = self.builder.finish(outputs)
        target = Target.named(isa)
        x = np.random.default_rng(0).standard_normal(self.x.shape).astype(np.float32)
        check_graph(graph, [x], target, tolerance)
        for threads in (1, 2):
            lowered = lower_model(graph, ModelOptions(target, threads))
            layers = [step.facts.layer for step in lowered.steps]
        return [(each.layout, each.y_layout) for each in layers if isinstance(each, MatMul)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(61, 200), (3, 21, 200)])
def test_values_between_layers_stay_feature_major(isa: str, shape: tuple[int, ...]) -> None:
    chain = Chain(*shape)
    first = chain.linear(chain.x, 300)
    second = chain.linear(first, 250)
    third = chain.linear(second, 220)
    found = chain.layouts(isa, third)
    assert found == [(BATCH, FEATURE), (FEATURE, FEATURE), (FEATURE, BATCH)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
def test_a_transposed_input_is_read_as_any_other(isa: str, dtype: DType) -> None:
    """Its strides are as in a value that stays feature-major."""
    chain = Chain(130, 16)
    turned = chain.builder.one(Permute((1, 0)), chain.x, origin=Origin("t"))
    found = chain.layouts(isa, chain.linear(turned, 200, dtype), tolerance=0.3)
    assert found == [(BATCH, BATCH)]


@pytest.mark.parametrize("isa", ISAS)
def test_values_with_other_readers_lie_batch_major(isa: str) -> None:
    chain = Chain(64, 200)
    first = chain.linear(chain.x, 300)
    second = chain.linear(first, 250)
    sine = chain.builder.one(Pointwise("sin"), second, origin=Origin("sin"))
    third = chain.linear(second, 220)
    assert chain.layouts(isa, first, third, sine) == [(BATCH, BATCH)] * 3


@pytest.mark.parametrize("isa", ISAS)
def test_an_int8_layer_hands_on_what_the_next_one_reads(isa: str) -> None:
    chain = Chain(64, 200)
    first = chain.linear(chain.x, 300, DType.INT8)
    (_, given), (read, last) = chain.layouts(isa, chain.linear(first, 250), tolerance=2.0)
    assert (given, last) == (read, BATCH)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(16, 200), (61, 200), (3, 21, 200)])
def test_functions_between_layers_are_of_columns(isa: str, shape: tuple[int, ...]) -> None:
    """A function of a value, numbers and vectors by feature; with and without reductions."""
    chain = Chain(*shape)
    first = chain.linear(chain.x, 300)
    scaled = chain.function("mul", chain.function("sin", first), chain.vector(300))
    second = chain.linear(chain.function("add", scaled, chain.number(0.5)), 250)
    third = chain.linear(chain.norm(second), 220)
    found = chain.layouts(isa, third)
    assert found == [(BATCH, FEATURE), (FEATURE, FEATURE), (FEATURE, BATCH)]


@pytest.mark.parametrize("isa", ISAS)
def test_residuals_lie_so_too(isa: str) -> None:
    """A value from elsewhere is turned once, for all that read it."""
    chain = Chain(40, 200)
    values = [chain.function("sin", chain.x)]
    for width in (300, 280, 320):
        wide = chain.linear(values[-1], width)
        narrow = chain.linear(chain.function("sin", wide), 200)
        values.append(chain.norm(chain.function("add", narrow, values[-1])))
    found = chain.layouts(isa, values[-1])
    assert found == [(FEATURE, FEATURE)] * 6


@pytest.mark.parametrize("isa", ISAS)
def test_functions_that_others_read_lie_both_ways(isa: str) -> None:
    chain = Chain(40, 200)
    sine = chain.function("sin", chain.linear(chain.x, 300))
    layers = [chain.linear(sine, 200 + 16 * n) for n in range(3)]
    found = chain.layouts(isa, sine, *layers)
    assert found == [(BATCH, FEATURE), *[(FEATURE, BATCH)] * 3]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("side", [(61, 1), (1, 300), (300,), (61, 300)])
def test_operands_of_every_shape(isa: str, side: tuple[int, ...]) -> None:
    """A number a row, and what had to be turned for it alone, leave a function as it was."""
    chain = Chain(61, 200)
    first = chain.linear(chain.x, 300)
    values = np.random.default_rng(1).standard_normal(side).astype(np.float32)
    other = chain.builder.constant(values, Origin("other"))
    last = chain.linear(chain.function("add", first, chain.function("sin", other)), 220)
    by_column = side in ((1, 300), (300,))
    found = chain.layouts(isa, last)
    turned = [(BATCH, FEATURE), (FEATURE, BATCH)]
    assert found == (turned if by_column else [(BATCH, BATCH)] * 2)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_one_feature(isa: str) -> None:
    chain = Chain(61, 200)
    one = chain.function("add", chain.linear(chain.x, 1), chain.number(0.5))
    chain.layouts(isa, chain.linear(chain.function("sin", one), 220), chain.norm(one))
