"""Images sampled between their pixels, at points of a grid of coordinates in [-1, 1].

    x (n, c, h, w), grid (n, p, q, 2)    rows (n, h w, c), of which each point takes one to 16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from sparsejit.frontends.writing.arranging import at, moved, reshaped
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.ops.selection import OwnRows
from sparsejit.ir.values import Element, Value

# Whole numbers up to here are exact in float32.
_EXACT = 2**24
# The coefficient of the cubic convolution.
_CUBIC = -0.75
# Writes the steps from a coordinate in pixels to one that lies on an axis of that length.
Padding = Callable[[Any, Any, int, bool], Any]


def grid_sampled(
    write: Writer, x: Operand, grid: Operand, mode: str, padding: str, align_corners: bool
) -> Value:
    """x at the points of the grid, by "nearest", "linear" or "cubic" interpolation.

    `padding` is the rule for points beyond the image: "zeros", "border" or "reflection".
    """
    image, points = write.floats(x), write.floats(grid)
    axes = len(image.shape) - 2
    if mode == "cubic" and axes != 2:
        raise Unmapped(f"interpolates cubically over {axes} axes")
    if not image.type.size:
        raise Unmapped("has an image without pixels")
    batch, channels, *sizes = image.shape
    places = points.shape[1:-1]
    tables = reshaped(write, moved(write, image, 1, -1), (batch, prod(sizes), channels))
    coordinates = [
        _in_pixels(write, at(write, points, -1, axes - 1 - n), sizes[n], align_corners)
        for n in range(axes)
    ]
    taps = [
        _TAPS[mode](write, value, size, _PADDINGS[padding], align_corners)
        for value, size in zip(coordinates, sizes, strict=True)
    ]
    total: Value | None = None
    for chosen in product(*taps):
        part = _part(write, tables, sizes, chosen)
        total = part if total is None else write.pointwise("add", total, part)
    assert total is not None
    return moved(write, reshaped(write, total, (batch, *places, channels)), -1, 1)


@dataclass(frozen=True)
class _Tap:
    """One pixel along one axis for each point of the grid: its place, and its weight (None: 1).

    The place is 0, and `is_inside` false, outside of the image.
    """

    place: Value
    is_inside: Value
    weight: Value | None


def _in_pixels(write: Writer, x: Value, size: int, align_corners: bool) -> Value:
    """A coordinate in pixels; -1 and 1 are the centres, or the outer edges, of the end pixels."""
    f = write.formula("pixels")
    if align_corners:
        return f.finish(f("mul", f("add", x, 1.0), (size - 1) / 2))
    return f.finish(f("mul", f("sub", f("mul", f("add", x, 1.0), float(size)), 1.0), 0.5))


def _part(write: Writer, tables: Value, sizes: Sequence[int], taps: Sequence[_Tap]) -> Value:
    """The pixels that taps of all axes name, (batch, points, channels), each times its weights.

    Outside of the image they are zero, or NaN where a weight is.
    """
    element = Element.FLOAT32 if prod(sizes) <= _EXACT else Element.INT64
    f = write.formula("pixel")
    number: Any = None
    for axis, tap in enumerate(taps):
        scale = write.number(prod(sizes[axis + 1 :]), element)
        scaled = f("mul", write.cast(tap.place, element), scale)
        number = scaled if number is None else f("add", number, scaled)
    batch = tables.shape[0]
    numbers = reshaped(write, write.cast(f.finish(number), Element.INT64), (batch, -1))
    pixels = write.one(OwnRows(), numbers, tables)
    each = (*numbers.shape, 1)
    f = write.formula("weighted pixel")
    inside: Any = None
    for tap in taps:
        own = reshaped(write, tap.is_inside, each)
        inside = own if inside is None else f("logical_and", inside, own)
    weights = [reshaped(write, tap.weight, each) for tap in taps if tap.weight is not None]
    weight: Any = weights[0] if weights else 0.0
    for other in weights[1:]:
        weight = f("mul", weight, other)
    weighted = f("mul", pixels, weight) if weights else pixels
    return f.finish(f("where", inside, weighted, f("mul", weight, 0.0) if weights else 0.0))


def _tap(write: Writer, place: Value, size: int, weight: Value | None) -> _Tap:
    """The tap at whole numbers of pixels, of an axis of `size` pixels; NaN is outside."""
    inside, last = write.formula("inside"), float(size - 1)
    within = inside(
        "logical_and", inside("greater_equal", place, 0.0), inside("less_equal", place, last)
    )
    is_inside = inside.finish(within)
    return _Tap(write.pointwise("where", is_inside, place, 0.0), is_inside, weight)


def _nearest(
    write: Writer, x: Value, size: int, padding: Padding, align_corners: bool
) -> list[_Tap]:
    """The tap of the nearest pixel along one axis; halfway between two, the even one."""
    f = write.formula("nearest")
    place = f.finish(f("round", padding(f, x, size, align_corners)))
    return [_tap(write, place, size, None)]


def _linear(
    write: Writer, x: Value, size: int, padding: Padding, align_corners: bool
) -> list[_Tap]:
    """Taps of the two pixels around each point along one axis, the nearer one with more weight."""
    f = write.formula("linear")
    padded = padding(f, x, size, align_corners)
    first = f("floor", padded)
    behind = f("sub", padded, first)
    places = f.all(first, f("add", first, 1.0), f("sub", 1.0, behind), f("add", behind, 0.0))
    return [_tap(write, places[n], size, places[n + 2]) for n in range(2)]


def _cubic(
    write: Writer, x: Value, size: int, padding: Padding, align_corners: bool
) -> list[_Tap]:
    """Four pixels with the weights of a cubic convolution; each pixel is padded alone."""
    f = write.formula("cubic")
    first = f("floor", x)
    behind = f("sub", x, first)
    taps = []
    for step in range(-1, 3):
        place = padding(f, f("add", first, float(step)), size, align_corners)
        taps += [f("round", place), _cubic_weight(f, f("abs", f("sub", behind, float(step))), step)]
    values = f.all(*taps)
    return [_tap(write, values[2 * n], size, values[2 * n + 1]) for n in range(4)]


def _cubic_weight(f: Any, distance: Any, step: int) -> Any:
    """Weight of a pixel at distance d from a point in cubic interpolation; a is _CUBIC.

    It is (a + 2) d^3 - (a + 3) d^2 + 1 for the two pixels around the point, which are `step` 0 and
    1, else a d^3 - 5 a d^2 + 8 a d - 4 a.
    """
    a = _CUBIC
    if step in (0, 1):
        inner = f("fma", distance, a + 2, -(a + 3))
        return f("fma", f("mul", inner, distance), distance, 1.0)
    return f("fma", f("fma", f("fma", distance, a, -5 * a), distance, 8 * a), distance, -4 * a)


def _unpadded(f: Any, x: Any, size: int, align_corners: bool) -> Any:
    return x


def _to_border(f: Any, x: Any, size: int, align_corners: bool) -> Any:
    """Clamp a coordinate in pixels to 0 .. size - 1; NaN becomes 0."""
    above = f("where", f("greater", x, 0.0), x, 0.0)
    return f("where", f("less", above, float(size - 1)), above, float(size - 1))


def _reflected(f: Any, x: Any, size: int, align_corners: bool) -> Any:
    """Mirror a coordinate in pixels at both ends of the image, as often as needed to lie inside.

    The ends are the centres of the outer pixels if `align_corners`, else their edges.
    """
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return f("mul", f("where", f("equal", x, x), 0.0, 0.0), 0.0)
    distance = f("abs", f("sub", x, low))
    turns = f("floor", f("div", distance, span))
    rest = f("sub", distance, f("mul", turns, span))
    odd = f("sub", turns, f("mul", f("floor", f("mul", turns, 0.5)), 2.0))
    turned = f("where", f("greater", odd, 0.5), f("sub", span, rest), rest)
    return _to_border(f, f("add", turned, low), size, align_corners)


_TAPS = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}
_PADDINGS: dict[str, Padding] = {
    "zeros": _unpadded,
    "border": _to_border,
    "reflection": _reflected,
}
