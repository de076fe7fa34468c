"""Weights of ONNX files in other forms than dense initialisers."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

import sparsejit
from sparsejit.errors import DamagedFile

W = np.zeros((6, 4), np.float32)
W[[1, 5, 0, 2], [2, 0, 0, 3]] = [3, -2, 1, 0.5]


def sparse(places: np.ndarray) -> Any:
    """W as a sparse tensor; its numbers are at these places."""
    values = W[W != 0]
    held = numpy_helper.from_array(values, "w")
    return helper.make_sparse_tensor(held, numpy_helper.from_array(places, "places"), W.shape)


def product(tensor: Any, opset: int, is_node: bool = False) -> Any:
    """x W, with W as an initialiser or made by a Constant."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if is_node:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    declared = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])]
        for name, width in (("x", 6), ("y", 4))
    ]
    held = {} if is_node else {"sparse_initializer": [tensor]}
    graph = helper.make_graph(nodes, "product", *declared, **held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("places", [np.flatnonzero(W), np.argwhere(W)])
@pytest.mark.parametrize(("opset", "is_node"), [(11, False), (17, False), (17, True)])
def test_a_sparse_initialiser(places: np.ndarray, opset: int, is_node: bool) -> None:
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    compiled = sparsejit.compile(product(sparse(places), opset, is_node))
    np.testing.assert_allclose(compiled(x), x @ W, rtol=1e-5, atol=1e-6)
    assert compiled.stats["nnz"] == np.count_nonzero(W)


def test_a_sparse_initialiser_with_places_beyond_its_sizes_is_refused() -> None:
    places = np.flatnonzero(W)
    places[-1] = W.size
    with pytest.raises(DamagedFile):
        sparsejit.compile(product(sparse(places), 17))
