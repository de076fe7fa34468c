"""Operators of ONNX Runtime's own, and files that it has optimised, against ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Reshape

RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(
    operator: str, operands: Sequence[np.ndarray | None], given: int, opset: int, **attributes: Any
) -> Any:
    """One node, of which the first `given` operands come with the call."""
    domain, _, name = operator.rpartition(".")
    names = [f"x{n}" if x is not None else "" for n, x in enumerate(operands)]
    node = helper.make_node(name, names, ["y"], domain=domain, **attributes)
    pairs = [(name, x) for name, x in zip(names, operands, strict=True) if x is not None]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in pairs[:given]
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(x, name) for name, x in pairs[given:]],
    )
    graph.output[0].type.tensor_type.shape.SetInParent()
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(domain or "com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports[: 2 if domain else 1], ir_version=8)


def by_onnx_runtime(model: Any, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, given, strict=True))))


def compare(model: Any, given: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    """Within a tolerance of the largest value, or of 1: a sum may nearly cancel."""
    (wanted,) = by_onnx_runtime(model, given)
    found = sparsejit.compile(model, tuple(given), free_batch=False)(*given)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * max(np.abs(wanted).max(), 1)


@pytest.mark.parametrize("opset", [7, 11, 16, 17])
def test_a_layer_normalization_of_any_opset(opset: int) -> None:
    operands = floats(2, 5, 8), floats(8), floats(8)
    model = model_of("LayerNormalization", operands, 1, opset, axis=-1, epsilon=1e-3)
    before = model.SerializeToString()
    compare(model, operands[:1])
    assert model.SerializeToString() == before


@pytest.mark.parametrize("opset", [7, 11, 17, 24])
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_simplified_layer_normalization(opset: int, axis: int) -> None:
    operands = floats(2, 5, 8), floats(*(2, 5, 8)[axis:])
    name = "SimplifiedLayerNormalization"
    compare(model_of(name, operands, 1, opset, axis=axis, epsilon=1e-3), operands[:1])


@pytest.mark.parametrize("operator", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("opset", [8, 12])
def test_other_operators_beside_it_are_of_their_opset(operator: str, opset: int) -> None:
    """The onnx package knows the softmax of opset 13 alone; a known operand's is folded."""
    x, scale, known = floats(2, 3, 4), floats(4), floats(2, 3, 4)
    model = model_of(operator, (x, scale), 1, opset)
    model.graph.node[0].output[0] = "normal"
    model.graph.initializer.append(numpy_helper.from_array(known, "known"))
    model.graph.node.append(helper.make_node("Softmax", ["known"], ["soft"], axis=1))
    model.graph.node.append(helper.make_node("Add", ["normal", "soft"], ["y"]))
    compare(model, [x])


@pytest.mark.parametrize("shape", [(2, 5, 8), (1, 5, 8), (5, 8)])
def test_a_simplified_layer_normalization_of_a_sum(shape: tuple[int, ...]) -> None:
    operands = floats(2, 5, 8), floats(*shape), floats(8), floats(8)
    name = "com.microsoft.SkipSimplifiedLayerNormalization"
    compare(model_of(name, operands, 2, 17, epsilon=1e-3), operands[:2])


KEY_MASKS = {
    "none": None,
    "of keys": np.array([[1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1]], np.int32),
    "of lengths": np.array([4, 7], np.int32),
}


@pytest.mark.parametrize("mask", KEY_MASKS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_of_separate_operands(mask: str, has_bias: bool) -> None:
    """Queries and values of other lengths and widths than keys."""
    parts = floats(2, 5, 8), floats(2, 7, 8), floats(2, 7, 12)
    bias, added = floats(28) if has_bias else None, floats(2, 2, 5, 7)
    model = model_of(
        "com.microsoft.MultiHeadAttention",
        (*parts, bias, KEY_MASKS[mask], added), 3, 17, num_heads=2, scale=0.4,
    )  # fmt: skip
    compare(model, parts)


def test_attention_of_separate_operands_that_looks_back() -> None:
    parts = floats(2, 5, 8), floats(2, 5, 8), floats(2, 5, 8)
    name = "com.microsoft.MultiHeadAttention"
    compare(model_of(name, parts, 3, 17, num_heads=2, unidirectional=1), parts)


EQUATIONS: dict[str, list[tuple[int, ...]]] = {
    "bqhd,bkhd->bhqk": [(2, 3, 4, 5), (2, 7, 4, 5)],
    "bhqk,bkhd->bqhd": [(2, 4, 3, 7), (2, 7, 4, 5)],
    "btd,dhe->bthe": [(2, 3, 6), (6, 2, 4)],
    "dhe,btd->bthe": [(6, 2, 4), (2, 3, 6)],
    "...ij,...jk->...ik": [(2, 3, 4, 5), (2, 1, 5, 6)],
    "ij...,jk...": [(4, 5, 2, 1), (5, 6, 1, 3)],
    "bi,bj->bij": [(2, 3), (2, 4)],
    "i,j": [(3,), (4,)],
    "ba,cb": [(3, 2), (5, 3)],
    "bij,bij->b": [(2, 3, 4), (2, 3, 4)],
    "bij,kl->kb": [(2, 3, 4), (5, 6)],
    "ij->ji": [(3, 4)],
    " i j k -> i k": [(3, 4, 5)],
    "ij->": [(3, 4)],
    "...i->i...": [(2, 3, 4)],
    "ab,bc,cd->ad": [(2, 3), (3, 4), (4, 5)],
    "ab,ac,ad->abcd": [(2, 3), (2, 4), (2, 5)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("given", [1, 3])
def test_an_einsum(equation: str, given: int) -> None:
    operands = [floats(*shape) for shape in EQUATIONS[equation]]
    compare(model_of("Einsum", operands, given, 17, equation=equation), operands[:given])


def test_an_einsum_with_a_known_operand_is_a_layer() -> None:
    for equation in ("btd,dhe->bthe", "dhe,btd->bthe"):
        shapes = EQUATIONS[equation]
        known = shapes.index((6, 2, 4))
        operands = [floats(*shape) for shape in shapes]
        model = model_of("Einsum", operands, 2, 17, equation=equation)
        model.graph.initializer.append(numpy_helper.from_array(operands[known], f"x{known}"))
        del model.graph.input[known]
        nodes = import_onnx(model, free_batch=False).graph().nodes
        assert [type(node.op) for node in nodes if not isinstance(node.op, Reshape)] == [Linear]


@pytest.mark.parametrize(
    ("equation", "shapes", "said"),
    [
        ("bii->bi", [(2, 3, 3)], "repeats a label"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "have 3 and 4 elements"),
    ],
)
def test_an_einsum_that_is_not_read(equation: str, shapes: Any, said: str) -> None:
    operands = [floats(*shape) for shape in shapes]
    with pytest.raises(UnsupportedOperator, match=said):
        sparsejit.compile(model_of("Einsum", operands, 2, 17, equation=equation))


class Block(torch.nn.Module):
    """As of a transformer: a normalisation, a layer, gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.inner(self.norm(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_that_onnx_runtime_has_optimised(tmp_path: Path) -> None:
    x = torch.from_numpy(floats(1, 5, 16))
    plain, optimised = (str(tmp_path / f"{name}.onnx") for name in ("plain", "optimised"))
    torch.onnx.export(Block().eval(), (x,), plain, dynamo=False, opset_version=14)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = optimised
    onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
    model = onnx.load(optimised)
    assert "LayerNormalization" in {node.op_type for node in model.graph.node}
    compare(model, [x.numpy()])
