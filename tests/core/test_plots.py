"""Plots as numbers and text: scales rise, ticks lie inside, paths hold no NaN, labels cannot break out, gaps stay gaps."""

from __future__ import annotations

import ast
import gzip
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web import plots
from web.plots import Axis, Kind, Limit, Mark, Panel, Plot, Scale, Series, Unit
from web.plots.markup import path_of, runs_of, words
from web.plots.scales import nice

HOSTILE = "\"><script>alert(1)</script>\x00\u202eevil\u2066 & 'x' " + "w" * 10_000
finite = st.floats(min_value=-1e15, max_value=1e15, allow_nan=False)
strange = st.one_of(st.none(), st.floats(), st.floats(min_value=-1e6, max_value=1e6))
units = st.sampled_from([Unit.NUMBER, Unit.SHARE, Unit.DURATION])
scales = st.builds(
    lambda values, unit, is_log: (plots.logarithmic if is_log else plots.linear)(values, unit=unit),
    st.lists(strange, max_size=8), units, st.booleans(),
)  # fmt: skip


def drawings(plot: Plot) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in (plot.svg, plot.narrow)]


def paths(plot: Plot) -> list[str]:
    return [one.attrib["d"] for drawing in drawings(plot) for one in drawing.iter("path")]


def assert_sound(plot: Plot) -> None:
    """What every plot keeps: XML, names, numbers only, nothing outside of its box, a cell for each column."""
    for drawing in drawings(plot):
        assert drawing.attrib["role"] == "img"
        named = drawing.attrib["aria-labelledby"].split()
        assert [drawing[0].attrib["id"], drawing[1].attrib["id"]] == named
        assert {one.tag for one in drawing.iter()} <= {"svg", "title", "desc", "path", "text"}
        assert not any(
            name.startswith("on") or name in {"style", "href"} for one in drawing.iter() for name in one.attrib
        )
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for text in drawing.iter("text"):
            assert -1 <= float(text.attrib["x"]) <= width + 1 and -1 <= float(text.attrib["y"]) <= height + 1
        for one in drawing.iter("path"):
            assert re.fullmatch(r"[MLHVhvmzZ0-9. -]*", one.attrib["d"]), one.attrib["d"]
    assert all((one.attrib.get("tabindex") == "0") == bool(plot.at) for one in drawings(plot) if plot.rows)
    assert all(len(row) == len(plot.columns) for row in plot.rows)
    assert not plot.at or (len(plot.at) == len(plot.rows) and all(0 <= at <= 1 for at in plot.at))


def test_plots_ask_nothing_but_the_standard_library() -> None:
    imported = {
        name.split(".")[0]
        for path in Path(plots.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert imported <= {*sys.stdlib_module_names, "web", "numpy"}


def test_a_logarithmic_time_is_ticked_as_people_count_it() -> None:
    scale = Scale(1, 100_000, Unit.DURATION, is_log=True)
    assert [one.label for one in scale.ticks(8)] == ["1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d"]


# --- scales -----------------------------------------------------------------------------------------------------------


@given(scales, st.lists(finite, min_size=2, max_size=20))
def test_a_scale_never_falls_and_stays_within(scale: Scale, values: list[float]) -> None:
    places = [at for value in sorted(values) if (at := scale.at(value)) is not None]
    assert all(0 <= at <= 1 for at in places)
    assert all(first <= then for first, then in pairwise(places))
    assert scale.at(scale.lo) == pytest.approx(0, abs=1e-9) and scale.at(scale.hi) == pytest.approx(1)


@given(scales, st.integers(1, 12))
def test_ticks_lie_inside_rise_and_are_few(scale: Scale, most: int) -> None:
    ticks = scale.ticks(most)
    assert len(ticks) <= most
    assert all(scale.lo - 1e-9 * abs(scale.lo) <= one.value <= scale.hi + 1e-9 * abs(scale.hi) for one in ticks)
    assert all(0 <= one.at <= 1 and one.label for one in ticks)
    assert all(first.at <= then.at and first.label != then.label for first, then in pairwise(ticks))


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_missing_has_no_place(value: float | None) -> None:
    assert Scale(0, 1).at(value) is None
    assert plots.text_of(value) == "–"


def test_nothing_at_or_below_zero_has_a_logarithm() -> None:
    assert Scale(0.1, 10, is_log=True).at(0) is None
    assert Scale(0.1, 10, is_log=True).at(-3) is None


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_nice_step_is_one_two_or_five(value: float) -> None:
    step = nice(value)
    assert value * (1 - 1e-6) <= step <= value * 10
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9)) in {1, 2, 5, 10}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, Unit.SHARE, "25 %"), (0.0005, Unit.SHARE, "0.05 %"), (1.0, Unit.SHARE, "100 %"),
        (0.25, Unit.DURATION, "250 ms"), (1.0, Unit.DURATION, "1 s"), (90.0, Unit.DURATION, "90 s"), (120.0, Unit.DURATION, "2 min"),
        (0.00005, Unit.DURATION, "50 µs"), (7200.0, Unit.DURATION, "2 h"), (0.0, Unit.DURATION, "0 s"),
        (12_345.0, Unit.NUMBER, "12.3k"), (2.5e6, Unit.NUMBER, "2.5M"), (7.09, Unit.NUMBER, "7.09"), (0.0, Unit.NUMBER, "0"),
        (0.0, Unit.CLOCK, "1970-01-01 00:00:00 UTC"),
    ],
)  # fmt: skip
def test_values_are_written_as_people_write_them(value: float, unit: Unit, text: str) -> None:
    assert plots.text_of(value, unit) == text


