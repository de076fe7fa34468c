"""ONNX files whose batch lies on any axis: by names, by sizes, fixed in the file; Silero."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.graph import BatchAxes

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "onnx"
OF_ONE_RATE = "silero_vad_16k_op15"
BATCHES = (1, 3, 16, 17, 64)
TIME, WIDTH, HIDDEN, BATCH = 4, 6, 8, 5
Sizes = tuple[int | str | None, ...]


def floats(name: str, shape: Sizes) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def recurrent(x: Sizes, state: Sizes) -> Any:
    """A GRU as ONNX has it by default: time first, then both directions, of which there is one."""
    random = np.random.default_rng(0)
    held = {
        "w": random.standard_normal((1, 3 * HIDDEN, WIDTH)),
        "r": random.standard_normal((1, 3 * HIDDEN, HIDDEN)),
    }
    node = helper.make_node(
        "GRU", ["x", "w", "r", "", "", "state"], ["y", "last"], hidden_size=HIDDEN
    )
    graph = helper.make_graph(
        [node],
        "recurrent",
        [floats("x", x), floats("state", state)],
        [floats("y", (None,) * 4), floats("last", (None,) * 3)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs_of(batch: int) -> list[np.ndarray]:
    random = np.random.default_rng(batch)
    shapes = (TIME, batch, WIDTH), (1, batch, HIDDEN)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def reference(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """By the onnx package, which does not look at the sizes that a file declares."""
    names = [each.name for each in model.graph.input]
    return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))


FILES: dict[str, tuple[Sizes, Sizes]] = {
    "named": (("time", "batch", WIDTH), (1, "batch", HIDDEN)),
    "of open sizes": ((None, None, WIDTH), (1, None, HIDDEN)),
    "fixed": ((TIME, BATCH, WIDTH), (1, BATCH, HIDDEN)),
    "state fixed": ((TIME, "batch", WIDTH), (1, BATCH, HIDDEN)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_time_first_takes_any_batch(name: str, tmp_path: Path) -> None:
    model = recurrent(*FILES[name])
    fast = sparsejit.compile(model, inputs_of(BATCH))
    assert fast.batch_axes == BatchAxes((1, 1), (2, 1))
    fast.save(tmp_path / "m.sjit")
    loaded = sparsejit.load(tmp_path / "m.sjit")
    for batch in BATCHES:
        inputs = inputs_of(batch)
        for each in (fast, loaded):
            for found, wanted in zip(each(*inputs), reference(model, inputs), strict=True):
                assert found.shape == wanted.shape and found.flags.c_contiguous
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_file_says_by_a_name_what_one_sample_does_not() -> None:
    model = recurrent(*FILES["named"])
    fast = sparsejit.compile(model, inputs_of(1))
    assert fast.batch_axes == BatchAxes((1, 1), (2, 1)) and fast.tile == 1
    inputs = inputs_of(7)
    for found, wanted in zip(fast(*inputs), reference(model, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_names_of_dynamic_shapes_come_before_the_files() -> None:
    model = recurrent(("frames", "streams", WIDTH), (1, "streams", HIDDEN))
    named = {"x": {0: "time", 1: "batch"}, "state": {1: "batch"}}
    fast = sparsejit.compile(model, inputs_of(TIME), dynamic_shapes=named)
    assert fast.batch_axes == BatchAxes((1, 1), (2, 1))
    for batch in (1, 9):
        inputs = inputs_of(batch)
        for found, wanted in zip(fast(*inputs), reference(model, inputs), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"axis 1 of input state, 'batch', has 3 .*x has 2"):
        fast(inputs_of(2)[0], inputs_of(3)[1])


def masked(mask: Sizes, batch: str | int) -> Any:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    inputs = [floats("x", (batch, TIME, WIDTH)), floats("mask", mask)]
    graph = helper.make_graph(nodes, "masked", inputs, [floats("y", (None,) * 3)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", ["batch", BATCH])
@pytest.mark.parametrize("mask", [(1, TIME, WIDTH), (WIDTH,), ()], ids=str)
def test_a_mask_may_be_the_same_for_all_samples(batch: Any, mask: tuple[int, ...]) -> None:
    model = masked(mask, batch)
    given = np.random.default_rng(0).standard_normal(mask).astype(np.float32)

    def x_of(batch: int) -> np.ndarray:
        return np.random.default_rng(batch).standard_normal((batch, TIME, WIDTH)).astype("f4")

    fast = sparsejit.compile(model, [x_of(BATCH), given])
    assert fast.batch_axes == BatchAxes((0, None), (0,))
    for size in BATCHES:
        inputs = [x_of(size), np.asarray(given)]
        np.testing.assert_allclose(fast(*inputs), *reference(model, inputs), rtol=0, atol=1e-5)


def test_a_model_that_mixes_samples_names_the_first_reason() -> None:
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0, 1], keepdims=1)],
        "mixing",
        [floats("x", ("batch", 3, 4))],
        [floats("y", (None,) * 3)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = import_onnx(model, [np.zeros((2, 3, 4), np.float32)])
    assert not imported.batch_is_free and "over the batch" in imported.why_not_free


@cache
def silero(batch: int, is_constant: bool = True) -> Any:
    """The standard file; with the rate as an input the one for that rate alone."""
    name, constants = ("silero_vad", {"sr": 16000}) if is_constant else (OF_ONE_RATE, None)
    inputs = streams(batch, is_constant)
    return sparsejit.compile(FOLDER / f"{name}.onnx", inputs, constants=constants)


def streams(batch: int, is_constant: bool = True) -> list[np.ndarray]:
    random = np.random.default_rng(batch)
    shapes = (batch, 576), (2, batch, 128)
    given = [0.5 * random.standard_normal(shape).astype(np.float32) for shape in shapes]
    return given if is_constant else [*given, np.array(16000)]


needs_silero = pytest.mark.skipif(
    not (FOLDER / "silero_vad.onnx").exists(), reason="silero_vad.onnx is not here"
)


@needs_silero
@pytest.mark.parametrize("made_at", [1, 64])
@pytest.mark.parametrize("batch", BATCHES)
def test_voice_activity_of_many_streams_is_that_of_each(made_at: int, batch: int) -> None:
    fast, inputs = silero(made_at), streams(batch)
    assert fast.batch_axes == BatchAxes((0, 1), (0, 1))
    session = ReferenceEvaluator(onnx.load(FOLDER / "silero_vad.onnx"))
    for number in {0, batch // 2, batch - 1}:
        one = {
            "input": inputs[0][[number]],
            "state": inputs[1][:, [number]],
            "sr": np.array(16000),
        }
        wanted, state = session.run(None, one)
        found, made = fast(*inputs)
        np.testing.assert_allclose(found[[number]], wanted, rtol=0, atol=2e-5)
        np.testing.assert_allclose(made[:, [number]], state, rtol=0, atol=2e-5)


@needs_silero
def test_a_rate_that_calls_give_is_the_same_for_all_streams() -> None:
    fast = silero(5, False)
    assert fast.batch_axes == BatchAxes((0, 1, None), (0, 1))
    for batch in (1, 5, 12):
        wanted = silero(64)(*streams(batch))
        for found, expected in zip(fast(*streams(batch, False)), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@needs_silero
def test_many_streams_need_no_more_weights_than_one() -> None:
    one, many = silero(1).stats, silero(64).stats
    assert many["kernels"] <= 1.5 * one["kernels"]
    sizes = [each["code_bytes"] + each["pool_bytes"] for each in (one, many)]
    assert sizes[1] <= 1.3 * sizes[0]


@pytest.mark.parametrize("size", [-1, -3, "?", "-1", None])
def test_sizes_that_a_file_leaves_open(size: Any) -> None:
    """Each axis by itself: axes of one such name may differ, as in ONNX Runtime."""
    weights = np.arange(-3, 3, dtype=np.float32).reshape(3, 2)

    def model(*shape: Any) -> Any:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        held = [numpy_helper.from_array(weights, "w")]
        graph = helper.make_graph(nodes, "g", [floats("x", (*shape, 3))], [result], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 3)).astype(np.float32)
        for compiled in (sparsejit.compile(model(size)), sparsejit.compile(model(size), (x,))):
            np.testing.assert_allclose(compiled(x), x @ weights, rtol=1e-5, atol=1e-6)
    x = np.ones((2, 4, 3), np.float32)
    compiled = sparsejit.compile(model(size, size), (x,))
    np.testing.assert_allclose(compiled(x), x @ weights)
    with pytest.raises(InvalidInput, match="axis 1 of input x is open in the file; give example"):
        sparsejit.compile(model(size, size))
