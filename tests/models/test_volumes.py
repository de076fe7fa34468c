"""Convolutions and pooling over three spatial axes, of torch and of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runnable import ISAS
from torch import nn

import sparsejit

GENERATOR = torch.Generator().manual_seed(5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def network() -> nn.Module:
    """Patches of video, as VideoMAE and X3D take them, and back to images."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4)),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.Conv3d(8, 8, 3, padding=1, groups=4),
        nn.MaxPool3d((1, 2, 2)),
        nn.ConvTranspose3d(8, 4, (1, 2, 2), (1, 2, 2), bias=False),
        nn.AvgPool3d(2, 1),
        nn.AdaptiveAvgPool3d((2, 1, 1)),
    ).eval()


@pytest.mark.parametrize("isa", ISAS)
def test_networks_of_volumes_leave_the_batch_free(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    model = network()
    compiled = sparsejit.compile(model, (rand(2, 3, 8, 16, 16),))
    assert compiled.batch_is_free
    for batch in (1, 3):
        x = rand(batch, 3, 8, 16, 16)
        with torch.no_grad():
            wanted = model(x)
        np.testing.assert_allclose(compiled(x), wanted, rtol=1e-4, atol=1e-5)


CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "direct": ("Conv", (6, 2, 2, 3, 2), {"strides": [2, 1, 1], "group": 2, "dilations": [1, 2, 1]}),
    "uneven padding": ("Conv", (6, 4, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1]}),
    "same": ("Conv", (6, 4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
    "transposed": (
        "ConvTranspose",
        (4, 3, 2, 3, 2),
        {"strides": [2, 1, 3], "pads": [1, 0, 1, 0, 1, 0], "output_padding": [1, 0, 2], "group": 2},
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_onnx(name: str) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    operator, shape, attributes = CONVOLUTIONS[name]
    x, weight = rand(2, 4, 5, 6, 7).numpy(), rand(*shape).numpy()
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "volumes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        (wanted,) = session.run(None, {"x": x})
    except ImportError:
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(sparsejit.compile(model)(x), wanted, rtol=1e-4, atol=1e-5)
