"""ONNX's Loop and Scan as turns of one body, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper
from runnable import ISAS
from test_onnx_runtime_operators import by_onnx_runtime

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.ops.turns import Turns

RANDOM = np.random.default_rng(6)
TIME, WIDTH, HIDDEN = 40, 5, 7
Shape = Sequence[int | str]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def info(name: str, shape: Shape | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[Any], inputs: dict[str, Shape], outputs: Sequence[str], known: dict[str, Any]
) -> Any:
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()]
    given = [info(name, shape) for name, shape in inputs.items()]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "model", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lstm_nodes() -> list[Any]:
    """A step from x_t, h and c to h_next and c_next, as exporters write it."""
    return [
        helper.make_node("Concat", ["x_t", "h"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["gates"]),
        helper.make_node("Split", ["gates"], ["i", "g", "f", "o"], axis=1),
        helper.make_node("Sigmoid", ["i"], ["keep"]),
        helper.make_node("Tanh", ["g"], ["new"]),
        helper.make_node("Sigmoid", ["f"], ["left"]),
        helper.make_node("Sigmoid", ["o"], ["open"]),
        helper.make_node("Mul", ["left", "c"], ["old"]),
        helper.make_node("Mul", ["keep", "new"], ["added"]),
        helper.make_node("Add", ["old", "added"], ["c_next"]),
        helper.make_node("Tanh", ["c_next"], ["shown"]),
        helper.make_node("Mul", ["open", "shown"], ["h_next"]),
    ]


def lstm_loop(condition: str) -> Any:
    """An LSTM as tf2onnx writes it: x (time, batch, in) read by a counter, outputs that stack up.

    `condition` is "counted", by a state of the body, or "trips", by the trip count alone.
    """
    time = [
        helper.make_node("Gather", ["x", "place"], ["x_t"], axis=0),
        *lstm_nodes(),
        helper.make_node("Add", ["place", "one"], ["place_next"]),
        helper.make_node("Less", ["place_next", "time"], ["counted"]),
        helper.make_node("Identity", ["go_on"], ["trips"]),
        helper.make_node("Identity", ["h_next"], ["row"]),
    ]
    body = helper.make_graph(
        time,
        "body",
        [
            info("turn", [], TensorProto.INT64),
            info("go_on", [], TensorProto.BOOL),
            info("place", [], TensorProto.INT32),
            info("h", None),
            info("c", None),
        ],
        [
            info(condition, [], TensorProto.BOOL),
            info("place_next", [], TensorProto.INT32),
            info("h_next", None),
            info("c_next", None),
            info("row", None),
        ],
    )
    trips = np.iinfo(np.int64).max if condition == "counted" else TIME
    nodes = [
        helper.make_node("Loop", ["trips_", "yes", "start", "h0", "c0"],
                         ["ended", "last_h", "last_c", "rows"], body=body),
    ]  # fmt: skip
    known = {
        "trips_": np.array(trips),
        "yes": np.array(True),
        "start": np.array(0, np.int32),
        "one": np.array(1, np.int32),
        "time": np.array(TIME, np.int32),
        "w": floats(WIDTH + HIDDEN, 4 * HIDDEN) / 3,
        "b": floats(4 * HIDDEN),
    }
    inputs: dict[str, Shape] = {
        "x": (TIME, "batch", WIDTH),
        "h0": ("batch", HIDDEN),
        "c0": ("batch", HIDDEN),
    }
    return model_of(nodes, inputs, ["rows", "last_h", "last_c"], known)


def inputs_of(batch: int) -> list[np.ndarray]:
    return [floats(TIME, batch, WIDTH), floats(batch, HIDDEN), floats(batch, HIDDEN)]


def compare(compiled: Any, model: Any, given: Sequence[np.ndarray]) -> None:
    found = compiled(*given)
    results = found if isinstance(found, tuple) else (found,)
    for result, wanted in zip(results, by_onnx_runtime(model, given), strict=True):
        assert result.dtype == wanted.dtype and result.shape == wanted.shape
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5)


def turns_of(model: Any, given: Sequence[np.ndarray]) -> list[int]:
    graph = import_onnx(model, given).graph()
    return [node.op.count for node in graph.nodes if isinstance(node.op, Turns)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("condition", ["counted", "trips"])
def test_an_lstm_that_is_a_loop(
    isa: str, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    model = lstm_loop(condition)
    assert turns_of(model, inputs_of(2)) == [TIME]
    compiled = sparsejit.compile(model, tuple(inputs_of(2)))
    for batch in (1, 2, 5, 17):
        compare(compiled, model, inputs_of(batch))


@pytest.mark.parametrize("isa", ISAS)
def test_a_scan_over_two_sequences(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One along axis 1 and backwards; results that stack up backwards and along the last axis."""
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["product"]),
            helper.make_node("Add", ["product", "forth"], ["sum"]),
            helper.make_node("Add", ["sum", "back"], ["more"]),
            helper.make_node("Mul", ["more", "outside"], ["scaled"]),
            helper.make_node("Tanh", ["scaled"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["row"]),
            helper.make_node("Neg", ["forth"], ["negative"]),
        ],
        "body",
        [info(name, None) for name in ("h", "forth", "back")],
        [info(name, None) for name in ("h_next", "row", "negative")],
    )
    node = helper.make_node(
        "Scan",
        ["h0", "forth_", "back_"],
        ["last", "rows", "negatives"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[0, 1],
        scan_output_axes=[0, 2],
        scan_output_directions=[1, 0],
    )
    inputs: dict[str, Shape] = {
        "h0": ("batch", HIDDEN),
        "forth_": (TIME, "batch", HIDDEN),
        "back_": ("batch", TIME, HIDDEN),
        "x": ("batch", HIDDEN),
    }
    nodes = [helper.make_node("Sigmoid", ["x"], ["outside"]), node]
    known = {"w": floats(HIDDEN, HIDDEN) / 3}
    model = model_of(nodes, inputs, ["last", "rows", "negatives"], known)

    def given(batch: int) -> list[np.ndarray]:
        shapes = inputs.values()
        return [floats(*(n if isinstance(n, int) else batch for n in s)) for s in shapes]

    assert turns_of(model, given(2)) == [TIME]
    compiled = sparsejit.compile(model, tuple(given(2)))
    for batch in (1, 2, 5):
        compare(compiled, model, given(batch))


def counting(
    turns: Any, nodes: Sequence[Any], stacked: Sequence[str] = ("row",), condition: str = "still"
) -> Any:
    """A loop over a state of three floats; `nodes` make `next` and `row` of it."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["still"]), *nodes],
        "body",
        [
            info("turn", [], TensorProto.INT64),
            info("go_on", [], TensorProto.BOOL),
            info("state", None),
        ],
        [
            info(condition, [], TensorProto.BOOL),
            info("next", None),
            *(helper.make_empty_tensor_value_info(name) for name in stacked),
        ],
    )
    outputs = ["last", *(f"{name}s" for name in stacked)]
    node = helper.make_node("Loop", ["turns", "", "x"], outputs, body=body)
    known = {"turns": np.array(turns, np.int64), "few": np.array(2, np.float32)}
    return model_of([node], {"x": (3,)}, outputs, known)


HALVED = [
    helper.make_node("Div", ["state", "few"], ["next"]),
    helper.make_node("Mul", ["next", "few"], ["row"]),
]


@pytest.mark.parametrize("turns", [1, 16, 17, 300, 5000])
def test_any_number_of_turns(turns: int) -> None:
    """Few are written out."""
    model, x = counting(turns, HALVED), floats(3)
    assert turns_of(model, [x]) == ([turns] if turns > 16 else [])
    compare(sparsejit.compile(model, (x,), free_batch=False), model, [x])


def test_the_number_of_the_turn_as_a_result() -> None:
    nodes = [
        *HALVED,
        helper.make_node("Cast", ["turn"], ["number"], to=TensorProto.INT32),
        helper.make_node("Greater", ["state", "few"], ["large"]),
    ]
    model, x = counting(40, nodes, ("row", "number", "large")), 10 * floats(3)
    compare(sparsejit.compile(model, (x,), free_batch=False), model, [x])


def test_a_state_that_stays_and_a_constant_result() -> None:
    nodes = [
        helper.make_node("Identity", ["state"], ["next"]),
        helper.make_node("Identity", ["few"], ["row"]),
    ]
    model, x = counting(33, nodes), floats(3)
    compare(sparsejit.compile(model, (x,), free_batch=False), model, [x])


def test_an_index_out_of_range_in_a_turn_is_said() -> None:
    nodes = [*HALVED, helper.make_node("Gather", ["state", "turn"], ["number"], axis=0)]
    model, x = counting(20, nodes, ("number",)), floats(3)
    with pytest.raises(sparsejit.errors.InvalidInput, match="index"):
        sparsejit.compile(model, (x,), free_batch=False)(x)


def test_a_loop_whose_end_a_call_decides_is_refused() -> None:
    nodes = [
        *HALVED,
        helper.make_node("ReduceSum", ["next"], ["whole"], keepdims=0),
        helper.make_node("Greater", ["whole", "few"], ["large"]),
    ]
    model = counting(20, nodes, ("row",), "large")
    with pytest.raises(UnsupportedOperator, match=r"Loop \(may end at any turn"):
        sparsejit.compile(model, (floats(3),), free_batch=False)


def test_operators_of_a_body_without_a_mapping_are_named() -> None:
    nodes = [helper.make_node("Unique", ["state"], ["next"]), HALVED[1]]
    with pytest.raises(UnsupportedOperator, match=r"Loop \(has Unique .* in its body"):
        sparsejit.compile(counting(1000, nodes), (floats(3),), free_batch=False)


def test_a_size_that_values_decide_is_refused_in_a_body() -> None:
    nodes = [*HALVED[:1], helper.make_node("NonZero", ["state"], ["row"])]
    with pytest.raises(UnsupportedOperator, match=r"Loop \(has a size that values decide in its"):
        sparsejit.compile(counting(1000, nodes), (floats(3),), free_batch=False)


def test_a_loop_is_saved_and_loaded(tmp_path: Any) -> None:
    model, x = counting(100, HALVED), floats(3)
    compiled = sparsejit.compile(model, (x,), free_batch=False)
    compiled.save(tmp_path / "loop.sjit")
    again: Any = sparsejit.load(tmp_path / "loop.sjit")
    for found, wanted in zip(again(x), compiled(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_dtype_holds_for_the_weights_of_a_body() -> None:
    model, given = lstm_loop("trips"), inputs_of(3)
    exact = sparsejit.compile(model, tuple(given))(*given)
    for dtype, error in (("bfloat16", 0.02), ("int8", 0.06)):
        short = sparsejit.compile(model, tuple(given), dtype=dtype)(*given)
        for found, wanted in zip(short, exact, strict=True):
            assert 0 < np.abs(found - wanted).max() < error


def test_a_state_that_a_body_returns_as_it_is() -> None:
    """ONNX Runtime gives memory that nothing wrote; by the specification it is the first state."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["part"], ["row"])],
        "body",
        [info("state", None), info("part", None)],
        [info("state", None), info("row", None)],
    )
    node = helper.make_node("Scan", ["x", "parts"], ["last", "rows"], body=body, num_scan_inputs=1)
    model = model_of([node], {"x": (3,), "parts": (20, 3)}, ["last", "rows"], {})
    x, parts = floats(3), floats(20, 3)
    last, rows = sparsejit.compile(model, (x, parts), free_batch=False)(x, parts)
    np.testing.assert_array_equal(last, x)
    np.testing.assert_array_equal(rows, -parts)
