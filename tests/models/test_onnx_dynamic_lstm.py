"""LSTMs whose weights are bytes, with x and h in steps of their own range, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from runnable import ISAS
from test_onnx_lengths import floats, model_of
from test_onnx_runtime_operators import by_onnx_runtime

import sparsejit
from sparsejit.frontends.onnx import import_onnx
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.spec import DType

TIME, WIDTH, HIDDEN = 6, 5, 20
ORDER = (
    *("x", "w", "r", "b", "sequence_lens", "initial_h", "initial_c", ""),
    *("w_scale", "w_zero", "r_scale", "r_zero"),
)


def layer_of(
    direction: str = "forward",
    dtype: str = "int8",
    per_channel: bool = False,
    with_lengths: bool = False,
    zero: int = 0,
) -> Any:
    """The layer as ONNX Runtime's quantiser writes it, of a free batch."""
    generator, ways = np.random.default_rng(8), 1 + (direction == "bidirectional")
    known: dict[str, np.ndarray] = {"b": floats(ways, 8 * HIDDEN)}
    middle = 128 if dtype == "uint8" else 0
    for name, depth in (("w", WIDTH), ("r", HIDDEN)):
        steps = generator.integers(-127, 128, (ways, depth, 4 * HIDDEN)) + middle
        steps[:, 0] = 127 + middle
        each = (ways, 4 * HIDDEN) if per_channel else (ways,)
        known[name] = steps.astype(dtype)
        known[f"{name}_scale"] = generator.uniform(0.002, 0.004, each).astype(np.float32)
        known[f"{name}_zero"] = np.full(each, zero + middle, dtype)
    given = {"x": floats(TIME, 2, WIDTH)}
    if with_lengths:
        given["sequence_lens"] = np.array([3, TIME], np.int32)
        given |= {f"initial_{name}": floats(ways, 2, HIDDEN) for name in "hc"}
    return model_of(
        "DynamicQuantizeLSTM",
        given,
        known,
        ["y", "last_h", "last_c"],
        {"x": 1, "sequence_lens": 0, "initial_h": 1, "initial_c": 1},
        "com.microsoft",
        names=[name if name in (*given, *known) else "" for name in ORDER],
        direction=direction,
        hidden_size=HIDDEN,
    )


def inputs_of(batch: int, ways: int, with_lengths: bool) -> list[np.ndarray]:
    given = [floats(TIME, batch, WIDTH)]
    if with_lengths:
        given.append(np.resize(np.array([3, TIME, 0, 1], np.int32), batch))
        given += [floats(ways, batch, HIDDEN) for _ in range(2)]
    return given


def by_sample(model: Any, given: list[np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's results, in which each sample has its own range."""
    results = []
    for sample in range(given[0].shape[1]):
        axes = [0 if each.ndim == 1 else 1 for each in given]
        own = [each.take([sample], axis) for each, axis in zip(given, axes, strict=True)]
        results.append(by_onnx_runtime(model, own))
    return [np.concatenate(parts, -2) for parts in zip(*results, strict=True)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("direction", "dtype", "per_channel", "with_lengths"),
    [
        ("forward", "int8", False, False),
        ("bidirectional", "int8", True, True),
        ("reverse", "uint8", False, True),
    ],
)
def test_a_layer_equals_that_of_onnx_runtime(
    isa: str,
    direction: str,
    dtype: str,
    per_channel: bool,
    with_lengths: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    model = layer_of(direction, dtype, per_channel, with_lengths)
    ways = 1 + (direction == "bidirectional")
    compiled = sparsejit.compile(model, tuple(inputs_of(2, ways, with_lengths)))
    for batch in (1, 2, 5):
        given = inputs_of(batch, ways, with_lengths)
        for found, wanted in zip(compiled(*given), by_sample(model, given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_weights_that_are_bytes_stay_bytes() -> None:
    graph = import_onnx(layer_of(), inputs_of(1, 1, False)).graph(1)
    stored = [n.op.dtype for n in graph.nodes if isinstance(n.op, Linear | Recurrence)]
    assert stored == [DType.INT8, DType.INT8]


def test_weights_far_from_their_zero_point() -> None:
    """Up to 187 steps, which int8 does not hold: the products are of floats, on the same steps."""
    model, given = layer_of(zero=-60), inputs_of(1, 1, False)
    found = sparsejit.compile(model, tuple(given))(*given)
    for result, wanted in zip(found, by_onnx_runtime(model, given), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5)


def test_a_sequence_of_zeros() -> None:
    model, given = layer_of(), [np.zeros((TIME, 1, WIDTH), np.float32)]
    found = sparsejit.compile(model, tuple(given))(*given)
    for result, wanted in zip(found, by_onnx_runtime(model, given), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5)
