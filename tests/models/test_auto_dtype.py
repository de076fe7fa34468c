"""`dtype="auto"`: layers are stored short by permission, within a budget, and never for nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput

LARGE = nn.Sequential(nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 512), nn.Tanh()).eval()


def error(found: Any, exact: Any) -> float:
    return float((found - exact).abs().max() / exact.abs().max())


def kinds(model: Any) -> set[str]:
    return {node.op.dtype.value for node in model.graph.nodes if hasattr(node.op, "dtype")}


@pytest.mark.plans
@pytest.mark.parametrize("batch", [1, 5])
def test_auto_is_within_one_percent_of_the_example(batch: int) -> None:
    x = torch.randn(batch, 256)
    fast, exact = (sparsejit.compile(LARGE, (x,), dtype=each) for each in ("auto", "float32"))
    assert error(fast(x), exact(x)) <= 0.01
    times = [sum(layer.predicted_ns for layer in f.explain().layers) for f in (fast, exact)]
    assert times[0] <= times[1]


def test_exact_keeps_float32() -> None:
    x = torch.randn(2, 256)
    fast = sparsejit.compile(LARGE, (x,), dtype="auto", exact=True)
    assert kinds(fast) == {"float32"}
    plain = sparsejit.compile(LARGE, (x,), exact=True)
    np.testing.assert_array_equal(fast(x), plain(x))


def test_auto_of_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    x, path = torch.randn(1, 256), tmp_path / "large.onnx"
    torch.onnx.export(LARGE, (x,), path, dynamo=False)
    fast = sparsejit.compile(path, (x.numpy(),), dtype="auto")
    assert error(torch.from_numpy(fast(x.numpy())), LARGE(x).detach()) <= 0.01
    again = sparsejit.compile(path, (x.numpy(),))  # which the cache must tell apart
    assert kinds(again) == {"float32"}


def test_auto_of_what_has_no_products() -> None:
    x = torch.randn(3, 4)
    fast = sparsejit.compile(nn.Sequential(nn.Tanh()).eval(), (x,), dtype="auto")
    np.testing.assert_allclose(fast(x), x.tanh(), rtol=1e-5, atol=1e-6)


def test_an_estimator_stays_float32() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    fitted = linear_model.LinearRegression().fit(x, x.sum(axis=1))
    both = (sparsejit.compile(fitted, x, dtype=each) for each in ("auto", "float32"))
    np.testing.assert_array_equal(*(each.predict(x) for each in both))
    scales = sparsejit.Scales((), 0.0, None, 1.0, 1.0)
    with pytest.raises(InvalidInput, match="give an estimator a name"):
        sparsejit.compile(fitted, x, dtype=scales)
    with pytest.raises(InvalidInput, match="an estimator stays float32"):
        sparsejit.quantise(fitted, [x])


def test_auto_of_named_sizes_is_chosen_once() -> None:
    shapes = {"input": {0: "batch", 1: "time"}}
    x, longer = torch.randn(2, 3, 256), torch.randn(2, 17, 256)
    fast = sparsejit.compile(LARGE, (x,), dynamic_shapes=shapes, dtype="auto")
    with torch.no_grad():
        assert error(fast(longer), LARGE(longer)) < 0.05
    stored = {node.op.dtype for node in fast.graph.nodes if hasattr(node.op, "dtype")}
    others = fast.parts.variants[1].graph.nodes
    assert {node.op.dtype for node in others if hasattr(node.op, "dtype")} == stored
