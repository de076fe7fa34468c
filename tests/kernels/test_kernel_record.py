"""A kernel's description of itself, and its copies."""

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matvec_checks import block_weights, scattered
from rich.console import Console

import sparsejit
from sparsejit.machine.target import Target
from sparsejit.planner import split
from sparsejit.planner.batch_plan import batch_strategies
from sparsejit.planner.kernel_choice import strategies

W = scattered((20, 30), 0.2)
BIAS = np.linspace(-1, 1, 20).astype(np.float32)
X = np.random.default_rng(1).standard_normal((7, 30)).astype(np.float32)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": BIAS, "activation": "tanh"},
    "batch": {"batch": 7},
    "feature-major": {"batch": 7, "layout": "feature-major", "dtype": "bfloat16"},
    "int8": {"dtype": "int8", "input_scale": 0.03},
    "strategy": {"strategy": "dense"},
    "target": {"target": "avx2", "exact": True},
}


def product(kernel: sparsejit.Kernel) -> np.ndarray:
    x = X if kernel.spec.x_shape == (7, 30) else X.T if kernel.spec.x_shape == (30, 7) else X[0]
    return kernel(x.copy())


@pytest.mark.parametrize("options", OPTIONS)
def test_a_pickled_kernel_is_compiled_from_the_same_weights_and_options(options: str) -> None:
    kernel = sparsejit.compile_matrix(W, **OPTIONS[options])
    other = pickle.loads(pickle.dumps(kernel))
    assert other.pointer != kernel.pointer
    assert other.image.data == kernel.image.data and str(other.explain()) != ""
    assert (other.spec.case, other.strategy) == (kernel.spec.case, kernel.strategy)
    np.testing.assert_array_equal(product(other), product(kernel))


@pytest.mark.plans
def test_threads_are_kept_by_a_pickle() -> None:
    kernel = sparsejit.compile_matrix(block_weights((512, 512), 0.3, 1), threads=2)
    assert pickle.loads(pickle.dumps(kernel)).stats["threads"] == kernel.stats["threads"] == 2


def test_a_pickle_does_not_follow_what_was_given() -> None:
    bias = BIAS.astype(np.float32)
    kernel = sparsejit.compile_matrix(W, bias)
    before = product(kernel)
    bias[:] = 100
    np.testing.assert_array_equal(product(pickle.loads(pickle.dumps(kernel))), before)


def test_a_kernel_is_loaded_in_another_process(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(W, BIAS)
    (tmp_path / "kernel").write_bytes(pickle.dumps(kernel))
    script = (
        "import pickle, numpy as np\n"
        f"kernel = pickle.load(open({str(tmp_path / 'kernel')!r}, 'rb'))\n"
        "print(kernel(np.ones(30, np.float32)).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == kernel(np.ones(30, np.float32)).tobytes().hex(), done.stderr


@pytest.mark.plans
def test_shape_and_representation() -> None:
    kernel = sparsejit.compile_matrix(W, strategy="dense")
    assert kernel.shape == (20, 30)
    name, zeros = kernel.plan.chosen.template.name, f"{1 - kernel.stats['density']:.1%} zero"
    assert repr(kernel) == str(kernel) == f"<Kernel 20 x 30, float32, {zeros}: {name}>"
    batch = repr(sparsejit.compile_matrix(W, batch=7, strategy="rows"))
    assert f"{zeros}, batch 7 batch-major: f32-rows-" in batch


@pytest.mark.plans
def test_the_report_is_plain_data() -> None:
    kernel = sparsejit.compile_matrix(W, BIAS, activation="relu", batch=7)
    report, (layer,) = kernel.explain().facts, kernel.explain().layers
    assert json.loads(json.dumps(kernel.explain().as_dict()))["facts"] == report
    assert kernel.stats.items() <= report.items()
    assert (report["bias"], report["activation"], report["batch"]) == (True, "relu", 7)
    assert report["layout"] == "batch-major" and report["target"] == Target.detect().model
    names = [candidate.kernel for candidate in layer.candidates]
    assert names == [c.template.name for c in kernel.plan.candidates]
    assert [part["end_row"] for part in report["parts"]] == [20]
    assert all(candidate.measured_ns is None for candidate in layer.candidates)
    assert (layer.nnz, layer.weights) == (kernel.stats["nnz"], W.size)
    assert layer.real_gflops == 2 * 7 * layer.nnz / layer.predicted_ns
    scaled = sparsejit.compile_matrix(W, dtype="int8", input_scale=np.float32(0.5))
    assert json.loads(json.dumps(scaled.explain().facts))["input_scale"] == 0.5


@pytest.mark.plans
def test_explain_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = sparsejit.compile_matrix(W, tune=True)
    measured = kernel.explain().layers[0].candidates[0].measured_ns
    row = next(line for line in str(kernel.explain()).splitlines() if line.startswith("f32-"))
    assert {f"{measured:.1f}", f"{measured:,.0f}"}.intersection(row.split())


@pytest.mark.plans
def test_explain_names_the_rates_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = sparsejit.compile_matrix(W)
    target = Target.detect()
    origin = target.core.origin
    assert f"rates: {origin}" in str(kernel.explain())
    assert target.core.data_of in origin
    measured = replace(target, core=replace(target.core, measured="measured on a day"))
    kernel = sparsejit.compile_matrix(W, target=measured)
    assert "rates: measured on a day" in str(kernel.explain())


@pytest.mark.plans
def test_explain_says_what_auto_means_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (split, sys.modules["sparsejit.api.kernels.compile_layer"]):
        monkeypatch.setattr(module, "available_cores", lambda: 1)
    kernel = sparsejit.compile_matrix(W, threads="auto")
    line = "threads: 1: 'auto' is one a core; this process may use one core"
    assert line in str(kernel.explain())
    assert "one thread was asked for" in str(sparsejit.compile_matrix(W, threads=1).explain())


@pytest.mark.plans
def test_rich_and_notebooks_get_a_table_of_candidates() -> None:
    kernel = sparsejit.compile_matrix(W, strategy="dense")
    names = [candidate.template.name for candidate in kernel.plan.candidates]
    written = StringIO()
    Console(width=150, file=written).print(kernel)
    text, html = written.getvalue(), kernel._repr_html_()
    for shown in (text, html):
        assert "Kernel 20 x 30, float32" in shown and all(name in shown for name in names)
    assert "strategy='dense'" not in html and "strategy=&#x27;dense&#x27;" in html
    assert kernel.explain().html().count("<tr>") == 3 + len(names)


def test_the_docs_name_every_family() -> None:
    listed = str(sparsejit.compile_matrix.__doc__).split("strategy:")[1].split("target:")[0]
    named = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", listed))
    assert {*strategies(), *batch_strategies()} <= named
