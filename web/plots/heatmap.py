"""Counts by time and size as shades: one panel an arm, beneath each other, so that the two can be compared at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from web.plots.axes import BELOW, label_at, x_axis
from web.plots.markup import number
from web.plots.plot import Frame, Key, Plot, empty, plot_of
from web.plots.scales import Scale, Unit, linear, text_of

#: Shades h1 … h6; 0 is not drawn at all. By the square root of the share of the column, so that rare ones show.
SHADES = 6
#: At most so many columns are drawn; more are added up in neighbours.
MOST_COLUMNS, MOST_COLUMNS_NARROW = 90, 45


@dataclass(frozen=True)
class Arm:
    """`counts[i][j]`: how many in column i fell into the class below `edges[j]`; the last class is above all edges.

    A column without anything (None) was not measured.
    """

    label: str
    counts: Sequence[Sequence[int] | None]


def heatmap(
    title: str,
    caption: str,
    arms: Sequence[Arm],
    *,
    starts: Sequence[float],
    end: float,
    edges: Sequence[float],
    x_label: str = "",
    x_unit: Unit = Unit.DURATION,
    y_unit: Unit = Unit.DURATION,
    limit: float | None = None,
    name: str = "",
) -> Plot:
    """`starts`: where each column begins, ascending; `end`: where the last one ends; `edges` ascending, equally far apart.

    `limit` is drawn at the edge that it equals. The table has a row a column: how many, and under which edges half and 99 %
    of them lie.
    """
    if not starts or not any(column and sum(column) for arm in arms for column in arm.counts):
        return empty(title, "No latency was counted yet.", name=name)
    across = linear([starts[0], end], unit=x_unit)
    classes = len(edges) + 1

    def draw(frame: Frame) -> tuple[str, float]:
        most = MOST_COLUMNS_NARROW if frame.is_narrow else MOST_COLUMNS
        parts, y0 = [], 4.0
        for arm in arms:
            y0 += 16
            parts.append(label_at(4, y0 - 5, arm.label, look="axis-name"))
            columns = _merged(arm.counts, starts, end, most)
            parts.append(_cells(frame, across, columns, classes, y0, 110.0))
            parts.append(_edges(frame, edges, y_unit, y0, 110.0, limit))
            y0 += 110.0
        parts.append(x_axis(frame, across, y0, x_label))
        return "".join(parts), y0 + BELOW

    columns = [x_label or "x"]
    for arm in arms:
        columns += [f"{arm.label}: counted", f"{arm.label}: half under", f"{arm.label}: 99 % under"]
    rows = [
        [text_of(start, x_unit), *[cell for arm in arms for cell in _column_summary(arm.counts[i], edges, y_unit)]]
        for i, start in enumerate(starts)
    ]
    key = [Key(f"h{shade}", text) for shade, text in ((1, "few"), (SHADES, "many"))]
    at = [across.at(start) or 0.0 for start in starts]
    return plot_of(title, caption, draw, columns, rows, name=name, key=key, at=at)


def quantile_edge(column: Sequence[int] | None, edges: Sequence[float], share: float) -> float | None:
    """The edge under which at least this share lies; infinity above the last one, None where nothing was counted."""
    total = sum(column or ())
    if not column or not total:
        return None
    seen = 0
    for count, edge in zip(column, [*edges, math.inf], strict=True):
        seen += count
        if seen >= share * total:
            return edge
    return math.inf


def _column_summary(column: Sequence[int] | None, edges: Sequence[float], unit: Unit) -> list[str]:
    if column is None:
        return ["–", "–", "–"]
    found = [quantile_edge(column, edges, share) for share in (0.5, 0.99)]
    return [
        str(sum(column)),
        *["more" if one is not None and math.isinf(one) else text_of(one, unit) for one in found],
    ]


_Column = tuple[float, float, Sequence[int] | None]


def _merged(counts: Sequence[Sequence[int] | None], starts: Sequence[float], end: float, most: int) -> list[_Column]:
    """At most so many columns of (begin, end, counts), neighbours added up."""
    size, ends = max(1, math.ceil(len(starts) / most)), [*starts[1:], end]
    found: list[_Column] = []
    for first in range(0, len(starts), size):
        last = min(first + size, len(starts)) - 1
        part = [one for one in counts[first : last + 1] if one is not None]
        summed = [sum(column) for column in zip(*part, strict=True)] if part else None
        found.append((starts[first], ends[last], summed))
    return found


def _cells(frame: Frame, across: Scale, columns: Sequence[_Column], classes: int, y0: float, height: float) -> str:
    """One path a shade; cells of one shade that lie side by side in a row are one rectangle."""
    cell, drawn = height / classes, dict.fromkeys(range(1, SHADES + 1), "")
    shades = [_shades(column, classes) for _, _, column in columns]
    for row in range(classes):
        index = 0
        while index < len(columns):
            shade = shades[index][row]
            last = index
            while last + 1 < len(columns) and shades[last + 1][row] == shade and shade:
                last += 1
            if shade:
                x = frame.x(across.at(columns[index][0]) or 0.0)
                right = frame.x(across.at(columns[last][1]) or 0.0)
                top = y0 + height - (row + 1) * cell
                drawn[shade] += f"M{number(x)} {number(top)}h{number(right - x)}v{number(cell)}h{number(x - right)}z"
            index = last + 1
    frame_path = f"M{number(frame.left)} {number(y0)}H{number(frame.right)}V{number(y0 + height)}H{number(frame.left)}z"
    shown = "".join(f'<path class="heat h{shade}" d="{path}"/>' for shade, path in drawn.items() if path)
    return f'<path class="box" d="{frame_path}"/>{shown}'


def _shades(column: Sequence[int] | None, classes: int) -> list[int]:
    total = sum(column or ())
    if not column or not total:
        return [0] * classes
    return [min(SHADES, math.ceil(SHADES * math.sqrt(count / total))) if count else 0 for count in column]


def _edges(frame: Frame, edges: Sequence[float], unit: Unit, y0: float, height: float, limit: float | None) -> str:
    cell, every = height / (len(edges) + 1), max(1, math.ceil(len(edges) / 6))
    parts = []
    for index, edge in enumerate(edges):
        y = y0 + height - (index + 1) * cell
        if index % every == every - 1:
            parts.append(label_at(frame.left - 5, y + 3.5, text_of(edge, unit), anchor="end"))
        if limit is not None and math.isclose(edge, limit):
            parts.append(f'<path class="line limit" d="M{number(frame.left)} {number(y)}H{number(frame.right)}"/>')
    return "".join(parts)
