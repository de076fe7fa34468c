"""Nodes of ONNX with attributes and operands at their odd values, as the fuzzer found them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from ml_dtypes import float8_e4m3fn
from onnx import ModelProto, NodeProto, helper
from onnx.numpy_helper import from_array

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx, reading

FLOATS = np.array([[-2.0, 0.5, 3.0]], np.float32)
RAMP = np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 1, 4)
ONES = np.ones((1, 1, 3), np.float32)
PAIR = np.array([[[1.0, 2.0]]], np.float32)
MARKED = np.float32([[[0, 0, 0, 0], [0, 0, 0, 1]]])
NO_FLOATS = np.zeros(0, np.float32)
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class OddNode:
    """A node, its operands, of which the first `called` come with the call, and its result."""

    operator: str
    operands: list[Any]
    wanted: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 20
    called: int = 1

    def model(self) -> ModelProto:
        """The node alone."""
        names = [f"x{n}" for n in range(len(self.operands))]
        arrays = [np.asarray(x) for x in self.operands]
        domain = "com.microsoft" if self.operator == "QuickGelu" else ""
        node = helper.make_node(self.operator, names, ["y"], domain=domain, **self.attributes)
        declared = [_declared(*pair) for pair in zip(names, arrays, strict=True)]
        held = [from_array(*pair) for pair in zip(arrays, names, strict=True)]
        wanted = _declared("y", np.asarray(self.wanted))
        inputs = declared[: self.called]
        graph = helper.make_graph([node], "odd", inputs, [wanted], held[self.called :])
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _declared(name: str, array: np.ndarray) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _model_of(nodes: list[NodeProto], x: Any, known: dict[str, Any], y: Any) -> ModelProto:
    """Nodes that compute y of x and of known values."""
    held = [from_array(np.asarray(array), name) for name, array in known.items()]
    graph = helper.make_graph(nodes, "odd", [_declared("x", x)], [_declared("y", y)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)


def _reduced(name: str, wanted: Any) -> OddNode:
    return OddNode(name, [FLOATS, NONE], wanted, {"noop_with_empty_axes": 1})


def _resized(name: str, mode: str, scale: float, wanted: Any, opset: int) -> OddNode:
    scales = np.array([1, 1, scale], np.float32)
    return OddNode(name, [RAMP, scales], _floats(wanted), {"mode": mode}, opset)


def _transposed(wanted: Any, **attributes: Any) -> OddNode:
    return OddNode("ConvTranspose", [ONES, PAIR], _floats(wanted), {"strides": [2], **attributes})


def _floats(numbers: Any) -> np.ndarray:
    return np.array([[numbers]], np.float32)


NODES = {
    "the parts of a reduction that work on elements stay": _reduced("ReduceL1", np.abs(FLOATS)),
    "the parts of a sum of squares, too": _reduced("ReduceSumSquare", FLOATS**2),
    "the maximum over no axes": _reduced("ReduceMax", FLOATS),
    "infinite of neither sign": OddNode(
        "IsInf",
        [np.array([np.inf, -np.inf, np.nan, 1], np.float32)],
        np.zeros(4, bool),
        {"detect_negative": 0, "detect_positive": 0},
    ),
    "backwards from before the first": OddNode(
        "Slice", [FLOATS, [-2], [-9], [0], [-1]], FLOATS[:1]
    ),
    "backwards from before the first, all known": OddNode(
        "Slice", [np.ones((3, 7)), [-8, -4], [2**31 - 1, -4], [1, 0], [1, -2]], np.ones((1, 7)),
        called=0,
    ),
    "a number to a power of one axis": OddNode(
        "Pow", [np.float32(3), np.array([2], np.float32)], np.array([9], np.float32)
    ),
    "linear positions before opset 11": _resized("Resize", "linear", 0.5, [1, 3], 10),
    "nearest positions before opset 11": _resized("Resize", "nearest", 0.75, [1, 3, 4], 10),
    "Hardmax over all axes from its own on, before opset 13": OddNode(
        "Hardmax", [np.arange(8, dtype=np.float32).reshape(1, 2, 4)], MARKED, {"axis": 1}, 11
    ),
    "positions of Upsample": _resized("Upsample", "linear", 2, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4], 9),
    "a transposed convolution to a size": _transposed([2, 1, 2, 1], output_shape=[4]),
    "a larger one than there is": _transposed([1, 2, 1, 2, 1, 2, 0], output_shape=[7]),
    "one that leaves out the end": _transposed(
        [1, 2, 1, 2, 1], output_shape=[5], auto_pad="SAME_UPPER"
    ),
    "one with its own padding": _transposed([1, 2, 1, 2, 1, 2], auto_pad="SAME_LOWER"),
    "positions that rounding lifts above whole ones": OddNode(
        "Resize",
        [
            np.arange(7, dtype=np.float32).reshape(1, 1, 7),
            NO_FLOATS,
            np.array([1, 1, 0.5], np.float32),
        ],
        _floats([1, 3, 5]),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    ),
    "corners aligned by a size that was rounded": OddNode(
        "Resize",
        [RAMP, NO_FLOATS, np.array([1, 1, 0.6], np.float32)],
        _floats([1, 4]),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "a border that ONNX Runtime's float32 misses": OddNode(
        "Resize",
        [np.array([[[5, 6, 7]]], np.float32), NO_FLOATS, NO_FLOATS, np.array([1, 1, 1])],
        _floats([5]),
        {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "half_pixel_symmetric",
        },
    ),
    "fewer known places than there are": OddNode(
        "GatherElements",
        [np.arange(99).reshape(1, 99), [[3, -1]]],
        [[3, 98]],
        {"axis": 1},
        called=0,
    ),
    "windows over known numbers": OddNode(
        "MaxPool",
        [RAMP[:, :, :3]],
        _floats([1, 3]),
        {"kernel_shape": [2], "strides": [2], "auto_pad": "SAME_LOWER"},
        called=0,
    ),
    "an average of padding alone": OddNode(
        "AveragePool",
        [np.ones((1, 1, 1, 2), np.float32)],
        np.zeros((1, 1, 1, 2)),
        {"kernel_shape": [2, 1], "dilations": [2, 1], "pads": [1, 0, 1, 0], "strides": [3, 1]},
    ),
    "the largest of all known positions": OddNode(
        "GlobalMaxPool", [FLOATS.reshape(1, 3, 1)], FLOATS.reshape(1, 3, 1), called=0
    ),
    "logarithms of what vanishes": OddNode(
        "LogSoftmax", [np.float32([0, 200])], np.float32([-200, 0]), called=0
    ),
    "a softmax of nothing": OddNode(
        "LogSoftmax", [np.zeros((2, 0), np.float32)], np.zeros((2, 0)), called=0
    ),
    "another domain's operator of known numbers": OddNode(
        "QuickGelu", [FLOATS], FLOATS / (1 + np.exp(-FLOATS)), {"alpha": 1.0}, called=0
    ),
    "axes of int32": OddNode(
        "Pad",
        [ONES[0], np.array([1, 0]), np.float32(5), np.array([-1], np.int32)],
        np.array([[5, 1, 1, 1]], np.float32),
    ),
}


@pytest.mark.parametrize("what", NODES)
def test_it_computes_what_onnx_says(what: str) -> None:
    node = NODES[what]
    graph = import_onnx(node.model(), free_batch=False).graph()
    (found,) = graph.evaluate([np.asarray(x) for x in node.operands[: node.called]])
    assert found.shape == np.shape(node.wanted)
    np.testing.assert_allclose(found, node.wanted, rtol=1e-6)


def test_computed_places_count_from_the_end() -> None:
    node = OddNode("Gather", [FLOATS, [-1, 0]], FLOATS[:, [-1, 0]], {"axis": 1}, called=2)
    found = sparsejit.compile(node.model())(FLOATS, np.array([-1, 0]))
    assert np.array_equal(found, node.wanted)


def test_norms_of_no_elements_are_empty() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "first", "first", "last"], ["part"]),
        helper.make_node("InstanceNormalization", ["part", "w", "w"], ["y"]),
    ]
    known = {"first": [0], "last": [-1], "w": np.ones(2, np.float32)}
    x, y = np.ones((1, 2, 3), np.float32), np.ones((1, 2, 0), np.float32)
    model = _model_of(nodes, x, known, y)
    (found,) = import_onnx(model, free_batch=False).graph().evaluate([x])
    assert found.shape == y.shape


def test_an_axis_that_no_tensor_has_is_refused() -> None:
    """The onnx package's inference of shapes crashes of it."""
    ones = np.ones(3, np.float32)
    node = OddNode("LayerNormalization", [FLOATS, ones], FLOATS, {"axis": 2**63 - 1})
    with pytest.raises(UnsupportedOperator, match="its axis is 9223372036854775807"):
        import_onnx(node.model())


