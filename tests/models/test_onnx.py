"""ONNX files compiled: whole models, batches, bytes, sparse weights, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sparsejit
from sparsejit.errors import DamagedFile, InvalidInput, UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx, interpreting
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType
from sparsejit.perf.zoo import SMALL_ZOO

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

# Inputs whose axis 0 is not the batch.
STATES = {"lpcnet-like": (2, 3)}


def written(
    model: Any, arguments: Sequence[Any], path: Path, opset: int, fixed: Sequence[int] = ()
) -> Path:
    """The file that torch writes of a model."""
    names = [f"x{n}" for n in range(len(arguments))]
    axes = {name: {0: "batch"} for n, name in enumerate(names) if n not in fixed}
    torch.onnx.export(
        model, tuple(arguments), str(path), dynamo=False, opset_version=opset,
        input_names=names, dynamic_axes=axes,
    )  # fmt: skip
    return path


def graph_model(
    nodes: Sequence[Any],
    inputs: dict[str, tuple[Any, ...]],
    constants: dict[str, np.ndarray],
    opset: int = 17,
    axes: int = 2,
) -> Any:
    """A model with float inputs of these shapes whose last node's output is y, of `axes` axes."""

    def floats(name: str, shape: Sequence[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        list(nodes),
        "test",
        [floats(name, shape) for name, shape in inputs.items()],
        [floats("y", [f"y{n}" for n in range(axes)])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", sorted(SMALL_ZOO))
def test_the_zoo_as_torch_exports_it(name: str, tmp_path: Path) -> None:
    zoo = SMALL_ZOO[name]
    model, inputs = zoo.build(), zoo.inputs(2)
    fixed = STATES.get(name, ())
    file = written(model, inputs, tmp_path / "model.onnx", 17, fixed)
    compiled = sparsejit.compile(file, [x.numpy() for x in inputs])
    assert compiled.batch_is_free == (name != "recommendation")
    for batch in (2, 3) if compiled.batch_is_free else (2,):
        arguments = zoo.inputs(batch)
        with torch.no_grad():
            wanted = model(*arguments)
        found = compiled(*(x.numpy() for x in arguments))
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for result, expected in pairs:
            assert relative_error(result, expected.numpy()) < 1e-5


@pytest.mark.parametrize("opset", [9, 11, 13, 15, 18, 20])
def test_opsets_say_the_same(opset: int, tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.Hardswish() if opset >= 14 else torch.nn.Hardtanh(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 12),
        torch.nn.LayerNorm(12),
        torch.nn.GELU(),
        *([torch.nn.Unflatten(1, (3, 4))] if opset >= 13 else []),
        torch.nn.Softmax(dim=-1),
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    file = written(net, (x,), tmp_path / "net.onnx", opset)
    with torch.no_grad():
        assert relative_error(sparsejit.compile(file)(x.numpy()), net(x).numpy()) < 1e-5


def test_zeros_of_initialisers_cost_nothing(tmp_path: Path) -> None:
    layer = torch.nn.Linear(64, 48)
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < 0.9] = 0
    file = written(layer, (torch.zeros(1, 64),), tmp_path / "layer.onnx", 17)
    compiled = sparsejit.compile(file)
    assert compiled.stats["nnz"] == int(layer.weight.count_nonzero())


def quantised_model(zero: np.generic, weights: np.ndarray, bias: np.ndarray, scale: float) -> Any:
    """y = dequantised W, times x in steps of a scale, + bias."""
    constants = {
        "scale": np.array(scale, np.float32),
        "zero": np.asarray(zero),
        "w": weights,
        "w_scale": np.linspace(0.01, 0.02, len(weights)).astype(np.float32),
        "b": bias,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["wd"], axis=0),
        helper.make_node("Gemm", ["d", "wd", "b"], ["y"], transB=1),
    ]
    return graph_model(nodes, {"x": ("n", weights.shape[1])}, constants)


@pytest.mark.parametrize("zero", [np.int8(0), np.int8(-128), np.int8(17), np.uint8(90)])
def test_layers_in_bytes_are_int8(zero: np.generic) -> None:
    random = np.random.default_rng(0)
    weights = random.integers(-127, 128, (40, 64)).astype(np.int8)
    weights[random.random(weights.shape) < 0.8] = 0
    weights[:, 0] = 127
    bias = random.standard_normal(40).astype(np.float32)
    scale = 0.05
    model = quantised_model(zero, weights, bias, scale)
    compiled = sparsejit.compile(model)
    (layer,) = (node.op for node in compiled.graph.nodes if isinstance(node.op, Linear))
    assert (layer.dtype, layer.x_steps.scale) == (DType.INT8, pytest.approx(scale))
    low = (np.iinfo(zero.dtype).min - int(zero)) * scale
    x = random.uniform(low, low + 255 * scale, (3, 64)).astype(np.float32)
    (same,) = model.opset_import
    same.version = 19  # which the package computes
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    # One step of x in each column is the most by which rounding may differ.
    step = scale * np.abs(weights.astype(float) * 0.02).max()
    np.testing.assert_allclose(compiled(x), wanted, atol=4 * step)
    assert np.median(np.abs(compiled(x) - wanted)) < 1e-4
    exact = sparsejit.compile(model, dtype={"*": "float32"})
    assert not any(getattr(node.op, "dtype", None) is DType.INT8 for node in exact.graph.nodes)


def test_a_cast_like_and_a_known_branch_and_a_loop() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "x"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
            helper.make_node("Identity", ["go_on"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [4]),
        ],
    )
    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["x"], ["chosen"])],
            name,
            [],
            [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [4])],
        )
        for name, operator in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [
        helper.make_node("If", ["yes"], ["negative"], **branches),
        helper.make_node("Loop", ["three", "yes", "negative"], ["last", "rows"], body=body),
        helper.make_node("CastLike", ["rows", "three"], ["whole"]),
        helper.make_node("CastLike", ["whole", "x"], ["y"]),
    ]
    constants = {"yes": np.array(True), "three": np.array(3, np.int64)}
    model = graph_model(nodes, {"x": (4,)}, constants)
    x = np.array([0.4, 1.5, -2.5, 3.0], np.float32)
    np.testing.assert_array_equal(sparsejit.compile(model)(x), np.trunc([-x + x, x, 2 * x]))


