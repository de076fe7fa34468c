"""Nodes of ONNX files that are not compiled run in ONNX Runtime, in as few parts as can be."""

import copy
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from test_onnx import graph_model, relative_error

import sparsejit
from sparsejit.api.models import compile_parts
from sparsejit.api.models.parted_file import parted_to_data, read_parted
from sparsejit.api.models.parts import OwnPart
from sparsejit.errors import (
    CompileError,
    DamagedFile,
    InvalidInput,
    MissingDependency,
    UnsupportedOperator,
)
from sparsejit.frontends.onnx import interpreting

WEIGHTS = np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32)
FALLBACK = "onnxruntime"


FLOATS = (TensorProto.FLOAT, [2, 6])


@pytest.fixture(autouse=True)
def _without_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these had no mapping."""
    lacking = ("Abs", "Erf", "Pow")
    rows = {name: row for name, row in interpreting.OPERATORS.items() if name not in lacking}
    monkeypatch.setattr(interpreting, "OPERATORS", rows)


def node(line: str, **attributes: Any) -> Any:
    """The node of "y = Add x z", named as its result."""
    results, _, (operator, *operands) = (part.split() for part in line.partition("="))
    return helper.make_node(operator, operands, results, name=results[0], **attributes)


def net(
    *lines: Any,
    outputs: Sequence[tuple[str, Any]] = (("y", FLOATS),),
    arrays: dict[str, np.ndarray] | None = None,
    **inputs: Any,
) -> Any:
    """A model of these nodes with weights W and these arrays; its inputs by default x (2, 6)."""
    nodes = [node(line) if isinstance(line, str) else line for line in lines]
    model = graph_model(nodes, {}, {"W": WEIGHTS, **(arrays or {})})
    given = inputs or {"x": FLOATS}
    values = [helper.make_tensor_value_info(name, *kind) for name, kind in given.items()]
    model.graph.input.extend(values)
    del model.graph.output[:]
    values = [helper.make_tensor_value_info(name, *kind) for name, kind in outputs]
    model.graph.output.extend(values)
    return model


def wanted(model: Any, *given: np.ndarray) -> list[np.ndarray]:
    """ONNX Runtime's results for the whole."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, given, strict=True))))


def compiled(model: Any, *examples: Any, **options: Any) -> Any:
    return sparsejit.compile(model, examples or None, fallback=FALLBACK, **options)


def engines(fast: Any) -> list[tuple[str, int]]:
    """The engine of each part, and its nodes."""
    return [("ours" if isinstance(x, OwnPart) else "left", x.nodes) for x in fast.parts]


def check(model: Any, fast: Any, *given: np.ndarray) -> None:
    """As ONNX Runtime, the same bits at every call, and where it is bound."""
    found, again = fast.run(given), fast.run(given)
    bound = [np.zeros_like(each) for each in found]
    fast.bind(given, bound)()
    for x, y, z, exact in zip(found, again, bound, wanted(model, *given), strict=True):
        assert x.dtype == exact.dtype and relative_error(x, exact) < 1e-6
        assert x.tobytes() == y.tobytes() == z.tobytes()


