"""A plot: well-formed, with names, ticks and a legend, whatever the points are."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from walstore.cli.plot import Plot, PlotLine, format_tick

LINE = PlotLine("ours", [(1, 10.0), (4, 30.0), (16, 42.0)])


def drawn(*lines: PlotLine, title: str = "title") -> ET.Element:
    return ET.fromstring(Plot(title, "tasks", "appends/s", lines).to_svg())


def texts(svg: ET.Element) -> list[str]:
    return [one.text or "" for one in svg.iter("text")]


def places(svg: ET.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for one in svg.iter("polyline") for pair in one.get("points").split())
    return [(float(x), float(y)) for x, y in pairs]


def test_axes_ticks_and_legend() -> None:
    found = texts(drawn(LINE, PlotLine("the disk", [(1, 12.0), (16, 12.0)])))
    assert found[:9] == ["0", "10", "20", "30", "40", "50", "1", "4", "16"]
    assert found[9:] == ["tasks", "appends/s", "ours", "the disk"]


def test_the_horizontal_axis_is_logarithmic_and_the_vertical_one_begins_at_0() -> None:
    (left, low), (middle, _), (right, _) = places(drawn(LINE))
    assert (left, middle, right) == (64, 382, 700)
    (_, high), *_ = places(drawn(PlotLine("", [(1, 50.0)])))
    assert low == pytest.approx(268 - (268 - high) / 5)


def test_a_line_of_many_points_has_round_ticks_and_no_dots() -> None:
    svg = drawn(PlotLine("", [(0.15 * 1.02**at, at / 2) for at in range(201)]))
    assert texts(svg)[6:12] == ["0.2", "0.5", "1", "2", "5", "tasks"]
    assert svg.find("circle") is None
    far = drawn(PlotLine("", [(0.001 * 1.1**at, at) for at in range(201)]))
    assert {"0.01", "1", "100", "10 k"} <= set(texts(far))


def test_labels_of_near_ticks_do_not_overlap() -> None:
    found = texts(drawn(PlotLine("", [(1, 1.0), (63, 2.0), (64, 3.0), (256, 4.0)])))
    assert "63" in found
    assert "64" not in found


@pytest.mark.parametrize(
    "points", [[], [(0, 5.0)], [(8, 0.0)], [(8, 3.0), (8, 4.0)], [(1e-9, 1e-9), (1e9, 1e12)]]
)
def test_odd_points(points: list[tuple[float, float]]) -> None:
    for x, y in places(drawn(PlotLine("", points))):
        assert 64 <= x <= 700
        assert 36 <= y <= 268


def test_text_is_escaped() -> None:
    odd = "<b>&\"'</b>"
    svg = drawn(PlotLine(odd, []), title=odd)
    assert svg.get("aria-label") == odd
    assert texts(svg)[-1] == odd
    assert svg.find(".//b") is None


def test_format_tick() -> None:
    values = (0, 0.25, 0.30000000000000004, 16, 10_000, 1.5e6, 2e9)
    assert [*map(format_tick, values)] == ["0", "0.25", "0.3", "16", "10 k", "1.5 M", "2 G"]
