"""Other lengths of ONNX files: which have a rule, and that all read the weights of the first."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_other_sizes import WIDTH, frames, weights_by_loop, words
from torch import nn
from torch.export import Dim

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.frontends.onnx.polynomial_sizes import Sizes, file_has_polynomial_sizes


class Readings:
    """Counts how often an ONNX model is read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        module = import_module("sparsejit.api.models.compiler")
        self.count, real = 0, module.import_onnx

        def counted(*given: Any) -> Any:
            self.count += 1
            return real(*given)

        patch.setattr(module, "import_onnx", counted)


def as_file(model: nn.Module, path: Path) -> Path:
    """The model as an ONNX file whose batch and time have names."""
    open_axes = {"ids": {0: "batch", 1: "time"}, "y": {0: "batch", 1: "time"}}
    names = {"input_names": ["ids"], "output_names": ["y"], "dynamic_axes": open_axes}
    torch.onnx.export(model, (words(1, 24),), str(path), dynamo=False, **names)
    return path


@pytest.mark.filterwarnings("ignore")
def test_lengths_of_an_onnx_file_read_the_weights_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    model = weights_by_loop(monkeypatch)
    path = as_file(model, tmp_path / "reader.onnx")
    sizes = {"ids": {0: "batch", 1: Dim("time", min=1, max=70)}}
    fast = sparsejit.compile(path, (words(1, 24).numpy(),), dynamic_shapes=sizes)
    readings = Readings(monkeypatch)
    for time in (30, 40, 33, 70, 1, 2, 55):
        x = words(3, time)
        np.testing.assert_allclose(fast(x.numpy()), model(x).detach(), rtol=1e-5, atol=1e-5)
    assert readings.count == 4  # for short ones, which run otherwise
    first, *others = (variant.program.image for variant in fast.parts.variants)
    longer = [v.program.image.pool_bytes for v in fast.parts.variants[1:5]]
    assert max(longer) < 4 * WIDTH * 70 + 10_000 < first.pool_bytes, longer
    del first, others
    fast.save(tmp_path / "reader.sjit")
    again = sparsejit.load(tmp_path / "reader.sjit")
    for time in (24, 30, 70):
        np.testing.assert_array_equal(again(words(2, time).numpy()), fast(words(2, time).numpy()))


def file_of(*nodes: tuple[str, list[str], str], **constants: list[int]) -> Any:
    """An ONNX model of x (1, time, 8) that ends with y."""
    from onnx import TensorProto, helper

    made = [helper.make_node(kind, names, [out]) for kind, names, out in nodes]
    held = [
        helper.make_tensor(name, TensorProto.INT64, [len(n)] if name[0] == "v" else [], n)
        for name, n in constants.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, "time", 8]), ("y", None))
    ]
    graph = helper.make_graph(made, "sizes", ends[:1], ends[1:], held)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, ir_version=8, opset_imports=[opset])


NUMBERS = {"v10": [10], "v0": [0], "v1": [1], "v2": [2], "one": [1], "two": [2], "nil": [0]}
NUMBERS["v_several"] = [3, 5]
SIZE = ("Shape", ["x"], "shape"), ("Gather", ["shape", "one"], "size")
# By name: nodes, and whether sums and products are all that is done with sizes.
FILES: dict[str, tuple[tuple[tuple[str, list[str], str], ...], bool]] = {
    "softmax": ((("Softmax", ["x"], "y"),), True),
    "doubled": (
        (
            *SIZE,
            ("Mul", ["size", "two"], "twice"),
            ("Unsqueeze", ["twice", "v0"], "all"),
            ("Concat", ["v1", "all", "v2", "v2"], "into"),
            ("Reshape", ["x", "into"], "y"),
        ),
        True,
    ),
    "at most ten": ((("Slice", ["x", "v0", "v10", "v1"], "y"),), False),
    "some places": ((("Gather", ["x", "v_several"], "y"),), False),
    "the tenth": ((("Gather", ["x", "v10"], "y"),), True),
    "half": ((*SIZE, ("Div", ["size", "two"], "y")), False),
    "compared": ((*SIZE, ("Greater", ["size", "two"], "y")), False),
    "the least": ((*SIZE, ("Min", ["size", "two"], "y")), False),
    "as a number": ((*SIZE, ("Cast", ["size"], "y")), False),
    "summed": (
        (
            *SIZE,
            ("Range", ["nil", "size", "one"], "places"),
            ("Cast", ["places"], "numbers"),
            ("ReduceMean", ["numbers"], "y"),
        ),
        False,
    ),
    "from two on": ((*SIZE, ("Range", ["two", "size", "one"], "y")), False),
    "whatever is one": ((("Squeeze", ["x"], "y"),), False),
    "unknown": ((("NonZero", ["x"], "y"),), False),
}


@pytest.mark.parametrize("name", FILES)
def test_which_files_have_a_rule(name: str) -> None:
    pytest.importorskip("onnx")
    nodes, wanted = FILES[name]
    model = file_of(*nodes, **NUMBERS)
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute.add(name="to", i=1, type=2)
    follower = Sizes(model)
    assert all(map(follower.takes, model.graph.node)) is wanted


def test_a_place_that_shorter_inputs_have_not_is_refused() -> None:
    pytest.importorskip("onnx")
    model = file_of(("Gather", ["x", "v10"], "y"), v10=[10])
    model.graph.node[0].attribute.add(name="axis", i=1, type=2)
    inputs = {time: frames(1, time)[..., :8].numpy() for time in (20, 30, 12, 40, 11, 8, 2)}
    fast = sparsejit.compile(model, (inputs[20],), dynamic_shapes={"x": {1: "time"}})
    for time in (30, 12, 40, 11):
        np.testing.assert_array_equal(fast(inputs[time]), inputs[time][:, 10:11])
    for time in (8, 2):
        with pytest.raises(SparseJitError):
            fast(inputs[time])


@pytest.mark.parametrize("name", ["Softsign", "HardSwish", "Mish", "Selu", "Round", "Sin"])
def test_sizes_pass_through_every_function_of_elements(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    x, y = (
        onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, ["n", 4]) for each in "xy"
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node(name, ["x"], ["y"])], "net", [x], [y])
    opset = [onnx.helper.make_opsetid("", 22)]
    assert file_has_polynomial_sizes(onnx.helper.make_model(graph, opset_imports=opset))
