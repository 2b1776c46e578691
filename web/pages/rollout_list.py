"""The list of rollouts: searched by its address, with a plot of the weeks, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from accounts.api.requests import actor_of
from accounts.core.instants import EXAMPLES, read_instant
from ledger.core.errors import Invalid
from registry.queries import visible_models
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Rollout
from rollouts.queries.rollout_list import GROUPS, OUTCOMES, ListFilter, found_rollouts, people_of, weeks_of
from serving.environments.queries.inventory import environment_titles
from web.listing import Filter, asked
from web.plots import Bar, Plot, bars

PER_PAGE = 25
#: More rows than this are no list that somebody reads; narrow it.
MOST_ROWS = 10_000
COLUMNS = ("rollout", "model", "environment", "candidate", "stable", "outcome", "weight_pct", "requested_by", "created_at",
           "ended_at", "lasted_s", "reason")  # fmt: skip
_LOOKS = {"promoted": "ok", "rolled back": "bad", "dropped": "idle", "going on": "running"}


@login_required
def rollouts(request: HttpRequest) -> HttpResponse:
    """The newest first; `?format=csv` is the same list as a file."""
    slugs = dict(visible_models(actor_of(request)).values_list("pk", "slug"))
    filters, models = _filters(request, slugs), tuple(slugs)
    try:
        rows, error = found_rollouts(models, _narrowed(filters)), None
    except Invalid as refused:
        rows, error = found_rollouts(models, ListFilter()), refused
    if request.GET.get("format") == "csv" and error is None:
        return _csv(rows[:MOST_ROWS])
    facts = {
        "page": Paginator(rows, PER_PAGE).get_page(request.GET.get("page")),
        "filters": filters,
        "is_filtered": any(one.value for one in filters),
        "plot": _weeks(models),
        "error": error,
    }
    return render(request, "rollouts/rollouts.html", facts, status=error.status if error else 200)


def _filters(request: HttpRequest, slugs: Mapping[int, str]) -> list[Filter]:
    states = [*((name, name) for name in GROUPS), *((one.value, one.value.replace("_", " ")) for one in RolloutState)]
    return asked(
        request,
        Filter("model", "Model", [(slug, slug) for slug in slugs.values()]),
        Filter("state", "State", states),
        Filter("environment", "Environment", environment_titles()),
        Filter("person", "Asked for by", [(name, name) for name in people_of(tuple(slugs))]),
        Filter("since", "Since", kind="search", hint="2026-11-22 or 2 h"),
        Filter("until", "Until", kind="search", hint="now"),
    )


def _narrowed(filters: list[Filter]) -> ListFilter:
    value = {one.name: one.value for one in filters}
    return ListFilter(
        value["model"],
        value["environment"],
        value["state"],
        value["person"],
        _instant(value["since"]),
        _instant(value["until"]),
    )


def _instant(text: str) -> datetime | None:
    try:
        return read_instant(text, timezone.now())
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"“{text[:40]}” is no instant. Write {EXAMPLES}.") from None


def _weeks(models: Collection[int]) -> Plot:
    weeks = weeks_of(models, timezone.now().date())
    total = {name: sum(found.get(name, 0) for _, found in weeks) for name in OUTCOMES}
    ended = total["promoted"] + total["rolled back"]
    caption = f"Of {ended} in {len(weeks)} weeks that moved traffic and ended, {total['promoted']} were promoted."
    places = [Bar(f"{monday:%d %b}", found) for monday, found in weeks]
    return bars("Rollouts by week and outcome", caption, places, looks=_LOOKS, x_label="week from", name="weeks")


def _csv(rows: Iterable[Rollout]) -> HttpResponse:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    table.writerows([_cell(one) for one in _cells(row)] for row in rows)
    answer = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="sluicegate-rollouts.csv"'
    return answer


def _cells(row: Rollout) -> list[object]:
    lasted = max(0.0, round((row.ended_at - row.created_at).total_seconds(), 1)) if row.ended_at else None
    return [
        row.pk, row.model.slug, row.environment.slug, row.candidate.name, row.stable.name if row.stable else "", row.outcome,
        row.weight_bp / 100, row.requested_by.username if row.requested_by else "", row.created_at.isoformat(),
        row.ended_at.isoformat() if row.ended_at else "", lasted, row.reason,
    ]  # fmt: skip


def _cell(value: object) -> str:
    """Turns a spreadsheet's formula into text. Source: OWASP, CSV injection."""
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
