"""Pooling of ONNX at all its edges, against ONNX Runtime."""

from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_onnx_runtime_operators import by_onnx_runtime, compare, floats, model_of

from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx


def pooling(operator: str, x: np.ndarray, opset: int = 22, **attributes: Any) -> Any:
    return model_of(operator, [x], 1, opset, **attributes)


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("pads", [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_windows_at_the_ends_of_an_axis(operator: str, pads: tuple[int, int]) -> None:
    """ceil_mode adds a window that reaches behind the padding, which no mean counts."""
    edges = product((5, 6), (2, 3), (2, 3), (1, 2), (0, 1), (0, 1))
    for length, kernel, stride, dilation, ceil, counts in edges:
        if max(pads) >= kernel or length < dilation * (kernel - 1) + 1:
            continue
        x = floats(1, 2, length)
        given = {"count_include_pad": counts} if operator == "AveragePool" else {}
        model = pooling(
            operator, x, kernel_shape=[kernel], strides=[stride], dilations=[dilation],
            pads=pads, ceil_mode=ceil, **given,
        )  # fmt: skip
        (wanted,) = by_onnx_runtime(model, [x])
        (found,) = import_onnx(model, free_batch=False).graph().evaluate([x])
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("counts", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (1, 2, 5, 6, 7)])
def test_means_whose_last_windows_reach_behind_the_padding(
    counts: int, shape: tuple[int, ...]
) -> None:
    x, rank = floats(*shape), len(shape) - 2
    given = {"kernel_shape": [3, 2, 3][:rank], "strides": [2, 3, 3][:rank]}
    pads = [1, 0, 1][:rank] + [0, 1, 1][:rank]
    compare(
        pooling("AveragePool", x, pads=pads, ceil_mode=1, count_include_pad=counts, **given), [x]
    )


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_is_that_of_onnx_runtime_or_refused(operator: str, mode: str) -> None:
    """It leaves dilations out of the padding, which ONNX says to take in."""
    refused = list[tuple[bool, str]]()
    for length, kernel, stride, dilation in product(range(4, 8), (1, 2, 3), (1, 2, 3, 5), (1, 2)):
        x = floats(1, 1, length)
        model = pooling(
            operator, x, kernel_shape=[kernel], strides=[stride], dilations=[dilation],
            auto_pad=mode,
        )  # fmt: skip
        try:
            (found,) = import_onnx(model, free_batch=False).graph().evaluate([x])
        except UnsupportedOperator as error:
            refused.append((dilation > 1 or stride > kernel, str(error)))
            continue
        try:
            (wanted,) = by_onnx_runtime(model, [x])
        except Exception:  # it asks for whole windows of strides beyond the kernel
            assert stride > kernel
            continue
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    text = "ONNX Runtime give results of different sizes; write pads"
    assert refused and all(may and text in reason for may, reason in refused)
