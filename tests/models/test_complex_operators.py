"""Every row of the table of complex operators against torch in float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from complex_cases import CALLS, UNUSUAL
from operator_calls import as_module, overload
from operator_cases import Call, Known
from torch_models import Written

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.torch_export import graph_of
from sparsejit.frontends.torch_export.aten.table import COMPLEX_OPERATORS
from sparsejit.frontends.torch_export.interpreting import is_value, leaves

# These answer with a number.
NUMBERS = {"aten.sym_size.int", "aten.size.int"}
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def wide(x: Any) -> Any:
    """Operands in float64; dtypes too."""
    if isinstance(x, list | tuple):
        return [wide(item) for item in x]
    x = x.tensor if isinstance(x, Known) else x
    if isinstance(x, torch.dtype):
        return _WIDE.get(x, x)
    return x.to(_WIDE.get(x.dtype, x.dtype)) if isinstance(x, torch.Tensor) else x


def as_numbers(x: torch.Tensor) -> np.ndarray:
    """As a graph takes it: complex numbers as two real ones on a last axis."""
    whole = x.resolve_conj().resolve_neg()
    return (torch.view_as_real(whole) if whole.is_complex() else whole).numpy()


@pytest.mark.parametrize(("row", "each"), CALLS, ids=[row for row, _ in CALLS])
def test_every_operator_computes_what_torch_does(row: str, each: Call) -> None:
    module, constants, inputs = as_module(row, each)
    graph = graph_of(module, constants)
    found = graph.evaluate(list(map(as_numbers, inputs)))
    results = overload(row)(*wide(each.args), **{key: wide(x) for key, x in each.kwargs.items()})
    wanted = [as_numbers(x) for x in leaves(results) if is_value(x)]
    assert len(found) == len(wanted)
    for result, want in zip(found, wanted, strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-6, atol=1e-6)


def test_every_row_has_a_case() -> None:
    assert set(COMPLEX_OPERATORS) - NUMBERS == {row for row, _ in CALLS}


def test_the_mappings_are_used_and_not_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sparsejit.frontends.torch_export.interpreting.decomposed"
    monkeypatch.setattr(name, lambda *_: None)
    failed = set()
    for row, each in CALLS:
        module, constants, _ = as_module(row, each)
        try:
            graph_of(module, constants)
        except UnsupportedOperator:
            failed.add(row)
    assert not failed


@pytest.mark.parametrize("name", UNUSUAL)
def test_squares_do_not_overflow(name: str) -> None:
    function, z = UNUSUAL[name]
    model = Written(lambda _, x: torch.view_as_real(function(torch.view_as_complex(x)) + 0j)).eval()
    x = torch.view_as_real(z)
    found = sparsejit.compile(model, (x,), free_batch=False)(x).numpy()
    wanted = torch.view_as_real(function(z.to(torch.complex128)) + 0j).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_documentation_lists_every_operator() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notes" / "models.md").read_text()
    names = {str(operator).split(".")[1] for operator in COMPLEX_OPERATORS}
    listed = set(re.findall(r"`(\w+)`", page))
    assert {name for name in names if not name.startswith("_")} <= listed
