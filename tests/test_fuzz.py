"""The fuzzer finds what is wrong and what is raw; a few cases of each kind hold."""

from __future__ import annotations

import sys
from types import ModuleType

import fuzz
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
    from sparsejit.frontends.onnx.onnx_rows import OPERATORS

    assert onnx_rows.ROWS.keys() >= OPERATORS.keys() | EXPANSIONS.keys()


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


def test_a_refusal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidInput("no")

    monkeypatch.setattr(sparsejit, "compile", refuse)
    assert torch_models.check(torch_models.make(0)) == "refused: InvalidInput"
