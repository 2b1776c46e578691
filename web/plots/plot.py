"""A plot as templates show it: drawn twice, for wide and for narrow places, with the same numbers as a table."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from web.plots.markup import Markup, escaped, number

#: Widths of the two drawings, in their own units.
WIDE, NARROW = 720.0, 360.0
#: A table is for reading: of more rows only evenly chosen ones are kept, the last among them.
MOST_ROWS = 120


@dataclass(frozen=True)
class Key:
    """A line of the key: a look and its meaning."""

    look: str
    label: str


@dataclass(frozen=True)
class Plot:
    """`svg` for wide places, `narrow` for narrow ones; `rows` of text cells, the first of each heads its row.

    `at` gives for each row its place on the drawing's x axis, as a fraction, for the cross-hair. Empty where
    rows have no place. `left` and `right` are the axis' ends in both drawings.
    """

    title: str
    caption: str
    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    narrow: Markup
    key: tuple[Key, ...] = ()
    at: tuple[float, ...] = ()
    name: str = "plot"
    is_empty: bool = False

    @cached_property
    def table(self) -> Markup:
        """The rows as markup of a table's body: a template would take longer for its cells than all else of a page takes."""
        at = [f' data-at="{one:.4f}"' for one in self.at] or [""] * len(self.rows)
        cells = [[html.escape(cell) for cell in row] for row in self.rows]
        return Markup(
            "\n".join(
                f'<tr><th scope="row"{place}>{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
                for place, row in zip(at, cells, strict=True)
            )
        )


@dataclass(frozen=True)
class Frame:
    """The axes of a drawing, in its units."""

    width: float
    left: float
    right: float

    @property
    def span(self) -> float:
        return self.right - self.left

    def x(self, fraction: float) -> float:
        return self.left + fraction * self.span

    @property
    def is_narrow(self) -> bool:
        return self.width < 500


def framed(width: float, *, left: float = 54, right: float = 14) -> Frame:
    return Frame(width, left, width - right)


#: Draws the inside of a plot at a width: its elements, and its height.
Draw = Callable[[Frame], tuple[str, float]]


def plot_of(
    title: str,
    caption: str,
    draw: Draw,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    name: str = "",
    key: Sequence[Key] = (),
    at: Sequence[float] = (),
    left: float = 54,
    is_empty: bool = False,
) -> Plot:
    """Both drawings with their title and description, and the table bounded to a readable size.

    `name` separates plots on a page; by default it is made of the title.
    """
    called = name or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "plot"
    called = re.sub(r"[^A-Za-z0-9_-]", "-", called)
    drawn = [
        _svg(title, caption, draw, framed(WIDE, left=left), f"{called}-wide", "wide", is_read=bool(at)),
        _svg(
            title,
            caption,
            draw,
            framed(NARROW, left=min(left, 0.3 * NARROW)),
            f"{called}-narrow",
            "small",
            is_read=bool(at),
        ),
    ]
    kept = chosen(len(rows))
    return Plot(
        title=title,
        caption=caption,
        svg=drawn[0],
        narrow=drawn[1],
        columns=tuple(columns),
        rows=tuple(tuple(rows[i]) for i in kept),
        key=tuple(key),
        at=tuple(at[i] for i in kept) if at else (),
        name=called,
        is_empty=is_empty,
    )


def chosen(count: int) -> list[int]:
    """The rows that a table of this length keeps."""
    if count <= MOST_ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (MOST_ROWS - 1)) for i in range(MOST_ROWS)})


def _svg(title: str, caption: str, draw: Draw, frame: Frame, name: str, look: str, *, is_read: bool) -> Markup:
    """`is_read`: rows have places, so that the arrow keys can walk over them."""
    inside, height = draw(frame)
    focus = ' tabindex="0"' if is_read else ""
    return Markup(
        f'<svg class="{look}" viewBox="0 0 {number(frame.width)} {number(height)}" role="img" '
        f'aria-labelledby="{name}-t {name}-d" data-left="{number(frame.left)}" data-right="{number(frame.right)}"{focus}>'
        f'<title id="{name}-t">{escaped(title, 200)}</title><desc id="{name}-d">{escaped(caption, 500)}</desc>{inside}</svg>'
    )


def empty(title: str, why: str, *, name: str = "") -> Plot:
    """A box with a reason, for a plot without data yet."""

    def draw(frame: Frame) -> tuple[str, float]:
        middle, message = number(frame.width / 2), escaped(why, 90)
        return f'<text class="none" x="{middle}" y="34" text-anchor="middle">{message}</text>', 60.0

    return plot_of(title, why, draw, (), (), name=name, is_empty=True)
