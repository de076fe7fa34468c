"""Convolutions of quantised ONNX files: in int8 or in float32, the same to one step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_onnx import graph_model

import sparsejit
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import Lowering, ModelOptions
from sparsejit.lowering.convolution import int8_choice
from sparsejit.lowering.convolution.int8_choice import with_cheapest_convolutions
from sparsejit.lowering.convolution.int8_convolutions import byte_product_ns
from sparsejit.machine.target import Target
from sparsejit.passes.quantised_layers import quantised_layers

X_SCALE, Y_SCALE = 0.02, 0.05
ZEROS = [np.uint8(0), np.uint8(117), np.int8(-128), np.int8(0), np.int8(5)]


def convolution_model(
    weights: np.ndarray,
    zero: np.generic,
    channels: int,
    size: int = 9,
    per_channel: bool = True,
    relu: bool = False,
    **attributes: Any,
) -> Any:
    """As quantize_static writes it: x, W and the result in steps, the bias in int32."""
    outputs = len(weights)
    scales = np.linspace(0.004, 0.009, outputs if per_channel else 1).astype(np.float32)
    constants = {
        "x_scale": np.array(X_SCALE, np.float32),
        "y_scale": np.array(Y_SCALE, np.float32),
        "zero": np.asarray(zero),
        "w": weights,
        "w_scale": scales if per_channel else scales[0],
        "w_zero": np.zeros(scales.shape if per_channel else (), weights.dtype),
        "b": np.arange(outputs, dtype=np.int32) * 150 - 600,
        "b_scale": scales * np.float32(X_SCALE) if per_channel else scales[0] * np.float32(X_SCALE),
    }
    axis = {"axis": 0} if per_channel else {}
    result = "r" if relu else "c"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "x_scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], **axis),
        helper.make_node("DequantizeLinear", ["b", "b_scale"], ["bd"], **axis),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"], **attributes),
        *([helper.make_node("Relu", ["c"], ["r"])] if relu else []),
        helper.make_node("QuantizeLinear", [result, "y_scale", "zero"], ["qy"]),
        helper.make_node("DequantizeLinear", ["qy", "y_scale", "zero"], ["y"]),
    ]
    return graph_model(nodes, {"x": ("n", channels, size, size)}, constants, 13, 4)


def layers_of(model: Any) -> Graph:
    """The graph before other passes."""
    return quantised_layers(import_onnx(model).graph(1))


def sparse_bytes(shape: tuple[int, ...], density: float, largest: int = 127) -> np.ndarray:
    random = np.random.default_rng(3)
    weights = random.integers(-largest, largest + 1, shape)
    return (weights * (random.random(shape) < density)).astype(np.int8)


def inputs(zero: np.generic, channels: int, size: int) -> np.ndarray:
    """Numbers over the whole range and beyond it; many are its least, as behind a ReLU."""
    low = (np.iinfo(zero.dtype).min - int(zero)) * X_SCALE
    shape = 2, channels, size, size
    x = np.random.default_rng(4).uniform(low - 1, low + 256 * X_SCALE + 1, shape)
    return np.where(x < low + 1, low, x).astype(np.float32)


def assert_within_a_step(model: Any, x: np.ndarray, **options: Any) -> None:
    """And nearly nowhere off by one: sums of integers are exact, only ties differ."""
    found = sparsejit.compile(model, **options)(x)
    (same,) = model.opset_import
    same.version = 19  # which the package computes
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    steps = np.abs(found - wanted) / Y_SCALE
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.005


@pytest.fixture(params=["int8", "float32", "bytes"])
def always_int8(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all convolutions are int8, or none; from bytes to bytes where there is code."""
    choose(monkeypatch, request.param)
    return bool(request.param != "float32")


def choose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Have all convolutions computed in that way."""

    def in_bytes(low: Lowering, node: Node) -> bool:
        return way == "bytes" and byte_product_ns(low, node) < np.inf

    monkeypatch.setattr(int8_choice, "_takes_int8", lambda low, node: way != "float32")
    monkeypatch.setattr(int8_choice, "_takes_bytes", in_bytes)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("zero", ZEROS, ids=lambda zero: f"{zero.dtype}{zero}")
def test_padding_and_zero_points(zero: np.generic, per_channel: bool, always_int8: bool) -> None:
    weights = sparse_bytes((12, 6, 3, 3), 0.5, 127 if per_channel else 100)
    model = convolution_model(weights, zero, 6, per_channel=per_channel, pads=[1, 1, 1, 1])
    assert_within_a_step(model, inputs(zero, 6, 9))


@pytest.mark.parametrize(
    ("shape", "channels", "attributes"),
    [
        ((20, 16, 1, 1), 16, {}),
        ((20, 16, 1, 1), 16, {"strides": [2, 2]}),
        ((8, 5, 3, 3), 5, {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
        ((8, 5, 3, 2), 5, {"dilations": [2, 1], "pads": [2, 0, 2, 0]}),
        ((12, 3, 3, 3), 6, {"group": 2, "pads": [1, 1, 1, 1]}),
        ((6, 1, 3, 3), 6, {"group": 6, "pads": [1, 1, 1, 1]}),
        ((10, 4, 9, 9), 4, {}),
    ],
)
@pytest.mark.parametrize("relu", [False, True])
def test_every_geometry(
    shape: tuple[int, ...],
    channels: int,
    attributes: dict[str, Any],
    relu: bool,
    always_int8: bool,
) -> None:
    zero = np.uint8(100)
    model = convolution_model(sparse_bytes(shape, 0.6), zero, channels, relu=relu, **attributes)
    compiled = sparsejit.compile(model)
    kinds = {node.op.dtype for node in compiled.graph.nodes if isinstance(node.op, Convolution)}
    assert kinds == {DType.INT8 if always_int8 else DType.FLOAT32}
    assert_within_a_step(model, inputs(zero, channels, 9))


def test_the_rounding_of_x_costs_nothing_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does it; zeros of pruned weights cost nothing either."""
    choose(monkeypatch, "int8")
    weights = sparse_bytes((64, 64, 1, 1), 0.1)
    model = convolution_model(weights, np.uint8(0), 64, 28)
    compiled = sparsejit.compile(model)
    kernels = [step.kernel for step in compiled.parts.variants[0].steps]
    assert len(kernels) == 2 and kernels[0].startswith("int8-") and kernels[1] == "quantised"
    assert compiled.stats["nnz"] == np.count_nonzero(weights)


