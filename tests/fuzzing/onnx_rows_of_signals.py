"""Fourier transforms: random nodes of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzing.onnx_growing import OnnxGrowing

Maker = Callable[[OnnxGrowing], Any]


def _dft(grow: OnnxGrowing) -> None:
    x = grow.tensor("f", ranks=(2, 4), fits=lambda a: a.shape[-1] in (1, 2))
    shape, is_inverse = grow.values[x].shape, grow.flag()
    is_half = grow.flag() * (shape[-1] == 1 + is_inverse)
    axis = grow.draw.randrange(len(shape) - 1) - grow.draw.choice((0, len(shape)))
    lengths = (1, 2, 3, 5, 8, 9, 66)
    if is_inverse and is_half:
        lengths = tuple(n for n in range(1, 15) if n // 2 + 1 == shape[axis])
    length = grow.longs(grow.draw.choice(lengths)) if grow.flag() and lengths else ""
    given = grow.some(inverse=is_inverse or None, onesided=is_half or None)
    if grow.has("DFT", 20):
        grow.add("DFT", [x, length, grow.longs(axis)], **given)
    else:
        grow.add("DFT", [x, length], axis=axis, **given)


def _stft(grow: OnnxGrowing) -> None:
    length = grow.draw.choice((4, 9, 30))
    x = grow.tensor("f", shape=(grow.draw.choice((1, 2, 3)), length, 1), ranks=(3, 3))
    size = grow.draw.randint(1, length)
    has_window = grow.flag()
    dtype = grow.values[x].dtype
    window = grow.either(grow.array((size,), dtype, 0.1, 1.0)) if has_window else ""
    sizes = [grow.longs(size)] if not has_window or grow.flag() else []
    hop = grow.longs(grow.draw.randint(1, 5))
    grow.add("STFT", [x, hop, window, *sizes], **grow.some(onesided=grow.flag()))


ROWS: dict[str, Maker] = {"DFT": _dft, "STFT": _stft}
