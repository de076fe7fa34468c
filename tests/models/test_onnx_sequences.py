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
from sparsejit.errors import InvalidInput

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