X = np.random.default_rng(2).standard_normal((2, 6)).astype(np.float32)
NETS: dict[str, tuple[list[Any], list[str], list[tuple[str, int]]]] = {
    "start": (["a = Erf x", "b = MatMul a W", "y = Relu b"], ["y"], [("left", 1), ("ours", 2)]),
    "middle": (
        ["a = MatMul x W", "b = Erf a", "y = MatMul b W"],
        ["y"],
        [("ours", 1), ("left", 1), ("ours", 1)],
    ),
    "end": (["a = MatMul x W", "y = Erf a"], ["y"], [("ours", 1), ("left", 1)]),
    "nothing of ours": (["y = Erf x"], ["y"], [("left", 1)]),
    "two branches": (
        [
            "a = MatMul x W",
            "b = Erf a",
            "c = MatMul b W",
            "d = Neg x",
            "e = MatMul d W",
            "y = Add c e",
        ],
        ["y"],
        [("ours", 3), ("left", 1), ("ours", 2)],
    ),
    "two of each, in two parts": (
        ["a = Erf x", "b = Neg x", "c = Neg a", "d = Erf b", "y = Add c d"],
        ["y"],
        [("ours", 1), ("left", 2), ("ours", 2)],
    ),
    "used twice, and returned": (
        ["a = MatMul x W", "b = Erf a", "c = Relu b", "d = Sin b", "y = Sub c d"],
        ["y", "b", "x", "b"],
        [("ours", 1), ("left", 1), ("ours", 3)],
    ),
    "in turn": (
        ["a = Erf x", "b = Relu a", "c = Erf b", "y = Neg c", "dead = Erf y"],
        ["y"],
        [("left", 1), ("ours", 1), ("left", 1), ("ours", 1)],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_any_cut_computes_what_the_whole_does_in_few_parts(name: str) -> None:
    lines, outputs, parts = NETS[name]
    model = net(*lines, outputs=[(name, FLOATS) for name in outputs])
    fast = compiled(model)
    assert engines(fast) == parts
    check(model, fast, X)


def test_a_model_of_known_operators_compiles_as_without_a_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = net("y = MatMul x W", x=(TensorProto.FLOAT, ["n", 6]))
    assert compiled(model).batch_is_free
    with pytest.raises(UnsupportedOperator, match=r"Erf  # node y.*\n.*fallback=\"onnxruntime\""):
        sparsejit.compile(net("y = Erf x"))
    with pytest.raises(MissingDependency, match=r"pip install 'sparsejit\[onnxruntime\]'"):
        compiled(net("y = Erf x"))


def test_sizes_that_differ_from_call_to_call_stay_in_onnx_runtime() -> None:
    lines = ["z = NonZero x", "f = CastLike z x", "s = ReduceSum f last", "y = Add s s"]
    sizes = {"y": (TensorProto.FLOAT, [2, 1]), "z": (TensorProto.INT64, [2, "n"])}
    model = net(*lines, outputs=[*sizes.items()], arrays={"last": np.array([1])})
    fast = compiled(model)
    (left, own) = fast.parts
    assert [each.operator for each in left.left] == ["NonZero", "CastLike", "ReduceSum"]
    assert left.left[1].reason == "reads z, whose sizes are known only when the model runs"
    assert own.nodes == 1
    for zeros in (1, 5):
        given = X.copy()
        given[0, :zeros] = 0
        for found, exact in zip(fast.run([given]), wanted(model, given), strict=True):
            np.testing.assert_array_equal(found, exact)
    with pytest.raises(InvalidInput, match="z has sizes that are known only"):
        fast.bind([X], [np.zeros((2, 1), np.float32), np.zeros((2, 12), np.int64)])


def test_dtypes_cross_as_the_file_has_them() -> None:
    lines = [
        node("d = Cast x", to=TensorProto.DOUBLE), "e = Abs d", "f = Add e d",
        node("i = Cast n", to=TensorProto.INT32), "m = Neg i", "k = Abs m", "o = Add k k",
        "b = Less e d", "c = Not b", node("r = Cast c", to=TensorProto.FLOAT), "q = Erf r",
    ]  # fmt: skip
    given = {"x": (TensorProto.FLOAT, [2, 6]), "n": (TensorProto.UINT8, [3])}
    kinds = {"o": (TensorProto.INT32, [3]), "q": FLOATS, "e": (TensorProto.DOUBLE, [2, 6])}
    model = net(*lines, outputs=[*kinds.items()], **given)
    numbers = np.array([0, 1, 255], np.uint8)
    fast = compiled(model)
    found = fast(X, numbers)
    for x, exact in zip(found, wanted(model, X, numbers), strict=True):
        assert x.dtype == exact.dtype
        assert np.abs(x - exact).max() < 1e-6
    assert fast(X, numbers.astype(np.int64))[0].tobytes() == found[0].tobytes()
    with pytest.raises(InvalidInput, match="n has int64 numbers beyond uint8"):
        fast(X, np.array([1, 2, 256]))
    with pytest.raises(InvalidInput, match=r"x has shape \(2, 5\); give \(2, 6\)"):
        fast(X[:, :5], numbers)
    with pytest.raises(InvalidInput, match="x has dtype float64; give float32"):
        fast(X.astype(float), numbers)


def branches(condition: str = "t") -> Any:
    """An If, by the sum of x where it is t; one branch takes an Erf of a value around it."""
    ways = {}
    for name, lines in {"then": ["o = Neg a", "p = Erf o"], "else": ["p = Neg a"]}.items():
        output = helper.make_tensor_value_info("p", TensorProto.FLOAT, [2, 6])
        graph = helper.make_graph([node(line) for line in lines], name, [], [output])
        ways[f"{name}_branch"] = graph
    truth = [node("s = ReduceSum x", keepdims=0), "t = Greater s zero", "a = MatMul x W"]
    arrays = {"zero": np.float32(0), "always": np.array(True)}
    return net(*truth, node(f"b = If {condition}", **ways), "y = Relu b", arrays=arrays)


def test_a_branch_is_left_as_a_whole() -> None:
    model = branches()
    fast = compiled(model)
    assert engines(fast) == [("ours", 3), ("left", 1), ("ours", 1)]
    assert fast.parts[1].left[0].reason == "Erf within it"
    for given in (X, -X):
        check(model, fast, given)


def test_a_branch_that_fits_other_sizes_is_no_obstacle() -> None:
    model = branches()
    (other,) = (each.g for each in model.graph.node[3].attribute if each.name == "else_branch")
    other.node[0].CopyFrom(node("p = MatMul a V"))
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS[:5, :5], "V"))
    fast = compiled(model)
    given = np.abs(X)
    exact = np.maximum(0, wanted(net("a = MatMul x W", "b = Neg a", "y = Erf b"), given)[0])
    assert relative_error(fast(given), exact) < 1e-6
    with pytest.raises(InvalidInput, match="ONNX Runtime cannot run If, node b"):
        fast(-given)


