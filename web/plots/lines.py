"""Lines, steps, areas and bands over one x axis, in one panel or in several beneath each other, with limits and marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from web.plots.axes import BELOW, MARK_ROW, Mark, label_at, marked, x_axis, y_tick
from web.plots.markup import Point, escaped, number, path_of, runs_of, thinned
from web.plots.plot import Frame, Key, Plot, chosen, empty, plot_of
from web.plots.scales import Scale, Unit, linear, logarithmic, text_of

#: Of one line.
MOST_POINTS = 600


class Kind(StrEnum):
    LINE = "line"
    STEP = "step"  # keeps its height until the next point
    AREA = "area"  # filled down to 0 (or the bottom)
    STEP_AREA = "step area"
    BAND = "band"  # filled between y and `low`
    DOTS = "dots"


@dataclass(frozen=True)
class Series:
    """One line. `points` are (x, y) with x ascending and y None for a gap; `low` is a band's lower side.

    `look` is a class of plots.css: candidate, stable, worse, over, fine, desired, acknowledged, observed, failed, retried,
    attempts, s1 … s4.
    """

    label: str
    points: Sequence[Point]
    look: str = "s1"
    kind: Kind = Kind.LINE
    low: Sequence[Point] = ()


@dataclass(frozen=True)
class Limit:
    """A horizontal line with words at its left end."""

    y: float
    label: str
    look: str = "limit"


@dataclass(frozen=True)
class Axis:
    """`lo` and `hi` None: as far as the values go (y from 0, unless values lie below; a logarithmic one from the least)."""

    label: str = ""
    unit: Unit = Unit.NUMBER
    is_log: bool = False
    lo: float | None = None
    hi: float | None = None

    def scale(self, values: Iterable[float | None], *, from_zero: bool) -> Scale:
        known = [one for one in values if one is not None and isfinite(one)]
        if self.is_log:
            return logarithmic(known, unit=self.unit, lo=self.lo, hi=self.hi)
        lo = self.lo if self.lo is not None else min([0.0, *known]) if from_zero else None
        return linear(known, unit=self.unit, lo=lo, hi=self.hi)


@dataclass(frozen=True)
class Panel:
    """One frame: its lines, its y axis, and how tall it is in drawing units."""

    series: Sequence[Series]
    y: Axis = Axis()
    limits: Sequence[Limit] = ()
    height: float = 160.0


def lines(
    title: str,
    caption: str,
    series: Sequence[Series],
    *,
    x: Axis = Axis(),
    y: Axis = Axis(),
    limits: Sequence[Limit] = (),
    marks: Sequence[Mark] = (),
    height: float = 180.0,
    most: int = MOST_POINTS,
    name: str = "",
) -> Plot:
    """One panel. The table has a row for each x that any line has."""
    return panels(title, caption, [Panel(series, y, limits, height)], x=x, marks=marks, most=most, name=name)


def panels(
    title: str,
    caption: str,
    stack: Sequence[Panel],
    *,
    x: Axis = Axis(),
    marks: Sequence[Mark] = (),
    most: int = MOST_POINTS,
    name: str = "",
) -> Plot:
    """Panels beneath each other over the same x; an empty plot with a reason if no line has a point.

    `most`: points of a line at full width; half of them on narrow screens.
    """
    every = [one for panel in stack for one in panel.series]
    known = [px for one in every for px, py in one.points if py is not None and isfinite(py) and isfinite(px)]
    if not known:
        return empty(title, "Nothing to draw yet.", name=name)
    across = x.scale([*known, *(mark.x for mark in marks)], from_zero=False)
    heights = [_y_scale(panel) for panel in stack]

    def draw(frame: Frame) -> tuple[str, float]:
        shown = [mark for mark in marks if across.lo <= mark.x <= across.hi]
        top = 4.0 + MARK_ROW * len(shown)
        parts, y0 = [], top
        for panel, scale in zip(stack, heights, strict=True):
            y0 += 30.0 if panel.y.label else 8.0
            parts.append(_panel(frame, panel, scale, across, y0, most // 2 if frame.is_narrow else most))
            y0 += panel.height
        parts.append(x_axis(frame, across, y0, x.label))
        parts += [marked(frame, mark, across, 4.0 + MARK_ROW * index, y0) for index, mark in enumerate(shown)]
        return "".join(parts), y0 + BELOW

    xs, columns, rows = _table(every, across, stack)
    key = list(dict.fromkeys(Key(one.look, one.label) for one in every))  # a line of several panels has a single key
    at = [across.at(value) or 0.0 for value in xs]
    return plot_of(title, caption, draw, (x.label or "x", *columns), rows, name=name, key=key, at=at)


def _y_scale(panel: Panel) -> Scale:
    values: list[float | None] = [py for one in panel.series for _, py in one.points]
    values += [py for one in panel.series for _, py in one.low]
    values += [limit.y for limit in panel.limits]
    return panel.y.scale(values, from_zero=True)


def _panel(frame: Frame, panel: Panel, scale: Scale, across: Scale, y0: float, most: int) -> str:
    bottom = y0 + panel.height

    def y(value: float | None) -> float | None:
        at = scale.at(value)
        return None if at is None else bottom - at * panel.height

    parts = []
    if panel.y.label:
        parts.append(label_at(4, y0 - 12, panel.y.label, look="axis-name"))
    room = max(2, int(panel.height // 28))
    for tick in scale.ticks(min(room, 6)):
        ty = bottom - tick.at * panel.height
        parts.append(y_tick(frame, ty, tick.label))
    order = sorted(panel.series, key=lambda one: one.kind not in {Kind.AREA, Kind.STEP_AREA, Kind.BAND})
    for one in order:
        parts.append(_series(frame, one, scale, across, y0, panel.height, most))
    for limit in panel.limits:
        ly = y(limit.y)
        if ly is None:
            continue
        parts.append(
            f'<path class="line {escaped(limit.look)}" d="M{number(frame.left)} {number(ly)}H{number(frame.right)}"/>'
            + label_at(frame.left + 4, max(ly - 4, y0 + 9), limit.label, look=f"said {escaped(limit.look)}")
        )
    return "".join(parts)


def _series(frame: Frame, one: Series, scale: Scale, across: Scale, y0: float, height: float, most: int) -> str:
    look = escaped(one.look)

    left, span, bottom = frame.left, frame.span, y0 + height  # a drawing has thousands of points

    def place(point: Point) -> tuple[float, float] | None:
        x, y = across.at(point[0]), scale.at(point[1])
        return None if x is None or y is None else (left + x * span, bottom - y * height)

    points = thinned(one.points, most)
    if one.kind in {Kind.LINE, Kind.STEP}:
        drawn = path_of([place(point) for point in points], is_step=one.kind is Kind.STEP)
        return f'<path class="line {look}" d="{drawn}"/>' + _alone(points, place, look)
    if one.kind is Kind.DOTS:
        return _dots([spot for point in points if (spot := place(point)) is not None], look)
    floor = y0 + height - (scale.at(max(0.0, scale.lo)) or 0.0) * height
    if one.kind is Kind.BAND:
        upper = [spot for point in points if (spot := place(point)) is not None]
        lower = [spot for point in thinned(one.low, most) if (spot := place(point)) is not None]
        drawn = path_of([*upper, *reversed(lower)]) + "Z" if upper and lower else ""
        return f'<path class="area {look}" d="{drawn}"/>'
    drawn = ""
    for run in runs_of(points):
        spots = [spot for point in run if (spot := place(point)) is not None]
        if not spots:
            continue
        line = path_of(spots, is_step=one.kind is Kind.STEP_AREA)
        drawn += f"{line}V{number(floor)}H{number(spots[0][0])}Z"
    return f'<path class="area {look}" d="{drawn}"/>'


def _alone(points: Sequence[Point], place: object, look: str) -> str:
    """A dot for a point between two gaps, which no line shows."""
    spots = [place(run[0]) for run in runs_of(points) if len(run) == 1]  # type: ignore[operator]
    return _dots([spot for spot in spots if spot is not None], look)


def _dots(spots: Sequence[tuple[float, float]], look: str) -> str:
    drawn = "".join(f"M{number(x)} {number(y)}h0" for x, y in spots)
    return f'<path class="dots {look}" d="{drawn}"/>' if drawn else ""


def _table(
    every: Sequence[Series], across: Scale, stack: Sequence[Panel]
) -> tuple[list[float], list[str], list[list[str]]]:
    """A row for each x, of many the chosen ones."""
    unit_of = {id(one): panel.y.unit for panel in stack for one in panel.series}
    whole = sorted({x for one in every for x, _ in one.points if isfinite(x)})
    xs = [whole[index] for index in chosen(len(whole))]  # writing numbers takes long: only those that are kept
    tables = [dict(one.points) for one in every]
    rows = []
    for x in xs:
        cells = [
            text_of(table.get(x), unit_of.get(id(one), Unit.NUMBER)) for one, table in zip(every, tables, strict=True)
        ]
        rows.append([text_of(x, across.unit), *cells])
    labels = [one.label for one in every]
    columns = [
        f"{one.label}, {panel.y.label}" if labels.count(one.label) > 1 else one.label
        for panel in stack
        for one in panel.series
    ]
    return xs, columns, rows