def test_loops_in_loops_are_bounded() -> None:
    """Three of 200 turns, which would be eight million."""

    def turning(body: Any) -> Any:
        node = helper.make_node("Loop", ["turns", "yes", "x"], ["made"], body=body)
        return helper.make_graph(
            [node, helper.make_node("Identity", ["yes"], ["still"])],
            "body",
            [
                helper.make_tensor_value_info("turn", TensorProto.INT64, []),
                helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("state", TensorProto.FLOAT, [3]),
            ],
            [
                helper.make_tensor_value_info("still", TensorProto.BOOL, []),
                helper.make_tensor_value_info("made", TensorProto.FLOAT, [3]),
            ],
        )

    inner = turning(None)
    del inner.node[:]
    inner.node.append(helper.make_node("Neg", ["state"], ["made"]))
    inner.node.append(helper.make_node("Identity", ["yes"], ["still"]))
    constants = {"yes": np.array(True), "turns": np.array(200)}
    nodes = [helper.make_node("Loop", ["turns", "yes", "x"], ["y"], body=turning(turning(inner)))]
    with pytest.raises(UnsupportedOperator, match="more than 4096 turns together with other loops"):
        sparsejit.compile(graph_model(nodes, {"x": (3,)}, constants, axes=1))


def test_a_compiled_file_is_called_as_the_file(tmp_path: Path) -> None:
    model = graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (3,)}, {}, axes=1)
    (tmp_path / "denoiser.onnx").write_bytes(model.SerializeToString())
    for given, name in ((str(tmp_path / "denoiser.onnx"), "denoiser"), (model, "test")):
        header = tmp_path / "model.h"
        sparsejit.compile(given).export(tmp_path / "model.o", header=header)
        assert f"The model {name}. " in header.read_text()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no file .*absent\.onnx"):
        sparsejit.compile(tmp_path / "absent.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model at all")
    with pytest.raises(DamagedFile, match="not a valid ONNX model"):
        sparsejit.compile(str(broken))
    named = graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (3,)}, {}, 20, 1)
    named.graph.name = "the name"
    broken.write_bytes(named.SerializeToString().replace(b"the name", b"\xe1\xe1e name"))
    with pytest.raises(DamagedFile, match="not a valid ONNX model"):
        sparsejit.compile(broken)
    old = graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (3,)}, {}, 6, 1)
    with pytest.raises(InvalidInput, match=r"opset 6; sparsejit reads 7 to .*: export it again"):
        sparsejit.compile(old)


