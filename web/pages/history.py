"""Who served: of one model in one environment over time, or of all of them at one instant; read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import urlencode

from accounts.api.requests import actor_of
from accounts.core.instants import EXAMPLES, read_instant
from ledger.core.errors import Invalid
from registry.models import ServedModel
from registry.queries import visible_model, visible_models
from rollouts.queries.serving_history import (
    Served,
    ServedChange,
    changes_between,
    served_among,
    served_at,
    served_everywhere,
)
from serving.models import Environment
from serving.targets.queries import environment_titles, find_environment
from web.listing import Filter, asked
from web.plots import Mark, Plot, Stretch, bands

#: Changes on a page; routes that it lists without a model.
MOST_CHANGES, MOST_ROUTES = 500, 200
SPANS = {"1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "30d": "30 days", "365d": "a year"}
_SECONDS = {"h": 3600, "d": 86_400}
_LOOKS = ("s1", "s2", "s3", "s4")


@login_required
def history(request: HttpRequest) -> HttpResponse:
    filters = _filters(request)
    given = {one.name: one.value for one in filters}
    facts: dict[str, Any] = {"filters": filters, "spans": SPANS, "is_filtered": any(given.values())}
    status = 200
    try:
        facts |= _facts_for(request, given)
    except Invalid as error:
        facts["error"], status = error, error.status
    return render(request, "rollouts/history.html", facts, status=status)


def _filters(request: HttpRequest) -> list[Filter]:
    return asked(
        request,
        Filter("model", "Model"),
        Filter("environment", "Environment", environment_titles()),
        Filter("at", "At (UTC)", hint="2026-03-01 03:02:10, or 2h"),
        Filter("span", "Show", list(SPANS.items())),
    )


def _facts_for(request: HttpRequest, given: dict[str, str]) -> dict[str, Any]:
    """Raises Invalid for an instant that is none or is yet to come, NotFound for a model that the person may not see."""
    now = timezone.now()
    try:
        at = read_instant(given["at"], now)
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"“{given['at']}” is no instant. Write {EXAMPLES}.", field="at") from None
    if at is not None and at > now:
        raise Invalid("in_the_future", f"{at:%Y-%m-%d %H:%M:%S} UTC is yet to come.", field="at")
    if not given["model"]:
        models = visible_models(actor_of(request))
        everywhere = served_everywhere(models, at or now, MOST_ROUTES)
        wanted = given["environment"]
        return {"at": at, "everywhere": [one for one in everywhere if wanted in ("", one[0].environment.slug)]}
    model = visible_model(actor_of(request), given["model"])
    found = find_environment(given["environment"] or "production")
    if found is None:
        return {"at": at, "everywhere": []}
    return _of_one(model, found, at, now, given["span"] or "1d")


def _of_one(
    model: ServedModel, environment: Environment, at: datetime | None, now: datetime, span: str
) -> dict[str, Any]:
    length = timedelta(seconds=int(span[:-1]) * _SECONDS[span[-1]])
    end = min(now, at + length / 2) if at else now
    begin = end - length
    changes, is_cut, after = changes_between(model, environment, begin, end, MOST_CHANGES)
    begin = changes[0].at if is_cut and changes else begin
    query = {"model": model.slug, "environment": environment.slug, "span": span}
    return {
        "model": model, "environment": environment, "at": at, "begin": begin, "end": end, "span": span,
        "changes": list(reversed(changes)), "is_cut": is_cut, "most": MOST_CHANGES,
        "served": _served(model, environment, at, changes, after, is_cut=is_cut) if at else None,
        "plot": who_served(model, environment, changes, begin, end, at),
        "earlier": urlencode({**query, "at": (begin).isoformat(timespec="seconds")}),
        "later": urlencode({**query, "at": min(now, end).isoformat(timespec="seconds")}) if end < now else "",
        "same": urlencode({name: value for name, value in query.items() if name != "span"}
                          | ({"at": at.isoformat(timespec="seconds")} if at else {})),
        "query": urlencode({**query, **({"at": at.isoformat(timespec="seconds")} if at else {})}),
    }  # fmt: skip


def _served(
    model: ServedModel,
    environment: Environment,
    at: datetime,
    changes: Sequence[ServedChange],
    after: datetime | None,
    *,
    is_cut: bool,
) -> Served:
    """From the changes on the page. If the page left off the change before `at`, from the log."""
    if is_cut and changes[0].at > at:
        return served_at(model, environment, at)
    return served_among(model, environment, at, changes, after)


def who_served(
    model: ServedModel,
    environment: Environment,
    changes: Sequence[ServedChange],
    begin: datetime,
    end: datetime,
    at: datetime | None = None,
) -> Plot:
    """A lane for each release, as thick as its share; `changes` are the oldest first."""
    stretches: list[Stretch] = []
    looks: dict[str, str] = {}
    for index, change in enumerate(changes):
        until = changes[index + 1].at if index + 1 < len(changes) else end
        since, last = change.at.timestamp(), until.timestamp()
        for arm in change.arms:
            look = looks.setdefault(arm.release, _LOOKS[len(looks) % len(_LOOKS)])
            if arm.weight_pct:
                stretches.append(Stretch(arm.release, since, last, arm.weight_pct / 100, look=look, note=change.reason))
            if arm.role == "candidate" and change.mirrored_pct and not arm.weight_pct:
                share = change.mirrored_pct / 100
                stretches.append(
                    Stretch(arm.release, since, last, share, is_mirrored=True, look=look, note=change.reason)
                )
    marks = [Mark(at.timestamp(), f"{at:%H:%M:%S}")] if at else []
    said = f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC; a band is as thick as its share of users' requests."
    title = f"Who served {model.slug} in {environment.title}"
    return bands(title, said, stretches, begin=begin.timestamp(), end=end.timestamp(), marks=marks, name="served")
