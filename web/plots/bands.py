"""Lanes over time whose bands are as thick as a share: the share of each release over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from web.plots.axes import BELOW, MARK_ROW, Mark, label_at, marked, x_axis
from web.plots.markup import escaped, number
from web.plots.plot import Frame, Key, Plot, empty, plot_of
from web.plots.scales import Unit, linear, text_of

LANE = 26.0
MOST_LANES = 30


@dataclass(frozen=True)
class Stretch:
    """A release (`lane`) that had `share` of the traffic in [0, 1] from `begin` to `end` (seconds since the epoch).

    `is_mirrored`: it had copies only, which no user waited for; drawn hatched. `note` stands in the table. `look`: s1 … s4,
    stable, candidate.
    """

    lane: str
    begin: float
    end: float
    share: float
    is_mirrored: bool = False
    look: str = "stable"
    note: str = ""


def bands(
    title: str,
    caption: str,
    stretches: Sequence[Stretch],
    *,
    begin: float,
    end: float,
    marks: Sequence[Mark] = (),
    name: str = "",
) -> Plot:
    """Lanes in the order in which they first appear, at most 30. What lies outside of [begin, end] is cut off."""
    inside = [one for one in stretches if one.end > begin and one.begin < end and one.share > 0]
    lanes = list(dict.fromkeys(one.lane for one in inside))
    if not lanes:
        return empty(title, "Nothing served in this time.", name=name)
    across = linear([begin, end], unit=Unit.CLOCK, lo=begin, hi=end)
    place = {lane: index for index, lane in enumerate(lanes[:MOST_LANES])}

    def draw(frame: Frame) -> tuple[str, float]:
        shown = [mark for mark in marks if begin <= mark.x <= end]
        y0 = 6.0 + MARK_ROW * min(len(shown), 6)
        bottom = y0 + LANE * len(place)
        parts = []
        for lane, index in place.items():
            y = y0 + LANE * index
            parts.append(
                f'<path class="grid" d="M{number(frame.left)} {number(y + LANE)}H{number(frame.right)}"/>'
                + label_at(frame.left - 6, y + LANE / 2 + 3.5, lane, anchor="end", most=9)
            )
        for one in inside:
            if one.lane not in place:
                continue
            x = frame.x(across.at(one.begin) or 0.0)
            width = max(1.0, frame.x(across.at(one.end) or 0.0) - x)
            size = max(1.5, (LANE - 4) * min(1.0, one.share))
            y = y0 + LANE * place[one.lane] + (LANE - size) / 2
            parts.append(_band(one, x, y, width, size))
        for index, mark in enumerate(shown):
            parts.append(marked(frame, mark, across, 6.0 + MARK_ROW * min(index, 5), bottom))
        parts.append(x_axis(frame, across, bottom, "UTC"))
        return "".join(parts), bottom + BELOW

    rows = [
        [
            text_of(max(one.begin, begin), Unit.CLOCK),
            text_of(min(one.end, end), Unit.CLOCK),
            one.lane,
            f"copies of {text_of(one.share, Unit.SHARE)}" if one.is_mirrored else text_of(one.share, Unit.SHARE),
            one.note,
        ]
        for one in inside
    ]
    key = [Key(one.look, f"{one.lane}") for one in {stretch.lane: stretch for stretch in inside}.values()][:MOST_LANES]
    at = [across.at(one.begin) or 0.0 for one in inside]
    return plot_of(
        title, caption, draw, ("From", "To", "Release", "Traffic", "Because"), rows, name=name, key=key, at=at
    )


def _band(one: Stretch, x: float, y: float, width: float, size: float) -> str:
    look = escaped(one.look)
    if not one.is_mirrored:
        return (
            f'<path class="fill {look}" d="M{number(x)} {number(y)}h{number(width)}v{number(size)}h{number(-width)}z"/>'
        )
    drawn, step = "", 6.0
    for index in range(min(200, int(width / step) + 1)):
        left = x + index * step
        drawn += f"M{number(left)} {number(y + size)}L{number(min(left + step, x + width))} {number(y)}"
    return f'<path class="line hatch {look}" d="{drawn}"/>'
