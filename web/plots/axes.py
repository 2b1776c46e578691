"""What every plot with an x axis draws: the axis with its ticks, and vertical marks with their words."""

from __future__ import annotations

from dataclasses import dataclass

from web.plots.markup import escaped, number
from web.plots.plot import Frame
from web.plots.scales import Scale

#: Beneath the axis, for the ticks' labels and the axis' name.
BELOW = 32.0
#: Above the frame, for the words of a mark.
MARK_ROW = 13.0


@dataclass(frozen=True)
class Mark:
    """A vertical line through all panels, with words above."""

    x: float
    label: str
    look: str = "mark"


def label_at(x: float, y: float, text: str, *, look: str = "tick", anchor: str = "start", most: int = 60) -> str:
    """A label at a place."""
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{look}" x="{number(x)}" y="{number(y)}"{end}>{escaped(text, most)}</text>'


def x_axis(frame: Frame, across: Scale, bottom: float, label: str = "") -> str:
    """The axis at the bottom of the drawing; takes `BELOW` beneath it."""
    parts = [f'<path class="axis" d="M{number(frame.left)} {number(bottom)}H{number(frame.right)}"/>']
    for tick in across.ticks(4 if frame.is_narrow else 8):
        x = frame.x(tick.at)
        parts.append(f'<path class="axis" d="M{number(x)} {number(bottom)}v4"/>')
        parts.append(label_at(x, bottom + 15, tick.label, anchor="end" if tick.at > 0.97 else "middle"))
    if label:
        parts.append(label_at(frame.right, bottom + 28, label, look="axis-name", anchor="end"))
    return "".join(parts)


def y_tick(frame: Frame, y: float, label: str, *, is_grid: bool = True) -> str:
    """A label left of the frame, with a line across it."""
    grid = f'<path class="grid" d="M{number(frame.left)} {number(y)}H{number(frame.right)}"/>' if is_grid else ""
    return grid + label_at(frame.left - 5, y + 3.5, label, anchor="end")


def marked(frame: Frame, mark: Mark, across: Scale, top: float, bottom: float) -> str:
    """A mark with its words in the row that begins at `top`, on the side with room."""
    at = across.at(mark.x) or 0.0
    x, look = frame.x(at), escaped(mark.look)
    anchor, shift = ("end", -4) if at > 0.5 else ("start", 4)
    line = f'<path class="line {look}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'
    return line + label_at(x + shift, top + 9, mark.label, look=f"said {look}", anchor=anchor, most=44)
