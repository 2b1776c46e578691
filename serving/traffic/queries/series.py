"""Reads kept series: sums by step, of a model in an environment, by release or tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledger.core.errors import Invalid
from registry.models import ServedModel
from registry.queries import names_by_digest
from serving.models import Environment, SeriesBlock, SeriesHour, SeriesMinute, TrafficSeries
from serving.traffic.core.packing import MINUTES, unpacked
from serving.traffic.core.quantiles import quantiles

MOST_POINTS: Final = 2000
#: Minutes are kept for 30 days. Older ranges are read by hour.
MINUTES_FOR: Final = timedelta(days=30)
BY: Final = ("release", "tenant")
SHARES: Final = (0.5, 0.95, 0.99)
HOUR: Final = timedelta(hours=1)
#: By step: (1 + counters) columns, the first in milliseconds that were read.
_Sums = NDArray[np.int64]


class Quantile(NamedTuple):
    """In ms: the interpolated value, and the edges of the class that holds it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """One step that begins at `at`. Without any reading `counts` is empty. `error_frac`: failed first attempts of a release, failed
    requests of a tenant or of all users, without those that were shed."""

    at: datetime
    unknown_s: float
    counts: Mapping[str, int]
    rate_per_s: float | None
    error_frac: float | None
    p50_ms: Quantile | None
    p95_ms: Quantile | None
    p99_ms: Quantile | None


@dataclass(frozen=True)
class Line:
    """`key`: digest or tenant; empty for all users of the model."""

    name: str
    key: str
    points: list[Point]


@dataclass(frozen=True)
class KeptSeries:
    environment: str
    since: datetime
    until: datetime
    step_s: int
    whole: Line
    lines: list[Line]