@pytest.mark.parametrize(
    ("shape", "attributes", "expected"),
    [
        ((128, 128, 1, 1), {}, DType.INT8),
        ((256, 256, 3, 3), {"pads": [1, 1, 1, 1]}, DType.INT8),
        ((128, 1, 3, 3), {"group": 128, "pads": [1, 1, 1, 1]}, DType.FLOAT32),
        ((16, 3, 3, 3), {"pads": [1, 1, 1, 1]}, DType.FLOAT32),
    ],
)
def test_the_cheaper_one_is_chosen(
    shape: tuple[int, ...], attributes: dict[str, Any], expected: DType
) -> None:
    channels = shape[1] * attributes.get("group", 1)
    model = convolution_model(sparse_bytes(shape, 1.0), np.uint8(0), channels, 28, **attributes)
    level = Target.named("avx512")
    bytes_too = level.instruction_sets | {"avx512_vnni"}
    options = ModelOptions(replace(level, instruction_sets=bytes_too))
    graph = with_cheapest_convolutions(layers_of(model), options)
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Convolution))
    assert op.dtype is expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_dtype_keeps_what_rounding_cuts_off(dtype: str) -> None:
    """quantize_static leaves out a ReLU that the least byte stands for."""
    weights = sparse_bytes((32, 32, 1, 1), 1.0)
    weights[:, :, 0, 0] = np.sign(weights[:, :, 0, 0]) * 64  # of which bfloat16 has all bits
    model = convolution_model(weights, np.uint8(0), 32, 28, per_channel=False)
    stored = {each.name: each for each in model.graph.initializer}
    stored["w_scale"].CopyFrom(numpy_helper.from_array(np.float32(2.0**-8), "w_scale"))
    x = inputs(np.uint8(0), 32, 28) - 1
    assert_within_a_step(model, x, dtype={"*": dtype})
    assert_within_a_step(model, x)


def test_the_reference_rounds_too(always_int8: bool) -> None:
    model = convolution_model(sparse_bytes((12, 6, 3, 3), 0.5), np.uint8(7), 6)
    x = inputs(np.uint8(7), 6, 9)
    (found,) = sparsejit.compile(model, [x]).graph.evaluate([x[:1]])
    (same,) = model.opset_import
    same.version = 19
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x[:1]})
    assert np.abs(found - wanted).max() < 1.01 * Y_SCALE


def test_weights_that_the_file_quantises_itself() -> None:
    """As of networks trained with rounding, for DeepSparse: float weights, a float bias."""
    weights = sparse_bytes((32, 24, 1, 1), 0.2)
    model = convolution_model(weights, np.uint8(3), 24, 28)
    graph, scales = model.graph, np.linspace(0.004, 0.009, 32).astype(np.float32)
    stored = {each.name: each for each in graph.initializer}
    floats = weights * scales[:, None, None, None]
    stored["w"].CopyFrom(numpy_helper.from_array(floats, "w"))
    stored["b"].CopyFrom(numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32), "bd"))
    quantise = helper.make_node("QuantizeLinear", ["w", "w_scale", "w_zero"], ["wq"], axis=0)
    graph.node[2].input[0] = "wq"
    del graph.node[3]
    graph.node.insert(2, quantise)
    (op,) = (n.op for n in layers_of(model).nodes if isinstance(n.op, Convolution))
    assert (op.dtype, op.x_steps.zero_point) == (DType.INT8, 3 - 128)
    assert_within_a_step(model, inputs(np.uint8(3), 24, 28))


