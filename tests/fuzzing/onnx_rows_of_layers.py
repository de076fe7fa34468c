"""Products, convolutions, pooling, recurrent layers, attention: random nodes of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.onnx_growing import MICROSOFT, OnnxGrowing

Maker = Callable[[OnnxGrowing], Any]
_PADDING = ("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _sparse(grow: OnnxGrowing, shape: Sequence[int], dtype: Any = np.float32) -> Any:
    """Weights, most often with zeros."""
    density = grow.draw.choice((0.1, 0.4, 1.0, 1.0))
    weights = grow.array(shape, dtype, -1.0, 1.0) * (grow.numbers.random(shape) < density)
    return weights.astype(dtype)


def _matmul(grow: OnnxGrowing) -> None:
    a = grow.tensor("fffi", ranks=(1, 4), fits=lambda a: a.dtype.itemsize > 1)
    array, out = grow.values[a], grow.draw.choice((1, 2, 5, 8, 17))
    way = grow.draw.randrange(4)
    if way == 0:
        shape: tuple[int, ...] = (array.shape[-1],)
    elif way == 1 and array.ndim > 2:
        shape = (*grow.broadcasting(array.shape[:-2]), array.shape[-1], out)
    else:
        shape = (array.shape[-1], out)
    grow.add("MatMul", [a, grow.either(_sparse(grow, shape, array.dtype))])


def _gemm_of(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        a = grow.tensor("f", ranks=(2, 2))
        array, out = grow.values[a], grow.draw.choice((1, 3, 8, 16))
        given = grow.some(
            transA=grow.flag(), transB=grow.flag(), alpha=0.5, beta=grow.draw.choice((0.0, 2.0))
        )
        rows, depth = array.shape[::-1] if given.get("transA") else array.shape
        shape = (out, depth) if given.get("transB") else (depth, out)
        operands = [a, grow.either(_sparse(grow, shape, array.dtype))]
        if not grow.has("Gemm", 11) or grow.flag():
            wide = grow.draw.choice([(out,), (1, out), (rows, out), (rows, 1), ()])
            operands.append(grow.either(grow.array(wide, array.dtype)))
        if name != "Gemm":
            given["activation"] = grow.draw.choice(("Relu", "Sigmoid", "Tanh"))
        grow.add(name, operands, **given)

    return make


def _fused_matmul(grow: OnnxGrowing) -> None:
    a = grow.tensor("f", ranks=(2, 4))
    array, out = grow.values[a], grow.draw.choice((1, 3, 8))
    given = grow.some(transA=grow.flag(), transB=grow.flag(), alpha=0.5)
    depth = array.shape[-2] if given.get("transA") else array.shape[-1]
    shape = (out, depth) if given.get("transB") else (depth, out)
    grow.add(
        f"{MICROSOFT}.FusedMatMul", [a, grow.either(_sparse(grow, shape, array.dtype))], **given
    )


def _einsum(grow: OnnxGrowing) -> None:
    """Labels that one operand has, both, or the result: each as it comes."""
    draw, sizes = grow.draw, {}
    for label in "abcdef"[: draw.randint(1, 6)]:
        sizes[label] = draw.choice((1, 2, 3, 5))
    count = draw.choice((1, 2, 2, 2, 3))
    terms = [draw.sample(sorted(sizes), draw.randint(0, min(4, len(sizes)))) for _ in range(count)]
    used = sorted({label for term in terms for label in term})
    result = draw.sample(used, draw.randint(0, min(5, len(used))))
    dots = [] if draw.random() < 0.7 else [draw.choice((2, 3))]
    lead = "..." if dots else ""
    operands = [
        grow.either(grow.array((*dots, *(sizes[label] for label in term)), np.float32))
        for term in terms
    ]
    equation = ",".join(lead + "".join(term) for term in terms)
    if draw.random() < 0.8:
        equation += f"->{lead}{''.join(result)}"
    grow.add("Einsum", operands, equation=equation)


def windows(grow: OnnxGrowing, spatial: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """strides, dilations and padding of any kind."""
    rank, draw = len(kernel), grow.draw
    given = grow.some(
        strides=[draw.choice((1, 1, 2, 3)) for _ in kernel],
        dilations=[draw.choice((1, 1, 1, 2)) for _ in kernel],
    )
    mode = draw.choice(_PADDING)
    if mode == "NOTSET" and draw.random() < 0.7:
        even = [draw.randint(0, max(k - 1, 0)) for k in kernel]
        odd = [draw.randint(0, max(k - 1, 0)) for k in kernel]
        given["pads"] = [*even, *(even if grow.flag() else odd)]
    elif mode != "NOTSET" or grow.flag():
        given["auto_pad"] = mode
    assert rank == len(spatial)
    return given


def _image(grow: OnnxGrowing, kinds: str = "f") -> str:
    return grow.tensor(kinds, ranks=(3, 4), fits=lambda a: a.size > 0 and a.dtype != np.int64)


def kernel_of(grow: OnnxGrowing, spatial: Sequence[int]) -> list[int]:
    return [grow.draw.choice([k for k in (1, 2, 3, 3, 5) if k <= n + 2]) for n in spatial]


def _groups(grow: OnnxGrowing, channels: int) -> int:
    return grow.draw.choice([n for n in (1, 1, 1, 2, 3, channels) if channels % n == 0])


def _conv(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = _image(grow)
        array = grow.values[x]
        channels, spatial = array.shape[1], array.shape[2:]
        kernel, groups = kernel_of(grow, spatial), _groups(grow, channels)
        out = groups * grow.draw.choice((1, 2, 4))
        weights = _sparse(grow, (out, channels // groups, *kernel), array.dtype)
        operands = [x, grow.fixed(weights) if grow.draw.random() < 0.9 else grow.input(weights)]
        if grow.flag():
            operands.append(grow.either(grow.array((out,), array.dtype)))
        given = windows(grow, spatial, kernel) | grow.some(kernel_shape=kernel)
        if groups > 1:
            given["group"] = groups
        if name != "Conv":
            kind, numbers = grow.draw.choice(
                [("Relu", None), ("Tanh", None), ("LeakyRelu", [0.1]), ("Clip", [-1.0, 1.0])]
            )
            given |= {"activation": kind, **({"activation_params": numbers} if numbers else {})}
        grow.add(name, operands, **given)

    return make


def _conv_transpose(grow: OnnxGrowing) -> None:
    x = _image(grow)
    array = grow.values[x]
    channels, spatial = array.shape[1], array.shape[2:]
    kernel, groups = kernel_of(grow, spatial), _groups(grow, channels)
    out = grow.draw.choice((1, 2, 3))
    weights = grow.fixed(_sparse(grow, (channels, out, *kernel), array.dtype))
    bias = [grow.either(grow.array((out * groups,), array.dtype))] if grow.flag() else []
    given = windows(grow, spatial, kernel) | grow.some(kernel_shape=kernel, group=groups)
    if groups > 1:
        given["group"] = groups
    if grow.draw.random() < 0.3:
        given["output_padding"] = [
            grow.draw.randint(0, max(n - 1, 0)) for n in given.get("strides", [1] * len(kernel))
        ]
    if grow.draw.random() < 0.15 and "auto_pad" not in given:
        given.pop("pads", None)
        given["output_shape"] = [n * 2 for n in spatial]
    grow.add("ConvTranspose", [x, weights, *bias], **given)


def _pool(name: str) -> Maker:
    def make(grow: OnnxGrowing) -> None:
        x = _image(grow, "f" if name == "AveragePool" else "fffiu")
        spatial = grow.values[x].shape[2:]
        kernel = kernel_of(grow, spatial)
        given = windows(grow, spatial, kernel)
        since = 19 if name == "AveragePool" else 10
        if not grow.has(name, since):
            given.pop("dilations", None)
        if given.get("auto_pad", "").startswith("SAME"):  # ONNX Runtime pads these otherwise
            given["strides"] = [
                min(pair) for pair in zip(given.get("strides", kernel), kernel, strict=True)
            ]
        spans = zip(spatial, kernel, given.get("dilations", [1] * len(kernel)), strict=True)
        if any(n < (k - 1) * d + 1 for n, k, d in spans) and not given.get("pads"):
            return
        if name == "AveragePool":
            given |= grow.some(count_include_pad=grow.flag())
        if grow.has(name, 10):
            given |= grow.some(ceil_mode=grow.flag())
        grow.add(name, [x], kernel_shape=kernel, **given)

    return make


def _global_pool(name: str) -> Maker:
    return lambda grow: grow.add(name, [_image(grow)])


_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def _recurrent(name: str) -> Maker:
    gates = _GATES[name]

    def make(grow: OnnxGrowing) -> None:
        draw = grow.draw
        x = grow.tensor("f", ranks=(3, 3), fits=lambda a: a.size > 0 and a.dtype == np.float32)
        time, batch, width = grow.values[x].shape
        hidden, direction = (
            draw.choice((1, 3, 8)),
            draw.choice(("forward", "reverse", "bidirectional")),
        )
        ways = 2 if direction == "bidirectional" else 1
        given = {"hidden_size": hidden} | grow.some(direction=direction if ways == 1 else None)
        if ways == 2:
            given["direction"] = direction
        operands = [x, grow.fixed(_sparse(grow, (ways, gates * hidden, width)))]
        operands.append(grow.fixed(_sparse(grow, (ways, gates * hidden, hidden))))
        more = [grow.fixed(grow.array((ways, 2 * gates * hidden), np.float32)), ""]
        states = 2 if name == "LSTM" else 1
        more += [grow.either(grow.array((ways, batch, hidden), np.float32)) for _ in range(states)]
        if draw.random() < 0.3:
            lengths = np.array([draw.randint(0, time) for _ in range(batch)], np.int32)
            more[1] = grow.either(lengths)
        operands += more[: draw.choice((0, 1, 2, len(more)))]
        while not operands[-1]:
            operands.pop()
        if name == "GRU":
            given |= grow.some(linear_before_reset=grow.flag())
        if name == "RNN" and grow.flag():
            given["activations"] = [draw.choice(("Relu", "Tanh"))] * ways
        if draw.random() < 0.2:
            given["clip"] = draw.choice((0.3, 1.0))
        if name == "LSTM":
            given |= {"input_forget": 1} if draw.random() < 0.1 else {}
        grow.add(name, operands, 1 + (1 if name != "LSTM" else 2), **given)

    return make


def _reverse_sequence(grow: OnnxGrowing) -> None:
    x = grow.tensor("fib", ranks=(2, 4), fits=lambda a: a.size > 0)
    time_axis = grow.flag()
    batch_axis, shape = 1 - time_axis, grow.values[x].shape
    time, batch = shape[time_axis], shape[batch_axis]
    given: dict[str, int] = {"batch_axis": batch_axis, "time_axis": time_axis}
    if time_axis == 0:
        given = grow.some(**given)
    lengths = np.array([grow.draw.randint(0, time) for _ in range(batch)], np.int64)
    grow.add("ReverseSequence", [x, grow.either(lengths)], **given)


def _recurrent_of_bytes(grow: OnnxGrowing) -> None:
    """Weights (directions, in, 4 hidden), a scale and a zero point for each direction or gate."""
    draw, name = grow.draw, grow.draw.choice(("int8", "uint8"))
    x = grow.tensor("f", ranks=(3, 3), fits=lambda a: a.size > 0 and a.dtype == np.float32)
    width, hidden = grow.values[x].shape[-1], draw.choice((1, 3, 8))
    ways = draw.choice((1, 2))
    bias = grow.fixed(grow.array((ways, 8 * hidden), np.float32)) if grow.flag() else ""
    operands, steps = [x], list[str]()
    each = draw.choice([(ways,), (ways, 4 * hidden)])
    for depth in (width, hidden):
        operands.append(grow.fixed(_whole(grow, (ways, depth, 4 * hidden), name)))
        steps.append(grow.fixed(grow.array(each, np.float32, 0.001, 0.02)))
        steps.append(grow.fixed(_whole(grow, each, name) if grow.flag() else np.zeros(each), name))
    direction = "bidirectional" if ways == 2 else draw.choice(("forward", "reverse"))
    operands += [bias, "", "", "", "", *steps]
    given = {"hidden_size": hidden, "direction": direction}
    grow.add(f"{MICROSOFT}.DynamicQuantizeLSTM", operands, 3, **given)


def _whole(grow: OnnxGrowing, shape: Sequence[int], name: str) -> Any:
    limits = np.iinfo(name)
    return grow.numbers.integers(limits.min, limits.max + 1, shape).astype(name)


def _attention(grow: OnnxGrowing) -> None:
    heads, depth, length = (
        grow.draw.choice((1, 2)),
        grow.draw.choice((2, 4)),
        grow.draw.choice((1, 3)),
    )
    width = heads * depth
    x = grow.input(grow.array((2, length, width), np.float32))
    weights = grow.fixed(_sparse(grow, (width, 3 * width)))
    operands = [x, weights, grow.fixed(grow.array((3 * width,), np.float32))]
    if grow.flag():
        mask = grow.draw.choice([(2, length), (2,)])
        keys = np.ones(mask) if len(mask) > 1 else np.full(mask, max(length - 1, 1))
        operands.append(grow.either(keys.astype(np.int32)))
    given = grow.some(unidirectional=grow.flag())
    grow.add(f"{MICROSOFT}.Attention", operands, num_heads=heads, **given)


def _attention_apart(grow: OnnxGrowing) -> None:
    heads, length, keys = (grow.draw.choice((1, 2)), *(grow.draw.choice((1, 3)) for _ in range(2)))
    widths = [heads * grow.draw.choice((2, 4)) for _ in range(2)]
    q, k, v = (
        grow.input(grow.array((2, count, width), np.float32))
        for count, width in ((length, widths[0]), (keys, widths[0]), (keys, widths[1]))
    )
    bias, mask, added = (
        grow.either(array) if grow.flag() else ""
        for array in (
            grow.array((2 * widths[0] + widths[1],), np.float32),
            grow.draw.choice([np.ones((2, keys), np.int32), np.full(2, keys, np.int32)]),
            grow.array((1, heads, length, keys), np.float32),
        )
    )
    given = grow.some(scale=0.3, unidirectional=grow.flag() if length == keys else None)
    operands = [q, k, v, bias, mask, added]
    grow.add(f"{MICROSOFT}.MultiHeadAttention", operands, num_heads=heads, **given)


def _embedding(grow: OnnxGrowing) -> None:
    words, length, width = 7, grow.draw.choice((1, 4)), 6
    ids = [
        grow.input(grow.numbers.integers(0, n, (2, length)).astype(np.int32)) for n in (words, 2)
    ]
    tables = [grow.fixed(grow.array((n, width), np.float32)) for n in (words, 9, 2)]
    scales = [grow.fixed(grow.array((width,), np.float32)) for _ in range(2)]
    mask = grow.fixed(grow.numbers.integers(0, 2, (2, length)).astype(np.int32))
    grow.add(f"{MICROSOFT}.EmbedLayerNormalization", [*ids, *tables, *scales, mask], 2)


def _grid_sample(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(4, 4), fits=lambda a: 0 < a.size < 600 and a.dtype == np.float32)
    batch = grow.values[x].shape[0]
    points = batch, grow.draw.randint(1, 3), grow.draw.randint(1, 3), 2
    grid = grow.array(points, "float32", -2, 2)
    old = not grow.has("GridSample", 20)
    modes = ("bilinear", "nearest", "bicubic") if old else ("linear", "nearest", "cubic")
    given = grow.some(
        mode=grow.draw.choice(modes),
        padding_mode=grow.draw.choice(("zeros", "border", "reflection")),
        align_corners=grow.flag(),
    )
    grow.add("GridSample", [x, grow.either(grid)], **given)


ROWS: dict[str, Maker] = {
    "AveragePool": _pool("AveragePool"),
    "Conv": _conv("Conv"),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "GRU": _recurrent("GRU"),
    "Gemm": _gemm_of("Gemm"),
    "GlobalAveragePool": _global_pool("GlobalAveragePool"),
    "GridSample": _grid_sample,
    "GlobalMaxPool": _global_pool("GlobalMaxPool"),
    "LSTM": _recurrent("LSTM"),
    "MatMul": _matmul,
    "MaxPool": _pool("MaxPool"),
    "RNN": _recurrent("RNN"),
    "ReverseSequence": _reverse_sequence,
    f"{MICROSOFT}.Attention": _attention,
    f"{MICROSOFT}.DynamicQuantizeLSTM": _recurrent_of_bytes,
    f"{MICROSOFT}.EmbedLayerNormalization": _embedding,
    f"{MICROSOFT}.FusedConv": _conv(f"{MICROSOFT}.FusedConv"),
    f"{MICROSOFT}.FusedGemm": _gemm_of(f"{MICROSOFT}.FusedGemm"),
    f"{MICROSOFT}.FusedMatMul": _fused_matmul,
    f"{MICROSOFT}.MultiHeadAttention": _attention_apart,
}
