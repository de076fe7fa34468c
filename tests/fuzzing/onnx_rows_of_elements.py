"""Functions of elements, reductions, normalisations and softmax: random nodes of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fuzzing.onnx_growing import MICROSOFT, OnnxGrowing
from onnx import helper

from sparsejit.ir.values import Array

Maker = Callable[[OnnxGrowing], Any]
_ANY = (-4.0, 4.0)
_ALPHAS = (0.0, 1.0, -1.0, 0.3, 2.5, 0.01)

# Functions of one operand: the kinds of its dtype, its limits, and attributes with their values.
_UNARY: dict[str, tuple[str, tuple[float, float], dict[str, Any]]] = {
    "Abs": ("fiu", _ANY, {}),
    "Acos": ("f", (-1, 1), {}),
    "Acosh": ("f", (1, 40), {}),
    "Asin": ("f", (-1, 1), {}),
    "Asinh": ("f", _ANY, {}),
    "Atan": ("f", _ANY, {}),
    "Atanh": ("f", (-1, 1), {}),
    "BitwiseNot": ("iu", _ANY, {}),
    "Ceil": ("f", _ANY, {}),
    "Celu": ("f", _ANY, {"alpha": (1.0, 0.3, 2.5)}),
    "Cos": ("f", (-30, 30), {}),
    "Cosh": ("f", _ANY, {}),
    "DynamicQuantizeLinear": ("f", _ANY, {}),
    "Elu": ("f", _ANY, {"alpha": _ALPHAS}),
    "Erf": ("f", _ANY, {}),
    "Exp": ("f", _ANY, {}),
    "Floor": ("f", _ANY, {}),
    "Gelu": ("f", _ANY, {"approximate": ("none", "tanh")}),
    "HardSigmoid": ("f", _ANY, {"alpha": _ALPHAS, "beta": _ALPHAS}),
    "HardSwish": ("f", _ANY, {}),
    "Identity": ("fiub", _ANY, {}),
    "IsInf": ("f", _ANY, {"detect_negative": (0, 1), "detect_positive": (0, 1)}),
    "IsNaN": ("f", _ANY, {}),
    "LeakyRelu": ("f", _ANY, {"alpha": _ALPHAS}),
    "Log": ("f", (0.01, 40), {}),
    "Mish": ("f", _ANY, {}),
    "Neg": ("fi", _ANY, {}),
    "Not": ("b", _ANY, {}),
    "Reciprocal": ("f", (0.1, 40), {}),
    "Relu": ("fi", _ANY, {}),
    "Round": ("f", _ANY, {}),
    "Selu": ("f", _ANY, {"alpha": _ALPHAS, "gamma": _ALPHAS}),
    "Shrink": ("fffffffi", _ANY, {"bias": _ALPHAS, "lambd": _ALPHAS}),
    "Sigmoid": ("f", (-40, 40), {}),
    "Sign": ("fiu", _ANY, {}),
    "Sin": ("f", (-30, 30), {}),
    "Sinh": ("f", _ANY, {}),
    "Size": ("fiub", _ANY, {}),
    "Softplus": ("f", (-40, 40), {}),
    "Softsign": ("f", _ANY, {}),
    "Sqrt": ("f", (0, 40), {}),
    "Tan": ("f", (-1.4, 1.4), {}),
    "Tanh": ("f", (-20, 20), {}),
    "ThresholdedRelu": ("f", _ANY, {"alpha": _ALPHAS}),
    f"{MICROSOFT}.Gelu": ("f", _ANY, {}),
    f"{MICROSOFT}.QuickGelu": ("f", _ANY, {"alpha": (1.702, 0.5)}),
}
# Their results for NaN or for numbers below the normal ones are nowhere defined.
NOT_OF_NAN = {
    *("Cast", "CastLike", "DynamicQuantizeLinear", "LogSoftmax", "Mod", "ReduceMax", "ReduceMin"),
    *("Resize", "ScatterElements", "ScatterND", "Sigmoid", "Softmax", "ThresholdedRelu", "TopK"),
}
# Functions of two operands, the second within limits.
_BINARY: dict[str, tuple[str, tuple[float, float]]] = {
    "Add": ("fiu", _ANY),
    "And": ("b", _ANY),
    "BitwiseAnd": ("iu", _ANY),
    "BitwiseOr": ("iu", _ANY),
    "BitwiseXor": ("iu", _ANY),
    "Div": ("fiu", (1, 4)),
    "Equal": ("fib", _ANY),
    "Greater": ("fi", _ANY),
    "GreaterOrEqual": ("fi", _ANY),
    "Less": ("fi", _ANY),
    "LessOrEqual": ("fi", _ANY),
    "Mul": ("fiu", _ANY),
    "Or": ("b", _ANY),
    "PRelu": ("f", _ANY),
    "Sub": ("fiu", _ANY),
    "Xor": ("b", _ANY),
}


def _is_full(array: Array) -> bool:
    """False for no elements, where ONNX Runtime gives other shapes than ONNX says."""
    return array.size > 0


def _unary(name: str) -> Maker:
    kinds, (low, high), attributes = _UNARY[name]

    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor(kinds, low=low, high=high)
        given = grow.some(**{key: grow.draw.choice(value) for key, value in attributes.items()})
        grow.add(name, [x], 3 if name == "DynamicQuantizeLinear" else 1, **given)

    return make


def _binary(name: str) -> Maker:
    kinds, (low, high) = _BINARY[name]

    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor(kinds)
        other = grow.beside(x, low, high)
        shapes = [grow.values[each].shape for each in (x, other)]
        if name == "PRelu" and np.broadcast_shapes(*shapes) != shapes[0]:
            return
        pair = [x, other]
        if low == _ANY[0] and name != "PRelu" and grow.draw.random() < 0.3:
            pair.reverse()
        grow.add(name, pair)

    return make


def _variadic(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("f" if name in ("Mean", "Sum") else "fiu")
        grow.add(name, [x, *(grow.beside(x) for _ in range(grow.draw.randint(0, 3)))])

    return make


def _mod(grow: OnnxGrowing) -> None:
    x = grow.tensor("iif")
    is_float = grow.values[x].dtype.kind == "f"
    low, high = grow.draw.choice([(1, 5), (-5, -1)])
    fmod = 1 if is_float else grow.draw.choice((0, 0, 1))
    grow.add("Mod", [x, grow.beside(x, low, high)], fmod=fmod)


def _pow(grow: OnnxGrowing) -> None:
    way = grow.draw.randrange(3)
    if way == 0:  # a known whole power
        x = grow.tensor("fi", low=-4, high=4)
        dtype = grow.draw.choice((grow.values[x].dtype, np.dtype(np.int64)))
        grow.add("Pow", [x, grow.fixed(grow.draw.choice((0, 1, 2, 3, 4)), dtype)])
    else:
        x = grow.tensor("f", low=0.1, high=10)
        array = grow.values[x]
        grow.add(
            "Pow", [x, grow.fixed(grow.array(grow.draw.choice([(), (1,)]), array.dtype, -1, 2))]
        )


def _shift(grow: OnnxGrowing) -> None:
    x = grow.tensor("u")
    sides = ("LEFT", "RIGHT")
    grow.add("BitShift", [x, grow.beside(x, 0, 7)], direction=grow.draw.choice(sides))


def _where(grow: OnnxGrowing) -> None:
    x = grow.tensor("fiub")
    shape = grow.broadcasting(grow.values[x].shape)
    condition = grow.either(grow.numbers.random(shape) < 0.5)
    grow.add("Where", [condition, *grow.draw.sample([x, grow.beside(x)], 2)])


def _clip(grow: OnnxGrowing) -> None:
    x = grow.tensor("fi" if grow.has("Clip", 12) else "f")
    low, high = grow.draw.choice([(-1, 2), (0, 1), (2, -1), (-3, None), (None, 0), (None, None)])
    if not grow.has("Clip", 11):
        given = {"min": low, "max": high}
        grow.add("Clip", [x], **{key: float(n) for key, n in given.items() if n is not None})
        return
    dtype = grow.values[x].dtype
    bounds = ["" if n is None else grow.either(np.asarray(n).astype(dtype)) for n in (low, high)]
    while bounds and not bounds[-1]:
        bounds.pop()
    grow.add("Clip", [x, *bounds])


_TARGETS = (*["float32"] * 3, "float16", "float64", "int64", "int32", "int8", "uint8", "bool")
_TARGETS += ("int16", "uint16", "uint32", "bfloat16")


def _cast(grow: OnnxGrowing) -> None:
    """Casts of numbers that every target holds: others are not defined."""
    name = grow.draw.choice(_TARGETS)
    low = 0 if name.startswith("u") else -4
    from_half = name != "bool"  # of which ONNX Runtime flushes the smallest to 0
    x = grow.tensor("fiub", low=low, fits=lambda a: from_half or a.dtype != np.float16)
    if grow.has("CastLike") and name != "bfloat16" and grow.draw.random() < 0.3:
        grow.add("CastLike", [x, grow.either(np.ones(2, name))])
        return
    kinds = {"float32": 1, "float64": 11, "bool": 9, "float16": 10, "bfloat16": 16}
    to = kinds.get(name) or helper.np_dtype_to_tensor_dtype(np.dtype(name))
    made = grow.add("Cast", [x], to=to)
    if name == "bfloat16" and made:
        grow.add("Cast", made, to=1)


def _dropout(grow: OnnxGrowing) -> None:
    x = grow.tensor("f")
    ratio = [grow.fixed(0.3, np.float32)] if grow.has("Dropout", 12) else []
    grow.add("Dropout", [x, *ratio[: grow.flag()]])


def _reduction(name: str) -> Maker:
    since = 13 if name == "ReduceSum" else 18
    ends = name in ("ReduceMax", "ReduceMin")
    limits = (0.1, 4.0) if name == "ReduceLogSum" else _ANY

    def make(grow: OnnxGrowing) -> None:
        kinds = "fiiu" if ends else "fffi" if name in _OF_WHOLE_NUMBERS else 20 * "f" + "i"
        x = grow.tensor(kinds, (0, 4), low=limits[0], high=limits[1], fits=_is_full)
        rank = grow.values[x].ndim
        axes = grow.draw.choice([None, [], *[grow.axes(rank)] * 4])
        given = grow.some(keepdims=grow.flag())
        if not grow.has(name, since):
            grow.add(name, [x], **given, **({"axes": axes} if axes else {}))
            return
        given |= grow.some(noop_with_empty_axes=grow.draw.choice((0, 0, 1)))
        grow.add(name, [x] if axes is None else [x, grow.longs(axes)], **given)

    return make


def _fresh(grow: OnnxGrowing, kinds: str, rank: int) -> str:
    """An input: which of two almost equal results is the larger is chance."""
    return grow.input(grow.array(grow.shape(1, rank), grow.dtype(grow.draw.choice(kinds))))


def _place(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = _fresh(grow, "ffi", 4)
        given = grow.some(axis=grow.axis(grow.values[x].ndim), keepdims=grow.flag())
        if grow.has(name, 12) and grow.draw.random() < 0.1:
            given["select_last_index"] = grow.flag()
        grow.add(name, [x], **given)

    return make


def _top_k(grow: OnnxGrowing) -> None:
    x = _fresh(grow, "fi", 3)
    shape = grow.values[x].shape
    axis = grow.axis(len(shape))
    k = grow.draw.randint(0 if grow.draw.random() < 0.1 else 1, max(shape[axis], 1))
    given = {"axis": axis} if grow.draw.random() < 0.8 else {}
    if not grow.has("TopK", 10):
        grow.add("TopK", [x], 2, k=k, **given)
        return
    if grow.has("TopK", 11):
        given |= grow.some(largest=grow.flag(), sorted=1)
    grow.add("TopK", [x, grow.longs([k])], 2, **given)


def _cumulative(grow: OnnxGrowing) -> None:
    x = grow.tensor("ffi", ranks=(1, 4))
    axis = np.asarray(grow.axis(grow.values[x].ndim), grow.draw.choice(("int64", "int32")))
    axis = grow.fixed(axis if grow.flag() else axis.reshape(1))
    grow.add("CumSum", [x, axis], **grow.some(exclusive=grow.flag(), reverse=grow.flag()))


def _softmax(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("f", ranks=(1, 4), low=-30, high=30)
        grow.add(name, [x], **grow.some(axis=grow.axis(grow.values[x].ndim)))

    return make


def _scales(grow: OnnxGrowing, x: str, count: int, number: int = 2) -> list[str]:
    dtype = grow.values[x].dtype
    return [grow.either(grow.array((count,), dtype, 0.2, 2.0)) for _ in range(number)]


def _batch_norm(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(2, 4))
    channels = grow.values[x].shape[1]
    given = grow.some(epsilon=grow.draw.choice((1e-5, 0.1)), momentum=0.5)
    scales = [grow.fixed(grow.array((channels,), grow.values[x].dtype, 0.2, 2)) for _ in range(4)]
    grow.add("BatchNormalization", [x, *scales], **given)


def _instance_norm(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(3, 4))
    channels = grow.values[x].shape[1]
    given = grow.some(epsilon=grow.draw.choice((1e-5, 0.1)))
    grow.add("InstanceNormalization", [x, *_scales(grow, x, channels)], **given)


def _group_norm(grow: OnnxGrowing) -> None:
    groups, each = grow.draw.choice((1, 2, 3)), grow.draw.choice((1, 2, 4))
    x = grow.input(grow.array((2, groups * each, *grow.shape(1, 2)), np.float32))
    count = groups * each if grow.has("GroupNormalization", 21) else groups
    given = grow.some(epsilon=grow.draw.choice((1e-5, 0.1)))
    grow.add("GroupNormalization", [x, *_scales(grow, x, count)], num_groups=groups, **given)


def _layer_norm(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("f", ranks=(1, 4))
        array = grow.values[x]
        axis = grow.axis(array.ndim)
        shape = array.shape[axis % array.ndim :]
        count = 1 + grow.flag() if name == "LayerNormalization" else 1
        operands = [grow.either(grow.array(shape, array.dtype, 0.2, 2)) for _ in range(count)]
        grow.add(name, [x, *operands], **{"axis": axis, **grow.some(epsilon=0.1)})

    return make


def _skip_norm(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("f", ranks=(3, 3))
        shape = grow.values[x].shape
        skip = grow.input(grow.array(shape, grow.values[x].dtype))
        scales = 1 if "Simplified" in name else 2
        operands = [x, skip, *_scales(grow, x, shape[-1], grow.draw.randint(1, scales))]
        if grow.flag():
            operands += ["", *_scales(grow, x, shape[-1], 1)][len(operands) - 1 - scales :]
        grow.add(f"{MICROSOFT}.{name}", operands, **grow.some(epsilon=1e-3))

    return make


def _with_bias(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = grow.tensor("f", ranks=(1, 4))
        grow.add(f"{MICROSOFT}.{name}", [x, *_scales(grow, x, grow.values[x].shape[-1], 1)])

    return make


_OF_WHOLE_NUMBERS = ("ReduceProd", "ReduceSum", "ReduceSumSquare")
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_LAYER_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
ROWS: dict[str, Maker] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _binary(name) for name in _BINARY},
    **{name: _variadic(name) for name in ("Max", "Mean", "Min", "Sum")},
    **{f"Reduce{name}": _reduction(f"Reduce{name}") for name in _REDUCTIONS},
    **{name: _place(name) for name in ("ArgMax", "ArgMin")},
    **{name: _softmax(name) for name in ("LogSoftmax", "Softmax")},
    **{name: _layer_norm(name) for name in _LAYER_NORMS},
    **{f"{MICROSOFT}.{name}": _skip_norm(name) for name in _SKIP_NORMS},
    **{f"{MICROSOFT}.{name}": _with_bias(name) for name in ("BiasGelu", "FastGelu")},
    "BatchNormalization": _batch_norm,
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "CumSum": _cumulative,
    "Dropout": _dropout,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "Mod": _mod,
    "Pow": _pow,
    "TopK": _top_k,
    "Where": _where,
}
