"""Plots: what is drawn, where, and what never gets lost."""

import html
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.report.plot import Scale, Series, line_plot, smoothed, thinned, tick_text


def _path(svg: str) -> list[tuple[float, float]]:
    [path] = [e for e in ET.fromstring(svg).iter() if e.tag == "path"]
    return [tuple(map(float, point.split())) for point in path.attrib["d"][1:].split("L")]


def test_points_land_where_the_axes_say() -> None:
    svg = line_plot([Series("a", [(0, 0), (5, 10), (10, 20)])], x_label="x", y_label="y", from_zero=True)
    (x0, y0), (x1, y1), (x2, y2) = _path(svg)
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    rows = [e for e in ET.fromstring(svg).iter("text") if e.get("dy")]
    heights = {e.text: float(e.attrib["y"]) for e in rows}
    assert heights["0"] == pytest.approx(y0, abs=0.2)
    assert heights["10"] == pytest.approx(y1, abs=0.2)


def test_values_over_a_wide_range_get_a_logarithm_only_when_allowed() -> None:
    points = [(0, 1.0), (1, 10.0), (2, 100.0)]
    (_, a), (_, b), (_, c) = _path(line_plot([Series("a", points)], x_label="x", y_label="y", allow_log=True))
    assert a - b == pytest.approx(b - c, abs=0.2)
    (_, a), (_, b), (_, c) = _path(line_plot([Series("a", points)], x_label="x", y_label="y"))
    assert a - b < (b - c) / 5


def test_nothing_finite_draws_nothing() -> None:
    assert line_plot([], x_label="x", y_label="y") == ""
    assert line_plot([Series("a", [(0, math.nan), (1, math.inf)])], x_label="x", y_label="y") == ""


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=30), st.booleans(), st.booleans())
def test_any_numbers_give_well_formed_svg_inside_the_frame(
    points: list[tuple[float, float]], allow_log: bool, from_zero: bool
) -> None:
    svg = line_plot(
        [Series("<a & 'b'>", points, marked=True)],
        x_label="x",
        y_label="<y>",
        allow_log=allow_log,
        from_zero=from_zero,
    )
    if svg:
        assert all(0 <= x <= 1040 and 0 <= y <= 320 for x, y in _path(svg))


def test_the_embedded_values_are_the_given_ones() -> None:
    svg = line_plot([Series("it's", [(1, 2.5), (2, 3.5)])], x_label="x", y_label="y")
    data = json.loads(html.unescape(re.search(r"data-plot='([^']*)'", svg)[1]))
    assert data["series"] == [{"name": "it's", "colour": 1, "points": [[1, 2.5], [2, 3.5]]}]


def test_thinning_keeps_spikes() -> None:
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[70_000] = (70_000.0, -99.0)
    kept = thinned(points)
    assert len(kept) <= 1300
    assert {(54_321.0, 99.0), (70_000.0, -99.0)} <= set(kept)
    assert kept == sorted(kept)


def test_smoothing_leaves_lines_and_constants_as_they_are() -> None:
    line = [(float(x), 2.0 * x) for x in range(1000)]
    assert all(y == pytest.approx(2.0 * x) for x, y in smoothed(line))
    noisy = [(float(x), (-1.0) ** x) for x in range(1001)]
    assert max(abs(y) for _, y in smoothed(noisy)[300:900]) < 0.1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.1, 9.9), (0.5, 5e6), (1e-6, 3e-6), (-7.0, 12.0)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    for is_log in (False, True) if low > 0 else (False,):
        ticks = Scale(low, high, 0, 1, is_log).ticks()
        assert 1 <= len(ticks) <= 9
        assert all(low * 0.999 - 1e-9 <= t <= high * 1.001 for t in ticks)
        assert len({tick_text(t) for t in ticks}) == len(ticks)
