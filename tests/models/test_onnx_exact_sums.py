"""Sums of products of bytes are int32 to the last bit, however many terms they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType


def model_of(operator: str, terms: int, is_cast: bool, is_known: bool) -> tuple[Any, list[Any]]:
    """A product of large bytes, and its operands, of which the second may be in the file."""
    random = np.random.default_rng(0)
    a = random.integers(200, 256, (3, terms)).astype(np.uint8)
    b = random.integers(100, 128, (terms, 4)).astype(np.int8)
    if operator == "ConvInteger":
        a, b = a[..., None], np.ascontiguousarray(b.T)[..., None]
    nodes = [helper.make_node(operator, ["a", "b"], ["sums" if is_cast else "y"])]
    if is_cast:
        nodes.append(helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT))
    inputs = [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)]
    if not is_known:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.INT8, b.shape))
    made = TensorProto.FLOAT if is_cast else TensorProto.INT32
    output = helper.make_tensor_value_info("y", made, None)
    known = [numpy_helper.from_array(b, "b")] if is_known else []
    graph = helper.make_graph(nodes, "graph", inputs, [output], known)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, [a] if is_known else [a, b]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_cast", [True, False])
@pytest.mark.parametrize("terms", [64, 4000])
@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
def test_sums_of_bytes(operator: str, terms: int, is_cast: bool, is_known: bool) -> None:
    model, operands = model_of(operator, terms, is_cast, is_known)
    if operator == "ConvInteger" and not is_cast:
        with pytest.raises(UnsupportedOperator, match=r"ConvInteger \(sums \d+ products of bytes"):
            sparsejit.compile(model)
        return
    found = sparsejit.compile(model)(*operands)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, dict(zip("ab", operands, strict=False)))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6 if is_cast else 0)


@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
@pytest.mark.parametrize("seed", range(4))
def test_sums_that_are_not_cast_are_whole(operator: str, seed: int) -> None:
    """Kernels for one x may keep an index in a float32 weight: no sum is cut below its number."""
    random = np.random.default_rng(seed)
    is_conv = operator == "ConvInteger"
    b = random.integers(*((-28, 29) if is_conv else (-128, 128)), (32, 65))
    b = (b * (random.random(b.shape) < 0.1)).astype(np.int8)
    b[0, 0] = -28 if is_conv else -128
    a = random.integers(0, 256, (1, 65, 1) if is_conv else (1, 65)).astype(np.uint8)
    known = b[..., None] if is_conv else np.ascontiguousarray(b.T)
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(known, "b")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"a": a})
    np.testing.assert_array_equal(sparsejit.compile(model, free_batch=False)(a), wanted)


@pytest.mark.parametrize("zero", [0, 128, 31])
@pytest.mark.parametrize("weights", [(-127, 128), (-63, 64), (-128, 128)])
def test_a_product_of_steps_and_known_bytes_is_a_layer_in_int8(
    zero: int, weights: tuple[int, int]
) -> None:
    """Unless a weight is -128, which int8 layers do not hold: sums are of int64 then."""
    random = np.random.default_rng(1)
    b = random.integers(*weights, (70, 33)).astype(np.int8)
    b[0, 0] = weights[0]
    known = {"b": b, "scale": np.float32(0.04), "zero": np.uint8(zero), "weight_zero": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["steps"]),
        helper.make_node("MatMulInteger", ["steps", "b", "zero", "weight_zero"], ["y"]),
    ]
    x = (random.standard_normal((5, 70)) * 3).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in known.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    nodes_of = import_onnx(model, [x]).graph(5).nodes
    stored = [node.op.dtype for node in nodes_of if isinstance(node.op, Linear)]
    assert stored == ([] if weights[0] == -128 else [DType.INT8])
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(sparsejit.compile(model, (x,))(x), wanted)
