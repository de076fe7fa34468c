"""The files that examples on pages read: `model.onnx` (64 inputs, 8 outputs) and `vad.sjit`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit


class Vad(nn.Module):
    """Takes and returns what a voice activity detector does."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean(1, keepdim=True), state * 0.5


def write_files(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])
        for name, size in (("x", 64), ("y", 8))
    )
    weights = onnx.numpy_helper.from_array(np.ones((64, 8), np.float32), "w")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "net", [x], [y], [weights])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, folder / "model.onnx")
    example = torch.zeros(1, 576), torch.zeros(2, 1, 128)
    sparsejit.compile(Vad().eval(), example, free_batch=False).save(folder / "vad.sjit")
