"""A release's history with traffic: its newest rollout, and its environments; as fields for conditions on releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject

from registry.core.release_filter import Condition, FieldKind, Operator
from registry.models import Release
from rollouts.core.lifecycle import ACTIVE
from rollouts.models import Rollout
from serving.traffic.queries.routes import all_routes

FIELDS: Final = {"outcome": FieldKind.TEXT, "serves": FieldKind.TEXT}
#: An outcome beside the states of a rollout: its newest one has not ended.
MOVING: Final = "moving"
#: No rollout had it as its candidate.
NONE: Final = "none"


def meaning(condition: Condition) -> Q:
    """The releases for which it holds. `outcome`: the state of the newest rollout of it, `moving` or `none`; `serves`: an
    environment whose stable release it is."""
    is_unequal, value = condition.operator is Operator.UNEQUAL, str(condition.value)
    if condition.field == "serves":
        holds = Q(Exists(all_routes().filter(stable=OuterRef("pk"), environment__slug=value)))
        return ~holds if is_unequal else holds
    of_it = Rollout.objects.filter(candidate=OuterRef("pk"))
    if value == NONE:
        return Q(Exists(of_it)) if is_unequal else ~Q(Exists(of_it))
    states = sorted(ACTIVE) if value == MOVING else [value]
    newest = Rollout.objects.filter(candidate=OuterRef("candidate")).order_by("-pk").values("pk")[:1]
    narrowed = ~Q(state__in=states) if is_unequal else Q(state__in=states)
    return Q(Exists(of_it.filter(narrowed, pk=Subquery(newest))))


@dataclass(frozen=True)
class LastRollout:
    """The newest rollout of a release, as a list names it."""

    pk: int
    outcome: str
    environment: str


def with_last_rollout(releases: QuerySet[Release]) -> QuerySet[Release]:
    """Each with what `last_rollout_of` reads. No further query."""
    newest = Rollout.objects.filter(candidate=OuterRef("pk")).order_by("-pk")
    row = JSONObject(pk="pk", state="state", stable="stable_id", environment="environment__slug")
    return releases.annotate(last_rollout=Subquery(newest.values(row=row)[:1]))


def last_rollout_of(release: Release) -> LastRollout | None:
    """Of a release of `with_last_rollout`; None if it never was a candidate."""
    row = release.last_rollout  # type: ignore[attr-defined]
    if row is None:
        return None
    outcome = Rollout(state=row["state"], stable_id=row["stable"]).outcome
    return LastRollout(row["pk"], outcome, row["environment"])
