"""Layer norms that are written out become the chain that they are."""

from typing import Any

import numpy as np
import pytest
from sketch import Sketch, kinds

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops import row_chains
from sparsejit.passes.recognise_attention import recognise_norms

FEATURES = 24


def written_out(**changed: Any) -> Graph:
    """As ONNX's ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add."""
    s = Sketch()
    x = s.input(2, 5, FEATURES)
    share = s.constant(np.float32(changed.get("share", 1 / FEATURES)))
    epsilon = s.constant(np.float32(1e-5))
    mean = row_chains.mean((2, 5, FEATURES))
    centred = s("sub", x, s(mean, x, share))
    other = s("sub", x, s("neg", x)) if changed.get("other") else centred
    variance = s(mean, s(changed.get("power", "square"), other), share)
    y = s("div", centred, s("sqrt", s("add", variance, epsilon)))
    y = s("mul", y, s.constant(np.linspace(0.5, 1.5, FEATURES, dtype=np.float32)))
    return s.finish(s("add", s.constant(np.linspace(-1, 1, FEATURES, dtype=np.float32)), y))


def test_one_chain_is_left() -> None:
    before = written_out()
    graph = recognise_norms(before)
    assert kinds(graph) == ["layer_norm"]
    x = np.random.default_rng(0).standard_normal((2, 5, FEATURES))
    (found,), (wanted,) = graph.evaluate([x]), before.evaluate([x])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("changed", [{"share": 0.1}, {"power": "abs"}, {"other": True}])
def test_graphs_that_are_no_norm_stay(changed: dict[str, Any]) -> None:
    graph = written_out(**changed)
    assert recognise_norms(graph) is graph
