"""What serves each model in each environment, how it got there, and the way back that is left: the rows of the overview."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from registry.models import ServedModel
from rollouts.core.lifecycle import ACTIVE, LIVE, RolloutState, outcome_of
from rollouts.models import Alarm, Rollout
from rollouts.queries.alarms import LIVE_ALARMS, alarms_from
from serving.models import Environment, Route
from serving.targets.queries import all_environments
from serving.traffic.queries.readiness import Readiness, readiness_from, readiness_of
from serving.traffic.queries.route_splits import NamedRelease, RouteSplit, named_release, splits_of

S = RolloutState
_At = tuple[int, int]  # the keys of an environment and of a model


class PlaceRollout(NamedTuple):
    """Facts of a rollout at a place; see `rollouts.models.Rollout`."""

    pk: int
    candidate: NamedRelease
    stable: NamedRelease | None
    state: str
    weight_bp: int
    reason: str
    created_at: datetime
    step_started_at: datetime | None
    decided_at: datetime | None
    ended_at: datetime | None
    undo_until: datetime | None
    window_s: float | None  # of undo, by the policy

    @property
    def outcome_at(self) -> datetime:
        """When the outcome came about: a rollback after the promotion is younger than the promotion."""
        last = self.decided_at if self.state == S.REVERTED else self.ended_at
        return last or self.ended_at or self.created_at

    @property
    def outcome(self) -> str:
        return outcome_of(self.state, has_stable=self.stable is not None)


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
    route: RouteSplit | None = None
    since: datetime | None = None
    last: PlaceRollout | None = None
    back_to: NamedRelease | None = None
    back_until: datetime | None = None
    health: Readiness | None = None
    others: tuple[int, ...] = ()
    alarms: Sequence[Alarm] = ()  # live ones, those of the tier page first

    @property
    def moving(self) -> PlaceRollout | None:
        """The rollout that is under way there."""
        return self.last if self.last is not None and self.last.state in ACTIVE else None

    @property
    def sleep(self) -> str:
        """asleep or waking; empty of a model that is awake there."""
        return (self.route.sleep if self.route is not None else None) or ""

    @property
    def is_awake(self) -> bool:
        """Whether gateways route here to a model that does not sleep."""
        return self.route is not None and not self.sleep

    @property
    def is_lost(self) -> bool:
        """Whether gateways route here and no server of stable is known to answer; a model that sleeps is not lost."""
        return self.is_awake and (self.health is None or not self.health.answering)

    @property
    def is_doubted(self) -> bool:
        """Whether an alarm is live, or servers of stable are not known to answer or gave no right answer lately."""
        is_unproven = self.is_awake and self.health is not None and self.health.unproven > 0
        return bool(self.alarms) or self.is_lost or is_unproven

    @property
    def key(self) -> str:
        """Names the place within a page."""
        return f"{self.environment.slug}-{self.model.slug}"


def served_places(model: ServedModel, routes: Iterable[Route]) -> dict[int, Place]:
    """By route, of the model's `watched_routes`: the release, its health and its alarms, without rollouts. No query."""
    found = {}
    for route in routes:
        stable = NamedRelease(route.stable_id, route.stable.number)
        split = RouteSplit(stable, None, 0, route.stable_since, route.sleep)  # type: ignore[attr-defined]
        there = readiness_from(route.health)  # type: ignore[attr-defined]
        alarms = alarms_from(route.alarms)  # type: ignore[attr-defined]
        since = route.stable_since
        found[route.pk] = Place(route.environment, model, stable.number, split, since, health=there, alarms=alarms)
    return found


def places_of(models: Collection[ServedModel], *, now: datetime | None = None) -> dict[Environment, list[Place]]:
    """Every environment, with the places of these models in it, in the order of the models. Five queries."""
    return places_in(all_environments(), models, now=now)


