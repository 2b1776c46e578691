"""What became of a release with traffic: its newest rollout, and where it serves; as fields that conditions on releases may name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, Subquery

from registry.core.release_filter import Condition, FieldKind, Operator
from rollouts.core.lifecycle import ACTIVE
from rollouts.models import Rollout
from serving.queries.routes import all_routes

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


def newest_rollouts(releases: Collection[UUID]) -> dict[UUID, Rollout]:
    """The newest rollout of each of the releases that had one, with its environment. One query."""
    rows = Rollout.objects.filter(candidate__in=releases).select_related("environment").defer("policy", "engine_state")
    return {one.candidate_id: one for one in rows.order_by("candidate_id", "-pk").distinct("candidate_id")}
