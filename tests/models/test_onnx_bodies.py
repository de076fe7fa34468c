"""Operators that ONNX writes with others, compiled, against ONNX Runtime or its reference."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator
from test_onnx_runtime_operators import compare, floats, model_of

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.ir.ops.products import Attention

# Operands, those that come with a call first, and attributes.
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "attention": ("Attention", [floats(2, 3, 4, 8)] * 3, 3, {}),
    "of one direction": ("Attention", [floats(2, 3, 4, 8)] * 3, 3, {"is_causal": 1}),
    "of lengths and widths": (
        "Attention",
        [floats(2, 3, 4, 8), floats(2, 3, 6, 8), floats(2, 3, 6, 10), floats(4, 6)],
        4,
        {"scale": 0.3},
    ),
    "of shared keys": ("Attention", [floats(2, 6, 4, 8), *[floats(2, 3, 5, 8)] * 2], 3, {}),
    "of three axes": (
        "Attention",
        [floats(2, 4, 24)] * 3,
        3,
        {"q_num_heads": 3, "kv_num_heads": 3, "softcap": 2.0},
    ),
    "of truths": (
        "Attention",
        [*[floats(1, 2, 3, 8)] * 3, np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], bool)],
        3,
        {},
    ),
    "rotation": ("RotaryEmbedding", [floats(2, 3, 4, 8), floats(2, 4, 4), floats(2, 4, 4)], 3, {}),
    "rotation of pairs": (
        "RotaryEmbedding",
        [floats(2, 3, 4, 8), floats(2, 4, 4), floats(2, 4, 4)],
        1,
        {"interleaved": 1},
    ),
    "swish": ("Swish", [floats(3, 5)], 1, {"alpha": 0.7}),
    "swish by default": ("Swish", [floats(3, 5)], 1, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_body_is_compiled(name: str) -> None:
    operator, operands, called, attributes = CASES[name]
    model = model_of(operator, operands, called, 24, **attributes)
    if operator != "Swish":
        compare(model, operands[:called])
        return
    (wanted,) = ReferenceEvaluator(model).run(None, {"x0": operands[0]})
    found = sparsejit.compile(model)(operands[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["attention", "of one direction"])
def test_attention_is_one_operator(name: str) -> None:
    operator, operands, called, attributes = CASES[name]
    compiled = sparsejit.compile(model_of(operator, operands, called, 24, **attributes))
    assert any(isinstance(node.op, Attention) for node in compiled.graph.nodes)


def test_a_body_of_operators_that_are_missing_names_them() -> None:
    with pytest.raises(UnsupportedOperator, match=r"Bernoulli \(its ONNX function has RandomUni"):
        sparsejit.compile(model_of("Bernoulli", [floats(3)], 1, 22))
