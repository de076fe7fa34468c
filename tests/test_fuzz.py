"""The fuzzer finds what is wrong and what is raw; a few cases of each kind hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import fuzz
import numpy as np
import pytest
from fuzzing import torch_models

import sparsejit
from sparsejit.errors import InvalidInput


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_a_few_cases_hold(kind: str) -> None:
    """Up to the first that is not refused: all files were once, for they said another version."""
    for seed in range(100):
        outcome = fuzz.attempt((kind, seed))
        assert outcome.text and not outcome.problem, outcome
        if seed > 1 and not outcome.text.startswith(("refused", "not ")):
            return
    raise AssertionError("all are refused")


def test_every_row_of_onnx_is_grown() -> None:
    onnx_rows = pytest.importorskip("fuzzing.onnx_rows")
    from sparsejit.frontends.onnx.expansions import EXPANSIONS
    from sparsejit.frontends.onnx.operators.table import OPERATORS

    of_strings = {"ai.onnx.ml.CategoryMapper", "ai.onnx.ml.ZipMap"}  # tests/models/test_onnx_ml.py
    assert onnx_rows.ROWS.keys() >= (OPERATORS.keys() | EXPANSIONS.keys()) - of_strings


def test_the_newest_opset_is_grown() -> None:
    growing = pytest.importorskip("fuzzing.onnx_growing")
    known = pytest.importorskip("onnx").defs.onnx_opset_version()
    assert growing.is_taken(growing.NEWEST)
    assert known == growing.NEWEST or not growing.is_taken(growing.NEWEST + 1)


def test_an_exception_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("raw_kind")
    module.make = int  # type: ignore[attr-defined]
    module.check = lambda seed: [][seed]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raw_kind", module)
    monkeypatch.setitem(fuzz.KINDS, "raw", "raw_kind")
    found = fuzz.Found()
    found.add(fuzz.attempt(("raw", 3)))
    found.add(fuzz.died(("raw", 4), "crashed: killed by SIGSEGV"))
    assert found.outcomes == {"finding": 2}
    assert found.findings[3].startswith("IndexError") and "SIGSEGV" in found.findings[4]


def first_equal() -> torch_models.TorchCase:
    cases = (torch_models.make(seed) for seed in range(99))
    return next(case for case in cases if torch_models.check(case) == "equal")


def test_a_wrong_result_is_a_finding() -> None:
    case = first_equal()
    wanted = torch_models.by_torch(case, case.inputs)
    torch_models.compare(case, case.inputs, wanted, wanted)
    wrong = [~x if x.dtype == bool else x + 1 for x in wanted]
    with pytest.raises(AssertionError, match="instead of"):
        torch_models.compare(case, case.inputs, wrong, wanted)
    with pytest.raises(AssertionError, match="shape"):
        torch_models.compare(case, case.inputs, [x[None] for x in wanted], wanted)


def test_more_than_ties_is_a_finding_of_quantised_files() -> None:
    """Also where it is one step, if no tie is near."""
    qdq_files = pytest.importorskip("fuzzing.qdq_files")
    step, wanted = np.float32(0.05), np.arange(100, dtype=np.float32) / 20
    off = wanted + step * (np.arange(100) < 4)
    assert qdq_files.compare(wanted, wanted, [wanted]) == "equal"
    assert qdq_files.compare(off, wanted, [off, wanted]) == "equal but for ties"
    many, far = wanted + step * (np.arange(100) < 40), wanted + 3 * (off - wanted)
    for wrong, runs in ((off, [wanted]), (many, [off]), (far, [off]), (wanted + np.nan, [off])):
        with pytest.raises(AssertionError, match="off "):
            qdq_files.compare(wrong, wanted, runs)


def test_ties_of_quantised_files_go_both_ways() -> None:
    """A sum of halves of steps: every number of it is a tie."""
    qdq_files = pytest.importorskip("fuzzing.qdq_files")
    from onnx import helper
    from test_onnx import graph_model

    steps = ["s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x0", *steps], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *steps], ["y"]),
    ]
    constants = {"s": np.array(0.5, np.float32), "z": np.array(9, np.uint8)}
    model = graph_model(nodes, {"x0": (4, 5)}, constants, 13, 2)
    x = np.arange(20, dtype=np.float32).reshape(4, 5) / 2 + 0.25
    wanted, runs = qdq_files.wanted_of(1, model, {"x0": x})
    assert (np.max(runs, 0) - np.min(runs, 0) == 0.5).all()
    assert all((np.abs(each - x) == 0.25).all() for each in (wanted, *runs))
    assert not qdq_files.wanted_of(1, model, {"x0": np.where(x > 9, np.float32(np.inf), x)})[1]


def test_a_refusal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidInput("no")

    monkeypatch.setattr(sparsejit, "compile", refuse)
    assert torch_models.check(torch_models.make(0)) == "refused: InvalidInput"


def test_runs_leave_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    """The fuzzer of damaged files, and pytest but for its own folder."""
    tests = Path(__file__).parent
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(tests.parent)}
    for name in ("PYTEST_DEBUG_TEMPROOT", "SPARSEJIT_TESTS_TMPDIR"):
        environment.pop(name)
    fuzzing = ["fuzz.py", "--kinds", "mutants", "--cases", "2"]
    testing = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "machine/test_files.py"]
    for arguments in (fuzzing, testing):
        command = [sys.executable, *arguments]
        subprocess.run(command, cwd=tests, env=environment, check=True, capture_output=True)
    left = [path.name for path in tmp_path.iterdir()]
    assert [name for name in left if not name.startswith("pytest-of-")] == []
