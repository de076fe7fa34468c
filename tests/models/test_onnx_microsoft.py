"""Operators that ONNX Runtime's optimiser and quantiser write, against formulas in float64."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

import sparsejit
from sparsejit.errors import UnsupportedOperator
from sparsejit.frontends.onnx.expansions import EXPANSIONS
from sparsejit.frontends.onnx.operators.microsoft import DOMAIN
from sparsejit.frontends.onnx.operators.table import OPERATORS

RANDOM = np.random.default_rng(8)
Arrays = Sequence[np.ndarray | None]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def steps(*shape: int, dtype: str = "uint8") -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(max(limits.min, -100), min(limits.max, 200), shape).astype(dtype)


def scale(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def zero(number: int, dtype: str = "uint8") -> np.ndarray:
    return np.array(number, dtype)


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, np.float64))


def quantised(x: Any, step: np.ndarray, point: np.ndarray) -> np.ndarray:
    limits = np.iinfo(point.dtype)
    return np.clip(np.rint(np.asarray(x) / step.item()) + point, limits.min, limits.max)


def held(x: Any, step: Any, point: Any) -> np.ndarray:
    return (np.float64(x) - point) * np.float64(step)


def erf_gelu(x: Any) -> np.ndarray:
    return functional.gelu(tensor(x)).numpy()


def normal(x: Any, weight: Any, bias: Any, epsilon: float = 1e-12) -> np.ndarray:
    sizes = (np.shape(x)[-1],)
    found = functional.layer_norm(tensor(x), sizes, tensor(weight), tensor(bias), epsilon)
    return found.numpy()


def attended(whole: Any, heads: int, added: Any = 0.0, causal: bool = False) -> np.ndarray:
    """`whole`: q, k and v side by side."""
    batch, length, width = np.shape(whole)
    parts = np.float64(whole).reshape(batch, length, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    q, k, v = parts
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + added
    if causal:
        scores = scores + np.triu(np.full((length, length), -np.inf), 1)
    seen = torch.softmax(tensor(scores), -1).numpy() @ v
    return seen.transpose(0, 2, 1, 3).reshape(batch, length, width // 3)


class Case(NamedTuple):
    """Operands, of which the first `given`, or the ones of such numbers, come with the call."""

    operator: str
    operands: Arrays
    given: int | tuple[int, ...]
    wanted: Callable[..., Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    atol: float = 2e-6


def embedded(words: Any, segments: Any, w: Any, p: Any, s: Any, g: Any, b: Any, mask: Any) -> Any:
    total = np.float64(w)[words] + p[: words.shape[1]] + s[segments]
    return normal(total, g, b), mask.sum(axis=1), total


def skipped(x: Any, skip: Any, g: Any, b: Any, bias: Any) -> Any:
    total = np.float64(x) + skip + bias
    return normal(total, g, b), None, None, total


def simplified(x: Any, skip: Any, g: Any, bias: Any) -> Any:
    total = np.float64(x) + skip + bias
    root = np.sqrt((total**2).mean(-1, keepdims=True) + 1e-12)
    return total / root * g, None, None, total


def of_four_bits(x: Any, packed: Any, scales: Any, points: Any) -> np.ndarray:
    """Weights (5, 2, 8 bytes), two numbers in each, with a scale and a point for each of two."""
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(5, 2, 16).astype(np.float64)
    zeros = np.stack([points & 15, points >> 4], -1).reshape(5, 2, 1)
    return np.float64(x) @ ((numbers - zeros) * scales.reshape(5, 2, 1)).reshape(5, 32).T


def dynamic(a: Any, b: Any, b_scale: Any, b_zero: Any, bias: Any) -> np.ndarray:
    low, high = min(0.0, a.min()), max(0.0, a.max())
    step = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    point = np.rint(np.float32(0 - np.float32(low) / step))
    whole = np.clip(np.rint(a / step) + point, 0, 255) - point
    return whole.astype(np.float64) @ (b - np.float64(b_zero)) * step * b_scale + bias


def convolved(x: Any, w: Any, b: Any, z: Any, slope: float) -> np.ndarray:
    found = functional.conv2d(tensor(x), tensor(w), tensor(b), padding=1) + tensor(z)
    return functional.leaky_relu(found, slope).numpy()


def mask_added(mask: np.ndarray, number: float = -10000.0) -> np.ndarray:
    return ((1 - mask) * number)[:, None, None, :]


WORDS = floats(2, 5, 24), floats(8, 24)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
BYTES = steps(3, 8), scale(0.02), zero(120)
QKV = floats(2, 5, 8), floats(8, 24), floats(24)
CASES = [
    Case("FusedMatMul", (floats(2, 5, 3), floats(4, 5)), 1,
         lambda a, b: 0.5 * a.swapaxes(1, 2) @ b.T, {"transA": 1, "transB": 1, "alpha": 0.5}),
    Case("FusedMatMul", (floats(4, 2, 3), floats(2, 3, 5)), 2,
         lambda a, b: np.moveaxis(a, 0, -2) @ b, {"transBatchA": 1}),
    Case("Gelu", (floats(3, 7),), 1, erf_gelu),
    Case("BiasGelu", (floats(3, 7), floats(7)), 1, lambda x, b: erf_gelu(x + b)),
    Case("FastGelu", (floats(3, 7), floats(7)), 1,
         lambda x, b: functional.gelu(tensor(x + b), approximate="tanh").numpy()),
    Case("QuickGelu", (floats(3, 7),), 1,
         lambda x: x / (1 + np.exp(-1.5 * np.float64(x))), {"alpha": 1.5}),
    Case("FusedConv", (floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4), floats(1, 4, 6, 6)), 1,
         lambda x, w, b, z: convolved(x, w, b, z, 0.2),
         {"pads": [1, 1, 1, 1], "activation": "LeakyRelu", "activation_params": [0.2]}),
    Case("FusedGemm", (floats(3, 8), floats(5, 8), floats(5)), 1,
         lambda a, b, c: np.maximum(a @ b.T + c, 0), {"transB": 1, "activation": "Relu"}),
    Case("SkipLayerNormalization",
         (floats(2, 5, 8), floats(2, 5, 8), floats(8), floats(8), floats(8)), 2, skipped),
    Case("SkipSimplifiedLayerNormalization",
         (floats(2, 5, 8), floats(2, 5, 8), floats(8), floats(8)), 2, simplified),
    Case("EmbedLayerNormalization",
         (RANDOM.integers(0, 9, (2, 5)), RANDOM.integers(0, 2, (2, 5)), floats(9, 8), floats(12, 8),
          floats(2, 8), floats(8), floats(8), MASK), 2, embedded),
    Case("Attention", (*QKV, MASK), 1,
         lambda x, w, b, m: attended(x @ np.float64(w) + b, 2, mask_added(m)), {"num_heads": 2}),
    Case("Attention", (*QKV, MASK.sum(axis=1).astype(np.int32)), 1,
         lambda x, w, b, n: attended(x @ np.float64(w) + b, 2, mask_added(MASK)), {"num_heads": 2}),
    Case("Attention", QKV, 1,
         lambda x, w, b: attended(x @ np.float64(w) + b, 4, causal=True),
         {"num_heads": 4, "unidirectional": 1}),
    Case("MultiHeadAttention", (*(floats(2, 5, 8) for _ in range(3)), floats(24), MASK), 3,
         lambda q, k, v, b, m: attended(
             np.concatenate([np.float64(q), k, v], 2) + b, 2, mask_added(m)), {"num_heads": 2}),
    Case("QAttention",
         (steps(2, 5, 8), steps(8, 24, dtype="int8"), floats(24), scale(0.02), scale(0.01), MASK,
          zero(110), zero(3, "int8")), 1,
         lambda x, w, b, sx, sw, m, zx, zw: attended(
             held(x, sx, zx) @ held(w, sw, zw) + b, 2, mask_added(m)), {"num_heads": 2}),
    Case("DynamicQuantizeMatMul",
         (floats(3, 8), steps(8, 6, dtype="int8"), scale(0.02), zero(2, "int8"), floats(6)),
         1, dynamic, atol=1e-5),
    Case("MatMulIntegerToFloat",
         (steps(3, 8), steps(8, 6, dtype="int8"), scale(0.02), scale(0.03), zero(120),
          zero(-4, "int8"), floats(6)), 1,
         lambda a, b, sa, sb, za, zb, c: held(a, sa, za) @ held(b, sb, zb) + c, atol=1e-5),
    Case("QGemm",
         (*BYTES, steps(6, 8, dtype="int8"), scale(0.01), zero(0, "int8"),
          RANDOM.integers(-500, 500, 6).astype(np.int32), scale(0.05), zero(128)), 1,
         lambda a, sa, za, b, sb, zb, c, sy, zy: quantised(
             held(a, sa, za) @ held(b, sb, zb).T + c * np.float64(sa) * sb, sy, zy),
         {"transB": 1},
         atol=1),
    Case("QGemm", (*BYTES, steps(8, 6, dtype="int8"), scale(0.01), zero(0, "int8")), 1,
         lambda a, sa, za, b, sb, zb: held(a, sa, za) @ held(b, sb, zb), atol=1e-5),
    Case("QLinearAdd", (*BYTES, steps(3, 8), scale(0.03), zero(90), scale(0.05), zero(128)), 1,
         lambda a, sa, za, b, sb, zb, s, z: quantised(held(a, sa, za) + held(b, sb, zb), s, z),
         atol=1),
    Case("QLinearMul", (*BYTES, steps(3, 8), scale(0.03), zero(90), scale(0.05), zero(128)), 1,
         lambda a, sa, za, b, sb, zb, s, z: quantised(held(a, sa, za) * held(b, sb, zb), s, z),
         atol=1),
    Case("QLinearSigmoid", (*BYTES, scale(1 / 256), zero(0)), 1,
         lambda a, sa, za, s, z: quantised(1 / (1 + np.exp(-held(a, sa, za))), s, z),
         atol=1),
    Case("QLinearLeakyRelu", (*BYTES, scale(0.02), zero(60)), 1,
         lambda a, sa, za, s, z: quantised(
             functional.leaky_relu(tensor(held(a, sa, za)), 0.1).numpy(), s, z), {"alpha": 0.1},
         atol=1),
    Case("QLinearSoftmax", (*BYTES, scale(1 / 256), zero(0)), 1,
         lambda a, sa, za, s, z: quantised(
             torch.softmax(tensor(held(a, sa, za)), -1).numpy(), s, z), {"axis": -1, "opset": 13},
         atol=1),
    Case("QLinearAveragePool",
         (steps(1, 3, 6, 6), scale(0.02), zero(120), scale(0.01), zero(128)), 1,
         lambda x, sx, zx, s, z: quantised(
             functional.avg_pool2d(tensor(held(x, sx, zx)), 2).numpy(), s, z),
         {"kernel_shape": [2, 2], "strides": [2, 2]},
         atol=1),
    Case("QLinearGlobalAveragePool",
         (steps(1, 3, 6, 6), scale(0.02), zero(120), scale(0.01), zero(128)), 1,
         lambda x, sx, zx, s, z: quantised(held(x, sx, zx).mean(axis=(2, 3), keepdims=True), s, z),
         {"channels_last": 0},
         atol=1),
    Case("QLinearWhere",
         (RANDOM.random((3, 8)) < 0.5, *BYTES, steps(8), scale(0.03), zero(90), scale(0.05),
          zero(128)), (0, 1, 4),
         lambda c, a, sa, za, b, sb, zb, s, z: quantised(
             np.where(c, held(a, sa, za), held(b, sb, zb)), s, z),
         atol=1),
    *(
        Case("QuantizeLinear", (3 * floats(3, 8), scale(0.02), zero(100, dtype)), 1, quantised,
             atol=0)
        for dtype in ("uint8", "int8", "uint16", "int16")
    ),
    *(
        Case("DequantizeLinear", (steps(3, 8, dtype=dtype), scale(0.02), zero(100, dtype)), 1, held)
        for dtype in ("uint8", "int8", "uint16", "int16")
    ),
    Case("DequantizeLinear",
         (steps(3, 8), np.abs(floats(3)), np.array([3, 100, 7], np.uint8)), 1,
         lambda x, s, z: held(x, s[:, None], z[:, None]), {"axis": 0}),
    Case("QEmbedLayerNormalization",
         (RANDOM.integers(0, 9, (2, 5)).astype(np.int32), RANDOM.integers(0, 2, (2, 5)).astype(
             np.int32), steps(9, 8), steps(12, 8), steps(2, 8), steps(8), steps(8), MASK,
          *(scale(0.01 * n) for n in range(1, 6)), *(zero(20 * n) for n in range(1, 6))), 2,
         lambda words, segments, w, p, s, g, b, mask, *rest: embedded(
             words, segments, *map(held, (w, p, s, g, b), rest[:5], rest[5:]), mask)[:2]),
    Case("QLinearConcat",
         (scale(0.05), zero(128), *BYTES, steps(3, 8), scale(0.03), zero(90)), (2, 5),
         lambda s, z, a, sa, za, b, sb, zb: quantised(
             np.concatenate([held(a, sa, za), held(b, sb, zb)], axis=1), s, z), {"axis": 1},
         atol=1),
    Case("DynamicQuantizeLSTM",
         (floats(4, 1, 3), steps(1, 3, 20, dtype="int8"), steps(1, 5, 20, dtype="int8"),
          floats(1, 40), None, None, None, None,
          np.array([0.01], np.float32), np.array([2], np.int8), np.array([0.01], np.float32),
          np.array([0], np.int8)), 1,
         lambda x, w, r, b, *rest: lstm(x, held(w, rest[4], rest[5]), held(r, rest[6], rest[7]), b),
         {"hidden_size": 5}, atol=2e-3),  # x and h are rounded: test_onnx_dynamic_lstm.py
    Case("MatMulNBits",
         (floats(3, 32), RANDOM.integers(0, 256, (5, 2, 8)).astype(np.uint8),
          np.abs(floats(10)), RANDOM.integers(0, 256, 5).astype(np.uint8)), 1, of_four_bits,
         {"K": 32, "N": 5, "bits": 4, "block_size": 16}, atol=1e-4),
]  # fmt: skip


def lstm(x: Any, w: Any, r: Any, b: Any) -> np.ndarray:
    """ONNX orders its gates i, o, f, c; torch i, f, c, o."""
    order = np.array([0, 2, 3, 1])

    def gates(array: np.ndarray) -> torch.nn.Parameter:
        parts = array.reshape(4, 5, -1)[order].reshape(20, -1)
        return torch.nn.Parameter(tensor(parts).squeeze(-1))

    layer = torch.nn.LSTM(3, 5).double()
    layer.weight_ih_l0, layer.weight_hh_l0 = gates(w[0].T), gates(r[0].T)
    layer.bias_ih_l0, layer.bias_hh_l0 = gates(b[0, :20]), gates(b[0, 20:])
    with torch.no_grad():
        return layer(tensor(x))[0].numpy()[:, None]


def places(case: Case) -> Sequence[int]:
    """The numbers of the operands that come with the call."""
    return range(case.given) if isinstance(case.given, int) else case.given


def model_of(case: Case) -> Any:
    names = [f"x{n}" if x is not None else "" for n, x in enumerate(case.operands)]
    wanted = case.wanted(*case.operands)
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    outputs = [f"y{n}" if x is not None else "" for n, x in enumerate(results)]
    node = helper.make_node(case.operator, names, outputs, domain=DOMAIN, **case.attributes)
    pairs = list(zip(names, case.operands, strict=True))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, (name, x) in enumerate(pairs)
        if n in places(case) and x is not None
    ]
    known = [
        numpy_helper.from_array(x, name)
        for n, (name, x) in enumerate(pairs)
        if n not in places(case) and x is not None
    ]
    made = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, np.shape(x))
        for name, x in zip(outputs, results, strict=True)
        if name
    ]
    graph = helper.make_graph([node], "microsoft", inputs, made, known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operator)
def test_an_operator_computes_its_formula(case: Case) -> None:
    given = [case.operands[place] for place in places(case)]
    found = sparsejit.compile(model_of(case), free_batch=False)(*given)
    wanted = case.wanted(*case.operands)
    results = found if isinstance(found, tuple) else (found,)
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    for result, exact in zip(results, [x for x in expected if x is not None], strict=True):
        assert result.shape == np.shape(exact)
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=case.atol)


def test_every_operator_has_a_case() -> None:
    ours = {name for name in (*OPERATORS, *EXPANSIONS) if name.startswith(DOMAIN)}
    assert ours == {f"{DOMAIN}.{case.operator}" for case in CASES}


def test_options_without_a_mapping_are_named() -> None:
    kept = (*QKV, None, floats(2, 2, 1, 3, 4))
    past = Case("Attention", kept, 1, lambda *x: x[0], {"num_heads": 2})
    with pytest.raises(UnsupportedOperator, match=r"com\.microsoft\.Attention \(keeps a past\)"):
        sparsejit.compile(model_of(past))
    q, state = floats(2, 5, 8), floats(2, 2, 3, 4)
    for operands, said in (
        ((q, q, q, None, None, None, state, state), "keeps a past"),
        ((floats(2, 5, 2, 3, 4),), r"shapes \[\[2, 5, 2, 3, 4\], None, None\], not three axes"),
        ((q, state, state), "not three axes each"),
    ):
        case = Case("MultiHeadAttention", operands, 1, lambda x, *_: x, {"num_heads": 2})
        with pytest.raises(UnsupportedOperator, match=said):
            sparsejit.compile(model_of(case))
