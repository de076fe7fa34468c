"""Sequences of ONNX whose length is known when the model is read, against ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper
from test_onnx_regions import check, region, whole

import sparsejit
from sparsejit.errors import UnsupportedOperator

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
KNOWN = {"one": np.array(1), "last": np.array(-1), "three": np.array(3)}
KNOWN["sizes"] = np.array([1, 3])


def node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    """Operands by names with spaces between."""
    return helper.make_node(operator, inputs.split(), [output], **attributes)


CASES: dict[str, tuple[list[Any], Any]] = {
    "parts of one length": (
        [node("SplitToSequence", "x three", "s", axis=1), node("SequenceAt", "s last")],
        X[:, 3:],
    ),
    "parts of lengths": (
        [node("SplitToSequence", "x sizes", "s", axis=1), node("SequenceAt", "s one")],
        X[:, 1:],
    ),
    "each by itself": (
        [
            node("SplitToSequence", "x", "s", axis=2, keepdims=0),
            node("ConcatFromSequence", "s", axis=1, new_axis=1),
        ],
        X.transpose(0, 2, 1),
    ),
    "each with its axis": (
        [
            node("SplitToSequence", "x", "s", axis=-1),
            node("SequenceErase", "s one", "t"),
            node("ConcatFromSequence", "t", axis=-1),
        ],
        X[..., [0, 2]],
    ),
    "built up": (
        [
            node("Neg", "x", "n"),
            node("SequenceConstruct", "x n", "s"),
            node("Abs", "n", "a"),
            node("SequenceInsert", "s a one", "t"),
            node("SequenceInsert", "t x", "u"),
            node("SequenceErase", "u last", "v"),
            node("Identity", "v", "w"),
            node("ConcatFromSequence", "w", axis=0),
        ],
        np.concatenate([X, X, -X]),
    ),
    "from nothing": (
        [
            helper.make_node("SequenceEmpty", [], ["e"], dtype=TensorProto.FLOAT),
            node("SequenceInsert", "e x", "s"),
            node("SequenceLength", "s", "n"),
            node("Cast", "n", "m", to=TensorProto.FLOAT),
            node("Add", "x m"),
        ],
        X + 1,
    ),
    "of narrow numbers": (
        [
            node("Cast", "x", "b", to=TensorProto.UINT8),
            node("SequenceConstruct", "b b", "s"),
            node("SequenceAt", "s one", "t"),
            node("Sub", "t b", "z"),
            node("Sub", "z t"),
        ],
        X.astype(np.uint8),
    ),
}


def model_of(nodes: Sequence[Any], wanted: Any, inputs: Mapping[str, Any]) -> Any:
    return whole(region(nodes, {"y": wanted}, inputs, KNOWN))


@pytest.mark.parametrize("name", CASES)
def test_a_sequence(name: str) -> None:
    nodes, wanted = CASES[name]
    check(model_of(nodes, wanted, {"x": X}), X)


def test_a_sequence_that_an_operator_does_not_take_is_refused() -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s place")]
    model = model_of(nodes, X, {"x": X, "place": np.array(0)})
    with pytest.raises(UnsupportedOperator, match=r"SequenceAt \(its position is not known"):
        sparsejit.compile(model)


def test_a_sequence_is_returned_as_a_list(tmp_path: Path) -> None:
    built = [node("Neg", "x", "n"), node("SequenceConstruct", "x n", "s"), node("Identity", "x")]
    model = model_of(built, X, {"x": X})
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    compiled = sparsejit.compile(model)
    compiled.save(tmp_path / "model.sjit")
    for each in (compiled, sparsejit.load(tmp_path / "model.sjit")):
        y, (same, negative) = each(X)
        for found, wanted in ((y, X), (same, X), (negative, -X)):
            np.testing.assert_array_equal(found, wanted)
