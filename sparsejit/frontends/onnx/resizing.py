"""Weights of old positions in the new positions of a Resize along an axis, as ONNX defines them.

The operator's reference in the onnx package takes a neighbour too far where rounding lifts a
position just above a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.values import Array

_MOST_POSITIONS = 1 << 16
MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    *("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"),
    *("half_pixel_symmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"),
)
# The last one is the rounding before opset 11, as in ONNX Runtime.
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "outwards")


@dataclass(frozen=True)
class Resizing:
    """Attributes of a Resize node, the first of each tuple above by default."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    excludes_outside: bool
    antialias: bool

    def weights(self, length: int, scale: float | None, size: int | None) -> Array:
        """Weights (new size, length) of an axis, by its scale or for its new size.

        Raises Unmapped for more positions than an image has, and for a scale that is no number.
        """
        wanted = length * scale if scale is not None else size or 0
        if not 0 <= wanted <= _MOST_POSITIONS:
            raise Unmapped(f"resizes an axis of {length} to {wanted:g}, not 0 to {_MOST_POSITIONS}")
        new = int(wanted)
        step = scale if scale is not None else new / length
        at = self._positions(length, new, step)
        found = np.zeros((new, length), np.float32)
        if self.mode == "nearest":
            rounded = np.clip(self._rounded(at, step), 0, length - 1).astype(np.int64)
            found[np.arange(new), rounded] = 1
            return found
        for row, position in zip(found, at.tolist(), strict=True):
            first = int(np.floor(position))
            places, parts = self._taps(position - first, step)
            places = places + first
            if self.excludes_outside:
                parts = np.where((places >= 0) & (places < length), parts, 0)
                parts = parts / parts.sum()
            np.add.at(row, np.clip(places, 0, length - 1), parts)
        return found

    def _positions(self, length: int, new: int, step: float) -> Array:
        """Position of each new element among the old ones.

        A position on the border of two is rounded as in ONNX Runtime: half pixels in float32, or,
        for "half_pixel_symmetric", in float64 from a scale in float32. Corners are aligned by the
        new size, as in ONNX Runtime and torch, which wrote the file; the reference of the onnx
        package aligns them by the scale times the old size, which need not be whole.
        """
        x = np.arange(new, dtype=np.float64)
        if self.coordinates == "align_corners":
            return x * (length - 1) / (new - 1) if new > 1 else x * 0
        if self.coordinates == "asymmetric":
            return x / step
        short = np.float32(step)
        if self.coordinates == "half_pixel_symmetric":
            offset = np.float32(length / 2) * (1 - np.float32(new) / (short * length))
            return (float(offset) + (x + 0.5) / float(short) - 0.5).astype(np.float32)
        x = x.astype(np.float32)
        if self.coordinates == "tf_half_pixel_for_nn":
            return (x + np.float32(0.5)) / short
        if self.coordinates == "pytorch_half_pixel" and new == 1:
            return x * 0
        return (x + np.float32(0.5)) / short - np.float32(0.5)

    def _rounded(self, at: Array, step: float) -> Array:
        ways: dict[str, Callable[[Array], Array]] = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
            "outwards": np.ceil if step < 1 else np.floor,
        }
        return ways[self.rounding](at)

    def _taps(self, beyond: float, step: float) -> tuple[Array, Array]:
        """Old places, from the one before a position, and their weights.

        `beyond`: distance of the position from the place before it.
        """
        narrow = min(step, 1.0) if self.antialias else 1.0
        reach = 1 if self.mode == "linear" else 2
        first = int(np.floor(-reach / narrow)) + 1
        places = np.arange(first, 2 - first)
        away = np.abs(places - beyond) * narrow
        parts = np.clip(1 - away, 0, 1) if self.mode == "linear" else self._cubic(away)
        return places, parts / parts.sum() if self.antialias else parts

    def _cubic(self, away: Array) -> Array:
        a = self.cubic
        near = ((a + 2) * away - (a + 3)) * away**2 + 1
        far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
        return np.where(away <= 1, near, np.where(away < 2, far, 0.0))