def test_of_a_branch_that_is_decided_only_the_nodes_at_fault_are_left() -> None:
    model = branches("always")
    fast = compiled(model)
    assert engines(fast) == [("ours", 2), ("left", 1), ("ours", 1)]
    check(model, fast, X)


def test_a_result_that_is_not_computed_leaves_its_node() -> None:
    lines = [
        "i = Unsqueeze x first",
        node("p k = MaxPool i", kernel_shape=[2]),
        node("c = Cast k", to=TensorProto.FLOAT),
        "y = Add p c",
    ]
    kinds = [("y", (TensorProto.FLOAT, [1, 2, 5]))]
    model = net(*lines, outputs=kinds, arrays={"first": np.array([0])})
    fast = compiled(model)
    assert engines(fast) == [("ours", 1), ("left", 1), ("ours", 2)]
    assert fast.parts[1].left[0].reason == "its result k is not computed"
    check(model, fast, X)


def test_a_refusal_that_comes_late_leaves_the_node_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = compile_parts.make_variant

    def refusing(graph: Any, *rest: Any, **more: Any) -> Any:
        if "sin" in str(graph):
            raise CompileError("no sines today")
        return real(graph, *rest, **more)

    monkeypatch.setattr(compile_parts, "make_variant", refusing)
    model = net("a = MatMul x W", "b = Relu a", "c = Sin b", "d = MatMul c W", "y = Erf d")
    fast = compiled(model)
    assert engines(fast) == [("ours", 2), ("left", 1), ("ours", 1), ("left", 1)]
    assert fast.parts[1].left[0].reason == "no sines today"
    check(model, fast, X)


def test_a_fault_of_ours_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any, **more: Any) -> Any:
        raise AssertionError("our own")

    monkeypatch.setattr(compile_parts, "make_variant", failing)
    with pytest.raises(AssertionError, match="our own"):
        compiled(net("a = MatMul x W", "y = Erf a"))


