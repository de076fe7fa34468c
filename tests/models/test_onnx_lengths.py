"""ONNX operators on sequences of several lengths, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper
from runnable import ISAS
from test_onnx_runtime_operators import by_onnx_runtime

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

RANDOM = np.random.default_rng(45)
Arrays = dict[str, np.ndarray]


def model_of(
    operator: str,
    given: Arrays,
    known: Arrays,
    outputs: Sequence[str],
    batch_axes: dict[str, int] | None = None,
    domain: str = "",
    **attributes: Any,
) -> Any:
    """One node of operands by name, "" where one is left out; these axes are the free batch."""
    names = attributes.pop("names", [*given, *known])
    node = helper.make_node(operator, names, list(outputs), domain=domain, **attributes)
    inputs = []
    for name, array in given.items():
        shape: list[int | str] = list(array.shape)
        if batch_axes and name in batch_axes:
            shape[batch_axes[name]] = "batch"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(array, name) for name, array in known.items()]
    graph = helper.make_graph([node], "one", inputs, made, held)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports[: 2 if domain else 1], ir_version=8)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch_axis", [0, 1])
def test_reversed_sequences_of_a_free_batch(
    isa: str, batch_axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    time, axes = 6, {"x": batch_axis, "lengths": 0}

    def inputs(batch: int) -> Arrays:
        x = floats(*((batch, time) if batch_axis == 0 else (time, batch)), 3)
        x.flat[::7], x.flat[1::11] = np.nan, np.inf
        lengths = np.resize(np.array([0, 6, 1, 4, 5], np.int64), batch)
        return {"x": x, "lengths": lengths}

    first = inputs(2)
    model = model_of(
        "ReverseSequence", first, {}, ["y"], axes, batch_axis=batch_axis, time_axis=1 - batch_axis
    )
    compiled = sparsejit.compile(model, tuple(first.values()))
    for batch in (1, 2, 5, 20):
        given = list(inputs(batch).values())
        (wanted,) = by_onnx_runtime(model, given)
        np.testing.assert_array_equal(compiled(*given), wanted)
    for wrong in (7, -1):
        first["lengths"][1] = wrong
        with pytest.raises(InvalidInput, match="index"):
            compiled(*first.values())


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TIME, WIDTH, HIDDEN = 7, 5, 9


def layer_of(
    operator: str,
    direction: str,
    batch: int,
    known_lengths: Sequence[int] | None = None,
    **more: Any,
) -> tuple[Any, list[np.ndarray]]:
    """A recurrent layer of a free batch with lengths and initial states, and what a call gives."""
    ways, rows = 1 + (direction == "bidirectional"), GATES[operator] * HIDDEN
    batch_first = more.get("layout", 0)
    order = ("x", "w", "r", "b", "sequence_lens", "initial_h", "initial_c", "p")
    known = {
        "w": floats(ways, rows, WIDTH),
        "r": 0.5 * floats(ways, rows, HIDDEN),
        "b": floats(ways, 2 * rows),
    }
    if more.pop("peepholes", False):
        known["p"] = floats(ways, 3 * HIDDEN)
    states = ["initial_h", "initial_c"][: 1 + (operator == "LSTM")]
    state = (batch, ways, HIDDEN) if batch_first else (ways, batch, HIDDEN)
    given = {
        "x": floats(*((batch, TIME) if batch_first else (TIME, batch)), WIDTH),
        "sequence_lens": np.resize(np.array([3, 0, TIME, 1, 6], np.int32), batch),
        **{name: floats(*state) for name in states},
    }
    if known_lengths is not None:
        known["sequence_lens"] = np.array(known_lengths, np.int32)
        del given["sequence_lens"]
    axis = 0 if batch_first else 1
    axes = {"x": axis, "sequence_lens": 0, **dict.fromkeys(states, axis)}
    model = model_of(
        operator,
        given,
        known,
        ["y", "last_h", "last_c"][: 1 + len(states)],
        None if known_lengths else axes,
        names=[name for name in order if name in (*given, *known)],
        direction=direction,
        hidden_size=HIDDEN,
        **more,
    )
    return model, list(given.values())


def compare(compiled: Any, model: Any, given: Sequence[np.ndarray]) -> None:
    for found, wanted in zip(compiled(*given), by_onnx_runtime(model, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", GATES)
def test_sequence_lengths_of_a_free_batch(
    isa: str, operator: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    more = {"linear_before_reset": 1} if operator == "GRU" and isa == "avx2" else {}
    model, first = layer_of(operator, direction, 2, **more)
    compiled = sparsejit.compile(model, tuple(first))
    for batch in (1, 2, 5):
        _, given = layer_of(operator, direction, batch)
        compare(compiled, model, given)
    for wrong in (TIME + 1, -1):
        first[1][1] = wrong
        with pytest.raises(InvalidInput, match="index"):
            compiled(*first)


def test_sequence_lengths_of_a_layer_with_the_batch_first() -> None:
    """ONNX Runtime has no code for it: its results with the time first, in another order."""
    RANDOM.bit_generator.state = np.random.PCG64(1).state
    model, given = layer_of("LSTM", "bidirectional", 3, layout=1)
    RANDOM.bit_generator.state = np.random.PCG64(1).state
    other, _ = layer_of("LSTM", "bidirectional", 3)
    in_time = [given[0].swapaxes(0, 1), given[1], *(each.swapaxes(0, 1) for each in given[2:])]
    every, *last = by_onnx_runtime(other, in_time)
    wanted = [every.transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in last)]
    for found, expected in zip(sparsejit.compile(model, tuple(given))(*given), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("lengths", [(3, 0, 7), (0, 0, 0), (7, 7, 7)])
def test_sequence_lengths_that_the_file_has(lengths: tuple[int, ...]) -> None:
    model, given = layer_of("GRU", "bidirectional", 3, lengths)
    compare(sparsejit.compile(model, tuple(given), free_batch=False), model, given)


UNUSUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "clip of an LSTM": ("LSTM", {"clip": 0.6}),
    "clip of a GRU": ("GRU", {"clip": 0.4}),
    "clip of a GRU that resets last": ("GRU", {"clip": 0.4, "linear_before_reset": 1}),
    "clip of an RNN": ("RNN", {"clip": 0.4}),
    "coupled gates": ("LSTM", {"input_forget": 1}),
    "peepholes": ("LSTM", {"peepholes": True}),
    "peepholes, clipped": ("LSTM", {"peepholes": True, "clip": 0.5, "input_forget": 1}),
    "activations of an LSTM": (
        "LSTM",
        {
            "activations": ["HardSigmoid", "Softsign", "ScaledTanh"] * 2,
            "activation_alpha": [0.3, 0.8, 0.1, 0.7],
            "activation_beta": [0.4, 0.9, 0.6, 1.1],
        },
    ),
    "activations of a GRU": (
        "GRU",
        {
            "activations": ["Sigmoid", "Elu", "HardSigmoid", "LeakyRelu"],
            "activation_alpha": [0.5, 0.25, 0.1],
        },
    ),
    "activations of an RNN": (
        "RNN",
        {
            "activations": ["Affine", "ThresholdedRelu"],
            "activation_alpha": [0.5, 0.25],
            "activation_beta": [0.1],
        },
    ),
    "two activations of an RNN": ("RNN", {"activations": ["Softplus", "Relu"]}),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_cells_that_torch_has_not(name: str) -> None:
    operator, attributes = UNUSUAL[name]
    is_free = name.startswith("peepholes")
    model, first = layer_of(operator, "bidirectional", 2, **attributes)
    compiled = sparsejit.compile(model, tuple(first), free_batch=is_free)
    for batch in (1, 2, 5) if is_free else (2,):
        _, given = layer_of(operator, "bidirectional", batch)
        compare(compiled, model, given)


@pytest.mark.parametrize("operator", GATES)
def test_a_layer_of_known_operands(operator: str) -> None:
    """Its results are constants; the onnx package computes them as if nothing were clipped."""
    _, given = layer_of(operator, "bidirectional", 3)
    model, _ = layer_of(operator, "bidirectional", 3, clip=0.5)
    names = [each.name for each in model.graph.input]
    held = [numpy_helper.from_array(*pair) for pair in zip(given, names, strict=True)]
    model.graph.initializer.extend(held)
    del model.graph.input[:]
    shape = list(by_onnx_runtime(model, [])[0].shape)
    model.graph.input.append(helper.make_tensor_value_info("more", 1, shape))
    model.graph.node.append(helper.make_node("Add", ["y", "more"], ["sum"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_empty_tensor_value_info("sum"))
    (wanted,) = by_onnx_runtime(model, [np.zeros(shape, np.float32)])
    found = sparsejit.compile(model, free_batch=False)(np.zeros(shape, np.float32))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_activations_without_their_numbers_are_refused() -> None:
    for names in (["Affine"], ["ThresholdedRelu"], ["Sine"]):
        model, given = layer_of("RNN", "forward", 2, activations=names)
        with pytest.raises(UnsupportedOperator, match=r"RNN \(has (no|the) activation"):
            sparsejit.compile(model, tuple(given))
