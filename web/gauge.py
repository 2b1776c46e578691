"""A number's place against its limit, as the parts of a drawing: pure."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.core.quantities import UNKNOWN, duration_text, share_text, size_text

#: How far a bar goes beyond its limit, so that one sees how much is missing, or too much.
HEADROOM = 1.25


@dataclass(frozen=True)
class Gauge:
    """`kind`: ok, bad or idle (unknown). `fill_pct` and `limit_pct`: of the bar's width, in [0, 100]. `said`: in words."""

    kind: str
    fill_pct: float
    limit_pct: float | None
    said: str


@dataclass(frozen=True)
class EvidenceCard:
    """Evidence of a guard (`_parts/evidence.html`): `kind` is bad, ok, waiting or idle, `said` the verdict in a
    word or two, `number` the measured value, `against` its limit.

    `worse` and `fine`, in [0, 1], are the shares of the evidence for either: it counts at 1. `note` is a sentence.
    """

    title: str
    kind: str
    said: str
    number: str = ""
    against: str = ""
    worse: float | None = None
    fine: float | None = None
    note: str = ""

    @property
    def bars(self) -> list[tuple[str, float, str]]:
        """(name, share, width of its bar in percent) of the evidence that there is."""
        shares = {"worse": self.worse, "fine": self.fine}
        return [(name, share, f"{_percent(share, 1):g}") for name, share in shares.items() if share is not None]


def gauge(value: float | None, limit: float | None, *, unit: str = "", at_least: bool = False) -> Gauge:
    """The gauge of a value ≥ 0 against the most (or the least) that it may be. None: not measured, or no limit.

    `unit` is what follows a number, or `bytes`, `seconds` or `share` for those that have words of their own.
    """
    if value is None:
        return Gauge("idle", 0.0, None, f"{UNKNOWN} of {number_text(limit, unit)}" if limit is not None else UNKNOWN)
    if limit is None:
        return Gauge("idle", 0.0, None, number_text(value, unit))
    is_ok = value >= limit if at_least else value <= limit
    full = max(limit, value / HEADROOM if at_least else 0.0) * HEADROOM
    of = "of at least" if at_least else "of"
    return Gauge(
        kind="ok" if is_ok else "bad",
        fill_pct=_percent(value, full),
        limit_pct=_percent(limit, full),
        said=f"{number_text(value, unit)} {of} {number_text(limit, unit)}",
    )


def number_text(value: float | None, unit: str = "") -> str:
    """A number with its unit, in up to four figures: `42.5 ms`, `86.7 MiB`; UNKNOWN for None."""
    if value is None:
        return UNKNOWN
    if unit == "bytes":
        return size_text(int(value))
    if unit == "seconds":
        return duration_text(value)
    if unit == "share":
        return share_text(value)
    figures = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{figures} {unit}".strip()


def _percent(part: float, whole: float) -> float:
    """In [0, 100], with one decimal; of nothing at all, 0 is none and anything else is all."""
    if whole <= 0:
        return 100.0 if part > 0 else 0.0
    return round(min(100.0, max(0.0, 100.0 * part / whole)), 1)
