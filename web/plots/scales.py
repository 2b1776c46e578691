"""From values to places: linear, logarithmic and time scales, their ticks and how these are written. Places are fractions in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class Unit(StrEnum):
    """How a number is written. `DURATION` is in seconds, `CLOCK` in seconds since the epoch (UTC), `SHARE` in [0, 1]."""

    NUMBER = "number"
    SHARE = "share"
    DURATION = "duration"
    CLOCK = "clock"


@dataclass(frozen=True)
class Tick:
    value: float
    at: float  # a fraction of the scale
    label: str


@dataclass(frozen=True)
class Scale:
    """`lo` < `hi`; both above 0 if it is logarithmic."""

    lo: float
    hi: float
    unit: Unit = Unit.NUMBER
    is_log: bool = False

    def at(self, value: float | None) -> float | None:
        """Place of the value, held within the scale; None for a missing value or one without a logarithm."""
        if value is None or not math.isfinite(value) or (self.is_log and value <= 0):
            return None
        if self.is_log:
            span = math.log(self.hi) - math.log(self.lo)
            found = (math.log(value) - math.log(self.lo)) / span
        else:
            found = (value - self.lo) / (self.hi - self.lo)
        return 0.0 if found <= 0.0 else min(found, 1.0)

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most so many, none outside of the scale."""
        values = _powers(self.lo, self.hi, most, self.unit) if self.is_log else self._linear_ticks(most)
        found = [Tick(value, at, self.text(value)) for value in values if (at := self.at(value)) is not None]
        return [one for index, one in enumerate(found) if index == 0 or one.label != found[index - 1].label]

    def _linear_ticks(self, most: int) -> list[float]:
        """Two at least where two may be: an axis with a single number has no scale that could be read."""
        step = self._step(most)
        found = _multiples(self.lo, self.hi, step, most)
        finer = (_multiples(self.lo, self.hi, step / part, most) for part in (2, 4, 5, 10))
        return found if len(found) > 1 or most < 2 else next((one for one in finer if len(one) > 1), found)

    def _step(self, most: int) -> float:
        least = (self.hi - self.lo) / max(1, most - 1)
        timed = self.unit in {Unit.DURATION, Unit.CLOCK} and least > 1
        if timed:
            found = next((one for one in _SECONDS if one >= least), None)
            return found or 86_400.0 * nice(least / 86_400)
        return nice(least)

    def text(self, value: float) -> str:
        """A value of this scale for reading."""
        if self.unit is Unit.CLOCK:
            moment = datetime.fromtimestamp(value, UTC)
            span = self.hi - self.lo
            form = "%H:%M:%S" if span < 600 else "%H:%M" if span < 2 * 86_400 else "%d %b"
            return f"{moment:{form}}"
        return text_of(value, self.unit)


#: Nothing that is measured here is larger; a scale does not reach further.
MOST = 1e15
#: Steps of time that people count in, in seconds.
_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip


def text_of(value: float | None, unit: Unit = Unit.NUMBER) -> str:
    """A value for reading; `–` if it is missing."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) > MOST:
        return f"{value:.1g}"
    if unit is Unit.SHARE:
        return f"{_short(value * 100)} %"
    if unit is Unit.DURATION:
        return _duration(value)
    if unit is Unit.CLOCK:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{_short(value / (1e3 if letter == 'k' else size))}{letter}"
    return _short(value)


def _short(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _duration(seconds: float) -> str:
    size = abs(seconds)
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if size >= length * (2 if unit in {"d", "min", "h"} and size % length else 1):
            return f"{_short(seconds / length)} {unit}"
    return f"{_short(seconds * 1e6)} µs" if size else "0 s"


def nice(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below the value."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1.0, 2.0, 5.0) if step * power >= value * (1 - 1e-9)), 10.0 * power)


def _multiples(lo: float, hi: float, step: float, most: int) -> list[float]:
    first = math.ceil(lo / step - 1e-9)
    found: list[float] = []
    while len(found) < most and (value := (first + len(found)) * step) <= hi + step * 1e-9:
        found.append(min(hi, max(lo, value)))
    return found


def _powers(lo: float, hi: float, most: int, unit: Unit) -> list[float]:
    """Powers of ten, with 2 and 5 times them if there is room; from a minute on, times as people count them."""
    low, high = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
    inside: list[float] = []
    for factors in ((1.0, 2.0, 5.0), (1.0,)):
        found = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
        if unit is Unit.DURATION:
            found = [one for one in found if one < 60] + [60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 864_000.0]
        inside = [one for one in found if lo * (1 - 1e-9) <= one <= hi * (1 + 1e-9)]
        if len(inside) <= most:
            break
    return inside[:: max(1, math.ceil(len(inside) / most))]


def linear(
    values: Iterable[float | None], *, unit: Unit = Unit.NUMBER, lo: float | None = None, hi: float | None = None
) -> Scale:
    """From the least to the largest of the values, or from `lo` to `hi` where these are given; never empty."""
    known = [one for one in values if one is not None and abs(one) <= MOST]
    least = lo if lo is not None else min(known, default=0.0)
    most = hi if hi is not None else max(known, default=least + 1.0)
    if most <= least or not math.isfinite(most - least):
        most = least + max(1.0, abs(least) * 1e-3) if hi is None or hi <= least else hi
        least = most - max(1.0, abs(most) * 1e-3) if not math.isfinite(most - least) else least
    return Scale(least, most, unit)


def logarithmic(
    values: Iterable[float | None], *, unit: Unit = Unit.NUMBER, lo: float | None = None, hi: float | None = None
) -> Scale:
    """Like `linear`, without values of 0 and below."""
    known = [one for one in values if one is not None and 0 < one <= MOST]
    least = lo if lo is not None and lo > 0 else min(known, default=0.1)
    most = hi if hi is not None and hi > 0 else max(known, default=least * 10)
    least = max(least, 1e-12)
    return Scale(least, most if most > least * 1.01 else least * 10, unit, is_log=True)
