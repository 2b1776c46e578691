"""A model's releases as people look for them: filtered, ordered and paged by the address, in the words of the API's `where`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.core.paginator import Page, Paginator
from django.db.models import F, OuterRef, Prefetch, QuerySet, Subquery
from django.http import HttpRequest

from ledger.core.errors import Invalid
from registry.core.lifecycle import ReleaseState
from registry.models import Release, ServedModel
from registry.queries import releases_of
from registry.queries.aliases import with_alias_names
from registry.queries.release_filter import filter_releases
from registry.queries.releases import size_of_files
from registry.queries.reviews import with_tags
from rollouts.core.lifecycle import FINAL
from rollouts.queries.release_outcome import MOVING, NONE, LastRollout, last_rollout_of, with_last_rollout
from rollouts.queries.rolled_back import RolledBack, rolled_back
from validators.core.verdict import Verdict
from validators.models import GateRun
from validators.queries import newest_gate_runs
from validators.queries.gate_runs import accuracies_of, reports_of
from validators.queries.release_fields import measured
from web.listing import Filter, asked, sort_asked

PER_PAGE: Final = 25
#: A filter, and an order that no index has, look at so many of the newest releases; the API's `where` looks at all of them.
MOST_LOOKED_AT: Final = 5_000
#: Orders of the list; the first two go by the index of numbers, as releases are numbered when they are sealed.
SORTS: Final = ("number", "created", "p95", "accuracy", "size")


@dataclass(frozen=True)
class ReleaseRow:
    """A release in its model's list: what its gates measured, and what became of it with traffic."""

    release: Release
    gate_run: GateRun | None
    accuracy: dict[str, float] | None
    p95_ms: float | None  # of the load gate of its newest report
    size_bytes: int
    aliases: list[str]
    labels: list[str]  # those that were sealed, then the tags of its note
    serves: list[str]  # slugs of the environments
    before: list[RolledBack]
    last: LastRollout | None  # the newest rollout of it


def release_list(request: HttpRequest, served: ServedModel, routes: Sequence[Any]) -> dict[str, Any]:
    """The facts that `registry/_releases.html` needs. `routes`: (route, …) of the model's environments."""
    filters, sort = _filters(request, routes), sort_asked(request, SORTS, "-number")
    conditions = _conditions(filters)
    every = releases_of(served)
    bounded = every.filter(number__gt=max(0, served.last_number - MOST_LOOKED_AT))
    is_by_number = sort.removeprefix("-") in SORTS[:2]
    error = None
    try:
        found = filter_releases(bounded, conditions) if conditions else every if is_by_number else bounded
    except Invalid as refused:
        found, error = every, refused
    page: Any
    if found is every:  # numbers have no gap; to count a hundred thousand takes as long as the page
        page = Paginator(range(served.last_number), PER_PAGE).get_page(request.GET.get("page"))
        page.object_list = list(_page_of_all(sort, PER_PAGE * (page.number - 1), model=served.pk))
        for release in page.object_list:
            release.model = served
    else:
        page = Paginator(_sorted(_whole(found), sort), PER_PAGE).get_page(request.GET.get("page"))
    return {
        "page": page, "rows": _rows(page, routes), "filters": filters, "is_filtered": bool(conditions), "sort": sort,
        "error": error, "command": _command(served, conditions),
        "looked_at": MOST_LOOKED_AT if found is not every and served.last_number > MOST_LOOKED_AT else None,
    }  # fmt: skip


def _filters(request: HttpRequest, routes: Sequence[Any]) -> list[Filter]:
    outcomes = [(MOVING, "under way"), *sorted((one.value, one.value.replace("_", " ")) for one in FINAL)]
    return asked(
        request,
        Filter("text", "Number, digest, author or note", hint="r12, 9f3a… or ada"),
        Filter("label", "Label or tag", hint="precision=int8", kind="search"),
        Filter("state", "State", [(one.value, one.value) for one in (ReleaseState.SEALED, ReleaseState.RETIRED)]),
        Filter("verdict", "Gates", [(one.value, one.value) for one in Verdict]),
        Filter("outcome", "Last rollout", [*outcomes, (NONE, "never rolled out")]),
        Filter("serves", "Serves", [(route.environment.slug, route.environment.title) for route, *_ in routes]),
        Filter("where", "Condition", hint="metric.load.latency_p95<=50", kind="search"),
    )


def _conditions(filters: Sequence[Filter]) -> list[str]:
    """As the API's `where` takes them; that of the field `where` stands as it was written."""
    given = [one for one in filters if one.value]
    return [one.value if one.name == "where" else f"{one.name}={one.value}" for one in given]


def _command(served: ServedModel, conditions: Sequence[str]) -> str:
    asked_for = "".join(f" --where {shlex.quote(one)}" for one in conditions)
    return f"sluicegate release list {served.slug}{asked_for}"


def _whole(releases: QuerySet[Release]) -> QuerySet[Release]:
    """The rows of these releases, by a query for them and a query for their gate runs."""
    return (
        with_last_rollout(with_tags(with_alias_names(releases)))
        .annotate(
            p95=measured("load", "latency p95"),
            measured_in=Subquery(reports_of(OuterRef("pk")).values("gate_run")[:1]),
            sealed_labels=F("spec__provenance__labels"),
            size=size_of_files(),
        )
        .prefetch_related(Prefetch("gate_runs", queryset=newest_gate_runs()))
    )


def _sorted(releases: QuerySet[Release], sort: str) -> QuerySet[Release]:
    """Those that have no such number are last, whichever way round; equal ones the newest first."""
    key, is_down = sort.removeprefix("-"), sort.startswith("-")
    if key == "accuracy":
        releases = releases.annotate(accuracy=measured("golden", "accuracy"))  # its rows read it with its interval
    if key in SORTS[:2]:
        return releases.order_by("-number" if is_down else "number")
    order = F(key).desc(nulls_last=True) if is_down else F(key).asc(nulls_last=True)
    return releases.order_by(order, "-number")


def _page_of_all(sort: Any, begin: Any, model: Any) -> QuerySet[Any, Any]:
    return _sorted(_whole(releases_of(model)), sort)[begin : begin + PER_PAGE]


def _rows(page: Page[Any], routes: Sequence[Any]) -> list[ReleaseRow]:
    """Each row of the page, by two queries and the page's own."""
    before = rolled_back([release.pk for release in page])
    accuracies = accuracies_of([run for one in page if (run := one.measured_in) is not None])
    found = []
    for one in page:
        row: Any = one
        labels = [f"{name}={value}" if value else name for name, value in sorted((row.sealed_labels or {}).items())]
        found.append(
            ReleaseRow(
                one, next(iter(one.gate_runs.all()), None), accuracies.get(row.measured_in), row.p95, row.size or 0,
                row.alias_names, [*labels, *(row.tags or [])],
                [route.environment.slug for route, *_ in routes if route.stable_id == one.pk],
                before.get(one.pk, []), last_rollout_of(one),
            )
        )  # fmt: skip
    return found
