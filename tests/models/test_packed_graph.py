"""Graphs put away come back as they were, to the bit, and hold no memory of the user's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.packed_graph import PackedGraph
from sparsejit.ir.values import Element, Origin, TensorType

RNG = np.random.default_rng(0)
SPECIAL = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45], np.float32)
ARRAYS = {
    "mostly zeros of both signs": np.where(RNG.random((40, 50)) < 0.1, RNG.random((40, 50)), -0.0),
    "dense": RNG.standard_normal((40, 50)),
    "special": np.concatenate([SPECIAL, np.zeros(500)]),
    "transposed": np.eye(30, 20).T,
    "a number": np.array(0.0),
    "empty": np.zeros((0, 3)),
    "whole": np.eye(20, dtype=np.int64),
    "truths": np.eye(20, dtype=bool),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_constants_come_back_to_the_bit(what: str) -> None:
    array = ARRAYS[what]
    array = array.astype(np.float32) if array.dtype.kind == "f" else array
    build = GraphBuilder()
    element = Element(str(array.dtype))
    x = build.input(TensorType(array.shape, element), Origin("x"))
    known = build.constant(array, Origin("w"))
    kind = "logical_and" if element is Element.BOOL else "add"
    graph = build.finish(build.add(Pointwise(kind), x, known, origin=Origin("y")))
    before = {value: held.copy() for value, held in graph.constants.items()}
    packed = PackedGraph(graph)
    again = packed.graph
    assert again.inputs == graph.inputs and again.nodes == graph.nodes
    assert again is packed.graph
    for value, wanted in before.items():
        found = again.constants[value]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()


def test_weights_that_change_later_change_nothing() -> None:
    model = nn.Sequential(nn.Linear(600, 700), nn.ReLU(), nn.Linear(700, 600)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(torch.rand(layer.weight.shape) < 0.2)
        x = torch.randn(1, 600)
        wanted = model(x)
        fast = sparsejit.compile(model, (x,))
        graph = [float(np.abs(array).sum()) for array in fast.graph.constants.values()]
        later = sparsejit.compile(model, (x,))
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(fast(x), wanted)
    found = [float(np.abs(array).sum()) for array in later.graph.constants.values()]
    assert found == graph and sum(graph) > 0
