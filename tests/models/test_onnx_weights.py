"""Weights of ONNX files in other forms than dense initialisers."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper
from test_onnx_runtime_operators import compare, floats, model_of

import sparsejit
from sparsejit.errors import DamagedFile
from sparsejit.ir.ops.convolution import Convolution

W = np.zeros((6, 4), np.float32)
W[[1, 5, 0, 2], [2, 0, 0, 3]] = [3, -2, 1, 0.5]


def sparse(places: np.ndarray) -> Any:
    """W as a sparse tensor; its numbers are at these places."""
    values = W[W != 0]
    held = numpy_helper.from_array(values, "w")
    return helper.make_sparse_tensor(held, numpy_helper.from_array(places, "places"), W.shape)


def product(tensor: Any, opset: int, is_node: bool = False) -> Any:
    """x W, with W as an initialiser or made by a Constant."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if is_node:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    declared = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])]
        for name, width in (("x", 6), ("y", 4))
    ]
    held = {} if is_node else {"sparse_initializer": [tensor]}
    graph = helper.make_graph(nodes, "product", *declared, **held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("places", [np.flatnonzero(W), np.argwhere(W)])
@pytest.mark.parametrize(("opset", "is_node"), [(11, False), (17, False), (17, True)])
def test_a_sparse_initialiser(places: np.ndarray, opset: int, is_node: bool) -> None:
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    compiled = sparsejit.compile(product(sparse(places), opset, is_node))
    np.testing.assert_allclose(compiled(x), x @ W, rtol=1e-5, atol=1e-6)
    assert compiled.stats["nnz"] == np.count_nonzero(W)


def test_a_sparse_initialiser_with_places_beyond_its_sizes_is_refused() -> None:
    places = np.flatnonzero(W)
    places[-1] = W.size
    with pytest.raises(DamagedFile):
        sparsejit.compile(product(sparse(places), 17))


CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a line": ("Conv", (2, 3, 9), (4, 3, 3), {"pads": [2, 0]}),
    "a plane": ("Conv", (2, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "strides": [2, 1]}),
    "by channel": ("Conv", (2, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "pads": [1] * 4}),
    "apart": ("Conv", (1, 2, 9, 8), (3, 2, 2, 3), {"dilations": [3, 2], "pads": [1, 2, 0, 1]}),
    "transposed": ("ConvTranspose", (2, 3, 5), (3, 4, 3), {"strides": [2]}),
    "transposed in groups": (
        "ConvTranspose",
        (2, 4, 5, 4),
        (4, 3, 3, 2),
        {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 0], "output_padding": [1, 0]},
    ),
    "transposed apart": ("ConvTranspose", (1, 2, 4, 4), (2, 2, 2, 2), {"dilations": [2, 3]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_whose_weights_a_call_gives(name: str, has_bias: bool) -> None:
    operator, shape, kernel, attributes = CONVOLUTIONS[name]
    count = kernel[0] if operator == "Conv" else kernel[1] * attributes.get("group", 1)
    operands = [floats(*shape), floats(*kernel), *([floats(count)] if has_bias else [])]
    compare(model_of(operator, operands, 3, 17, **attributes), operands)


def test_weights_that_are_made_of_constants_stay_weights() -> None:
    operands = [floats(1, 2, 5), floats(3, 2, 2)]
    model = model_of("Conv", operands, 1, 17)
    model.graph.node[0].input[1] = "scaled"
    scaling = helper.make_node("ReduceSum", ["x1"], ["factor"], keepdims=0)
    model.graph.node.insert(0, helper.make_node("Mul", ["x1", "factor"], ["scaled"]))
    model.graph.node.insert(0, scaling)
    compare(model, operands[:1])
    nodes = sparsejit.compile(model).graph.nodes
    assert any(isinstance(node.op, Convolution) for node in nodes)


def test_a_convolution_whose_weights_are_dequantised_in_the_call() -> None:
    x, steps = floats(1, 2, 6), np.random.default_rng(0).integers(-9, 9, (3, 2, 2)).astype(np.int8)
    model = model_of("Conv", [x, floats(3, 2, 2)], 2, 17)
    del model.graph.input[1]
    model.graph.input.append(helper.make_tensor_value_info("steps", TensorProto.INT8, steps.shape))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.25), "scale"))
    node = helper.make_node("DequantizeLinear", ["steps", "scale"], ["x1"])
    model.graph.node.insert(0, node)
    compare(model, [x, steps])
