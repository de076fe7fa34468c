"""Graphs within nodes of ONNX, against ONNX Runtime: what their names mean, and their turns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper
from test_onnx_runtime_operators import by_onnx_runtime

import sparsejit
from sparsejit.errors import UnsupportedOperator

X = np.array([1.5, -2.5, 100.0], np.float32)


def declared(name: str, array: Any) -> Any:
    """An input or output of an array's dtype and shape."""
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
    return helper.make_tensor_value_info(name, kind, np.shape(array))


def region(
    nodes: Sequence[Any],
    outputs: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """A graph of these nodes; arrays say what its values look like."""
    return helper.make_graph(
        list(nodes),
        "region",
        [declared(*each) for each in (inputs or {}).items()],
        [declared(*each) for each in outputs.items()],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in (constants or {}).items()],
    )


def whole(graph: Any, opset: int = 17) -> Any:
    """A model of a graph."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def check(model: Any, *given: Any) -> None:
    """Compiled as ONNX Runtime computes it."""
    wanted = by_onnx_runtime(model, given)
    found = sparsejit.compile(model, given, free_batch=False)(*given)
    results = found if isinstance(found, tuple) else (found,)
    for result, like in zip(results, wanted, strict=True):
        assert (result.dtype, result.shape) == (like.dtype, like.shape)
        np.testing.assert_allclose(result, like, rtol=1e-5, atol=1e-6)


def chosen(then: Any, other: Any) -> Any:
    """An If of two graphs, whose condition is c."""
    return helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)


@pytest.mark.parametrize("truth", [True, False])
def test_names_of_a_branch_are_its_own(truth: bool) -> None:
    """A later value of that name, of an operator whose dtypes nobody infers, is a float."""
    branches = [
        region(
            [
                helper.make_node("Cast", ["x"], ["t"], to=TensorProto.INT8),
                helper.make_node(operator, ["t", "t"], ["u"]),
                helper.make_node("Cast", ["u"], ["o"], to=TensorProto.FLOAT),
            ],
            {"o": X},
        )
        for operator in ("Add", "Mul")
    ]
    nodes = [
        chosen(*branches),
        helper.make_node("FastGelu", ["x"], ["t"], domain="com.microsoft"),
        helper.make_node("Add", ["t", "x"], ["z"]),
    ]
    inputs = {"x": X, "c": np.array(truth)}
    check(whole(region(nodes, {"y": X, "z": X}, inputs)), *inputs.values())


def test_a_constant_of_a_branch_that_hides_another_is_refused() -> None:
    """ONNX forbids it, and ONNX Runtime takes the outer one; of equal ones nobody can tell."""
    for inner, fits in ((10.0, False), (2.0, True)):
        held = {"w": np.full(3, inner, np.float32)}
        branches = [
            region([helper.make_node(operator, ["x", "w"], ["o"])], {"o": X}, constants=held)
            for operator in ("Add", "Mul")
        ]
        nodes = [chosen(*branches), helper.make_node("Mul", ["x", "w"], ["z"])]
        inputs, known = {"x": X, "c": np.array(True)}, {"w": np.full(3, 2, np.float32)}
        model = whole(region(nodes, {"y": X, "z": X}, inputs, known))
        if fits:
            check(model, *inputs.values())
            continue
        with pytest.raises(UnsupportedOperator, match="a constant w, the name of a value around"):
            sparsejit.compile(model)
        known["c"] = np.array(True)
        model = whole(region(nodes, {"y": X, "z": X}, {"x": X}, known))
        left, _ = sparsejit.compile(model, fallback="onnxruntime")(X)
        np.testing.assert_array_equal(left, by_onnx_runtime(model, [X])[0])
