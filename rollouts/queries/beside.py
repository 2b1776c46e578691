"""Context of a new rollout: the active rollout, the previous rollout, and the traffic as last counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import OuterRef, Subquery
from django.db.models.functions import JSONObject
from django.utils import timezone

from registry.models import ServedModel
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.models import Rollout
from rollouts.queries.traffic import FRESH_FOR, Traffic, counted, traffic_from
from serving.environments.queries.inventory import one_environment
from serving.models import Environment


@dataclass(frozen=True)
class Ongoing:
    """A rollout that has not ended; `candidate` is the release's number."""

    pk: int
    state: RolloutState
    candidate: int


@dataclass(frozen=True)
class Former:
    """A rollout, ended or not, and the policy that it followed."""

    pk: int
    policy: Mapping[str, Any]
    policy_digest: str


@dataclass(frozen=True)
class Beside:
    """None if there is no such rollout; `former` is the newest of all."""

    ongoing: Ongoing | None
    former: Former | None
    traffic: Traffic


def beside(model: ServedModel, environment: Environment) -> Beside:
    """Context of a new rollout of the model in the environment. One query."""
    here = Rollout.objects.filter(model=model, environment=OuterRef("pk")).order_by("-pk")
    active = here.filter(state__in=sorted(state.value for state in ACTIVE))
    of_ongoing = JSONObject(pk="pk", state="state", candidate="candidate__number")
    of_former = JSONObject(pk="pk", policy="policy", policy_digest="policy_digest")
    places = counted(one_environment(environment.pk), model.pk, timezone.now() - FRESH_FOR)
    row: Any = places.annotate(
        ongoing=Subquery(active.values(row=of_ongoing)[:1]), former=Subquery(here.values(row=of_former)[:1])
    ).get()
    ongoing = Ongoing(**{**row.ongoing, "state": RolloutState(row.ongoing["state"])}) if row.ongoing else None
    return Beside(ongoing, Former(**row.former) if row.former else None, traffic_from(row.tested, row.blocks))
