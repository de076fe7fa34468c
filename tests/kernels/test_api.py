"""`compile_matrix` and the kernel it returns: results, records, refusals."""

import gc
import inspect
import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runnable import runnable

import sparsejit
from sparsejit import errors
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import InvalidInput, SparseJitError, UnsupportedTarget
from sparsejit.ir.spec import OVERFLOWS_AT, DType
from sparsejit.machine.target import ISA_LEVELS, MAX_ISA_VARIABLE, Target
from sparsejit.planner.kernel_choice import strategies
from sparsejit.planner.kernels import families_for


def sparse_weights(rows: int = 20, columns: int = 30, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    kept = random.random((rows, columns)) < 0.2
    return np.where(kept, random.standard_normal((rows, columns)), 0).astype(np.float32)


@pytest.fixture(scope="module")
def kernel() -> sparsejit.Kernel:
    return sparsejit.compile_matrix(sparse_weights())


X = np.random.default_rng(1).standard_normal(30).astype(np.float32)


def test_call_makes_or_fills_the_output(kernel: sparsejit.Kernel) -> None:
    expected = sparse_weights().astype(np.float64) @ X
    out = np.empty(20, np.float32)
    assert kernel(X, out=out) is out
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_array_equal(kernel(X), out)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_weights_of_any_real_dtype_are_taken(dtype: type) -> None:
    weights = np.array([[1, 0, 2], [0, 0, -3]], dtype)
    y = sparsejit.compile_matrix(weights)(np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(y, np.array([7, -9], np.float32))


def test_torch_weights_with_gradients_are_taken() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(30, 20)
    y = sparsejit.compile_matrix(layer.weight, layer.bias)(X)
    expected = layer.double()(torch.from_numpy(X).double()).detach().numpy()
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_weights_are_copied() -> None:
    weights = sparse_weights()
    kernel = sparsejit.compile_matrix(weights)
    before = kernel(X)
    weights[:] = 0
    np.testing.assert_array_equal(kernel(X), before)


@pytest.mark.plans
@pytest.mark.parametrize("strategy", strategies())
def test_each_strategy_is_built_and_named(strategy: str) -> None:
    dtype = "int8" if strategy.startswith("int8") else "float32"
    if strategy not in ("auto", *families_for(Target.detect(), DType.parse(dtype), 1)):
        pytest.skip("has no kernel for this processor")
    kernel = sparsejit.compile_matrix(sparse_weights(), strategy=strategy, dtype=dtype)
    assert strategy in ("auto", kernel.strategy)
    assert kernel.stats["strategy"] == kernel.strategy
    reason = "predicted cheapest" if strategy == "auto" else f"strategy='{strategy}'"
    assert reason in str(kernel.explain())


@pytest.mark.plans
def test_stats_count_what_was_built(kernel: sparsejit.Kernel) -> None:
    stats = kernel.stats
    assert stats["nnz"] == np.count_nonzero(sparse_weights())
    assert (stats["out_features"], stats["in_features"]) == (20, 30)
    assert stats["isa"] == Target.detect().isa
    assert stats["code_bytes"] > 0 and stats["compile_ms"]


def test_disassembly_shows_code_and_literals() -> None:
    weights = np.zeros((16, 16), np.float32)
    weights[0, 0] = 1.625
    listing = sparsejit.compile_matrix(weights, strategy="permute").disassemble()
    assert "vfmadd231ps" in listing and listing.rstrip().endswith("ret")
    assert "vzeroupper" in listing


def test_a_dropped_kernel_releases_its_memory() -> None:
    kernel = sparsejit.compile_matrix(sparse_weights())
    memory = weakref.ref(kernel.program.memory)
    del kernel
    gc.collect()
    assert memory() is None


def test_one_kernel_serves_many_threads(kernel: sparsejit.Kernel) -> None:
    inputs = np.random.default_rng(2).standard_normal((64, 30)).astype(np.float32)
    expected = [kernel(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(kernel, inputs)), expected)


@pytest.mark.plans
@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_max_isa_limits_the_kernel(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Target.named(isa).runs_on(Target.detect()):
        pytest.skip(f"this machine has no {isa}")
    monkeypatch.setenv(MAX_ISA_VARIABLE, isa)
    kernel = sparsejit.compile_matrix(sparse_weights())
    assert kernel.stats["isa"] == isa
    assert ("zmm" in kernel.disassemble()) == (isa == "avx512")


def test_a_target_beyond_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_ISA_VARIABLE, "avx2")
    with pytest.raises(UnsupportedTarget, match=r"avx512 does not run here.*target='native'"):
        sparsejit.compile_matrix(sparse_weights(), target="avx512")


W = sparse_weights()
NAN, INFINITE = W.copy(), W.astype(np.float64)
NAN[3, 4] = np.nan
INFINITE[5, 6] = 1e300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": np.zeros(5)}, r"shape \(5,\).*2-d"),
        ({"weights": np.zeros((0, 5))}, r"shape \(0, 5\).*at least 1"),
        ({"weights": np.zeros((2, 2), complex)}, r"complex128.*real"),
        ({"weights": np.array([["a"]])}, r"dtype <U1"),
        ({"weights": NAN}, r"weights\[3, 4\] is nan.*remove"),
        ({"weights": INFINITE}, r"weights\[5, 6\] is 1e\+300"),
        ({"weights": W, "bias": np.zeros(19)}, r"bias has shape \(19,\); give \(20,\)"),
        ({"weights": W, "bias": np.full(20, np.inf)}, r"bias\[0\] is inf"),
        ({"weights": W, "activation": "gelu"}, r"'gelu' is unknown; use one of none, relu"),
        ({"weights": W, "strategy": "magic"}, r"'magic' is unknown; use one of auto"),
        ({"weights": W, "batch": 0}, r"batch=0; give a whole number"),
        ({"weights": W, "dtype": "int4"}, r"dtype 'int4' is unknown; use one of float32"),
        ({"weights": W, "target": "sse2"}, r"'sse2'"),
        ({"weights": W, "target": 3}, r"target=3; give 'native', one of avx2, avx512, or a Target"),
        ({"weights": W, "target": None}, r"target=None; give 'native'"),
        ({"weights": [[1.0, 2.0], [3.0]]}, r"weights, a list, .*all rows of one length"),
        ({"weights": W, "batch": 2**40}, r"batch=1099511627776 makes x or y longer.*at most"),
        ({"weights": W, "layout": None}, r"layout None is unknown"),
        ({"weights": W, "dtype": None}, r"dtype None is unknown"),
        ({"weights": W, "strategy": 3}, r"strategy 3 is unknown"),
        ({"weights": W, "threads": "two"}, r"threads='two'; give a number, or 'auto'"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SparseJitError, match=message):
        sparsejit.compile_matrix(**arguments)


@pytest.mark.parametrize(
    "input_scale", ["a", "0.1", None, True, [0.1], 0, -1.0, math.nan, math.inf, 1e31, 1e-31, 1j]
)
def test_an_input_scale_that_cannot_be_one_is_named(input_scale: Any) -> None:
    if input_scale is None:  # the one that is right
        sparsejit.compile_matrix(W, dtype="int8", input_scale=None)
        return
    with pytest.raises(InvalidInput, match=r"input_scale=.*; give the quantisation scale of x"):
        sparsejit.compile_matrix(W, dtype="int8", input_scale=input_scale)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("input_scale", [2.0**100, 1e20, 1e3])
def test_an_input_scale_that_would_give_nan_is_refused(input_scale: float, batch: int) -> None:
    """Its product with a weight's step lies beyond float32, and times zero that is NaN."""
    limit = float(np.finfo(np.float32).max) / input_scale * 127
    weights = W.astype(np.float64) / np.abs(W).max() * limit
    options: dict[str, Any] = {"dtype": "int8", "input_scale": input_scale, "batch": batch}
    with pytest.raises(InvalidInput, match=r"input_scale=.*more than float32 can hold"):
        sparsejit.compile_matrix(1.01 * weights, **options)
    kernel = sparsejit.compile_matrix(0.99 * weights, **options)
    assert not kernel(np.zeros(kernel.spec.x_shape, np.float32)).any()


ONE_X_OR_A_BATCH = [
    *((dtype, {}) for dtype in OVERFLOWS_AT),
    *(
        (row.dtype, {"batch": 20, "strategy": row.family})
        for row in runnable(MATMUL_TEMPLATES)
        if row.dtype in OVERFLOWS_AT and row.each is None
    ),
]


@pytest.mark.parametrize(("dtype", "options"), ONE_X_OR_A_BATCH, ids=str)
def test_weights_beyond_a_dtype_are_refused(dtype: DType, options: dict[str, Any]) -> None:
    """In the same words for one vector and for every batch kernel."""
    limit = np.float32(OVERFLOWS_AT[dtype])
    weights = W.copy()
    weights[2, 5] = -limit
    message = rf"weights\[2, 5\] is -.*more than {dtype.value} can hold; use dtype='float32'"
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile_matrix(weights, dtype=dtype.value, **options)
    weights[2, 5] = -np.nextafter(limit, np.float32(0))
    kernel = sparsejit.compile_matrix(weights, dtype=dtype.value, **options)
    x = np.zeros(kernel.spec.x_shape, np.float32)
    x[..., 5] = 1
    assert np.isfinite(kernel(x)).all()


def test_all_but_weights_and_bias_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        sparsejit.compile_matrix(W, None, "tanh")  # type: ignore[misc]


@pytest.mark.plans
def test_a_target_may_be_a_name_or_a_target() -> None:
    for target in ("native", Target.detect(), "avx2", Target.named("avx2")):
        kernel = sparsejit.compile_matrix(W, target=target)
        assert kernel.target == Target.resolve(target)


def test_bind_takes_the_output_by_the_name_it_has_in_a_call(kernel: sparsejit.Kernel) -> None:
    out = np.zeros(20, np.float32)
    kernel.bind(x=X, out=out)()
    np.testing.assert_array_equal(out, kernel(X))


def test_the_exceptions_are_part_of_the_surface() -> None:
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    raised = {name for name, value in classes.items() if issubclass(value, Exception)}
    assert raised <= set(sparsejit.__all__)
    assert sparsejit.InvalidInput is InvalidInput


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        ([1.0] * 30, None, r"x is a list"),
        (X.astype(np.float64), None, r"x has dtype float64; convert"),
        (X[:29], None, r"x has shape \(29,\); give \(30,\)"),
        (X[None], None, r"x has shape \(1, 30\)"),
        (X, np.zeros(21, np.float32), r"out has shape \(21,\); give \(20,\)"),
        (X, np.zeros(20), r"out has dtype float64"),
        (X, np.zeros(40, np.float32)[::2], r"out is not contiguous"),
        (X, X[:20], r"shares memory"),
    ],
)
def test_a_bad_vector_is_named(
    kernel: sparsejit.Kernel, x: Any, out: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        kernel(x, out=out)


def test_an_x_that_is_not_contiguous_is_copied_by_a_call_and_not_bound(
    kernel: sparsejit.Kernel,
) -> None:
    strided, misaligned = np.repeat(X, 2)[::2], np.zeros(121, np.uint8)[1:].view(np.float32)
    misaligned[:] = X
    for x in (strided, misaligned):
        np.testing.assert_array_equal(kernel(x), kernel(X))
        with pytest.raises(InvalidInput, match="x is not contiguous, aligned"):
            kernel.bind(x, np.zeros(20, np.float32))


def test_a_read_only_output_is_refused(kernel: sparsejit.Kernel) -> None:
    out = np.zeros(20, np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidInput, match="read-only"):
        kernel(X, out=out)


def test_dump_keeps_bytes_and_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_DUMP", str(tmp_path))
    kernel = sparsejit.compile_matrix(sparse_weights())
    (code,) = tmp_path.glob("*.bin")
    assert code.read_bytes() == kernel.image.data
    (listing,) = tmp_path.glob("*.lst")
    assert listing.read_text().strip() == kernel.disassemble().strip()


@pytest.mark.plans
def test_debug_prints_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARSEJIT_DEBUG", "1")
    sparsejit.compile_matrix(sparse_weights())
    assert "predicted cheapest" in capsys.readouterr().err


def test_progress_names_stages_in_order() -> None:
    stages: list[tuple[str, float]] = []
    sparsejit.compile_matrix(W, progress=lambda stage, share: stages.append((stage, share)))
    shares = [share for _, share in stages]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    assert stages[-1][0] == "done"


@pytest.mark.parametrize("progress", [None, 3])
def test_progress_is_a_function_or_none(progress: Any) -> None:
    weights = np.eye(8, dtype=np.float32)
    if progress is None:
        assert sparsejit.compile_matrix(weights, progress=None).stats["nnz"] == 8
    else:
        with pytest.raises(InvalidInput, match="progress=3"):
            sparsejit.compile_matrix(weights, progress=progress)
