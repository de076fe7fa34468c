"""Attention between sparse layers: of columns where that saves transposing, else as it was."""

import numpy as np
import pytest
from matvec_checks import block_weights
from native import check_graph
from runnable import ISAS

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Attention, Linear
from sparsejit.ir.ops.views import Permute, Reshape, Slice
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import Target

HERE = Origin("attention")
HEADS, WIDTH = 2, 192


class Block:
    """The parts of a block with attention."""

    def __init__(self, samples: int, tokens: int) -> None:
        self.build, self.samples, self.tokens = GraphBuilder(), samples, tokens
        self.x = self.build.input(TensorType((samples, tokens, WIDTH)), HERE)

    def linear(self, x: Value, width: int, seed: int) -> Value:
        weights = 0.3 * block_weights((width, x.shape[-1]), 0.1, 1, seed)
        bias = np.linspace(-0.5, 0.5, width, dtype=np.float32)
        constants = (self.build.constant(each, HERE) for each in (weights, bias))
        return self.build.one(Linear(), x, *constants, origin=HERE)

    def heads(self, x: Value) -> Value:
        apart = Reshape((self.samples, self.tokens, HEADS, x.shape[-1] // HEADS))
        return self.build.one(
            Permute((0, 2, 1, 3)), self.build.one(apart, x, origin=HERE), origin=HERE
        )

    def together(self, x: Value) -> Value:
        turned = self.build.one(Permute((0, 2, 1, 3)), x, origin=HERE)
        shape = (self.samples, self.tokens, HEADS * x.shape[-1])
        return self.build.one(Reshape(shape), turned, origin=HERE)

    def attention(self, *operands: Value) -> Value:
        return self.build.one(Attention(0.2), *operands, origin=HERE)

    def lowered(self, isa: str) -> ModelSchedule:
        """The graph that `layouts` made."""
        return lower_model(self.graph, ModelOptions(Target.named(isa)))

    def layouts(self, isa: str, *outputs: Value) -> list[str]:
        """The layouts of x and y of each layer, by first letters; the graph is checked."""
        graph = self.graph = self.build.finish(outputs)
        x = np.random.default_rng(0).standard_normal(self.x.shape).astype(np.float32)
        check_graph(graph, [x], Target.named(isa), 1e-4)
        layers = [step.facts.layer for step in self.lowered(isa).steps]
        products = [each for each in layers if isinstance(each, MatMul)]
        return [f"{_letter(each.layout)}{_letter(each.y_layout)}" for each in products]


def _letter(layout: Layout) -> str:
    return layout.value[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("samples", "tokens"), [(1, 64), (1, 61), (1, 63), (2, 32)])
def test_of_columns_between_layers(isa: str, samples: int, tokens: int) -> None:
    """With padding behind the last query, and the tokens of the next sample."""
    block = Block(samples, tokens)
    operands = [block.heads(block.linear(block.x, WIDTH, seed)) for seed in range(3)]
    mixed = block.together(block.attention(*operands))
    found = block.layouts(isa, block.linear(mixed, WIDTH, 3))
    assert [each[1] for each in found[:3]] == ["f"] * 3
    assert found[3] == "fb"


@pytest.mark.parametrize("isa", ISAS)
def test_a_result_that_others_read_is_turned_for_them(isa: str) -> None:
    block = Block(1, 64)
    operands = [block.heads(block.linear(block.x, WIDTH, seed)) for seed in range(3)]
    mixed = block.together(block.attention(*operands))
    sine = block.build.one(Pointwise("sin"), mixed, origin=HERE)
    found = block.layouts(isa, block.linear(mixed, WIDTH, 3), sine)
    assert [each[1] for each in found[:3]] == ["f"] * 3
    assert found[3] == "fb"
    kernels = [step.kernel for step in block.lowered(isa).steps]
    assert kernels[kernels.index("sin") - 1] == "copy"


@pytest.mark.parametrize("isa", ISAS)
def test_operands_that_are_parts_of_one_value(isa: str) -> None:
    block = Block(1, 64)
    joint = block.linear(block.x, 3 * WIDTH, 0)
    parts = (Slice(2, n * WIDTH, (n + 1) * WIDTH) for n in range(3))
    operands = [block.heads(block.build.one(part, joint, origin=HERE)) for part in parts]
    mixed = block.together(block.attention(*operands))
    assert block.layouts(isa, block.linear(mixed, WIDTH, 3)) == ["bf", "fb"]


@pytest.mark.parametrize("isa", ISAS)
def test_keys_of_another_width_and_number(isa: str) -> None:
    """Values may be as wide as they like; keys come from elsewhere."""
    block = Block(1, 64)
    query = block.heads(block.linear(block.x, WIDTH, 0))
    longer = block.build.input(TensorType((1, 80, WIDTH)), HERE)
    block.tokens = 80
    key = block.heads(block.linear(longer, WIDTH, 1))
    value = block.heads(block.linear(longer, WIDTH + 32, 2))
    block.tokens = 64
    mixed = block.together(block.attention(query, key, value))
    graph = block.build.finish([block.linear(mixed, WIDTH, 3)])
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
    check_graph(graph, inputs, Target.named(isa), 1e-4)
    lowered = lower_model(graph, ModelOptions(Target.named(isa)))
    layers = [step.facts.layer for step in lowered.steps]
    products = [each for each in layers if isinstance(each, MatMul)]
    assert [_letter(each.y_layout) for each in products] == ["f", "f", "f", "b"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["samples of odd lengths", "a part is an output", "few tokens"])
def test_others_stay_as_they_were(isa: str, case: str) -> None:
    block = Block(*{"samples of odd lengths": (2, 33), "few tokens": (1, 2)}.get(case, (1, 64)))
    operands = [block.heads(block.linear(block.x, WIDTH, seed)) for seed in range(3)]
    mixed = block.together(block.attention(*operands))
    seen = operands[:1] if case == "a part is an output" else []
    found = block.layouts(isa, block.linear(mixed, WIDTH, 3), *seen)
    assert [each[1] for each in found] == ["b"] * 4
    assert found[3] == "bb"
