"""Rows of ONNX that few files have, compiled, against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx.helper import np_dtype_to_tensor_dtype
from onnx.reference import ReferenceEvaluator
from runnable import LEVELS
from test_onnx_runtime_operators import by_onnx_runtime, compare, floats, model_of

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx import import_onnx

IMAGE = floats(2, 5, 6, 7)
CASES: dict[str, tuple[str, np.ndarray, dict[str, Any]]] = {
    "channels around": ("LRN", IMAGE, {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    "channels around by default": ("LRN", 30 * IMAGE, {"size": 5}),
    "norms": ("LpNormalization", IMAGE, {"axis": 1}),
    "norms of magnitudes": ("LpNormalization", IMAGE, {"p": 1}),
    "a channel by itself": ("LRN", IMAGE, {"size": 1, "alpha": 0.5}),
    "norms of nothing": ("LpNormalization", np.zeros((2, 3), np.float32), {}),
    "norms of windows": ("LpPool", IMAGE, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    "of cubes": ("LpPool", IMAGE, {"kernel_shape": [2, 2], "p": 3, "strides": [2, 3]}),
    "of one another": ("GlobalLpPool", IMAGE, {}),
    "places": ("Hardmax", IMAGE, {"axis": 1}),
    "ones": ("EyeLike", floats(4, 6), {"k": -1}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row(name: str) -> None:
    """Rows of a value and of a known one, which the onnx package's reference may have wrong."""
    operator, x, attributes = CASES[name]
    compare(model_of(operator, [x], 1, 18, **attributes), [x])
    known = model_of(operator, [x], 0, 18, **attributes)
    (found,) = import_onnx(known, free_batch=False).graph().evaluate([])
    np.testing.assert_allclose(found, by_onnx_runtime(known, [])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (4,)),
        ((2, 1, 3, 4), (5, 4, 2)),
    ],
)
@pytest.mark.parametrize("called", [1, 2])
def test_products_of_whole_numbers_are_exact(dtype: Any, shapes: Any, called: int) -> None:
    """Beyond 2^24, and modulo 2^32 or 2^64, as numpy's."""
    limits = np.iinfo(dtype)
    random = np.random.default_rng(0)
    operands = [random.integers(limits.min, limits.max, shape, dtype) for shape in shapes]
    model = model_of("MatMul", operands, called, 17)
    model.graph.output[0].type.tensor_type.elem_type = np_dtype_to_tensor_dtype(np.dtype(dtype))
    with np.errstate(over="ignore"):
        wanted = np.matmul(*operands)
    for level in LEVELS:
        found = sparsejit.compile(model, free_batch=False, target=level)(*operands[:called])
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("has_places", [False, True])
def test_a_cache_is_updated(mode: str, has_places: bool) -> None:
    operands: list[Any] = [floats(2, 3, 6, 4), floats(2, 3, 2, 4)]
    operands += [np.array([5 if mode == "circular" else 4, 0])] if has_places else []
    model = model_of("TensorScatter", operands, 3, 24, mode=mode)
    named = {f"x{n}": x for n, x in enumerate(operands)}
    (wanted,) = ReferenceEvaluator(model).run(None, named)
    np.testing.assert_array_equal(sparsejit.compile(model, free_batch=False)(*operands), wanted)


def few_bits(bits: int, depth: int, rows: int, zeros: str, **more: Any) -> tuple[Any, np.ndarray]:
    """A model of weights in blocks of 16, and its input."""
    random, blocks = np.random.default_rng(bits), -(-depth // 16)
    held = random.integers(0, 256, (rows, blocks, 2 * bits)).astype(np.uint8)
    scale = random.uniform(0.01, 0.1, rows * blocks).astype(np.float32)
    points = {
        "none": None,
        "bytes": random.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8),
        "floats": random.uniform(0, 15, (rows, blocks)).astype(np.float32),
    }
    x, bias = floats(2, 3, depth), floats(rows)
    sizes = {"K": depth, "N": rows, "bits": bits, "block_size": 16}
    operands = [x, held, scale, points[zeros], None, bias]
    return model_of("com.microsoft.MatMulNBits", operands, 1, 17, **sizes, **more), x


@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "bytes"), (4, "floats"), (8, "none")])
@pytest.mark.parametrize(("depth", "rows"), [(16, 4), (40, 5), (48, 1)])
def test_weights_of_few_bits(bits: int, zeros: str, depth: int, rows: int) -> None:
    model, x = few_bits(bits, depth, rows, zeros)
    compare(model, [x])


def test_weights_of_few_bits_in_another_order_are_refused() -> None:
    model, _ = few_bits(4, 16, 4, "none")
    model.graph.node[0].input[4] = model.graph.node[0].input[2]
    with pytest.raises(UnsupportedOperator, match=r"another order \(g_idx\)"):
        sparsejit.compile(model)


def test_the_first_of_several_largest_is_the_place() -> None:
    x = np.array([[1, 3, 3], [2, 2, 1]], np.float32)
    model = model_of("Hardmax", [x], 1, 18)
    np.testing.assert_array_equal(sparsejit.compile(model)(x), by_onnx_runtime(model, [x])[0])
