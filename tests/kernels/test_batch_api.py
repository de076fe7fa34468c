"""`compile_matrix(batch=...)`: shapes, layouts, refusals."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.ir.spec import MOST_BYTES
from sparsejit.planner.batch_plan import batch_strategies

pytestmark = pytest.mark.plans

RANDOM = np.random.default_rng(0)
W = np.where(RANDOM.random((20, 30)) < 0.2, RANDOM.standard_normal((20, 30)), 0).astype(np.float32)
X = RANDOM.standard_normal((7, 30)).astype(np.float32)
# Strategies for float32.
OF_OTHER_DTYPES = ("quads", "dense-pairs", "halves", "int8-dense", "int8-tiles")
STRATEGIES = [s for s in batch_strategies() if s not in OF_OTHER_DTYPES]
ATOL = 4e-5  # an index in the weight changes it by 2e-6 of itself


@pytest.fixture(scope="module")
def kernel() -> sparsejit.Kernel:
    return sparsejit.compile_matrix(W, batch=7)


def test_rows_of_x_become_rows_of_y(kernel: sparsejit.Kernel) -> None:
    expected = X.astype(np.float64) @ W.T
    out = np.empty((7, 20), np.float32)
    assert kernel(X, out=out) is out
    np.testing.assert_allclose(out, expected, atol=ATOL)
    np.testing.assert_array_equal(kernel(X), out)


def test_columns_of_x_become_columns_of_y() -> None:
    kernel = sparsejit.compile_matrix(W, batch=7, layout="feature-major")
    np.testing.assert_allclose(kernel(X.T.copy()), W.astype(np.float64) @ X.T, atol=ATOL)


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "mixed"])
def test_a_pitch_is_the_length_of_rows(strategy: str, tmp_path: Any) -> None:
    kernel = sparsejit.compile_matrix(
        W, batch=7, layout="feature-major", pitch=16, strategy=strategy
    )
    x = np.full((30, 16), np.nan, np.float32)
    x[:, :7] = X.T
    y = kernel(x)
    assert y.shape == (20, 16)
    np.testing.assert_allclose(y[:, :7], W.astype(np.float64) @ X.T, atol=ATOL)
    assert "batch=7 feature-major pitch=16" in str(kernel.explain())
    assert kernel.explain().facts["pitch"] == 16
    kernel.save(tmp_path / "kernel")
    loaded = sparsejit.load(tmp_path / "kernel")
    np.testing.assert_array_equal(loaded(x)[:, :7], y[:, :7])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_computes_the_linear_layer(strategy: str) -> None:
    batch = 21
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(30, 20)
    kernel = sparsejit.compile_matrix(
        layer.weight, layer.bias, activation="tanh", batch=batch, strategy=strategy
    )
    x = np.random.default_rng(1).standard_normal((batch, 30)).astype(np.float32)
    expected = torch.tanh(layer.double()(torch.from_numpy(x).double())).detach().numpy()
    np.testing.assert_allclose(kernel(x), expected, atol=ATOL)
    assert strategy in ("auto", kernel.strategy)


def test_a_batch_of_one_is_a_vector() -> None:
    kernel = sparsejit.compile_matrix(W, batch=1, layout="feature-major")
    assert kernel(X[0]).shape == (20,)


@pytest.mark.parametrize("layout", ["batch-major", "feature-major"])
@pytest.mark.parametrize("strategy", ["panels", "rows", "mixed"])
def test_the_longest_batch_compiles_and_one_more_is_refused(layout: str, strategy: str) -> None:
    longest = MOST_BYTES // (4 * 30)
    sparsejit.compile_matrix(W, batch=longest, layout=layout, strategy=strategy)
    with pytest.raises(InvalidInput, match=f"longer than 2 GiB; give at most {longest}"):
        sparsejit.compile_matrix(W, batch=longest + 1, layout=layout, strategy=strategy)


def test_short_weights_are_taken_too() -> None:
    kernel = sparsejit.compile_matrix(W, batch=7, dtype="bfloat16")
    np.testing.assert_allclose(kernel(X), X @ W.T, atol=0.1)


def test_explain_names_the_batch_and_every_candidate(kernel: sparsejit.Kernel) -> None:
    text = str(kernel.explain())
    assert "batch=7 batch-major" in text
    assert "panels-" in text and "rows-permute" in text


def test_bound_arrays_are_computed_again(kernel: sparsejit.Kernel) -> None:
    x, y = X.copy(), np.zeros((7, 20), np.float32)
    run = kernel.bind(x, y)
    x[:] = 2 * X
    run()
    np.testing.assert_allclose(y, 2 * X @ W.T, atol=1e-4)


def test_tuning_measures_a_batch(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = sparsejit.compile_matrix(W, batch=7, tune=True)
    assert kernel.plan.measured_ns
    np.testing.assert_allclose(kernel(X), X @ W.T, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, r"batch=0; give a whole number of at least 1"),
        ({"batch": 2.0}, r"batch=2\.0; give a whole number"),
        ({"batch": True}, r"batch=True"),
        (
            {"batch": 7, "layout": "feature-major", "pitch": 6},
            r"pitch=6 for a batch of 7; give a number of elements from 7 to",
        ),
        ({"batch": 7, "pitch": 16}, r"pitch=16 with layout='batch-major'; only the rows of"),
        ({"batch": 7, "layout": "feature-major", "pitch": 8.0}, r"pitch=8\.0; give a whole number"),
        ({"layout": "feature-major", "pitch": 16}, r"pitch=16 with batch=1; a single x has"),
        (
            {"batch": 7, "layout": "feature-major", "pitch": 1 << 30},
            r"pitch=1073741824 for a batch of 7; give a number of elements from 7 to 17895697",
        ),
        ({"batch": 7, "layout": "nchw"}, r"'nchw' is unknown; use one of batch-major"),
        ({"batch": 7, "strategy": "permute"}, r"'permute' is unknown; use one of auto, panels"),
        ({"batch": 7, "strategy": "mixed"}, r"'mixed' has no kernel for float32 and batch 7"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SparseJitError, match=message):
        sparsejit.compile_matrix(W, **arguments)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (X[0], None, r"x has shape \(30,\); give \(7, 30\)"),
        (X.T.copy(), None, r"x has shape \(30, 7\)"),
        (X.astype(np.float64), None, r"x has dtype float64"),
        (X, np.zeros((20, 7), np.float32), r"out has shape \(20, 7\); give \(7, 20\)"),
        (X, X.reshape(-1)[:140].reshape(7, 20), r"shares memory"),
    ],
)
def test_a_bad_array_is_named(kernel: sparsejit.Kernel, x: Any, out: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        kernel(x, out=out)
