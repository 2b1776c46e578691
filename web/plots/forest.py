"""Estimates with their intervals, one beneath the other, against a limit: the forest plot of the golden gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from web.plots.axes import BELOW, label_at, x_axis
from web.plots.markup import escaped, is_known, number
from web.plots.plot import Frame, Key, Plot, empty, plot_of
from web.plots.scales import Scale, Unit, linear, text_of

MOST_SHOWN = 40


@dataclass(frozen=True)
class Estimate:
    """A row, with None for unknown numbers. `look`: ok, bad, waiting or idle; `note` stands in the table."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    look: str = "s1"
    note: str = ""


def forest(
    title: str,
    caption: str,
    estimates: Sequence[Estimate],
    *,
    unit: Unit = Unit.SHARE,
    x_label: str = "",
    limit: float | None = None,
    limit_label: str = "limit",
    zero: float | None = 0.0,
    looks: Mapping[str, str] | None = None,
    name: str = "",
) -> Plot:
    """A dot at the value, a whisker from `low` to `high`. `zero` is the line of no difference; None draws none. `looks`: what each
    look means, if several looks exist.

    The first 40 are drawn; the table has all of them (at most 120).
    """
    shown = list(estimates)[:MOST_SHOWN]
    if not shown:
        return empty(title, "Nothing to draw yet.", name=name)
    values = [one for row in shown for one in (row.value, row.low, row.high)]
    known = [*values, limit, zero]
    finite = [one for one in known if one is not None and is_known(one)]
    margin = 0.06 * ((max(finite) - min(finite)) if finite else 1.0)
    across = linear([one for f in finite for one in (f - margin, f + margin)], unit=unit)

    def draw(frame: Frame) -> tuple[str, float]:
        y0 = 18.0 if limit is not None else 6.0
        bottom = y0 + 20.0 * len(shown)
        parts = [
            _vertical(frame, across, zero, "grid", y0, bottom),
            _vertical(frame, across, limit, "line limit", y0, bottom),
        ]
        at = across.at(limit)
        if at is not None:
            end = "end" if at > 0.5 else "start"
            parts.append(label_at(frame.x(at), 12, limit_label, look="said limit", anchor=end))
        for index, row in enumerate(shown):
            parts.append(_row(frame, across, row, y0 + 20.0 * index + 10))
        parts.append(x_axis(frame, across, bottom, x_label))
        return "".join(parts), bottom + BELOW

    rows = [
        [one.label, text_of(one.value, unit), text_of(one.low, unit), text_of(one.high, unit), one.note]
        for one in estimates
    ]
    drawn = dict.fromkeys(row.look for row in shown)
    key = [Key(look, (looks or {}).get(look, "estimate with its interval")) for look in drawn]
    key += [Key("limit", limit_label)] if limit is not None else []
    columns = ("Of", x_label or "Value", "From", "To", "Says")
    return plot_of(title, caption, draw, columns, rows, name=name, key=key, left=170)


def _vertical(frame: Frame, across: Scale, value: float | None, look: str, y0: float, bottom: float) -> str:
    at = across.at(value)
    return "" if at is None else f'<path class="{look}" d="M{number(frame.x(at))} {number(y0)}V{number(bottom)}"/>'


def _row(frame: Frame, across: Scale, row: Estimate, y: float) -> str:
    letters = 16 if frame.is_narrow else 28
    name = label_at(frame.left - 8, y + 3.5, row.label, anchor="end", most=letters)
    at, low, high, look = across.at(row.value), across.at(row.low), across.at(row.high), escaped(row.look)
    if at is None:
        return name + label_at(frame.left + 4, y + 3.5, "not known", look="none")
    whisker = ""
    if low is not None and high is not None:
        x1, x2 = number(frame.x(low)), number(frame.x(high))
        whisker = f'<path class="line whisker {look}" d="M{x1} {number(y - 4)}v8m0 -4H{x2}m0 -4v8"/>'
    return name + whisker + f'<path class="dots {look}" d="M{number(frame.x(at))} {number(y)}h0"/>'