def test_eye_like_behind_an_operator_of_another_domain_is_converted() -> None:
    """The onnx package's converter crashes of it, and so would the process."""
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft"),
        helper.make_node("EyeLike", ["y"], ["z"], dtype=1),
    ]
    declared = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xz"]
    graph = helper.make_graph(nodes, "g", declared[:1], declared[1:])
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (found,) = import_onnx(model).graph().evaluate([np.ones((2, 3))])
    assert np.array_equal(found, np.eye(2, 3))
    assert [node.domain for node in model.graph.node] == ["com.microsoft", ""]


def test_a_branch_keeps_the_positions_that_its_opset_has() -> None:
    scales = from_array(np.array([1, 1, 2], np.float32), "scales")
    resized = helper.make_node("Resize", ["x", "scales"], ["z"], mode="linear")
    branch = helper.make_graph([resized], "branch", [], [_declared("z", np.ones((1, 1, 8)))])
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [_declared("x", RAMP), _declared("c", np.array(True))]
    outputs = [_declared("y", np.ones((1, 1, 8), np.float32))]
    graph = helper.make_graph([chosen], "g", inputs, outputs, [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    (found,) = import_onnx(model).graph().evaluate([RAMP, np.array(True)])
    assert np.array_equal(found[0, 0], [1, 1.5, 2, 2.5, 3, 3.5, 4, 4])


def test_results_of_open_size_are_folded_or_refused_by_name() -> None:
    limits = [np.int64(1), np.int64(7), np.int64(2)]
    known = import_onnx(OddNode("Range", limits, np.arange(1, 7, 2), called=0).model())
    assert np.array_equal(known.graph().evaluate([])[0], [1, 3, 5])
    for node in (
        OddNode("Range", limits, np.arange(1, 7, 2)),
        OddNode("Unique", [FLOATS], FLOATS[0]),
    ):
        with pytest.raises(UnsupportedOperator, match=f"{node.operator} .a call decides the size"):
            import_onnx(node.model())


@pytest.mark.parametrize("turns", [np.array([2, 3]), np.float32(0.5), np.float32(1.0)])
def test_turns_of_a_loop_that_are_no_whole_number_are_refused(turns: Any) -> None:
    nodes = [
        helper.make_node("Identity", ["go on"], ["still"]),
        helper.make_node("Relu", ["carried"], ["next"]),
    ]
    known = {"turn": np.asarray(0), "go on": np.asarray(True), "carried": FLOATS}
    inputs = [_declared(*pair) for pair in known.items()]
    outputs = [_declared("still", np.asarray(True)), _declared("next", FLOATS)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    loop = helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)
    with pytest.raises(UnsupportedOperator, match=r"Loop \(has no known number of turns"):
        import_onnx(_model_of([loop], FLOATS, {"turns": turns}, FLOATS))


def test_a_slice_whose_numbers_do_not_fit_is_refused() -> None:
    empty = np.zeros((2, 0), np.float32)
    steps = np.zeros(1 << 20, np.int64)  # that many are not told to the onnx package
    node = OddNode("Slice", [empty, [1], [2], [1], steps], empty)
    with pytest.raises(UnsupportedOperator, match=r"Slice \(its starts, ends, axes and steps"):
        import_onnx(node.model())


def test_a_node_that_no_exporter_writes_is_refused_as_such() -> None:
    few, nothing = FLOATS[0].astype(float8_e4m3fn), np.zeros(0, np.float32)
    node = OddNode("Resize", [few, nothing, nothing, [1, 2]], few, called=0)
    with pytest.raises(UnsupportedOperator, match=r"Resize \(its operands .* do not fit together"):
        import_onnx(node.model())


def test_numbers_that_are_computed_now_are_returned() -> None:
    numbers = [np.float32(2), np.float32(3), np.float32(1)]  # of three the package gives no array
    node = OddNode("Max", numbers, np.float32(3), called=0)
    (found,) = import_onnx(node.model(), free_batch=False).graph().evaluate([])
    assert found == 3


def test_an_empty_tensor_of_a_vast_axis_is_refused() -> None:
    node = OddNode("Tile", [NO_FLOATS.reshape(1, 0), [2**62, 1]], FLOATS)
    with pytest.raises(UnsupportedOperator, match="4611686018427387904"):
        import_onnx(node.model())


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "NOTSET"])
def test_a_convolution_of_other_axes_than_its_weights_is_refused(auto_pad: str) -> None:
    """The onnx package's inference of shapes believes kernel_shape."""
    attributes = {"auto_pad": auto_pad, "kernel_shape": [2, 2]}
    node = OddNode("Conv", [RAMP[None], np.ones((2, 1, 0), np.float32)], FLOATS, attributes)
    with pytest.raises(UnsupportedOperator, match=r"Conv \(has sizes"):
        import_onnx(node.model())


