"""ONNX's Fourier transforms beside ONNX Runtime and numpy, and complex values beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.numpy_helper import from_array  # noqa: E402

import sparsejit  # noqa: E402
from sparsejit.errors import InvalidInput, SparseJitError, UnsupportedOperator  # noqa: E402


def model_of(
    nodes: Any, shape: Any, known: dict[str, np.ndarray], opset: int, kind: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "fourier",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [from_array(array, name) for name, array in known.items()],
    )
    versions = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def dft(
    opset: int, shape: Any, axis: int, length: int | None = None, **flags: int
) -> onnx.ModelProto:
    known = {} if length is None else {"n": np.array(length)}
    names = ["x", "n" if known else ""]
    if opset >= 20:
        known["axis"] = np.array(axis)
        node = helper.make_node("DFT", [*names, "axis"], ["y"], **flags)
    else:
        node = helper.make_node("DFT", names, ["y"], axis=axis, **flags)
    return model_of([node], shape, known, opset)


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def close(found: Any, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(("size", "length"), [(1, None), (16, None), (100, 90), (60, 257)])
def test_transforms_equal_numpys(opset: int, size: int, length: int | None) -> None:
    random = np.random.default_rng(size)
    points = length or size
    real = random.standard_normal((2, size, 3, 1)).astype(np.float32)
    both = random.standard_normal((2, size, 3, 2)).astype(np.float32)
    signal, z = real[..., 0].astype(float), both[..., 0].astype(float) + 1j * both[..., 1]

    def run(x: np.ndarray, **flags: int) -> Any:
        return sparsejit.compile(dft(opset, x.shape, 1, length, **flags), (x,))(x)

    close(run(real), pairs(np.fft.fft(signal, points, 1)))
    close(run(real, onesided=1), pairs(np.fft.rfft(signal, points, 1)))
    close(run(both), pairs(np.fft.fft(z, points, 1)))
    close(run(both, inverse=1), pairs(np.fft.ifft(z, points, 1)))
    bins = np.ascontiguousarray(pairs(np.fft.rfft(signal, points, 1)).astype(np.float32))
    if bins.shape[1] > 1 or points == 1:
        model = dft(opset, bins.shape, 1, points, inverse=1, onesided=1)
        wanted = np.fft.irfft(bins[..., 0].astype(float) + 1j * bins[..., 1], points, 1)
        close(sparsejit.compile(model, (bins,))(bins), wanted[..., None])


def test_spectrograms_equal_onnx_runtimes_for_any_batch() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    window = np.hanning(66)[:-1].astype(np.float32)
    known = {"hop": np.array(20), "window": window, "two": np.array([2.0], np.float32)}
    known["last"] = np.array([-1])
    nodes = [
        helper.make_node("STFT", ["x", "hop", "window"], ["z"]),
        helper.make_node("Pow", ["z", "two"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "last"], ["y"], keepdims=0),
    ]
    model = model_of(nodes, ["N", 400, 1], known, 18)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(3).standard_normal((3, 400, 1)).astype(np.float32)
    fast = sparsejit.compile(model, (x,))
    assert fast.batch_is_free
    for rows in (x, x[:1]):
        (wanted,) = session.run(None, {"x": rows})
        np.testing.assert_allclose(fast(rows), wanted, rtol=1e-4, atol=1e-5 * wanted.max())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (dft(17, [2, 8, 2], 2), r"DFT \(axis"),
        (dft(20, [2, 5, 2], 1, 12, inverse=1, onesided=1), "12 points with 5 bins"),
        (dft(20, [2, 5, 2], 1, 6, inverse=1, onesided=1), "6 points with 5 bins"),
        (dft(20, [2, 8, 3], 1), "DFT"),
    ],
)
def test_what_has_no_meaning_is_refused(model: Any, words: str) -> None:
    with pytest.raises(SparseJitError, match=words):
        sparsejit.compile(model)


def test_complex_values_are_refused_by_dtype() -> None:
    node = helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Cast", ["z"], ["y"], to=1)
    weights = {"w": np.array([1 + 2j, 3j], np.complex64)}
    with pytest.raises((InvalidInput, UnsupportedOperator), match=r"complex64|COMPLEX64"):
        sparsejit.compile(model_of(node, [3, 2], weights, 20, TensorProto.COMPLEX64))
    with pytest.raises((InvalidInput, UnsupportedOperator), match=r"complex64|COMPLEX64"):
        sparsejit.compile(model_of(node, [3, 2], weights, 20))
