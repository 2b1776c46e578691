"""The model's Production tab: rate, errors and latency of each release over time, with promotions, rollbacks and alarms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from ledger.core.verbs import EventVerb
from ledger.models import Event
from ledger.queries import clock, events
from registry.models import ServedModel
from serving.models import Environment
from serving.traffic.queries.series import KeptSeries, Line, Point, Quantile, series_of
from web.pages.model_frame import frame, range_asked, readable_model
from web.plots import Axis, Mark, Panel, Plot, Series, Unit, lines, panels

#: By name: its words, its length, and the seconds of a step.
SPANS: Final = {
    "1h": ("1 hour", timedelta(hours=1), 60),
    "6h": ("6 hours", timedelta(hours=6), 60),
    "1d": ("1 day", timedelta(days=1), 300),
    "7d": ("7 days", timedelta(days=7), 1800),
    "14d": ("14 days", timedelta(days=14), 3600),
}
MOST_MARKS: Final = 5
MOST_LINES: Final = 4
_MARKED: Final = {
    EventVerb.ROLLOUT_PROMOTED: ("promoted", "ok"),
    EventVerb.ROLLOUT_ROLLED_BACK: ("rolled back", "bad"),
    EventVerb.ROLLOUT_REVERTED: ("reverted", "bad"),
    EventVerb.ALARM_OPENED: ("alarm", "bad"),
    EventVerb.ALARM_CLOSED: ("alarm closed", "ok"),
}
_BEGINS: Final = (
    "The engine counts the requests of each served model by minute. The first point appears two minutes later."
)
_UTC: Final = Axis("UTC", Unit.CLOCK)


@login_required
def production(request: HttpRequest, slug: str) -> HttpResponse:
    served = readable_model(request, slug)
    facts: dict[str, Any] = {**range_asked(request, served, SPANS), "begins": _BEGINS}
    environment: Environment | None = facts["environment"]
    if environment is not None:
        _, length, step_s = SPANS[facts["span"]]
        now = clock.now()
        found = series_of(served, environment, since=now - length, until=now, step_s=step_s, by="release", now=now)
        found.lines.sort(key=lambda line: -sum(point.counts.get("routed", 0) for point in line.points))
        happened = _happened(served, found)
        facts |= {
            "has_counts": any(point.counts for point in found.whole.points),
            "unknown_s": sum(point.unknown_s for point in found.whole.points),
            "plots": plots_of(found, [mark for _, mark in happened]),
            "happened": [event for event, _ in happened],
        }
    return render(request, "registry/model_production.html", {**frame(served, "model_production"), **facts})


def plots_of(found: KeptSeries, marks: Sequence[Mark]) -> list[Plot]:
    """Requests, failures and latency over one time axis."""
    drawn = [(line, line.name, f"s{index + 1}") for index, line in enumerate(found.lines[:MOST_LINES])]
    users = (found.whole, "all users", "attempts")
    rate = [_series(each, lambda point: point.rate_per_s) for each in (users, *drawn)]
    failed = [_series(each, lambda point: point.error_frac) for each in (users, *drawn)]
    latency = [
        Panel([_series(each, _seconds(name)) for each in drawn], Axis(name, Unit.DURATION, is_log=True), height=110)
        for name in ("p50", "p95", "p99")
    ]
    return [
        lines("Requests", "Per second, as drawn for each release.", rate, x=_UTC, y=Axis("requests/s"), marks=marks, name="rate"),
        lines(
            "Failures", "Share of first attempts of a release, and of users' requests after retries.", failed, x=_UTC,
            y=Axis("failed", Unit.SHARE), marks=marks, name="failures",
        ),
        panels(
            "Latency", "First attempts of each release, interpolated within the gateways' classes.", latency, x=_UTC,
            marks=marks, name="latency",
        ),
    ]  # fmt: skip


def _series(line: tuple[Line, str, str], value: Callable[[Point], float | None]) -> Series:
    found, label, look = line
    return Series(label, [(point.at.timestamp(), value(point)) for point in found.points], look)


def _seconds(name: str) -> Callable[[Point], float | None]:
    def read(point: Point) -> float | None:
        quantile: Quantile | None = getattr(point, f"{name}_ms")
        return quantile.value / 1000 if quantile else None

    return read


def _happened(model: ServedModel, found: KeptSeries) -> list[tuple[Event, Mark]]:
    """The newest promotions, rollbacks and alarms in the range, the oldest first."""
    rows = events().filter(
        model=model.slug,
        verb__in=[*_MARKED],
        facts__environment=found.environment,
        at__gte=found.since,
        at__lt=found.until,
    )
    marks = []
    for event in list(rows.order_by("-seq")[:MOST_MARKS])[::-1]:
        words, look = _MARKED[EventVerb(event.verb)]
        name = event.facts.get("candidate") or event.facts.get("objective") or ""
        marks.append((event, Mark(event.at.timestamp(), f"{name} {words}".strip(), look)))
    return marks
