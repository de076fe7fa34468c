"""The frontier of error against time as an SVG picture, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

PICTURE_STYLE = """
figure { margin: 0; max-width: 760px }
figcaption { color: var(--quiet) }
svg { display: block; width: 100%; min-width: 480px; height: auto; font-size: 12px }
svg text { fill: var(--quiet) }
.grid { stroke: var(--line) }
.dense { stroke: var(--quiet); stroke-dasharray: 4 4 }
.frontier { fill: none; stroke: var(--accent); stroke-width: 2 }
.tried { fill: var(--page); stroke: var(--ink); stroke-width: 1.5 }
.returned { fill: var(--accent); stroke: var(--ink); stroke-width: 1.5 }
svg .name { fill: var(--ink); stroke: var(--page); stroke-width: 4; paint-order: stroke }
"""
_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 14, 46
# Errors outside are not shown: smaller ones do not matter, and larger ones mean useless outputs.
_LEAST_ERROR, _MOST_ERROR = 1e-4, 10.0
_MOST_TICKS = 6
_NAME_WIDTH = 130  # pixels that the name of the returned point takes, with room
_MARGIN = 1.06  # of the time axis, beyond the longest time


@dataclass(frozen=True)
class FrontierPoint:
    """A choice of zeros and storage for all layers.

    Attributes:
        ns: predicted nanoseconds of a call
        error: the error of the outputs, as `Shrunk.error`
    """

    ns: float
    error: float


class _Axes(NamedTuple):
    """Coordinates in pixels: times linear from 0, errors logarithmic."""

    longest_ns: float
    least: float
    most: float

    def x(self, ns: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ns / self.longest_ns

    def y(self, error: float) -> float:
        share = log10(error / self.least) / log10(self.most / self.least)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def holds(self, point: FrontierPoint) -> bool:
        """Whether the point lies within the picture."""
        return self.least <= point.error <= self.most and point.ns <= self.longest_ns


def frontier_picture(
    frontier: Sequence[FrontierPoint],
    tried: Sequence[FrontierPoint],
    returned: FrontierPoint | None,
) -> str:
    """A figure: the predicted frontier, the choices that were tried, and the one returned."""
    points = (*frontier, *tried)
    if not points:
        return ""
    axes = _axes_of(points)
    dense_ns = max(point.ns for point in frontier or points)
    parts = [*_grid(axes), _dense_line(axes, dense_ns)]
    line = " ".join(
        f"{axes.x(point.ns):.1f},{axes.y(point.error):.1f}"
        for point in frontier
        if axes.holds(point)
    )
    parts.append(f'<polyline class="frontier" points="{line}"/>')
    held = [point for point in tried if axes.holds(point)]
    parts += [_circle(axes, point, "tried") for point in held if point is not returned]
    if returned is not None and returned in held:
        parts.append(_circle(axes, returned, "returned"))
    return (
        f'<figure><div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="error of the outputs against predicted time">{"".join(parts)}</svg></div>'
        f"<figcaption>{escape(_caption(returned is not None))}</figcaption></figure>"
    )


def _caption(is_faster: bool) -> str:
    chosen = "; the filled one was returned" if is_faster else "; the dense model was returned"
    return (
        "Line: the choices that no other beats, by predicted error. Circles: the choices that were "
        f"carried out, by measured error{chosen}."
    )


def _axes_of(points: Sequence[FrontierPoint]) -> _Axes:
    errors = [x.error for x in points if _LEAST_ERROR <= x.error <= _MOST_ERROR]
    low = floor(log10(min(errors, default=_LEAST_ERROR)))
    high = max(ceil(log10(max(errors, default=1.0))), low + 1)
    return _Axes(_MARGIN * max(point.ns for point in points), 10.0**low, 10.0**high)


def _grid(axes: _Axes) -> list[str]:
    """Lines and numbers of both axes, and the names of these."""
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for power in range(round(log10(axes.least)), round(log10(axes.most)) + 1):
        y = axes.y(10.0**power)
        parts.append(_line("grid", left, y, right, y))
        parts.append(_text(f"{10.0 ** (power + 2):g}%", left - 8, y + 4, "end"))
    unit, name = (1e6, "ms") if axes.longest_ns >= 1e6 else (1e3, "us")
    step = _round_step(axes.longest_ns / unit)
    for number in range(floor(axes.longest_ns / unit / step) + 1):
        x = axes.x(number * step * unit)
        parts.append(_line("grid", x, _TOP, x, bottom))
        parts.append(_text(f"{number * step:g}", x, bottom + 18, "middle"))
    parts.append(_text(f"predicted time, {name}", (left + right) / 2, _HEIGHT - 6, "middle"))
    middle = (_TOP + bottom) / 2
    parts.append(_text("error of the outputs", 14, middle, "middle", f"rotate(-90 14 {middle})"))
    return parts


def _round_step(longest: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, with at most `_MOST_TICKS` up to the longest."""
    power = 10.0 ** floor(log10(longest / _MOST_TICKS))
    return next(power * n for n in (1, 2, 5, 10) if longest / (power * n) <= _MOST_TICKS)


def _dense_line(axes: _Axes, ns: float) -> str:
    x = axes.x(ns)
    line = _line("dense", x, _TOP, x, _HEIGHT - _BOTTOM)
    return line + _text("dense", x - 6, _TOP + 12, "end")


def _circle(axes: _Axes, point: FrontierPoint, kind: str) -> str:
    x, y = axes.x(point.ns), axes.y(point.error)
    title = f"{kind}: {point.error:.2%} at {microseconds(point.ns)} us"
    made = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{title}</title></circle>'
    if kind != "returned":
        return made
    side, anchor = (-1, "end") if x > _LEFT + _NAME_WIDTH else (1, "start")
    return made + _text(f"returned, {point.error:.2%}", x + 11 * side, y + 18, anchor, kind="name")


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(
    words: str, x: float, y: float, anchor: str, transform: str = "", kind: str = "axis"
) -> str:
    turned = f' transform="{transform}"' if transform else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}{turned}>{escape(words)}</text>'


def microseconds(ns: float, digits: int = 4) -> str:
    """Nanoseconds as microseconds, to that many digits or to whole ones."""
    us = ns / 1e3
    return f"{us:,.0f}" if us >= 10 ** (digits - 1) else f"{us:.{digits}g}"
