"""Quantised ONNX files whose images stay in bytes from layer to layer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator
from sketch import kinds
from test_byte_convolutions import at_both_levels
from test_onnx import graph_model

import sparsejit
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import Activation
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.convolution.int8_choice import with_byte_layers
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.passes.int8_layers import byte_layers
from sparsejit.passes.quantised_layers import quantised_layers

LEVEL = Target.named("avx512")
TARGET = replace(LEVEL, instruction_sets=LEVEL.instruction_sets | {"avx512_vnni"})
CHANNELS, SIZE = 48, 20


class Qdq:
    """An ONNX graph as quantize_static writes it, layer by layer."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(2)
        self.count = 0

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        output = f"v{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, array: Any) -> str:
        self.count += 1
        self.constants[f"c{self.count}"] = np.asarray(array)
        return f"c{self.count}"

    def steps(self, value: str, scale: float, zero: int = 0) -> str:
        """Rounded to steps."""
        numbers = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self("DequantizeLinear", self("QuantizeLinear", value, *numbers), *numbers)

    def convolution(self, x: str, outputs: int, inputs: int, kernel: int = 1, **more: Any) -> str:
        shape = outputs, inputs, kernel, kernel
        weights = self.random.integers(-127, 128, shape) * (self.random.random(shape) < 0.15)
        scales = self.constant(self.random.uniform(0.004, 0.008, outputs).astype(np.float32))
        zeros = self.constant(np.zeros(outputs, np.int8))
        w = self("DequantizeLinear", self.constant(weights.astype(np.int8)), scales, zeros, axis=0)
        bias = self.constant(self.random.standard_normal(outputs).astype(np.float32))
        more.setdefault("pads", [kernel // 2] * 4)
        return self("Conv", x, w, bias, **more)

    def model(self, output: str) -> Any:
        self.nodes[-1].output[0] = "y"
        return graph_model(self.nodes, {"x": ("n", CHANNELS, SIZE, SIZE)}, self.constants, 13, 4)


# Placements of roundings around a sum: ONNX Runtime's quantiser with and without the operator Relu,
# and exporters that leave the product of the last convolution as it is, as torch's and TensorRT's.
SUMS = ("rounded once", "rounded twice", "product in floats")


def bottleneck(
    relu: bool, zero: int, stride: int = 1, sums: str = SUMS[0]
) -> tuple[Any, float]:
    """Three convolutions and a shortcut, behind pooling where that has a stride; its last scale."""
    q = Qdq()
    x = q.steps("x", 0.021, zero)
    if stride > 1:
        x = q.steps(q("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4), 0.021, zero)
    y = q.steps(q("Relu", q.convolution(x, 32, CHANNELS)), 0.043)
    y = q.steps(q("Relu", q.convolution(y, 32, 32, 3, strides=[stride] * 2)), 0.037)
    y = q.convolution(y, CHANNELS, 32)
    if sums != "product in floats":
        y = q.steps(y, 0.051, 113)
    if stride > 1:
        x = q.steps(q.convolution(x, CHANNELS, CHANNELS, strides=[stride] * 2), 0.047, 99)
    total = q("Add", y, x)
    if sums == "rounded twice":
        total = q.steps(total, 0.057, 126)
    scale = 0.053
    last = q.steps(q("Relu", total) if relu else total, scale, 0 if relu else 120)
    last = q.steps(q.convolution(last, CHANNELS, CHANNELS), 0.061, 121)
    return q.model(last), 0.061


def in_bytes(model: Any) -> Graph:
    """The graph with all convolutions in bytes that can be."""
    return run_passes(byte_layers(quantised_layers(import_onnx(model).graph(1)), lambda node: True))


def convolutions(graph: Graph) -> list[Convolution]:
    return [node.op for node in graph.nodes if isinstance(node.op, Convolution)]


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("relu", [False, True])
def test_a_sum_is_inside_the_convolution_before_it(relu: bool, stride: int, sums: str) -> None:
    """To a step where a result of the last layer is a tie, which the two forms scale apart."""
    model, scale = bottleneck(relu, 117, stride, sums)
    graph = in_bytes(model)
    ops = convolutions(graph)
    assert all(op.rounding is not None for op in ops)
    (adding,) = [op for op in ops if op.rounding is not None and op.rounding.added is not None]
    is_fused = relu and sums != "rounded twice"
    assert adding.activation is (Activation.RELU if is_fused else Activation.NONE)
    assert set(kinds(graph)) <= {"Convolution", "Pooling", "quantised"}
    x = np.random.default_rng(5).uniform(-3, 3, (1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    before = run_passes(quantised_layers(import_onnx(model).graph(1)))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    steps = np.abs(found - wanted) / scale
    assert steps.max() < 1.01
    assert (steps > 1e-3).mean() < 1e-3


@at_both_levels
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("zero", [0, 117, 255])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sums", SUMS)
def test_it_computes_what_the_file_says(
    sums: str,
    relu: bool,
    zero: int,
    stride: int,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To a step of the result: what an earlier layer rounds a tie to may move a later one."""
    path = "sparsejit.lowering.convolution.int8_choice._takes_bytes"
    monkeypatch.setattr(path, lambda low, node: True)
    model, scale = bottleneck(relu, zero, stride, sums)
    fast = sparsejit.compile(model, target=target)
    kernels = [step.kernel for step in fast.parts.variants[0].steps]
    assert sum(kernel.startswith("quads") for kernel in kernels) == (5 if stride > 1 else 4)
    x = np.random.default_rng(5).uniform(-3, 3, (3, CHANNELS, SIZE, SIZE)).astype(np.float32)
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    steps = np.abs(fast(x) - wanted) / scale
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.01


@at_both_levels
def test_files_and_threads_give_the_same_bits(
    target: Target, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "sparsejit.lowering.convolution.int8_choice._takes_bytes"
    monkeypatch.setattr(path, lambda low, node: True)
    model, _ = bottleneck(True, 117, 2)
    x = np.random.default_rng(6).uniform(-3, 3, (5, CHANNELS, SIZE, SIZE)).astype(np.float32)
    fast = sparsejit.compile(model, target=target)
    fast.save(tmp_path / "m.sjit")
    wanted = fast(x)
    for other in (sparsejit.load(tmp_path / "m.sjit"), sparsejit.compile(model, threads=2)):
        assert other(x).tobytes() == wanted.tobytes()


def read_otherwise(kind: str) -> Any:
    """A model whose only convolution has a reader that wants floats, or other steps."""
    q = Qdq()
    y = q.convolution(q.steps("x", 0.02, 7), CHANNELS, CHANNELS)
    z = q.steps(q("Relu", y), 0.04)
    if kind == "another scale":
        z = q("Add", z, q.steps(y, 0.05))
    elif kind == "floats":
        z = q("Add", z, y)
    return q.model(q.steps(z, 0.06))


@pytest.mark.parametrize("kind", ["another scale", "floats"])
def test_a_value_with_other_readers_stays_in_floats(kind: str) -> None:
    model = read_otherwise(kind)
    assert [op.rounding for op in convolutions(in_bytes(model))] == [None]


@pytest.mark.plans
def test_sparse_layers_are_cheaper_in_bytes_where_there_is_code() -> None:
    """1x1 at 85 % zeros between images of 56x56: nothing else skips zeros and stays in bytes."""
    q = Qdq()
    y = q.steps("x", 0.021)
    for _ in range(2):
        y = q.steps(q("Relu", q.convolution(y, 256, 256)), 0.043)
    q.nodes[-1].output[0] = "y"
    model = graph_model(q.nodes, {"x": ("n", 256, 56, 56)}, q.constants, 13, 4)
    graph = quantised_layers(import_onnx(model).graph(1))
    detected, narrow = Target.detect(), Target.named("avx2")
    sets = TARGET.instruction_sets
    for target, wanted in (
        (replace(detected, isa="avx512", instruction_sets=sets), True),
        (replace(detected, isa="avx512", instruction_sets=LEVEL.instruction_sets), False),
        (replace(detected, isa="avx2", instruction_sets=narrow.instruction_sets), True),
    ):
        found = with_byte_layers(graph, ModelOptions(target))
        assert all((op.rounding is not None) is wanted for op in convolutions(found))


@pytest.mark.parametrize("kind", ["Mul", "Relu"])
def test_functions_behind_a_rounding_stay_there(kind: str) -> None:
    """It would be done before the rounding if the layer took it over."""
    q = Qdq()
    y = q.steps(q.convolution(q.steps("x", 0.02, 7), CHANNELS, CHANNELS), 0.043, 120)
    q(kind, y, *([q.constant(np.float32(0.37))] if kind == "Mul" else []))
    model = q.model("y")
    graph = in_bytes(model)
    assert [op.rounding is not None for op in convolutions(graph)] == [True]
    x = np.random.default_rng(5).uniform(-3, 3, (1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    before = run_passes(quantised_layers(import_onnx(model).graph(1)))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_layers_by_channel_stay_in_bytes_too() -> None:
    """No sum is inside such a layer, and each is rounded as the file has it."""
    q = Qdq()
    x = q.steps("x", 0.021, 117)
    y = q.steps(q("Relu", q.convolution(x, 32, CHANNELS)), 0.043)
    y = q.steps(q("Relu", q.convolution(y, 32, 1, 3, group=32, strides=[2, 2])), 0.037)
    y = q.steps(q.convolution(y, 32, 1, 3, group=32), 0.031, 90)
    y = q.steps(q("Add", y, q.steps(q.convolution(y, 32, 32), 0.04, 99)), 0.05, 111)
    model = q.model(q.steps(q.convolution(y, CHANNELS, 32), 0.061, 121))
    graph = in_bytes(model)
    ops = convolutions(graph)
    assert len(ops) == 5 and all(op.rounding is not None for op in ops)
    adds = [op.rounding.added is not None for op in ops if op.rounding]
    assert adds == [False, False, False, True, False]
    x = np.random.default_rng(5).uniform(-3, 3, (1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    before = run_passes(quantised_layers(import_onnx(model).graph(1)))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
