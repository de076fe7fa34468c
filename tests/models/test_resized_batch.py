"""Graphs of one batch for batches of other sizes: each sample as it was."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import sparsejit
from sparsejit.frontends.batch_axis import SizedBatch
from sparsejit.frontends.torch_export import export
from sparsejit.ir.operator import SamplesMixed

BATCH = 4


class Tokens(nn.Module):
    """A token of its own before the tokens of each sample, places, attention, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = self.layer(x).reshape(x.shape[0] * 5, 8)
        rows = torch.arange(x.shape[0], dtype=torch.float32)[:, None] // x.shape[0]
        return torch.softmax((x + rows).view(-1, 40), -1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0].transpose(1, 2).flatten(1)


IMAGES = nn.Sequential(
    *(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
)
MODELS = {
    "tokens": (Tokens(), (4, 8)),
    "recurrent": (Recurrent(), (BATCH, 6)),
    "images": (IMAGES, (4, 6, 8)),
    "rows": (nn.Sequential(nn.Linear(BATCH, 7), nn.Tanh(), nn.Linear(7, BATCH)), (BATCH,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_sample_is_as_it_was(name: str) -> None:
    model, sizes = MODELS[name]
    x = np.random.default_rng(3).standard_normal((BATCH, *sizes)).astype(np.float32)
    graph = export(model.eval(), (torch.from_numpy(x),), {}, free_batch=False).graph()
    (wanted,) = graph.evaluate([x])
    sized = SizedBatch(graph, (0,))
    for batch in (1, 3, BATCH, 9):
        resized = np.resize(x, (batch, *sizes))
        made = sized.graph(batch)
        assert [value.shape[0] for value in (*made.inputs, *made.outputs)] == [batch, batch]
        (found,) = made.evaluate([resized])
        np.testing.assert_allclose(found, np.resize(wanted, found.shape), rtol=0, atol=1e-12)


def test_samples_that_meet_keep_their_batch() -> None:
    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0)

    graph = export(Mixing(), (torch.randn(BATCH, 3),), {}, free_batch=False).graph()
    with pytest.raises(SamplesMixed, match="mean"):
        SizedBatch(graph, (0,))


def test_an_onnx_file_of_one_batch_takes_any() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["product"]),
        helper.make_node("Reshape", ["product", "back"], ["y"]),
    ]
    held = {"w": weight, "shape": np.array([BATCH * 2, 6]), "back": np.array([BATCH, 2, 4])}
    graph = helper.make_graph(
        nodes,
        "fixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, 2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, 2, 4])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(file)
    compiled = sparsejit.compile(file)
    assert compiled.batch_is_free
    for batch in (1, BATCH, 7):
        x = np.random.default_rng(batch).standard_normal((batch, 2, 6)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), x @ weight, rtol=0, atol=1e-5)
