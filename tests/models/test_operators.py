"""Every row of the operator table against torch in float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from operator_calls import CALLS, as_array, as_module, is_there, overload
from operator_cases import Call, Known

from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.torch_export import graph_of
from sparsejit.frontends.torch_export.aten.table import OPERATORS
from sparsejit.frontends.torch_export.interpreting import leaves
from sparsejit.frontends.writing.writer import element_of

# These answer with a number; the test of symbolic batches needs them.
NUMBERS = {"aten.sym_size.int", "aten.size.int"}


def expected(row: str, each: Call) -> list[Any]:
    """Torch's results, in float64."""

    def double(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [double(item) for item in x]
        x = x.tensor if isinstance(x, Known) else x
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    kwargs = {key: double(x) for key, x in each.kwargs.items()}
    if kwargs.get("dtype") is torch.float32:
        kwargs["dtype"] = torch.float64
    args = [torch.float64 if x is torch.float32 else double(x) for x in each.args]
    return leaves(overload(row)(*args, **kwargs))


@pytest.mark.parametrize(("row", "each"), CALLS, ids=[row for row, _ in CALLS])
def test_every_operator_computes_what_torch_does(row: str, each: Call) -> None:
    module, constants, inputs = as_module(row, each)
    graph = graph_of(module, constants)
    results = graph.evaluate(list(map(as_array, inputs)))
    for value, result, tensor in zip(graph.outputs, results, expected(row, each), strict=False):
        assert value.shape == tuple(tensor.shape) == result.shape
        assert value.type.element is element_of(tensor.dtype)
        np.testing.assert_allclose(result, tensor.numpy(), rtol=1e-6, atol=1e-6)


def test_every_row_has_a_case() -> None:
    assert set(filter(is_there, OPERATORS)) - NUMBERS == {row for row, _ in CALLS}


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


def test_the_documentation_lists_every_operator() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notes" / "models.md").read_text()
    names = {str(operator).split(".")[1] for operator in OPERATORS}
    listed = set(re.findall(r"`(\w+)`", page))
    assert {name for name in names if not name.startswith("_")} <= listed
