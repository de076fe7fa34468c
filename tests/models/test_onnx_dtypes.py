"""float16, bfloat16 and float64 in ONNX files: dtypes, roundings, inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

Array = np.ndarray[Any, Any]
SHORT = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
shorts = pytest.mark.parametrize("kind", SHORT, ids=["float16", "bfloat16"])


def numbers() -> Array:
    """(20, 9) of all sizes, among them those beyond float16, below it and not finite."""
    generator = np.random.default_rng(3)
    x = generator.standard_normal((20, 9)) * 2.0 ** generator.integers(-40, 40, (20, 9))
    x[0, :6] = [np.inf, -np.inf, np.nan, 65519.9, 65520, -0.0]
    return x.astype(np.float32)


def file_of(
    *nodes: Any,
    x: int = FLOAT,
    y: int = FLOAT,
    constants: dict[str, Array] | None = None,
    shape: Sequence[int | str] = (20, 9),
    opset: int = 19,
) -> ModelProto:
    """A model from x of a shape to y."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", x, shape)],
        [helper.make_tensor_value_info("y", y, None)],
        [from_array(array, name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def by_runtime(model: ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"x": x})
    result: Array = found
    return result


def cast(source: str, target: str, kind: int) -> Any:
    return helper.make_node("Cast", [source], [target], to=kind)


@pytest.mark.parametrize("last", [FLOAT, TensorProto.INT64, TensorProto.BOOL, DOUBLE], ids=str)
@shorts
def test_casts_equal_onnx_runtime(kind: int, last: int) -> None:
    x = numbers()
    if last == TensorProto.INT64:
        x = np.clip(np.nan_to_num(x), -6e4, 6e4)
    model = file_of(cast("x", "h", kind), cast("h", "y", last), y=last)
    found, wanted = sparsejit.compile(model)(x), by_runtime(model, x)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@shorts
def test_a_cast_like_another_operand_rounds(kind: int) -> None:
    like = helper.make_node("CastLike", ["x", "one"], ["h"])
    one = np.ones(1, helper.tensor_dtype_to_np_dtype(kind))
    model = file_of(like, cast("h", "y", FLOAT), constants={"one": one})
    np.testing.assert_array_equal(sparsejit.compile(model)(numbers()), by_runtime(model, numbers()))


@pytest.mark.parametrize(
    "nodes",
    [
        ["h = Mul a a"],
        ["h = Mul a w"],
        ["b = Mul a w", "h = Floor b"],
        ["b = Mul a w", "c = Greater b a", "h = Where c a b"],
        ["b = Mul a w", "h = Relu b"],
        ["b = Add a w", "h = Concat b a"],
    ],
    ids=str,
)
def test_results_are_rounded_where_they_are_cast(nodes: list[str]) -> None:
    """As ONNX's reference has it; ONNX Runtime leaves pairs of casts out."""
    made = [cast("x", "a", TensorProto.FLOAT16)]
    for node in nodes:
        output, operator, *inputs = node.replace("=", " ").split()
        axis = {"axis": 1} if operator == "Concat" else {}
        made.append(helper.make_node(operator, inputs, [output], **axis))
    model = file_of(*made, cast("h", "y", FLOAT), constants={"w": np.array([1.1], np.float16)})
    with np.errstate(all="ignore"):
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": numbers()})
    np.testing.assert_array_equal(sparsejit.compile(model)(numbers()), wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_file_of_another_float_takes_and_gives_it(dtype: type) -> None:
    """A small SqueezeNet."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> Array:
        return (generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(dtype)

    node = helper.make_node
    model = file_of(
        node("Conv", ["x", "w", "b"], ["first"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Relu", ["first"], ["rectified"]),
        node("MaxPool", ["rectified"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Conv", ["pooled", "left"], ["one"]),
        node("Conv", ["pooled", "right"], ["three"], pads=[1, 1, 1, 1]),
        node("Concat", ["one", "three"], ["fire"], axis=1),
        node("Dropout", ["fire"], ["kept"]),
        node("GlobalAveragePool", ["kept"], ["means"]),
        node("Flatten", ["means"], ["flat"]),
        node("Softmax", ["flat"], ["y"]),
        x=kind,
        y=kind,
        shape=["batch", 3, 21, 21],
        opset=13,
        constants={
            "w": weights(8, 3, 3, 3), "b": weights(8),
            "left": weights(5, 8, 1, 1), "right": weights(5, 8, 3, 3),
        },
    )  # fmt: skip
    compiled = sparsejit.compile(model)
    x = generator.standard_normal((3, 3, 21, 21)).astype(dtype)
    found = compiled(x)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert found.dtype == wanted.dtype == dtype
    assert np.abs(found.astype(float) - wanted).max() < max(1e-6, np.finfo(dtype).eps)
    np.testing.assert_array_equal(compiled(x.astype(np.float32)), found)
    other = np.float64 if dtype is np.float16 else np.float16
    with pytest.raises(InvalidInput, match="convert it to float"):
        compiled(x.astype(other))


def test_a_file_in_bfloat16() -> None:
    """ONNX Runtime has no product of it; numpy gives such numbers as float32."""
    bfloat16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    weight = np.array([1.1, -2.2, 3.3], bfloat16)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    kind = TensorProto.BFLOAT16
    model = file_of(node, x=kind, y=kind, shape=[2, 3], constants={"w": weight})
    compiled = sparsejit.compile(model)
    x = np.array([[0.1, 5, -7], [1e30, np.inf, np.nan]], bfloat16)
    for given in (x, x.astype(np.float32)):
        found = compiled(given)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, (x * weight).astype(np.float32))


def test_an_embedding_with_its_norm_in_float16() -> None:
    generator = np.random.default_rng(0)
    shapes = {"words": (11, 8), "places": (6, 8), "gamma": (8,), "beta": (8,)}
    constants = {n: generator.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    node = helper.make_node(
        "EmbedLayerNormalization",
        ["x", "", "words", "places", "", "gamma", "beta"],
        ["y", "mask"],
        domain="com.microsoft",
    )
    model = file_of(
        node, x=TensorProto.INT32, y=TensorProto.FLOAT16, shape=[1, 5], constants=constants
    )
    x = np.arange(5, dtype=np.int32)[None]
    found, wanted = sparsejit.compile(model)(x), by_runtime(model, x)
    assert found.dtype == np.float16
    assert np.abs(found.astype(float) - wanted).max() < 4 * np.finfo(np.float16).eps


def test_short_floats_cross_to_onnx_runtime() -> None:
    """A node without a mapping reads what float16 holds, as the file says."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["k"])]
    nodes += [cast("k", "f", FLOAT), helper.make_node("Unique", ["f"], ["u"])]
    nodes += [helper.make_node("Size", ["u"], ["n"]), cast("n", "y", TensorProto.FLOAT16)]
    kind, constants = TensorProto.FLOAT16, {"w": np.array([1.1], np.float16)}
    model = file_of(*nodes, x=kind, y=kind, constants=constants)
    x = np.linspace(1.8, 1.97, 180).astype(np.float16).reshape(20, 9)
    compiled = sparsejit.compile(model, fallback="onnxruntime")
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = compiled(x)
    assert found.dtype == np.float16 and found == wanted < 180  # some products are the same
    assert compiled(x.astype(np.float32)) == found
    with pytest.raises(InvalidInput, match="x has dtype float64"):
        compiled(x.astype(np.float64))


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT64", "COMPLEX64"])
def test_other_dtypes_are_refused_by_name(name: str) -> None:
    kind = getattr(TensorProto, name)
    same = helper.make_node("Identity", ["x"], ["y"])
    with pytest.raises(InvalidInput, match=rf"input x has {name.lower()[:6]}\w*; give floats"):
        sparsejit.compile(file_of(same, x=kind, y=kind, opset=21))
    if not name.startswith("COMPLEX"):
        with pytest.raises(UnsupportedOperator, match=rf"Cast \(.*{name.lower()[:4]}"):
            sparsejit.compile(file_of(cast("x", "h", kind), cast("h", "y", FLOAT), opset=21))


def test_a_state_of_float16_runs_in_turns() -> None:
    """Results of a body are rounded where a cast within it, or an output, reads them."""
    node, value, kind = helper.make_node, helper.make_tensor_value_info, TensorProto.FLOAT16
    body = helper.make_graph(
        [
            node("Mul", ["s", "s"], ["square"]),
            node("Add", ["square", "row"], ["next"]),
            cast("next", "wide", FLOAT),
        ],
        "body",
        [value("s", kind, [3]), value("row", kind, [3])],
        [value("next", kind, [3]), value("wide", FLOAT, [3])],
    )
    nodes = [cast("x", "rows", kind), cast("first", "state", kind)]
    nodes.append(node("Scan", ["state", "rows"], ["last", "y"], num_scan_inputs=1, body=body))
    first = np.array([0.1, -0.3, 0.7], np.float32)
    model = file_of(*nodes, shape=[6, 3], constants={"first": first})
    x = (np.random.default_rng(0).standard_normal((6, 3)) / 2).astype(np.float32)
    found = sparsejit.compile(model)(x)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(found, found.astype(np.float16))
    assert np.abs(found - wanted).max() < 4 * np.finfo(np.float16).eps
