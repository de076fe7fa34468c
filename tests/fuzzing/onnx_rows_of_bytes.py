"""Bytes: random nodes of each row that quantises, or computes what is quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.onnx_growing import MICROSOFT, OnnxGrowing
from fuzzing.onnx_rows_of_layers import kernel_of, windows

Maker = Callable[[OnnxGrowing], Any]
_BYTES = ("uint8", "int8")


def _scale(grow: OnnxGrowing, low: float = 0.01, high: float = 0.2) -> str:
    return grow.fixed(np.float32(grow.draw.uniform(low, high)))


def _zero(grow: OnnxGrowing, dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return np.asarray(grow.draw.choice((0, 1, limits.min, limits.max, 5, 100)), dtype)


def _quantise(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", fits=lambda a: a.dtype == np.float32)
    name, shape = grow.draw.choice(_BYTES), grow.values[x].shape
    if len(shape) > 1 and grow.has("QuantizeLinear", 13) and grow.draw.random() < 0.4:
        axis = grow.axis(len(shape))
        count = shape[axis]
        scale = grow.fixed(grow.array((count,), np.float32, 0.01, 0.2))
        zero = grow.fixed(grow.numbers.integers(-5, 5, count) % 100, name)
        made = grow.add("QuantizeLinear", [x, scale, zero], axis=axis)
        if made:
            grow.add("DequantizeLinear", [*made, scale, zero], axis=axis)
        return
    pair = [_scale(grow), *[grow.fixed(_zero(grow, name))][: 1 - (grow.draw.random() < 0.2)]]
    made = grow.add("QuantizeLinear", [x, *pair])
    if made and grow.draw.random() < 0.8:
        grow.add("DequantizeLinear", [*made, *pair])


def _dequantise(grow: OnnxGrowing) -> None:
    dtype = grow.draw.choice((*_BYTES, "int32"))
    x = grow.either(grow.array(grow.shape(1, 4), dtype, -100, 100))
    pair = [_scale(grow)]
    if dtype != "int32" and grow.flag():
        pair.append(grow.fixed(_zero(grow, dtype)))
    grow.add("DequantizeLinear", [x, *pair])


def _bytes(grow: OnnxGrowing, shape: Sequence[int], name: str) -> Any:
    limits = np.iinfo(name)
    low = max(limits.min, -100) if limits.min else 0
    return grow.numbers.integers(low, min(limits.max, 100) + 1, shape).astype(name)


def _steps(grow: OnnxGrowing, shape: Sequence[int], name: str, known: bool = False) -> list[str]:
    """Bytes, their scale and their zero point."""
    array = _bytes(grow, shape, name)
    zero = np.asarray(0 if known else grow.draw.choice((0, 3)), name)
    return [grow.fixed(array) if known else grow.input(array), _scale(grow), grow.fixed(zero)]


def _out(grow: OnnxGrowing, name: str, low: float = 0.2, high: float = 2.0) -> list[str]:
    return [_scale(grow, low, high), grow.fixed(np.asarray(grow.draw.choice((0, 3)), name))]


def _integer_product(grow: OnnxGrowing) -> None:
    lead, rows, depth, out = grow.shape(0, 1), 3, grow.draw.choice((1, 4, 9)), 5
    one, other = grow.draw.choice((("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")))
    a, b = (
        grow.input(_bytes(grow, (*lead, rows, depth), one)),
        grow.either(_bytes(grow, (depth, out), other)),
    )
    zeros = [grow.fixed(np.asarray(3, one)), grow.fixed(np.asarray(2, other))]
    made = grow.add("MatMulInteger", [a, b, *zeros[: grow.draw.randint(0, 2)]])
    if made and grow.flag():
        grow.add("Cast", made, to=1)


def _integer_conv(grow: OnnxGrowing) -> None:
    kernel, shape = kernel_of(grow, (6, 5)), (2, 3, 6, 5)
    weights = grow.fixed(_bytes(grow, (4, 3, *kernel), grow.draw.choice(_BYTES)))
    if grow.flag():
        made = grow.add("DynamicQuantizeLinear", [grow.input(grow.array(shape, np.float32))], 3)
        if not made:
            return
        x, zeros = made[0], made[2:]
    else:
        x = grow.input(_bytes(grow, shape, "uint8"))
        zeros = [grow.fixed(np.asarray(3, np.uint8))][: grow.flag()]
    made = grow.add("ConvInteger", [x, weights, *zeros], **windows(grow, (6, 5), kernel))
    if made and grow.flag():
        grow.add("Cast", made, to=1)


def _quantised_conv(grow: OnnxGrowing) -> None:
    groups, each, name = (
        grow.draw.choice((1, 1, 2)),
        grow.draw.choice((1, 2)),
        grow.draw.choice(_BYTES),
    )
    kernel, out = kernel_of(grow, (6, 5)), 4
    x = _steps(grow, (2, groups * each, 6, 5), name)
    weights = _steps(grow, (out, each, *kernel), "int8", known=True)
    if grow.flag():
        weights[1] = grow.fixed(grow.array((out,), np.float32, 0.01, 0.1))
        weights[2] = grow.fixed(np.zeros(out, np.int8))
    bias = [grow.fixed(grow.numbers.integers(-99, 99, out), np.int32)][: grow.flag()]
    given = windows(grow, (6, 5), kernel) | ({"group": groups} if groups > 1 else {})
    grow.add("QLinearConv", [*x, *weights, *_out(grow, name), *bias], **given)


def _quantised_product(grow: OnnxGrowing) -> None:
    name, depth = grow.draw.choice(_BYTES), grow.draw.choice((1, 4, 9))
    a, b = (
        _steps(grow, (*grow.shape(1, 2), depth), name),
        _steps(grow, (depth, 5), "int8", known=True),
    )
    grow.add("QLinearMatMul", [*a, *b, *_out(grow, name)])


def _quantised_gemm(grow: OnnxGrowing) -> None:
    name, depth, turned = grow.draw.choice(_BYTES), grow.draw.choice((1, 4, 9)), grow.flag()
    a = _steps(grow, (3, depth), name)
    b = _steps(grow, (5, depth) if turned else (depth, 5), "int8", known=True)
    bias = grow.fixed(grow.numbers.integers(-99, 99, 5), np.int32) if grow.flag() else ""
    grow.add(f"{MICROSOFT}.QGemm", [*a, *b, bias, *_out(grow, name)], transB=turned)


def _quantised_pair(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        dtype, shape = grow.draw.choice(_BYTES), grow.shape(1, 3)
        a, b = _steps(grow, shape, dtype), _steps(grow, grow.broadcasting(shape), dtype)
        grow.add(f"{MICROSOFT}.{name}", [*a, *b, *_out(grow, dtype, 0.05, 0.3)])

    return make


def _quantised_function(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        dtype, spatial = grow.draw.choice(_BYTES), name.endswith("Pool")
        x = _steps(grow, (2, 3, 6, 5) if spatial else grow.shape(1, 3), dtype)
        out = _out(grow, dtype, *((0.01, 0.1) if not spatial else (0.05, 0.3)))
        given: dict[str, Any] = {}
        if name == "QLinearAveragePool":
            kernel = kernel_of(grow, (6, 5))
            given = {"kernel_shape": kernel, **windows(grow, (6, 5), kernel)}
            given.pop("dilations", None)
            given["strides"] = [1, 1] if "auto_pad" in given else given.get("strides", [1, 1])
        elif name == "QLinearGlobalAveragePool":
            given = {"channels_last": 0}
        elif name == "QLinearLeakyRelu":
            given = grow.some(alpha=0.1)
        elif name == "QLinearSoftmax":
            given = {"opset": grow.opset, "axis": -1}
        grow.add(f"{MICROSOFT}.{name}", [*x, *out], **given)

    return make


def _attention(grow: OnnxGrowing) -> None:
    heads, depth, length = grow.draw.choice((1, 2)), grow.draw.choice((2, 4)), 3
    width = heads * depth
    x, _, zero = _steps(grow, (2, length, width), "uint8")
    weights, _, middle = _steps(grow, (width, 3 * width), "int8", known=True)
    scale, factor = (_scale(grow, 0.001, 0.02) for _ in range(2))
    bias = grow.fixed(grow.array((3 * width,), np.float32))
    mask = grow.either(np.ones((2, length), np.int32)) if grow.flag() else ""
    operands = [x, weights, bias, scale, factor, mask, zero, middle]
    grow.add(f"{MICROSOFT}.QAttention", operands, num_heads=heads)


def _quantised_concat(grow: OnnxGrowing) -> None:
    dtype, parts = grow.draw.choice(_BYTES), []
    for _ in range(grow.draw.randint(1, 3)):
        parts += _steps(grow, (2, grow.draw.randint(1, 3), 4), dtype)
    grow.add(f"{MICROSOFT}.QLinearConcat", [*_out(grow, dtype, 0.05, 0.3), *parts], axis=1)


def _dynamic_product(grow: OnnxGrowing) -> None:
    a = grow.input(grow.array(grow.shape(2, 3), np.float32))
    b = _steps(grow, (grow.values[a].shape[-1], 5), grow.draw.choice(_BYTES), known=True)
    bias = [grow.fixed(grow.array((5,), np.float32))][: grow.flag()]
    grow.add(f"{MICROSOFT}.DynamicQuantizeMatMul", [a, *b, *bias])


def _product_to_float(grow: OnnxGrowing) -> None:
    a, b = _steps(grow, (3, 4), grow.draw.choice(_BYTES)), _steps(grow, (4, 5), "int8", known=True)
    bias = [grow.fixed(grow.array((5,), np.float32))][: grow.flag()]
    operands = [a[0], b[0], a[1], b[1], a[2], b[2], *bias]
    grow.add(f"{MICROSOFT}.MatMulIntegerToFloat", operands)


def _quantised_choice(grow: OnnxGrowing) -> None:
    dtype, shape = grow.draw.choice(_BYTES), grow.shape(1, 3)
    condition = grow.input(grow.array(shape, np.bool_))
    a, b = _steps(grow, shape, dtype), _steps(grow, grow.broadcasting(shape), dtype)
    grow.add(f"{MICROSOFT}.QLinearWhere", [condition, *a, *b, *_out(grow, dtype, 0.05, 0.3)])


def _as_microsoft(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        dtype, shape = grow.draw.choice((*_BYTES, "uint16", "int16")), grow.shape(1, 3)
        scale, zero = _scale(grow), grow.fixed(np.asarray(grow.draw.choice((0, 3)), dtype))
        is_back = name == "DequantizeLinear"
        x = _bytes(grow, shape, dtype) if is_back else grow.array(shape, np.float32)
        grow.add(f"{MICROSOFT}.{name}", [grow.input(x), scale, zero])

    return make


def _quantised_embedding(grow: OnnxGrowing) -> None:
    words, width = grow.numbers.integers(0, 4, (2, 3)).astype(np.int32), 8
    shapes = (5, width), (3, width), (2, width), (width,), (width,)
    held = [grow.fixed(_bytes(grow, shape, "uint8")) for shape in shapes]
    scales = [_scale(grow) for _ in held]
    zeros = [grow.fixed(np.asarray(grow.draw.choice((0, 3)), np.uint8)) for _ in held]
    segments = grow.input(grow.numbers.integers(0, 2, (2, 3)).astype(np.int32))
    mask = grow.input(np.ones((2, 3), np.int32))
    operands = [grow.input(words), segments, *held, mask, *scales, *zeros]
    grow.add(f"{MICROSOFT}.QEmbedLayerNormalization", operands, 2)


_POOLS = ("QLinearAveragePool", "QLinearGlobalAveragePool")
_QUANTISED = (*_POOLS, "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax")
ROWS: dict[str, Maker] = {
    f"{MICROSOFT}.QAttention": _attention,
    "ConvInteger": _integer_conv,
    "DequantizeLinear": _dequantise,
    "MatMulInteger": _integer_product,
    "QLinearConv": _quantised_conv,
    "QLinearMatMul": _quantised_product,
    "QuantizeLinear": _quantise,
    f"{MICROSOFT}.DynamicQuantizeMatMul": _dynamic_product,
    f"{MICROSOFT}.MatMulIntegerToFloat": _product_to_float,
    f"{MICROSOFT}.QGemm": _quantised_gemm,
    **{f"{MICROSOFT}.{name}": _quantised_pair(name) for name in ("QLinearAdd", "QLinearMul")},
    **{f"{MICROSOFT}.{name}": _quantised_function(name) for name in _QUANTISED},
    f"{MICROSOFT}.QLinearConcat": _quantised_concat,
    f"{MICROSOFT}.QLinearWhere": _quantised_choice,
    f"{MICROSOFT}.QEmbedLayerNormalization": _quantised_embedding,
    **{f"{MICROSOFT}.{n}": _as_microsoft(n) for n in ("DequantizeLinear", "QuantizeLinear")},
}
