"""Results with as many rows as a mask has true elements, beside torch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from runnable import ISAS
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.frontends import nesting
from sparsejit.ir.graph import OpenAxis


class Function(nn.Module):
    """A function as a module, beside one linear layer that it may use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def every(nest: Any) -> list[torch.Tensor]:
    return [leaf for item in nest for leaf in every(item)] if isinstance(nest, tuple) else [nest]


ROWS = {
    "rows": ((9, 4), lambda m, x: x[x[:, 0] > 0]),
    "elements": ((5, 7), lambda m, x: x[x > 0.2]),
    "inner axis": ((3, 6), lambda m, x: x[:, x[0] > 0]),
    "inner axes": ((2, 3, 5, 2), lambda m, x: x[:, x[0, :, :, 0] > 0]),
    "places": ((4, 5), lambda m, x: (x > 0).nonzero()),
    "places as rows": ((4, 5), lambda m, x: torch.argwhere(x > 0)),
    "places of a number": ((), lambda m, x: (x > 0).nonzero()),
    "places by axis": ((4, 5), lambda m, x: torch.where(x > 0)),
    "selected": ((4, 5), lambda m, x: x.masked_select(x[:1] > 0)),
    "layer": ((9, 4), lambda m, x: torch.softmax(m.linear(x[x[:, 0] > 0]), -1)),
    "norm and gelu": (
        (9, 4),
        lambda m, x: nn.functional.gelu(nn.functional.layer_norm(x[x[:, 0] > 0], (4,))),
    ),
    "views": ((9, 4), lambda m, x: x[x[:, 0] > 0].reshape(-1, 2, 2).transpose(0, 2)),
    "joined": ((9, 4), lambda m, x: x[x[:, 0] > 0].reshape(-1)),
    "size as a number": ((30,), lambda m, x: x[x > 0] / x[x > 0].shape[0]),
    "one mask twice": ((9, 4), lambda m, x: (lambda k: x[k] * x.flip(1)[k])(x[:, 0] > 0)),
    "two masks": ((9,), lambda m, x: (x[x > 0], x[x < 0.5] + 1, x.sum())),
    "whole numbers": ((9, 4), lambda m, x: (x * 9).to(torch.int32)[x[:, 1] > 0]),
    "truths": ((9, 4), lambda m, x: (x > 0)[x[:, 1] > 0]),
    "two masks of two axes": ((9,), lambda m, x: x[x > 0][:, None] * x[x < 0.5]),
    "one row": ((1, 4), lambda m, x: x[x[:, 0] > 0].T),
    "places of one": ((1, 1), lambda m, x: (x > 0).nonzero().T),
    "known": ((3, 4), lambda m, x: x[torch.tensor([True, False, True])]),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ROWS)
def test_results_have_the_rows_of_the_call(name: str, isa: str) -> None:
    shape, function = ROWS[name]
    model, random = Function(function).eval(), torch.Generator().manual_seed(1)
    fast = sparsejit.compile(model, (torch.randn(shape, generator=random),), target=isa)
    for shift in (0.0, 0.5, -5.0, 5.0):  # some, most, none and all
        x = torch.randn(shape, generator=random) + shift
        for found, wanted in zip(every(fast(x)), every(model(x)), strict=True):
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


