"""Pieces of SVG as text: numbers, escaped labels, paths, thinning. A value that is missing leaves a gap, never a zero."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

#: A point of a line in the plot's own units; y is None where nothing is known.
Point = tuple[float, float | None]
#: A label longer than this is cut: no plot has room for more.
MOST_LETTERS = 60
#: Control characters, and marks that turn the direction of what follows: they could make a label say something else.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Markup(str):
    """Text that is markup already: templates show it as it is, by the `__html__` that Django and others ask for."""

    __slots__ = ()

    def __html__(self) -> Markup:
        return self


def words(text: object, most: int = MOST_LETTERS) -> str:
    """A label as plain text: without control and direction marks, bounded in length."""
    plain = _UNSEEN.sub("", str(text))
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def escaped(text: object, most: int = MOST_LETTERS) -> str:
    """A label as it may stand in markup, within and without quotes."""
    return html.escape(words(text, most))


def number(value: float) -> str:
    """A coordinate with at most one decimal, as short as it gets."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def is_known(value: float | None) -> bool:
    """Whether this is a number that can be drawn."""
    return value is not None and math.isfinite(value)


def path_of(points: Iterable[tuple[float, float] | None], *, is_step: bool = False) -> str:
    """`d` of a line through points in drawing units; None begins anew (a gap). A step keeps its height until the next point."""
    parts: list[str] = []
    is_open = False
    for point in points:
        if point is None:
            is_open = False
            continue
        x, y = number(point[0]), number(point[1])
        if not is_open:
            parts.append(f"M{x} {y}")
        else:
            parts.append(f"H{x}V{y}" if is_step else f"L{x} {y}")
        is_open = True
    return "".join(parts)


def runs_of(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Points without a gap between them, run by run."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y) and math.isfinite(x):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def thinned(points: Sequence[Point], most: int = 600) -> list[Point]:
    """A bounded number of points: the lowest and the highest of each of equal stretches, in their order, and gaps stay.

    The first and the last point stay. `most` is at least 8.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    buckets = (max(most, 8) - 2) // 3
    found: list[Point] = [points[0]]
    for bucket in range(buckets):
        part = inner[len(inner) * bucket // buckets : len(inner) * (bucket + 1) // buckets]
        known = [(i, y) for i, (_, y) in enumerate(part) if y is not None and math.isfinite(y)]
        kept = {min(known, key=lambda one: one[1])[0], max(known, key=lambda one: one[1])[0]} if known else set()
        missing = next((i for i, (_, y) in enumerate(part) if y is None or not math.isfinite(y)), None)
        kept |= set() if missing is None else {missing}
        found += [part[i] for i in sorted(kept)]
    return [*found, points[-1]]
