"""Norms by windows and axes, caches, and weights of few bits: random nodes of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fuzzing.onnx_growing import MICROSOFT, OnnxGrowing
from fuzzing.onnx_rows_of_layers import kernel_of, windows

from sparsejit.ir.values import Array

Maker = Callable[[OnnxGrowing], Any]


def _is_image(array: Array) -> bool:
    return array.size > 0 and array.dtype == np.float32


def _eye(grow: OnnxGrowing) -> None:
    x = grow.tensor("fi", ranks=(2, 2))
    grow.add("EyeLike", [x], **grow.some(k=grow.draw.choice((-1, 0, 2)), dtype=1))


def _hardmax(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(1, 4), fits=lambda a: a.size > 0)
    grow.add("Hardmax", [x], **grow.some(axis=grow.axis(grow.values[x].ndim)))


def _local_response(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(4, 4), fits=_is_image)
    given = grow.some(alpha=grow.draw.choice((1e-4, 0.5)), beta=0.6, bias=2.0)
    grow.add("LRN", [x], size=grow.draw.choice((1, 3, 5)), **given)


def _power_normalization(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(1, 4), fits=_is_image)
    given = grow.some(axis=grow.axis(grow.values[x].ndim), p=grow.draw.choice((1, 2)))
    grow.add("LpNormalization", [x], **given)


def _power_pool(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(3, 4), fits=_is_image)
    spatial = grow.values[x].shape[2:]
    kernel = kernel_of(grow, spatial)
    given = windows(grow, spatial, kernel) | grow.some(p=grow.draw.choice((1, 2, 3)))
    given.pop("dilations", None)
    if given.get("auto_pad", "").startswith("SAME"):
        given.pop("strides", None)
    if any(n < k for n, k in zip(spatial, kernel, strict=True)) and not given.get("pads"):
        return
    grow.add("LpPool", [x], kernel_shape=kernel, **given)


def _power_over_positions(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(3, 4), fits=_is_image)
    grow.add("GlobalLpPool", [x], **grow.some(p=grow.draw.choice((1, 2, 3))))


def _cache(grow: OnnxGrowing) -> None:
    length, count = 6, grow.draw.choice((1, 3))
    cache, updates = (
        grow.input(grow.array((2, 3, rows, 4), np.float32)) for rows in (length, count)
    )
    mode = grow.draw.choice(("linear", "circular"))
    last = length if mode == "circular" else length - count + 1
    first = [grow.input(grow.numbers.integers(0, last, 2))] if grow.flag() else []
    grow.add("TensorScatter", [cache, updates, *first], **grow.some(mode=mode, axis=-2))


def _few_bits(grow: OnnxGrowing) -> None:
    rows, depth, length = grow.draw.choice((1, 5)), grow.draw.choice((16, 40)), 16
    blocks, bits = -(-depth // length), grow.draw.choice((4, 8))
    x = grow.input(grow.array((2, 3, depth), np.float32))
    held = grow.numbers.integers(0, 256, (rows, blocks, length * bits // 8)).astype(np.uint8)
    scale = grow.fixed(grow.array((rows * blocks,), np.float32, 0.01, 0.1))
    operands = [x, grow.fixed(held), scale]
    if grow.flag():
        count = rows * (-(-blocks * bits // 8))
        operands.append(grow.fixed(grow.numbers.integers(0, 256, count).astype(np.uint8)))
    sizes = {"K": depth, "N": rows, "bits": bits, "block_size": length}
    grow.add(f"{MICROSOFT}.MatMulNBits", operands, **sizes)


ROWS: dict[str, Maker] = {
    "EyeLike": _eye,
    "GlobalLpPool": _power_over_positions,
    "Hardmax": _hardmax,
    "LRN": _local_response,
    "LpNormalization": _power_normalization,
    "LpPool": _power_pool,
    "TensorScatter": _cache,
    f"{MICROSOFT}.MatMulNBits": _few_bits,
}
