"""What serves each model in each environment, how it got there, and the way back that is left: the rows of the overview."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from registry.models import Release, ServedModel
from rollouts.core.lifecycle import ACTIVE, LIVE, RolloutState
from rollouts.models import Rollout
from serving.models import Environment, Route
from serving.queries import all_environments
from serving.queries.deployments import among
from serving.queries.readiness import Readiness, readiness_of
from serving.queries.routes import all_routes

S = RolloutState


@dataclass(frozen=True)
class Place:
    """One model in one environment. `number`: of the release that serves there (or is loaded, where no gateway routes), since
    `since`; `others`: those that are loaded beside it.

    `last`: the newest rollout there, whatever became of it. `back_to`: the release that one press goes back to, until
    `back_until` where that ends by itself; None: there is no way back that needs no new rollout.
    """

    environment: Environment
    model: ServedModel
    number: int | None
    route: Route | None = None
    since: datetime | None = None
    last: Rollout | None = None
    back_to: Release | None = None
    back_until: datetime | None = None
    health: Readiness | None = None
    others: tuple[int, ...] = ()

    @property
    def moving(self) -> Rollout | None:
        """The rollout that is under way there."""
        return self.last if self.last is not None and self.last.state in ACTIVE else None

    @property
    def key(self) -> str:
        """Names the place within a page."""
        return f"{self.environment.slug}-{self.model.slug}"


def places_of(models: Collection[ServedModel], *, now: datetime | None = None) -> dict[Environment, list[Place]]:
    """Every environment, with the places of these models in it, in the order of the models. Four queries."""
    now = now or timezone.now()
    by_id = {model.pk: model for model in models}
    routes = {(one.environment_id, one.model_id): one for one in _routes(by_id)}
    rollouts, health = _newest(by_id), readiness_of(by_id)
    loaded: dict[tuple[int, int], dict[int, Readiness]] = {}
    for (environment_id, _), one in health.items():
        loaded.setdefault((environment_id, one.model_id), {})[one.number] = one
    found: dict[Environment, list[Place]] = {}
    for environment in all_environments():
        found[environment] = []
        for model in models:
            at = (environment.pk, model.pk)
            route, (last, promoted) = routes.get(at), rollouts.get(at, (None, None))
            there = loaded.get(at, {})
            number = route.stable.number if route is not None else max(there, default=None)
            if number is None and last is None:
                continue
            back_to, back_until = _undo_of(route, last, promoted, health, now)
            found[environment].append(
                Place(
                    environment, model, number, route, _since(route, promoted), last, back_to, back_until,
                    there.get(number) if number is not None else None,
                    tuple(one for one in sorted(there, reverse=True) if one != number),
                )
            )  # fmt: skip
    return found


#: What a place says of a route and of a rollout; whole rows of hundreds of models take longer to read than all else.
_OF_ROUTE = ("environment_id", "model_id", "candidate_bp", "changed_at", "stable__number", "candidate__number")
_OF_ROLLOUT = (
    "environment_id", "model_id", "state", "weight_bp", "reason", "created_at", "step_started_at", "decided_at", "ended_at",
    "undo_until", "candidate__number", "stable__number",
)  # fmt: skip


def _routes(models: Collection[int]) -> list[Route]:
    rows = all_routes().filter(model_id__in=among(models)).select_related(None)
    return list(rows.select_related("stable", "candidate").only(*_OF_ROUTE))


def _newest(models: Collection[int]) -> dict[tuple[int, int], tuple[Rollout | None, Rollout | None]]:
    """By (environment, model): the newest rollout, and the newest that was promoted (also where it was reverted since)."""
    mine = Rollout.objects.filter(model_id__in=among(models)).order_by("environment_id", "model_id", "-pk")
    of_place = ("environment_id", "model_id")
    newest = mine.distinct(*of_place).values("pk")
    promoted = mine.filter(state__in=[S.PROMOTED, S.REVERTED]).distinct(*of_place).values("pk")
    rows = (
        Rollout.objects.filter(Q(pk__in=newest) | Q(pk__in=promoted))
        .select_related("candidate", "stable")
        .order_by("pk")
    )
    found: dict[tuple[int, int], tuple[Rollout | None, Rollout | None]] = {}
    for row in rows.only(*_OF_ROLLOUT):
        at = (row.environment_id, row.model_id)
        _, before = found.get(at, (None, None))
        found[at] = (row, row if row.state in {S.PROMOTED, S.REVERTED} else before)
    return found


def _since(route: Route | None, promoted: Rollout | None) -> datetime | None:
    """Since when the stable release serves: its promotion; the route's last change where it came there otherwise."""
    if route is None:
        return None
    is_its = promoted is not None and promoted.state == S.PROMOTED and promoted.candidate_id == route.stable_id
    return (promoted.ended_at if is_its and promoted is not None else None) or route.changed_at


def _undo_of(
    route: Route | None,
    last: Rollout | None,
    promoted: Rollout | None,
    health: dict[tuple[int, UUID], Readiness],
    now: datetime,
) -> tuple[Release | None, datetime | None]:
    """(release, until when) that one press goes back to: the rules of `undo_window`, for what was read already."""
    if route is None or last is None:
        return None, None
    if last.state in LIVE:
        return last.stable, None
    if last.state in ACTIVE or promoted is None or promoted.state != S.PROMOTED:
        return None, None
    before, until = promoted.stable, promoted.undo_until
    if before is None or until is None or until <= now or promoted.candidate_id != route.stable_id:
        return None, None
    kept = health.get((route.environment_id, before.pk))
    return (before, until) if kept is not None and kept.answering else (None, None)