@dataclass(frozen=True)
class _Steps:
    since: datetime
    until: datetime
    step_s: int

    @property
    def count(self) -> int:
        return ceil((self.until - self.since).total_seconds() / self.step_s)

    def places(self, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step of each instant; -1 outside of the range."""
        since, until = int(self.since.timestamp()), int(self.until.timestamp())
        return np.where((seconds >= since) & (seconds < until), (seconds - since) // self.step_s, -1)


def series_of(
    model: ServedModel,
    environment: Environment,
    *,
    since: datetime,
    until: datetime,
    step_s: int,
    by: str,
    now: datetime,
) -> KeptSeries:
    """From `since` (rounded down to a step) to `until` or the last full minute. Raises Invalid."""
    if by not in BY:
        raise Invalid("unknown_dimension", f"by must be one of {', '.join(BY)}; it is {by!r}.")
    if step_s < 60 or step_s % 60:
        raise Invalid("bad_step", f"step must be a multiple of 60 seconds; it is {step_s}.")
    is_hourly = since < now - MINUTES_FOR
    if is_hourly and (step_s % 3600 or by != "release"):
        raise Invalid(
            "too_old",
            "Older than 30 days, sums by hour and release are kept. Ask for a later start, or with a step of full hours by release.",
        )
    begin = datetime.fromtimestamp(since.timestamp() // step_s * step_s, UTC)
    steps = _Steps(begin, min(until, now).astimezone(UTC).replace(second=0, microsecond=0), step_s)
    if not 0 < steps.count <= MOST_POINTS:
        raise Invalid(
            "bad_range",
            f"The range has {max(0, steps.count)} steps; it must have between 1 and {MOST_POINTS}. Change from, to or step.",
        )
    rows = list(TrafficSeries.objects.filter(model=model, environment=environment, replica=""))
    asked = [one for one in rows if getattr(one, by) or not (one.release or one.tenant)]
    sums = _hours(asked, steps) if is_hourly else _minutes(asked, steps)
    by_key: dict[str, dict[str, NDArray[np.int64]]] = {"": {}}
    for one in asked:
        columns = by_key.setdefault(getattr(one, by), {})
        for name, column in zip(("known", *one.names), sums[one.pk].T, strict=True):
            columns[name] = columns.get(name, 0) + column
    known_s = by_key[""].get("known", np.zeros(steps.count, np.int64)) / 1000
    names = names_by_digest(model, [key for key in by_key if key]) if by == "release" else {}
    lines = [
        Line(names.get(key, key), key, _points(columns, known_s, steps))
        for key, columns in by_key.items()
        if not key or any(column.any() for column in columns.values())
    ]
    whole = next(one for one in lines if not one.key)
    return KeptSeries(environment.slug, steps.since, steps.until, step_s, whole, [one for one in lines if one.key])


def minutes_of(
    model: ServedModel, environment: Environment, since: datetime, until: datetime
) -> dict[tuple[str, str], dict[str, NDArray[np.int64]]]:
    """By minute, from full minute to full minute: each counter, and `known`, the milliseconds that were read.

    Keys are (digest of the release, tenant); of all users both are empty.
    """
    rows = list(TrafficSeries.objects.filter(model=model, environment=environment, replica=""))
    sums = _minutes(rows, _Steps(since, until, 60))
    found: dict[tuple[str, str], dict[str, NDArray[np.int64]]] = {}
    for one in rows:
        columns = found.setdefault((one.release, one.tenant), {})
        for name, column in zip(("known", *one.names), sums[one.pk].T, strict=True):
            columns[name] = columns[name] + column if name in columns else column
    return found


def _minutes(asked: Sequence[TrafficSeries], steps: _Steps) -> dict[int, _Sums]:
    """By series, from blocks, and from minutes for hours that are not packed yet."""
    sums = {one.pk: np.zeros((steps.count + 1, 1 + len(one.names)), np.int64) for one in asked}
    first = steps.since.replace(minute=0)
    kept = SeriesBlock.objects.filter(series__in=list(sums), at__gte=first, at__lt=steps.until).order_by("at")
    blocks = list(kept.values_list("series_id", "at", "packed"))
    for series, total in sums.items():
        own = [(int(at.timestamp()), data) for key, at, data in blocks if key == series]
        if own:
            places = steps.places((np.array([at for at, _ in own])[:, None] + np.arange(MINUTES) * 60).ravel())
            begins = np.flatnonzero(np.diff(places, prepend=-2))  # of each step: the minutes are in order
            minutes = np.hstack([unpacked(bytes(data)) for _, data in own]).T
            total[places[begins]] += np.add.reduceat(minutes, begins, axis=0, dtype=np.int64)
    since = max([steps.since, *(at + HOUR for _, at, _ in blocks)])
    rows = SeriesMinute.objects.filter(series__in=list(sums), at__gte=since, at__lt=steps.until)
    for series, at, known_s, counts in rows.values_list("series_id", "at", "known_s", "counts"):
        place = int((at - steps.since).total_seconds()) // steps.step_s
        sums[series][place] += [round(known_s * 1000), *counts]
    return {series: total[:-1] for series, total in sums.items()}


def _hours(asked: Sequence[TrafficSeries], steps: _Steps) -> dict[int, _Sums]:
    sums = {one.pk: np.zeros((steps.count, 1 + len(one.names)), np.int64) for one in asked}
    rows = SeriesHour.objects.filter(series__in=list(sums), at__gte=steps.since, at__lt=steps.until)
    for series, at, known_s, counts in rows.values_list("series_id", "at", "known_s", "counts"):
        place = int((at - steps.since).total_seconds()) // steps.step_s
        sums[series][place] += [round(known_s * 1000), *counts]
    return sums


def _points(columns: Mapping[str, NDArray[np.int64]], known_s: NDArray[Any], steps: _Steps) -> list[Point]:
    counters = {name: column for name, column in columns.items() if name != "known" and not name.startswith("us_")}
    edges = [int(name[3:]) for name in columns if name.startswith("us_") and name != "us_more"]
    nothing: list[Quantile | None] = [None] * steps.count
    tails = [nothing] * len(SHARES)
    if edges:
        classes = np.stack([*(columns[f"us_{edge}"] for edge in edges), columns["us_more"]], axis=1)
        tails = [
            [None if np.isnan(row[0]) else Quantile(*(round(float(us) / 1000, 3) for us in row)) for row in found]
            for found in (quantiles(classes, edges, share) for share in SHARES)
        ]
    is_release = "decided" in counters
    points = []
    for place in range(steps.count):
        at = steps.since + timedelta(seconds=place * steps.step_s)
        span_s = min(float(steps.step_s), (steps.until - at).total_seconds())
        known = float(known_s[place])
        counts = {name: int(column[place]) for name, column in counters.items()} if known else {}
        total = counts.get("routed" if is_release else "requests", 0)
        tried = counts.get("decided", 0) if is_release else total
        bad = counts.get("failed", 0) if is_release else counts.get("errors", 0)
        if not is_release and "over_quota" not in counts:
            bad -= counts.get("shed", 0)  # users' errors have the requests that were shed
        unknown_s = span_s - known
        points.append(
            Point(
                at,
                unknown_s if unknown_s >= 2 else 0.0,  # readings come within a second or two of the full minute
                counts,
                round(total / known, 4) if known else None,
                round(bad / tried, 6) if tried else None,
                *(tail[place] for tail in tails),
            )
        )
    return points