REFUSED = {
    "a sum": (lambda m, x: x[x > 0].sum(), "a step computes sum over an axis"),
    "a cat": (lambda m, x: torch.cat([x[x > 0], x]), "values decide its size, and a step"),
    "a range": (lambda m, x: torch.arange(x[x > 0].shape[0]), "takes a size that values decide"),
    "a sort": (lambda m, x: x[x > 0].sort().values, "values decide its size, and a step"),
    "a cumulative sum": (lambda m, x: x[x > 0].cumsum(0), "values decide its size, and a step"),
    "several sizes": (lambda m, x: x.expand(3, 8)[:, x > 0].flatten(), "and of output 0"),
    "a size": (lambda m, x: x[x > 0].shape[0] * 2, "the model returns the number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_along_the_rows_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(Function(function).eval(), (torch.randn(8),))


def test_files_and_bound_calls_have_the_sizes(tmp_path: Path) -> None:
    model = Function(ROWS["two masks"][1]).eval()
    x = torch.randn(9, generator=torch.Generator().manual_seed(3))
    fast = sparsejit.compile(model, (x,))
    fast.save(tmp_path / "model.sjit")
    for found, wanted in zip(sparsejit.load(tmp_path / "model.sjit")(x), model(x), strict=True):
        torch.testing.assert_close(found, wanted)
    dtypes = {"float32": np.float32, "int64": np.int64}
    outputs = [
        np.empty(value.shape, dtypes[value.type.element.value]) for value in fast.graph.outputs
    ]
    fast.bind([x.numpy()], outputs)()
    assert [int(each) for each in outputs[3:]] == [int((x > 0).sum()), int((x < 0.5).sum())]


def test_open_axes_are_data_and_are_checked() -> None:
    form = nesting.with_open_axes(
        nesting.Nest(nesting.NestKind.TUPLE, (nesting.TENSOR, nesting.tensor_of("int32"))),
        [OpenAxis(1, 0, 3, 2)],
    )
    data = nesting.to_json(form)
    assert nesting.from_json(data, "outputs") == form
    assert nesting.open_axes(form) == [OpenAxis(1, 0, 3, 2)]
    for wrong in ([1, -1, 3, 2], [1, 0, 3], [1, 0, 3.5, 2], "x"):
        data["items"][1]["open_axes"] = [wrong]
        with pytest.raises(sparsejit.errors.DamagedFile):
            nesting.from_json(data, "outputs")


def test_a_part_of_a_graph_leaves_masks_to_torch() -> None:
    model = Function(lambda m, x: m.linear(x[(x * 2)[:, 0] > 0]) * 3).eval()
    fast = torch.compile(model, backend="sparsejit")
    for seed in range(3):
        x = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(fast(x), model(x))


def onnx_model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def floats(name: str, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def wholes(name: str, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


node = helper.make_node
FILES = {
    "NonZero": ([node("NonZero", ["x"], ["y"])], [(3, 5)], [wholes("y", 2, None)]),
    "NonZero of one": ([node("NonZero", ["x"], ["y"])], [(1,)], [wholes("y", 1, None)]),
    "Compress": (
        [node("Greater", ["x", "z"], ["m"]), node("Compress", ["x", "m"], ["y"], axis=0)],
        [(6,), (6,)],
        [floats("y", None)],
    ),
    "Compress of all": (
        [
            node("Flatten", ["x"], ["f"], axis=0),
            node("Squeeze", ["f"], ["s"]),
            node("Cast", ["s"], ["m"], to=TensorProto.BOOL),
            node("Compress", ["z", "m"], ["y"]),
        ],
        [(2, 3), (4, 2)],
        [floats("y", None)],
    ),
    "rows by place": (
        [node("NonZero", ["x"], ["n"]), node("Gather", ["z", "n"], ["y"])],
        [(7,), (7, 4)],
        [floats("y", 1, None, 4)],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_have_the_rows_of_the_call(name: str) -> None:
    nodes, shapes, outputs = FILES[name]
    inputs = [floats(name, *shape) for name, shape in zip("xz", shapes, strict=False)]
    model = onnx_model(nodes, inputs, outputs)
    fast, session = sparsejit.compile(model), onnxruntime.InferenceSession(
        model.SerializeToString()
    )
    random = np.random.default_rng(2)
    for share in (0.0, 0.4, 1.0):
        arrays = [
            (random.normal(size=shape) * (random.random(shape) < share)).astype(np.float32)
            for shape in shapes
        ]
        (wanted,) = session.run(None, dict(zip("xz", arrays, strict=False)))
        found = fast(*arrays)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("nodes", "output", "message"),
    [
        ([node("Shape", ["n"], ["y"])], wholes("y", 2), r"Shape \(is a size that values decide\)"),
        ([node("ReduceSum", ["n"], ["y"])], wholes("y", 1, 1), "a step computes sum over an axis"),
    ],
)
def test_files_that_compute_with_the_size_are_refused(
    nodes: Sequence[Any], output: Any, message: str
) -> None:
    model = onnx_model([node("NonZero", ["x"], ["n"]), *nodes], [floats("x", 3, 5)], [output])
    with pytest.raises(UnsupportedOperator, match=message):
        sparsejit.compile(model)
    whole = sparsejit.compile(model, fallback="onnxruntime")
    x = np.eye(3, 5, dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(whole(x), session.run(None, {"x": x})[0])


def test_a_body_of_a_loop_knows_its_sizes() -> None:
    inner = [
        node("Identity", ["go on"], ["still"]),
        node("NonZero", ["x"], ["n"]),
        node("ReduceMax", ["carried"], ["next"], keepdims=1),
    ]
    names = [wholes("turn"), helper.make_tensor_value_info("go on", TensorProto.BOOL, [])]
    body = helper.make_graph(
        inner,
        "body",
        [*names, floats("carried", 1, 1)],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            floats("next", 1, 1),
            wholes("n", 2, None),
        ],
    )
    loop = node("Loop", ["turns", "", "start"], ["last", "all"], body=body)
    turns = helper.make_tensor("turns", TensorProto.INT64, [], [1000])
    start = helper.make_tensor("start", TensorProto.FLOAT, [1, 1], [0.5])
    outputs = [floats("last", 1, 1), wholes("all", 1000, 2, None)]
    graph = helper.make_graph([loop], "graph", [floats("x", 3, 5)], outputs, [turns, start])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedOperator, match="Loop"):
        sparsejit.compile(model)