def test_a_vast_size_is_refused_by_name() -> None:
    node = OddNode("Expand", [FLOATS, [2**40, 2**40, 3]], FLOATS)
    with pytest.raises(UnsupportedOperator, match=r"Expand \(expands \[1, 3\] to "):
        import_onnx(node.model())
    for scale in (2.0**40, np.nan):
        with pytest.raises(UnsupportedOperator, match=r"Resize \(resizes an axis of 4 to "):
            import_onnx(_resized("Resize", "linear", scale, [1], 10).model())


@pytest.mark.parametrize("operator", ["Shrink", "ReduceLogSum"])
def test_floats_of_whole_numbers_are_refused(operator: str) -> None:
    node = OddNode(operator, [np.arange(3)], np.arange(3))
    with pytest.raises(UnsupportedOperator, match="of whole numbers"):
        import_onnx(node.model())


def test_a_known_softmax_of_a_file_that_is_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all axes from the first one on; the onnx package computes one axis alone."""
    known = np.zeros((1, 2, 3), np.float32)
    node = OddNode("Softmax", [known], known + np.float32(1 / 6), {"axis": 1}, opset=12, called=0)
    monkeypatch.setattr(reading, "CONVERTED_TO", 12)
    (found,) = import_onnx(node.model(), free_batch=False).graph().evaluate([])
    np.testing.assert_allclose(found, node.wanted, rtol=1e-6)
