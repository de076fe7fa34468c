"""Files of ai.onnx.ml, beside ONNX Runtime: labels are equal, scores within 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")
pytest.importorskip("onnxmltools")
pytest.importorskip("catboost")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

import onnx_ml_files as files
import onnxruntime
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import sparsejit
import sparsejit.onnxruntime as dropin
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.ir.values import Array

ML = "ai.onnx.ml"
_CLOSE = 1e-5
# Two scores this near may swap a label: the sums of trees are rounded in another order.
_TIED = 1e-6


def run(model: Any, *inputs: Array) -> list[Any]:
    """ONNX Runtime's results."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def plain(result: Any) -> Array:
    """A result as an array: dicts by their values."""
    if isinstance(result, list):
        return np.array([list(row.values()) for row in result])
    return np.asarray(result)


def assert_same(found: Any, wanted: list[Any]) -> None:
    results = found if isinstance(found, tuple | list) and len(wanted) > 1 else [found]
    if isinstance(wanted[-1], list) and isinstance(wanted[-1][0], np.ndarray):
        *wanted, several = wanted
        *results, own = results
        wanted, results = [*wanted, *several], [*results, *own]
    assert len(results) == len(wanted)
    scores = plain(wanted[-1])
    for got, like in zip(results, wanted, strict=True):
        if isinstance(like, list):
            assert [list(row) for row in got] == [list(row) for row in like]
        one, other = plain(got), plain(like)
        assert (one.shape, one.dtype.kind) == (other.shape, other.dtype.kind)
        if other.dtype.kind == "f":
            size = max(1.0, float(np.nanmax(np.abs(other), initial=0.0)))
            np.testing.assert_allclose(one, other, rtol=_CLOSE, atol=_CLOSE * size)
            continue
        differs = np.flatnonzero((one != other).reshape(len(one), -1).any(axis=1))
        for row in differs:
            ranked = np.sort(np.atleast_1d(scores[row]))
            assert scores.ndim == 2 and ranked[-1] - ranked[-2] < _TIED, f"{row}: {one[row]}"