def test_time_is_stepped_as_people_count_it() -> None:
    assert [one.label for one in Scale(0, 300, Unit.DURATION).ticks(6)] == [
        "0 s",
        "1 min",
        "2 min",
        "3 min",
        "4 min",
        "5 min",
    ]
    assert [one.label for one in Scale(0, 7200, Unit.CLOCK).ticks(5)] == ["00:00", "00:30", "01:00", "01:30", "02:00"]


# --- paths and thinning -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.one_of(st.none(), st.floats(-5, 5))), max_size=400), st.integers(8, 60)
)
def test_thinning_keeps_ends_extremes_and_gaps(points: list[tuple[float, float | None]], most: int) -> None:
    points = sorted(points, key=lambda one: one[0])
    thin = plots.thinned(points, most)
    assert len(thin) <= max(most, len(points) if len(points) <= most else 0)
    assert [one for one in thin if one not in points] == []
    if points:
        assert thin[0] == points[0] and thin[-1] == points[-1]
    known = [y for _, y in points if y is not None]
    if known:
        left = [y for _, y in thin if y is not None]
        assert min(left) == min(known) and max(left) == max(known)
    assert any(y is None for _, y in thin) == any(y is None for _, y in points)


def test_a_gap_begins_the_line_anew() -> None:
    assert path_of([(0, 1), (1, 2), None, (3, 4), (5, 6)]) == "M0 1L1 2M3 4L5 6"
    assert path_of([(0, 1), (1, 2)], is_step=True) == "M0 1H1V2"
    assert runs_of([(0, 1.0), (1, None), (2, math.nan), (3, 2.0)]) == [[(0, 1.0)], [(3, 2.0)]]


def test_a_missing_value_is_a_gap_and_no_zero() -> None:
    plot = plots.lines("t", "c", [Series("r3", [(0, 5.0), (1, 5.0), (2, None), (3, 5.0), (4, 5.0)])], y=Axis(lo=0))
    drawn = next(one.attrib["d"] for one in drawings(plot)[0].iter("path") if one.attrib["class"] == "line s1")
    assert drawn.count("M") == 2
    heights = set(re.findall(r"[ML][\d.]+ ([\d.]+)", drawn))
    assert len(heights) == 1
    assert [row[1] for row in plot.rows] == ["5", "5", "–", "5", "5"]


def test_a_point_between_gaps_is_seen() -> None:
    plot = plots.lines("t", "c", [Series("r3", [(0, None), (1, 2.0), (2, None)])])
    assert any(one.attrib["class"] == "dots s1" for one in drawings(plot)[0].iter("path"))


# --- every plot -------------------------------------------------------------------------------------------------------

