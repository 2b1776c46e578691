"""Bars stacked by kind over named places, such as the rollouts of each week by their outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from web.plots.axes import label_at, y_tick
from web.plots.markup import escaped, number
from web.plots.plot import Frame, Key, Plot, empty, plot_of
from web.plots.scales import Unit, linear, text_of


@dataclass(frozen=True)
class Bar:
    """One place on the x axis, and how much of each kind is there (missing: none)."""

    label: str
    values: Mapping[str, float]


def bars(
    title: str,
    caption: str,
    places: Sequence[Bar],
    *,
    looks: Mapping[str, str],
    x_label: str = "",
    y_label: str = "",
    unit: Unit = Unit.NUMBER,
    height: float = 90.0,
    name: str = "",
) -> Plot:
    """`looks`: kind → class (ok, bad, waiting, running, idle, s1 …), in the order in which they are stacked from below."""
    totals = [sum(max(0.0, bar.values.get(kind, 0.0)) for kind in looks) for bar in places]
    if not any(totals):
        return empty(title, "Nothing to draw yet.", name=name)
    up = linear([0.0, *totals], unit=unit, lo=0.0)

    def draw(frame: Frame) -> tuple[str, float]:
        y0 = 25.0 if y_label else 6.0
        bottom, slot = y0 + height, frame.span / len(places)
        parts = [label_at(4, y0 - 12, y_label, look="axis-name")] if y_label else []
        for tick in up.ticks(3):
            parts.append(y_tick(frame, bottom - tick.at * height, tick.label))
        drawn = dict.fromkeys(looks, "")
        for index, bar in enumerate(places):
            x, width, base = frame.left + index * slot + slot * 0.15, slot * 0.7, bottom
            for kind in looks:
                size = (up.at(max(0.0, bar.values.get(kind, 0.0))) or 0.0) * height
                if size:
                    base -= size
                    drawn[kind] += f"M{number(x)} {number(base)}h{number(width)}v{number(size)}h{number(-width)}z"
        parts += [f'<path class="fill {escaped(looks[kind])}" d="{path}"/>' for kind, path in drawn.items() if path]
        parts.append(f'<path class="axis" d="M{number(frame.left)} {number(bottom)}H{number(frame.right)}"/>')
        every = max(1, -(-len(places) // (4 if frame.is_narrow else 9)))
        for index in range(0, len(places), every):
            x = frame.left + (index + 0.5) * slot
            parts.append(label_at(x, bottom + 14, places[index].label, anchor="middle", most=14))
        return "".join(parts), bottom + 20

    rows = [[bar.label, *[text_of(bar.values.get(kind, 0.0), unit) for kind in looks]] for bar in places]
    key = [Key(look, kind) for kind, look in looks.items()]
    at = [(index + 0.5) / len(places) for index in range(len(places))]
    return plot_of(title, caption, draw, (x_label or "x", *looks), rows, name=name, key=key, at=at)