def places_in(
    environments: Iterable[Environment], models: Collection[ServedModel], *, now: datetime | None = None
) -> dict[Environment, list[Place]]:
    """The same for these environments. Four queries."""
    now = now or timezone.now()
    ids = [model.pk for model in models]
    routes, rollouts, health = splits_of(ids), _newest(ids), readiness_of(ids, now=now)
    loaded: dict[_At, dict[int, Readiness]] = {}
    for (environment_id, _), one in health.items():
        loaded.setdefault((environment_id, one.model_id), {})[one.number] = one
    alarms: dict[_At, list[Alarm]] = {}
    for alarm in Alarm.objects.filter(LIVE_ALARMS, model__in=ids).order_by("tier"):  # page before ticket
        alarms.setdefault((alarm.environment_id, alarm.model_id), []).append(alarm)
    found: dict[Environment, list[Place]] = {}
    for environment in environments:
        found[environment] = []
        for model in models:
            at = (environment.pk, model.pk)
            route, (last, promoted) = routes.get(at), rollouts.get(at, (None, None))
            there = loaded.get(at, {})
            number = route.stable.number if route is not None else max(there, default=None)
            if number is None and last is None:
                continue
            back_to, back_until = _undo_of(environment.pk, route, last, promoted, health, now)
            found[environment].append(
                Place(
                    environment, model, number, route, route.stable_since if route is not None else None, last, back_to, back_until,
                    there.get(number) if number is not None else None,
                    tuple(one for one in sorted(there, reverse=True) if one != number), alarms.get(at, ()),
                )
            )  # fmt: skip
    return found


def _rollout_rows(models: Collection[int]) -> QuerySet[Any, tuple[Any, ...]]:
    """The newest of each place, and the newest there that was promoted; the oldest first."""
    mine = Rollout.objects.filter(model__in=models).order_by(*_AT, "-pk")
    newest = mine.distinct(*_AT).values("pk")
    promoted = mine.filter(state__in=_PROMOTED).distinct(*_AT).values("pk")
    rows = Rollout.objects.filter(Q(pk__in=newest) | Q(pk__in=promoted)).order_by("pk")
    return rows.annotate(window_s=F("policy__instant_window_s")).values_list(
        *_AT, *_ARMS, "pk", *PlaceRollout._fields[3:]
    )


_AT = ("environment_id", "model_id")
_ARMS = ("stable_id", "stable__number", "candidate_id", "candidate__number")
_PROMOTED = (S.PROMOTED, S.REVERTED)


def _newest(models: Collection[int]) -> dict[_At, tuple[PlaceRollout, PlaceRollout | None]]:
    """The newest rollout, and the newest promoted rollout (also if it was reverted since)."""
    found: dict[_At, tuple[PlaceRollout, PlaceRollout | None]] = {}
    for environment, model, stable, stable_number, candidate, number, pk, *rest in _rollout_rows(models):
        row = PlaceRollout(pk, NamedRelease(candidate, number), named_release(stable, stable_number), *rest)
        _, before = found.get((environment, model), (None, None))
        found[environment, model] = (row, row if row.state in _PROMOTED else before)
    return found


def _undo_of(
    environment: int,
    route: RouteSplit | None,
    last: PlaceRollout | None,
    promoted: PlaceRollout | None,
    health: dict[tuple[int, UUID], Readiness],
    now: datetime,
) -> tuple[NamedRelease | None, datetime | None]:
    """(release, end of the undo window) of the rollback that one press does, by the rules of `undo_window`. No end while the window is
    prolonged."""
    if route is None or last is None:
        return None, None
    if last.state in LIVE:
        return last.stable, None
    if last.state in ACTIVE or promoted is None or promoted.state != S.PROMOTED:
        return None, None
    before, until = promoted.stable, promoted.undo_until
    if before is None or until is None or until <= now or promoted.candidate != route.stable:
        return None, None
    kept = health.get((environment, before.pk))
    if kept is None or not (kept.answering or kept.unheard):
        return None, None
    ends_at = promoted.outcome_at + timedelta(seconds=promoted.window_s or 0)
    return before, until if until <= ends_at + timedelta(seconds=1) else None