@pytest.mark.parametrize("name", files.KINDS)
def test_a_file_gives_what_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    model, x = files.made(name)
    compiled = sparsejit.compile(model)
    assert compiled.batch_is_free
    assert_same(compiled(x), run(model, x))
    assert_same(compiled(x[:1]), run(model, x[:1]))
    compiled.save(tmp_path / "model.sjit")
    again = sparsejit.load(tmp_path / "model.sjit")
    for one, other in zip(again.run([x]), compiled.run([x]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_takes_the_columns_of_a_frame() -> None:
    model, columns = files.of_columns()
    compiled = sparsejit.compile(model)
    assert compiled.batch_is_free
    unseen = [columns[0], np.full_like(columns[1], "violet"), columns[2]]
    for call in (columns, unseen, [column[:1] for column in columns]):
        assert_same(compiled(*call), run(model, *call))


@pytest.mark.parametrize("name", ["logistic regression of words", "words to a model", "forest"])
def test_the_drop_in_runs_files_of_estimators(name: str) -> None:
    model, x = files.made(name)
    session = dropin.InferenceSession(model.SerializeToString())
    feeds = {session.get_inputs()[0].name: x}
    assert_same(session.run(None, feeds), run(model, x))
    label = session.get_outputs()[0].name
    assert_same(session.run([label], feeds)[0], run(model, x)[:1])
    assert session.compiled


def model_of(nodes: list[Any], kinds: dict[str, Any], *outputs: Any, ml: int = 3) -> Any:
    """A model of nodes; `kinds` are the inputs' types and shapes by name."""
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    values = [helper.make_tensor_value_info(name, *kind) for name, *kind in outputs]
    graph = helper.make_graph(nodes, "made", inputs, values)
    versions = [helper.make_opsetid("", 19), helper.make_opsetid(ML, ml)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


TEXT, LONG, FLOAT, DOUBLE = (
    TensorProto.STRING,
    TensorProto.INT64,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
)
_WORDS = ("a", "bb", "é", "", "a b", "_Unused")
words = st.lists(st.sampled_from((*_WORDS, "unseen", "zz")), min_size=3, max_size=3)


def node(name: str, inputs: list[str], outputs: list[str], **given: Any) -> Any:
    domain = ML if name in _OF_ML else ""
    return helper.make_node(name, inputs, outputs, domain=domain, **given)


_OF_ML = {
    *("ArrayFeatureExtractor", "CategoryMapper", "LabelEncoder", "OneHotEncoder", "ZipMap"),
    *("TreeEnsemble", "TreeEnsembleRegressor"),
}
_KEYS = [*_WORDS[:4]]
# Nodes from x, strings (3, 1), to y of a type.
ON_WORDS: dict[str, tuple[list[Any], int]] = {
    "words to numbers": (
        [node("LabelEncoder", ["x"], ["y"], keys_strings=_KEYS, values_int64s=[3, 1, 4, 1])],
        LONG,
    ),
    "words to floats": (
        [
            node("LabelEncoder", ["x"], ["y"], keys_strings=_KEYS, values_floats=[0.5, 1, 2, -1.5],
                 default_float=7.5)
        ],
        FLOAT,
    ),
    "words to words": (
        [
            node("LabelEncoder", ["x"], ["y"], keys_strings=_KEYS, default_string="other",
                 values_strings=["q", "a", "", "x"])
        ],
        TEXT,
    ),
    "there and back": (
        [
            node("LabelEncoder", ["x"], ["n"], keys_strings=_KEYS, values_int64s=[2, 3, 5, 7]),
            node("LabelEncoder", ["n"], ["y"], keys_int64s=[7, 2], values_strings=["s", ""]),
        ],
        TEXT,
    ),
    "categories": (
        [node("CategoryMapper", ["x"], ["y"], cats_strings=_KEYS, cats_int64s=[9, 8, 7, 6])],
        LONG,
    ),
    "categories and back": (
        [
            node("CategoryMapper", ["x"], ["n"], cats_strings=_KEYS, cats_int64s=[9, 8, 7, 6]),
            node("CategoryMapper", ["n"], ["y"], cats_strings=["k", "l"], cats_int64s=[8, 6]),
        ],
        TEXT,
    ),
    "one hot": ([node("OneHotEncoder", ["x"], ["y"], cats_strings=_KEYS, zeros=1)], FLOAT),
    "moved": (
        [node("Transpose", ["x"], ["t"]), node("Concat", ["t", "t"], ["y"], axis=1)],
        TEXT,
    ),
    "compared": (
        [
            node("Constant", [], ["w"], value_strings=["bb"]),
            node("Equal", ["x", "w"], ["y"]),
        ],
        TensorProto.BOOL,
    ),
    "chosen": (
        [
            node("Constant", [], ["w"], value_strings=["bb"]),
            node("Equal", ["x", "w"], ["is"]),
            node("Constant", [], ["other"], value_strings=["none"]),
            node("Where", ["is", "other", "x"], ["y"]),
        ],
        TEXT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_WORDS)
def test_strings_are_mapped_moved_and_compared(name: str) -> None:
    nodes, kind = ON_WORDS[name]
    model = model_of(nodes, {"x": (TEXT, [3, 1])}, ("y", kind, None))
    compiled = sparsejit.compile(model)

    @given(words)
    def check(texts: list[str]) -> None:
        x = np.array(texts, object).reshape(3, 1)
        (wanted,) = run(model, x)
        found = compiled(x)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.tolist() == wanted.tolist()

    check()


def test_a_category_that_a_file_does_not_allow_is_refused() -> None:
    encoder = node("OneHotEncoder", ["x"], ["y"], cats_strings=["a", "b"], zeros=0)
    model = model_of([encoder], {"x": (TEXT, ["N", 1])}, ("y", FLOAT, None))
    compiled = sparsejit.compile(model)
    known = np.array([["b"], ["a"]], object)
    assert compiled(known).tolist() == run(model, known)[0].tolist()
    with pytest.raises(InvalidInput):
        compiled(np.array([["c"]], object))


def test_arrays_of_strings_are_strings_only() -> None:
    encoder = node("OneHotEncoder", ["x"], ["y"], cats_strings=["a", "b"], zeros=1)
    model = model_of([encoder], {"x": (TEXT, ["N", 1])}, ("y", FLOAT, None))
    compiled = sparsejit.compile(model)
    found = compiled(np.array([["b"], ["x"]]))  # of numpy's own dtype of strings
    assert found.tolist() == [[[0, 1]], [[0, 0]]]
    with pytest.raises(InvalidInput, match="3 of object; give strings"):
        compiled(np.array([["b"], [3]], object))


def test_a_model_of_strings_has_no_c_code_and_no_arrays_in_place(tmp_path: Path) -> None:
    model, x = files.made("words to a model")
    compiled = sparsejit.compile(model)
    with pytest.raises(InvalidInput, match="for which C code has no table"):
        compiled.export(tmp_path / "model.so", tmp_path / "model.h")
    with pytest.raises(InvalidInput, match="object, which is not used in place"):
        compiled.bind([x], [np.zeros(len(x), np.int64), np.zeros((len(x), 3), np.float32)])


def test_labels_of_tensors_are_arrays_of_strings() -> None:
    torch = pytest.importorskip("torch")
    model, x = files.made("tree")
    label, rows = sparsejit.compile(model)(torch.from_numpy(x))
    assert_same((label, rows), run(model, x))


def test_strings_that_are_computed_are_refused_by_name() -> None:
    nodes = [node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")]
    model = model_of(nodes, {"x": (TEXT, [3])}, ("y", TEXT, None))
    with pytest.raises(UnsupportedOperator, match=r"StringNormalizer \(computes strings; turn"):
        sparsejit.compile(model)
    nodes = [node("Cast", ["x"], ["y"], to=FLOAT)]
    model = model_of(nodes, {"x": (TEXT, [3])}, ("y", FLOAT, None))
    with pytest.raises(UnsupportedOperator, match=r"Cast \(casts strings to numbers"):
        sparsejit.compile(model)
    nodes = [node("Cast", ["known"], ["n"], to=FLOAT), node("Add", ["x", "n"], ["y"])]
    model = model_of(nodes, {"x": (FLOAT, [1])}, ("y", FLOAT, None))
    model.graph.initializer.append(from_array(np.array(["3"], object), "known"))
    with pytest.raises(UnsupportedOperator, match=r"Cast \(casts strings to numbers"):
        sparsejit.compile(model)


def test_dicts_are_made_behind_the_model() -> None:
    nodes = [node("ZipMap", ["x"], ["y"], classlabels_strings=["no", "yes"])]
    rows = helper.make_map_type_proto(TEXT, helper.make_tensor_type_proto(FLOAT, []))
    model = model_of(nodes, {"x": (FLOAT, ["N", 2])}, ("y", FLOAT, None))
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(rows))
    x = np.array([[0.25, 0.75], [1, 0]], np.float32)
    assert sparsejit.compile(model)(x) == run(model, x)[0] == [
        {"no": 0.25, "yes": 0.75}, {"no": 1.0, "yes": 0.0},
    ]  # fmt: skip


_LEAF = {"nodes_featureids": [0, 0, 0], "nodes_truenodeids": [1, 0, 0]}


def tree_of_doubles(threshold: float) -> Any:
    trees = node(
        "TreeEnsembleRegressor", ["x"], ["y"], **_LEAF, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_falsenodeids=[2, 0, 0], n_targets=1,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], target_ids=[0, 0], target_nodeids=[1, 2],
        target_treeids=[0, 0],
        nodes_values_as_tensor=from_array(np.array([threshold, 0, 0])),
        target_weights_as_tensor=from_array(np.array([1.0, 2.0])),
    )  # fmt: skip
    return model_of([trees], {"x": (DOUBLE, ["N", 1])}, ("y", FLOAT, None))


def test_trees_compare_float64_where_the_file_does() -> None:
    threshold = 16777217.0  # between two float32
    model = tree_of_doubles(threshold)
    x = threshold + np.array([[-1.0], [0.0], [1.0]])
    found = sparsejit.compile(model)(x)
    assert found.tolist() == run(model, x)[0].tolist() == [[1.0], [1.0], [2.0]]


def test_trees_of_computed_float64_are_refused() -> None:
    model = tree_of_doubles(0.5)
    model.graph.node.insert(0, node("Neg", ["given"], ["x"]))
    model.graph.input[0].name = "given"
    with pytest.raises(UnsupportedOperator, match="export the model for float32"):
        sparsejit.compile(model)


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, 2.5, np.nan]), min_size=4, max_size=4))
def test_sets_of_members_are_those_of_the_onnx_package(numbers: list[float]) -> None:
    from onnx.reference import ReferenceEvaluator

    trees = node(
        "TreeEnsemble", ["x"], ["y"], n_targets=1, aggregate_function=1, post_transform=0,
        tree_roots=[0, 1], nodes_featureids=[0, 1], nodes_truenodeids=[0, 2],
        nodes_falsenodeids=[1, 3], nodes_trueleafs=[1, 1], nodes_falseleafs=[1, 1],
        leaf_targetids=[0, 0, 0, 0], nodes_modes=from_array(np.array([6, 6], np.uint8)),
        nodes_splits=from_array(np.zeros(2, np.float32)),
        leaf_weights=from_array(np.array([1, 2, 4, 8], np.float32)),
        membership_values=from_array(np.array([-1, 2, np.nan, 0.5, np.nan], np.float32)),
        nodes_missing_value_tracks_true=[1, 0],
    )  # fmt: skip
    model = model_of([trees], {"x": (FLOAT, [2, 2])}, ("y", FLOAT, None), ml=5)
    x = np.array(numbers, np.float32).reshape(2, 2)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(sparsejit.compile(model)(x), wanted)
