"""Just enough SVG for plots that are legible on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_LIGHT = ("#0969da", "#bc4c00", "#9a6700", "#8250df", "#57606a", "#1a7f37")
_DARK = ("#58a6ff", "#f0883e", "#e3b341", "#d2a8ff", "#b1bac4", "#56d364")


def _series(colours: tuple[str, ...], page: str) -> str:
    return "".join(
        f".m{i}{{fill:{colour};stroke:{colour};stroke-width:1.5}}.o{i}{{fill:{page};stroke:{colour};stroke-width:1.5}}"
        f".l{i}{{stroke:{colour};fill:none;stroke-width:2}}"
        for i, colour in enumerate(colours)
    )


_STYLE = f"""
.page{{fill:#ffffff}}.text{{fill:#1f2328;font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}}
.small{{font-size:11px}}.title{{font-size:14px;font-weight:600}}.soft{{fill:#59636e}}
.grid{{stroke:#d1d9e0;stroke-width:1}}.goal{{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:5 3}}.goaltext{{fill:#cf222e}}
{_series(_LIGHT, "#ffffff")}
@media (prefers-color-scheme:dark){{
.page{{fill:#0d1117}}.text{{fill:#e6edf3}}.soft{{fill:#9198a1}}.grid{{stroke:#30363d}}.goal{{stroke:#ff7b72}}.goaltext{{fill:#ff7b72}}
{_series(_DARK, "#0d1117")}}}
"""
#: One for each series, so that colour is not all that tells them apart.
_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "down")


class Drawing:
    """Shapes in the order in which they are drawn; coordinates in pixels from the top left."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>',
            f'<rect class="page" width="{width:g}" height="{height:g}"/>',
        ]

    def text(self, x: float, y: float, said: str, *, kind: str = "", anchor: str = "start", turn: float = 0) -> None:
        turned = f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        self._parts.append(
            f'<text class="text {kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(said)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        self._parts.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Sequence[tuple[float, float]], series: int) -> None:
        said = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="l{series}" points="{said}"/>')

    def mark(self, x: float, y: float, series: int, *, is_open: bool = False) -> None:
        kind = f"o{series}" if is_open else f"m{series}"
        r, shape = 4.0, _SHAPES[series]
        if shape == "circle":
            self._parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r + 0.5}"/>')
            return
        corners = {
            "square": "-r,-r r,-r r,r -r,r",
            "triangle": "0,-r r,r -r,r",
            "diamond": "0,-q q,0 0,q -q,0",
            "cross": "-r,-r 0,-1 r,-r 1,0 r,r 0,1 -r,r -1,0",
            "down": "0,r r,-r -r,-r",
        }[shape]
        corners = corners.replace("r", f"{r:g}").replace("q", f"{r * 1.4:g}").replace("--", "-")
        self._parts.append(f'<polygon class="{kind}" points="{corners}" transform="translate({x:.1f} {y:.1f})"/>')

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


class LogScale:
    """From values to pixels; what lies outside is put on the edge."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high, self._start, self._end = math.log(low), math.log(high), start, end

    def __call__(self, value: float) -> float:
        share = (math.log(max(value, 1e-300)) - self._low) / (self._high - self._low)
        return self._start + min(1.0, max(0.0, share)) * (self._end - self._start)