EVERY: dict[str, Callable[[str, list[float | None]], Plot]] = {
    "lines": lambda label, values: plots.lines(
        label, label, [Series(label, list(enumerate(values)), kind=kind) for kind in Kind if kind is not Kind.BAND],
        x=Axis(label), y=Axis(label), limits=[Limit(1.0, label)], marks=[Mark(1.0, label)],
    ),
    "log": lambda label, values: plots.panels(
        label, label, [Panel([Series(label, list(enumerate(values)))], Axis(label, Unit.DURATION, is_log=True))],
        x=Axis(label, Unit.DURATION, is_log=True),
    ),
    "band": lambda label, values: plots.lines(
        label, label, [Series(label, list(enumerate(values)), kind=Kind.BAND, low=[(0.0, 0.0), (3.0, 0.0)])]
    ),
    "forest": lambda label, values: plots.forest(
        label, label, [plots.Estimate(label, one, -0.1, 0.2, note=label) for one in values], limit=0.01, limit_label=label
    ),
    "bands": lambda label, values: plots.bands(
        label, label, [plots.Stretch(label, 0, 50, 0.5, note=label), plots.Stretch("r2", 20, 90, 1.0, is_mirrored=True)],
        begin=10, end=80, marks=[Mark(30, label)],
    ),
    "staircase": lambda label, values: plots.staircase(
        label, label, [plots.PlannedStep(label, 0.1, 60, approvals=1), plots.PlannedStep("bake", 1.0, None, 30)]
    ),
    "rate": lambda label, values: plots.rate_latency(
        label, label, [plots.LoadPoint(r, {label: r / 100}, r) for r in (10, 20, 40)], limit_s=0.2, capacity_per_s=30
    ),
    "empty": lambda label, values: plots.empty(label, label),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_label_stays_a_label(name: str) -> None:
    plot = EVERY[name](HOSTILE, [1.0, 2.0])
    assert_sound(plot)
    for svg in (plot.svg, plot.narrow):
        assert "<script" not in svg and "\x00" not in svg and "\u202e" not in svg and "\u2066" not in svg
        assert len(svg) < 20_000
    assert re.fullmatch(r"[A-Za-z0-9_-]+", plot.name)


@given(st.sampled_from(sorted(EVERY)), st.lists(strange, max_size=12))
def test_no_value_breaks_a_plot(name: str, values: list[float | None]) -> None:
    assert_sound(EVERY[name]("label", values))


@given(st.text(max_size=200))
def test_any_text_makes_sound_markup(text: str) -> None:
    assert_sound(EVERY["lines"](text, [1.0, None, 3.0]))
    assert len(words(text)) <= 60


@given(st.lists(strange, max_size=400), st.text(max_size=40))
def test_a_sparkline_is_sound(values: list[float | None], label: str) -> None:
    drawing = ET.fromstring(plots.sparkline(values, label=label, limit=1.0))
    assert drawing.attrib["role"] == "img"
    for one in drawing.iter("path"):
        assert re.fullmatch(r"[MLHVhv0-9. -]*", one.attrib["d"])


def test_the_key_of_a_forest_has_each_look_that_is_drawn() -> None:
    def key(*looks: str, **over: Any) -> list[tuple[str, str]]:
        rows = [plots.Estimate("a", 1.0, 0.5, 1.5, look) for look in looks]
        return [(one.look, one.label) for one in plots.forest("t", "c", rows, **over).key]

    assert key("candidate", "candidate") == [("candidate", "estimate with its interval")]
    told = {"stable": "r1", "candidate": "r2", "idle": "neither"}
    assert key("stable", "candidate", "stable", looks=told) == [("stable", "r1"), ("candidate", "r2")]
    assert key("s1", limit=2.0, limit_label="most") == [("s1", "estimate with its interval"), ("limit", "most")]


def test_nothing_at_all_says_so() -> None:
    for plot in (plots.lines("t", "c", []), plots.forest("t", "c", []),
                 plots.bands("t", "c", [], begin=0, end=1), plots.staircase("t", "c", [])):  # fmt: skip
        assert plot.is_empty and plot.rows == ()
        assert_sound(plot)


def test_markup_is_shown_as_it_is_and_text_is_not() -> None:
    assert plots.sparkline([1], label="x").__html__().startswith("<svg")


# --- sizes ------------------------------------------------------------------------------------------------------------


def compressed(text: str) -> int:
    return len(gzip.compress(text.encode(), 6))


def test_a_long_story_stays_small() -> None:
    """20,000 ticks of three lines."""
    story = [(float(i), math.sin(i / 300) * 4 + (i % 7) / 9) for i in range(20_000)]
    plot = plots.lines("t", "c", [Series(name, story, name) for name in ("worse", "over", "fine")])
    assert max(compressed(plot.svg), compressed(plot.narrow)) <= 5 * 1024
    assert len(plot.rows) <= 120 and plot.rows[-1][0] == "20k"


def test_the_narrow_drawing_has_half_the_ticks() -> None:
    wide, narrow = drawings(EVERY["lines"]("label", [1.0, 2.0, 3.0]))
    ticks = [sum(one.attrib["class"] == "axis" for one in drawing.iter("path")) for drawing in (wide, narrow)]
    assert ticks[1] <= ticks[0] and narrow.attrib["viewBox"].startswith("0 0 360 ")