def test_an_operator_that_is_not_known_is_named_with_its_node() -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["d"], name="/head/Det"),
        helper.make_node("Unique", ["x"], ["z"], name="/head/Unique"),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    with pytest.raises(UnsupportedOperator, match="node /head/Det") as refusal:
        sparsejit.compile(graph_model(nodes, {"x": (3, 3)}, {}))
    assert "2 operators" in str(refusal.value) and "Unique" in str(refusal.value)


def test_sizes_come_from_the_file_or_from_examples() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    open_model = graph_model(nodes, {"x": ("batch", "width")}, {})
    with pytest.raises(InvalidInput, match="axis 1 of input x is width in the file"):
        sparsejit.compile(open_model)
    with pytest.raises(InvalidInput, match="1 inputs"):
        sparsejit.compile(open_model, [np.zeros((1, 3)), np.zeros((1, 3))])
    with pytest.raises(InvalidInput, match=r"example of x has shape \(2, 3\)"):
        sparsejit.compile(graph_model(nodes, {"x": ("batch", 4)}, {}), [np.zeros((2, 3))])
    with pytest.raises(InvalidInput, match="x has dtype object"):
        sparsejit.compile(open_model, [np.array([["word"]], object)])
    with pytest.raises(InvalidInput, match="example_inputs alone"):
        sparsejit.compile(open_model, example_kwargs={"x": np.zeros((1, 3))})
    with pytest.raises(InvalidInput, match=r"^x, a list, cannot be read"):
        sparsejit.compile(open_model, [[[1, 2], [3]]])
    x = np.array([[1, -2, 3]], np.float32)
    compiled = sparsejit.compile(open_model, [x], free_shapes=True)
    for width in (3, 5):
        wide = np.resize(x, (4, width))
        np.testing.assert_array_equal(compiled(wide), np.maximum(wide, 0))


def test_why_a_batch_is_fixed_is_said() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    assert "is 1 in the file" in import_onnx(graph_model(relu, {"x": (1, 3)}, {})).why_not_free
    mixing = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    for size in ("n", 2):
        model = import_onnx(graph_model(mixing, {"x": (size, 3)}, {}))
        assert not model.batch_is_free and model.why_not_free
    free = import_onnx(graph_model(relu, {"x": ("n", 3)}, {}), free_batch=False)
    assert not free.batch_is_free


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("counted", [0, 1])
def test_pooling_over_three_axes(operator: str, counted: int) -> None:
    more = {"count_include_pad": counted} if operator == "AveragePool" else {}
    node = helper.make_node(
        operator, ["x"], ["y"], kernel_shape=[2, 3, 2], strides=[2, 1, 1],
        pads=[1, 1, 0, 0, 1, 1], **more,
    )  # fmt: skip
    model = graph_model([node], {"x": (2, 3, 5, 6, 7)}, {}, axes=5)
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 6, 7)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(sparsejit.compile(model)(x), wanted, rtol=1e-5, atol=1e-6)


