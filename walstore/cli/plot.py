"""Plot: lines with axes and a legend, as SVG for a page. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

STYLE: Final = """\
svg { display: block; height: auto; max-width: 720px; width: 100%; }
svg text { fill: currentColor; font-size: 12px; }
svg .grid { stroke: #8884; }
svg .axis { stroke: #888; }
svg polyline { fill: none; stroke-linejoin: round; stroke-width: 2; }
svg .line-0 { stroke: #3a7bd5; } svg circle.line-0 { fill: #3a7bd5; }
svg .line-1 { stroke: #d9822b; stroke-dasharray: 6 4; }
svg circle.line-1 { fill: #d9822b; stroke-dasharray: none; }
"""
"""The style sheet of plots, for light and dark pages."""

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 700, 36, 268
"""Edges of the area with the lines."""
_MOST_DOTS: Final = 20
_LABEL_WIDTH: Final = 44


class PlotLine(NamedTuple):
    """A line and its name in the legend."""

    label: str
    points: Sequence[tuple[float, float]]
    """From left to right. Those that are not right of 0 are left out."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One or two lines. The horizontal axis is logarithmic, the vertical one begins at 0."""

    title: str
    across: str
    """Name and unit of the horizontal axis."""
    up: str
    """Name and unit of the vertical axis."""
    lines: Sequence[PlotLine]

    def to_svg(self) -> str:
        """Return the plot as an element of an HTML page, which has to have :data:`STYLE`."""
        drawn = [[point for point in line.points if point[0] > 0] for line in self.lines]
        xs = sorted({x for points in drawn for x, _ in points}) or [1.0]
        heights = _linear_ticks(max((y for points in drawn for _, y in points), default=0))
        area = _Area(xs[0], xs[-1], heights[-1])
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            *_grid(area, xs, heights),
            *self._names(),
            *(part for number, points in enumerate(drawn) for part in _line(area, number, points)),
            "</svg>",
        ]
        return "\n".join(parts)

    def _names(self) -> Iterator[str]:
        """Yield the names of the axes and the legend."""
        yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 12, self.across, "middle")
        middle = (_TOP + _BOTTOM) / 2
        yield _text(14, middle, self.up, "middle", f' transform="rotate(-90 14 {middle:g})"')
        x = _LEFT
        for number, line in enumerate(self.lines):
            yield f'<path class="line-{number}" stroke-width="2" d="M{x} 16h26"/>'
            yield _text(x + 32, 20, line.label, "start")
            x += 64 + 7 * len(line.label)


class _Area(NamedTuple):
    """The values at the edges of the area with the lines."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        if self.low == self.high:
            return (_LEFT + _RIGHT) / 2
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        return _BOTTOM - value / self.top * (_BOTTOM - _TOP)


def _grid(area: _Area, xs: list[float], heights: list[float]) -> Iterator[str]:
    for value in heights:
        y = area.y(value)
        kind = "grid" if value else "axis"
        yield f'<path class="{kind}" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield _text(_LEFT - 8, y + 4, format_tick(value), "end")
    last = -math.inf
    for value in xs if len(xs) <= _MOST_DOTS else _log_ticks(area.low, area.high):
        x = area.x(value)
        if x - last >= _LABEL_WIDTH:
            yield f'<path class="grid" d="M{x:.1f} {_TOP}V{_BOTTOM}"/>'
            yield _text(x, _BOTTOM + 18, format_tick(value), "middle")
            last = x


def _line(area: _Area, number: int, points: list[tuple[float, float]]) -> Iterator[str]:
    places = [(f"{area.x(x):.1f}", f"{area.y(y):.1f}") for x, y in points]
    joined = " ".join(f"{x},{y}" for x, y in places)
    yield f'<polyline class="line-{number}" points="{joined}"/>'
    if len(places) <= _MOST_DOTS:
        for x, y in places:
            yield f'<circle class="line-{number}" cx="{x}" cy="{y}" r="3"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _linear_ticks(high: float) -> list[float]:
    """Return 0 and some round numbers, the last of which is not below ``high``."""
    if high <= 0:
        return [0, 1]
    size = 10 ** math.floor(math.log10(high / 5))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * 5 >= high * (1 - 1e-9))
    return [step * number for number in range(math.ceil(high / step - 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high``: 1, 2, 5, 10, or only 1, 10, 100 of a long way."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1,) if len(decades) > 4 else (1, 2, 5)
    found = [10.0**decade * one for decade in decades for one in times]
    return [value for value in found if low <= value <= high]


def format_tick(value: float) -> str:
    """Return a number for an axis: ``0.25``, ``16``, ``10 k``, ``1.5 M``."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