def assert_integers_are_layers(between: list[NodeProto], always_int8: bool) -> None:
    """Two QLinearConv: the second reads the integers of `between`, whose first node reads "one"."""
    weights = sparse_bytes((16, 16, 1, 1), 0.5)
    model = convolution_model(weights, np.uint8(90), 16)
    graph = model.graph
    steps = ["x_scale", "zero"]
    inner = ["w", "w_scale", "w_zero", "y_scale", "zero", "b"]
    last = between[-1].output[0] if between else "one"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *steps], ["q"]),
        helper.make_node("QLinearConv", ["q", *steps, *inner], ["one"]),
        *between,
        helper.make_node("QLinearConv", [last, "y_scale", "zero", *inner[:5]], ["two"]),
        helper.make_node("DequantizeLinear", ["two", "y_scale", "zero"], ["y"]),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    found = sparsejit.compile(model).graph.nodes
    kinds = [node.op.dtype for node in found if isinstance(node.op, Convolution)]
    assert kinds == [DType.INT8 if always_int8 else DType.FLOAT32] * 2
    assert_within_a_step(model, inputs(np.uint8(90), 16, 9))


def test_operators_of_integers_are_layers_in_int8(always_int8: bool) -> None:
    """QLinearConv is DequantizeLinear, Conv and QuantizeLinear; the next one reads its steps."""
    assert_integers_are_layers([], always_int8)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of the reference
@pytest.mark.parametrize("between", ["MaxPool", "Transpose", "both"])
def test_integers_are_pooled_and_viewed_between_layers(between: str, always_int8: bool) -> None:
    """As the QOperator format has them, without DequantizeLinear around them."""
    last = "one" if between == "Transpose" else "pooled"
    pooled = helper.make_node("MaxPool", ["one"], ["pooled"], kernel_shape=[3, 3])
    turned = helper.make_node("Transpose", [last], ["turned"], perm=[0, 1, 3, 2])
    nodes = {"MaxPool": [pooled], "Transpose": [turned], "both": [pooled, turned]}
    assert_integers_are_layers(nodes[between], always_int8)


def test_weights_beyond_int8_stay_float32() -> None:
    """Unsigned ones lie up to 255 steps from their zero point."""
    weights = np.random.default_rng(1).integers(0, 256, (12, 6, 3, 3)).astype(np.uint8)
    model = convolution_model(weights, np.uint8(80), 6)
    graph = layers_of(model)
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Convolution))
    assert op.dtype is DType.FLOAT32
    assert_within_a_step(model, inputs(np.uint8(80), 6, 9))


def test_a_value_read_with_another_scale_is_no_layer_in_bytes() -> None:
    model = convolution_model(sparse_bytes((4, 4, 1, 1), 1.0), np.uint8(7), 4)
    model.graph.node[1].input[1] = "y_scale"
    graph = layers_of(model)
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Convolution))
    assert op.dtype is DType.FLOAT32
    assert_within_a_step(model, inputs(np.uint8(7), 4, 9))


def dynamic_model(operator: str, weights: np.ndarray, per_row: bool) -> Any:
    """As quantize_dynamic writes it: x in steps of its own range, sums in int32, their scale."""
    rows = weights.shape[0 if operator == "ConvInteger" else 1]
    count = (rows,) if per_row else ()
    scale = np.linspace(0.01, 0.02, rows if per_row else 1).astype(np.float32).reshape(count)
    shape = (-1, 1, 1) if operator == "ConvInteger" and per_row else count
    constants = {
        "w": weights,
        "w_scale": scale.reshape(shape),
        "w_zero": np.arange(rows if per_row else 1, dtype=weights.dtype).reshape(count),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
        helper.make_node(operator, ["q", "w", "q_zero", "w_zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=1),
        helper.make_node("Mul", ["q_scale", "w_scale"], ["scale"]),
        helper.make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    x = (2, 5, 9, 9) if operator == "ConvInteger" else (7, 40)
    return graph_model(nodes, {"x": x}, constants, axes=len(x))


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("operator", ["ConvInteger", "MatMulInteger"])
def test_files_of_dynamic_quantisation(operator: str, per_row: bool) -> None:
    random = np.random.default_rng(3)
    shape = (6, 5, 3, 3) if operator == "ConvInteger" else (40, 6)
    weights = random.integers(-100, 100, shape).astype(np.int8)
    model = dynamic_model(operator, weights, per_row)
    fast = sparsejit.compile(model, free_batch=False)
    for offset in (0, 3, -3):
        x = (random.standard_normal(fast.graph.inputs[0].shape) + offset).astype(np.float32)
        wanted = wanted_sums(operator, x, model)
        np.testing.assert_allclose(fast(x), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def wanted_sums(operator: str, x: np.ndarray, model: Any) -> np.ndarray:
    """In float64 but for the steps of x, which are ONNX's own in float32."""
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    steps = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    q, scale, zero = ReferenceEvaluator(steps).run(None, {"x": x})
    centre = held["w_zero"].astype(np.float64)
    w = held["w"] - (centre.reshape(-1, *[1] * (x.ndim - 1)) if x.ndim > 2 else centre)
    whole = q.astype(np.float64) - zero
    if operator == "MatMulInteger":
        return whole @ w * scale * held["w_scale"]
    import torch

    sums = torch.nn.functional.conv2d(torch.from_numpy(whole), torch.from_numpy(np.float64(w)))
    return sums.numpy() * scale * held["w_scale"]