def test_constants_that_grow_node_by_node_are_bounded_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interpreting, "MOST_KNOWN_BYTES", 1 << 16)
    doubled = [
        helper.make_node("Concat", [f"c{n}"] * 2, [f"c{n + 1}"], f"double{n}", axis=0)
        for n in range(40)
    ]
    model = graph_model(
        [*doubled, helper.make_node("Add", ["x", "c40"], ["y"])],
        {"x": (1,)},
        {"c0": np.ones(1, np.float32)},
        axes=1,
    )
    # 4 bytes doubled to 2^15 take 2^16 less 8 in all.
    with pytest.raises(UnsupportedOperator, match=r"65,536 bytes.*\n?.*node double13") as refused:
        sparsejit.compile(model)
    assert "double14" not in str(refused.value)


def test_errors_of_a_file_are_named() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    odd = graph_model(relu, {"x": (3,)}, {}, axes=1)
    odd.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(InvalidInput, match="input x has the type 99"):
        sparsejit.compile(odd)
    add = [helper.make_node("Add", ["x", "c"], ["y"])]
    long = graph_model(add, {"x": (3,)}, {"c": np.ones(3, np.float32)}, axes=1)
    long.graph.initializer[0].raw_data = bytes(16)
    with pytest.raises(DamagedFile, match="tensor c of sizes"):
        sparsejit.compile(long)
    wide = graph_model(add, {"x": (3,)}, {"c": np.ones(4, np.float32)}, axes=1)
    with pytest.raises(UnsupportedOperator, match="Incompatible dimensions"):
        sparsejit.compile(wide)
    widened = helper.make_node("Expand", ["c", "n"], ["w"])
    huge = [widened, helper.make_node("Add", ["x", "w"], ["y"])]
    sizes = np.array([2**20, 2**20], np.int64)
    large = graph_model(huge, {"x": (3,)}, {"c": np.ones(1, np.float32), "n": sizes})
    with pytest.raises(UnsupportedOperator, match="makes a constant of"):
        sparsejit.compile(large)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_whole_numbers_of_every_width(dtype: Any) -> None:
    """As the onnx package computes them with numpy, in the file's own dtypes."""
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, limits.max // 2, 0, 1, 3, 100], np.int64)
    x, y = (a.reshape(1, -1).astype(dtype) for a in np.meshgrid(edges, edges))
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("Mul", ["sum", "y"], ["product"]),
        helper.make_node("Sub", ["x", "c"], ["less"]),
        helper.make_node("Div", ["sum", "c"], ["quotient"]),
        helper.make_node("Mod", ["less", "c"], ["rest"]),
        helper.make_node("Greater", ["sum", "x"], ["above"]),
        helper.make_node("BitwiseXor", ["sum", "y"], ["bits"]),
        helper.make_node("Cast", ["product"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Mul", ["wide", "n"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["back"], to=number),
    ]
    types = dict.fromkeys(("sum", "product", "less", "quotient", "rest", "bits", "back"), number)
    types |= {"above": TensorProto.BOOL, "scaled": TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "whole",
        [helper.make_tensor_value_info(name, number, ["n", x.shape[1]]) for name in "xy"],
        [helper.make_tensor_value_info(name, of, ["n", None]) for name, of in types.items()],
        [
            numpy_helper.from_array(np.array([7], dtype), "c"),
            numpy_helper.from_array(np.array(300), "n"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {"x": x, "y": y})
    wanted[3] = np.trunc(wanted[0].astype(np.float64) / 7).astype(dtype)  # numpy floors
    for found, like, name in zip(sparsejit.compile(model)(x, y), wanted, types, strict=True):
        assert found.dtype == like.dtype, name
        np.testing.assert_array_equal(found, like, err_msg=name)
