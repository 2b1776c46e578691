"""Sizes, durations and shares in words, the same on a page, on the command line and in a sentence."""

from __future__ import annotations

from decimal import Decimal

#: Stands for an unknown quantity.
UNKNOWN = "–"


def size_text(count_bytes: int) -> str:
    """Bytes in binary units, with one decimal from a KiB on: `512 B`, `86.7 MiB`."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration_text(seconds: float | None) -> str:
    """Seconds in the largest unit of which there are two: `12 s`, `41 min`, `2.5 h`, `3 d`; UNKNOWN for None."""
    if seconds is None:
        return UNKNOWN
    for unit, length_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def weight_text(basis_points: float | None) -> str:
    """Basis points as a percentage: 2550 → `25.5 %`; UNKNOWN for None."""
    return UNKNOWN if basis_points is None else f"{basis_points / 100:g} %"


def share_text(frac: float | None) -> str:
    """A share in [0, 1] as a percentage with up to three figures, two below 0.1 % and one below 0.01 %: 0.00123 → `0.123 %`,
    0.0000355 → `0.004 %`; UNKNOWN for None."""
    if frac is None:
        return UNKNOWN
    figures = 1 if frac < 0.0001 else 2 if frac < 0.001 else 3
    return f"{Decimal(f'{frac * 100:.{figures}g}'):f} %"


_WORDS = {"frac": "", "pct": " %"}


def quantity_text(value: float | None, unit: str) -> str:
    """A number with its unit, as `40 ms`, `1.25 cores` or `60 requests/s`: three figures, or all before the point; UNKNOWN for None."""
    if value is None:
        return UNKNOWN
    shown = f"{value:.1f}".removesuffix(".0") if abs(value) >= 100 else f"{value:.3g}"
    return f"{shown}{_WORDS.get(unit, f' {unit}')}".replace("_per_s", "/s")