def test_options_at_fault_are_refused_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net("a = MatMul x W", "y = Erf a")
    real = compile_parts.make_variant

    def in_float32(graph: Any, options: Any, dtypes: Any, *rest: Any, **more: Any) -> Any:
        if dtypes == "int8":
            raise InvalidInput("there is no kernel; use dtype='float32'")
        return real(graph, options, dtypes, *rest, **more)

    monkeypatch.setattr(compile_parts, "make_variant", in_float32)
    for options, said in [
        ({"dtype": "int7"}, "int7"),
        ({"dtype": {"nothing": "int8"}}, "'nothing' matches no layer; layers are a"),
        ({"dtype": "int8"}, "use dtype='float32'"),
        ({"constants": {"z": 1}}, "constants has 'z'"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            compiled(model, **options)
    with pytest.raises(InvalidInput, match="fallback='torch'; give 'onnxruntime' or None"):
        sparsejit.compile(model, fallback="torch")
    with pytest.raises(InvalidInput, match="is for ONNX models"):
        sparsejit.compile(pytest.importorskip("torch").nn.ReLU(), (X,), fallback=FALLBACK)


def test_nodes_that_nothing_runs_are_listed() -> None:
    lines = ["a = Erf x", node("b = Foo a", domain="com.example"), "c = Sin b", "y = Neg c"]
    model = graph_model(
        [node(x) if isinstance(x, str) else x for x in lines], {"x": (2, 6)}, {}, axes=2
    )
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperator) as refusal:
        compiled(model)
    first, *lines, _ = str(refusal.value).splitlines()
    assert first.startswith("1 operator") and "com.example.Foo (has no mapping; ONNX" in lines[0]


def test_constants_go_with_who_reads_them() -> None:
    lines = ["a = MatMul x W", "b = Pow a power", "y = Mul b scale", "k = Shape x"]
    arrays = {"power": np.full((6,), 2, np.float32), "scale": X[:1]}
    outputs = [("y", FLOATS), ("k", (TensorProto.INT64, [2]))]
    model = net(*lines, outputs=outputs, arrays=arrays)
    fast = compiled(model)
    left = fast.parts[1]
    held = {each.name for each in onnx.ModelProto.FromString(left.onnx).graph.initializer}
    assert held == {"power"} and left.inputs == ("a",) and left.outputs == ("b",)
    check(model, fast, X)
    fast(X)[1][:] = 0  # what is returned is not what is kept
    assert fast(X)[1].tolist() == [2, 6]


def test_files_pickles_and_copies_are_the_model(tmp_path: Path) -> None:
    lines, outputs, _ = NETS["used twice, and returned"]
    model = net(*lines, outputs=[(name, FLOATS) for name in outputs])
    fast = compiled(model, threads=2)
    fast.save(tmp_path / "model.sjit")
    assert copy.deepcopy(fast) is fast
    for other in (sparsejit.load(tmp_path / "model.sjit"), pickle.loads(pickle.dumps(fast))):
        assert engines(other) == engines(fast) and other.parts[1].left == fast.parts[1].left
        for x, y in zip(other(X), fast(X), strict=True):
            assert x.tobytes() == y.tobytes()
    with pytest.raises(InvalidInput, match=r"the nodes that ONNX Runtime runs: Erf \(node b\)"):
        fast.export(tmp_path / "model.o")


def test_forged_files_are_refused() -> None:
    fast = compiled(net("a = MatMul x W", "y = Erf a"))
    header, tensors = parted_to_data(fast.source())
    assert read_parted(header, tensors).chains
    elsewhere = onnx.ModelProto.FromString(tensors["onnx.0"].tobytes())
    outside = elsewhere.graph.initializer.add(name="q", data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    chain = header["chains"][0]
    forged = [
        (header, {**tensors, "onnx.0": np.frombuffer(elsewhere.SerializeToString(), np.uint8)}),
        (header, {**tensors, "onnx.0": np.zeros(4, np.uint8)}),
        (header, {**tensors, "onnx.1": np.zeros(4, np.uint8)}),
        ({**header, "models": []}, tensors),
        ({**header, "chains": []}, tensors),
        ({**header, "chains": [{**chain, "parts": chain["parts"][::-1]}]}, tensors),
        ({**header, "chains": [{**chain, "outputs": ["q"]}]}, tensors),
    ]
    for data in forged:
        with pytest.raises(DamagedFile):
            read_parted(*data)


def test_explain_names_parts_and_reasons() -> None:
    fast = compiled(net(*NETS["middle"][0]))
    report = fast.explain(measure=True)
    found = report.as_dict()["facts"]
    assert [each["engine"] for each in found["in_order"]] == ["sparsejit", FALLBACK, "sparsejit"]
    assert found["in_order"][1]["left"] == [
        {"operator": "Erf", "name": "b", "reason": "has no mapping"}
    ]
    assert all(each["measured_ns"] for each in found["in_order"]) and report.whole_ns
    assert found["parts"] == 3 and found["onnxruntime_nodes"] == 1 and found["layers"] == 2
    text = str(report)
    assert "part 2: ONNX Runtime, 1 node" in text and "Erf (node b): has no mapping" in text
    assert "3 parts: 2 nodes compiled, 1 in ONNX Runtime" in text
    assert "the batch is the example's" in text and "onnxruntime" in report.html()


def test_other_shapes_are_compiled_where_they_may_be() -> None:
    model = net("a = Erf x", "y = MatMul a W", x=(TensorProto.FLOAT, ["n", 6]))
    fast = compiled(model, X, free_shapes=True)
    for given in (X, X[:1]):
        check(model, fast, given)
    with pytest.raises(InvalidInput, match="x has shape"):
        compiled(model, X)(X[:1])


def test_an_input_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a tensor of at most"):
        compiled(net("y = Erf x", x=(TensorProto.FLOAT, [2**40, 6])))
