"""A line as small as a word, for a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence

from web.plots.markup import Markup, escaped, is_known, number, path_of, thinned
from web.plots.scales import linear

WIDTH, HEIGHT = 96.0, 24.0


def sparkline(
    values: Sequence[float | None],
    *,
    label: str,
    look: str = "s1",
    most: float | None = None,
    limit: float | None = None,
) -> Markup:
    """Values at equal distances, the oldest first, None for a gap; from 0 to the largest of them, or to `most`.

    `label` describes the values ("8 requests/s now, 12 at most in the last hour"): readers who do not see it hear that.
    Without any value it is a dashed line. `limit` is drawn across if it lies within.
    """
    points = thinned([(float(i), value) for i, value in enumerate(values)], 120)
    known = [value for value in values if value is not None and is_known(value)]
    across = linear([0.0, max(1.0, len(values) - 1.0)])
    up = linear([*known, limit], lo=min([0.0, *known]), hi=most)

    def place(x: float, y: float | None) -> tuple[float, float] | None:
        at = up.at(y)
        return None if at is None else (1 + (across.at(x) or 0.0) * (WIDTH - 2), HEIGHT - 2 - at * (HEIGHT - 4))

    spots = [place(x, y) for x, y in points]
    drawn = f'<path class="line {escaped(look)}" d="{path_of(spots)}"/>' if known else ""
    if spots and spots[-1] is not None:
        x, y = spots[-1]
        drawn += f'<path class="dots {escaped(look)}" d="M{number(x)} {number(y)}h0"/>'
    if limit is not None and known and (at := place(0.0, limit)) is not None:
        drawn = f'<path class="line limit" d="M1 {number(at[1])}H{number(WIDTH - 1)}"/>' + drawn
    if not known:
        drawn = f'<path class="line none" d="M1 {number(HEIGHT - 2)}H{number(WIDTH - 1)}"/>'
    return Markup(
        f'<svg class="spark" viewBox="0 0 {number(WIDTH)} {number(HEIGHT)}" width="{number(WIDTH)}" height="{number(HEIGHT)}" '
        f'role="img" aria-label="{escaped(label, 200)}">{drawn}</svg>'
    )
