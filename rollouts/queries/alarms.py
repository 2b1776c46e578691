"""Named reads of alarms, and of how each objective of stable stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from accounts.core.access import Actor, Verb, teams_where
from ledger.core.errors import Invalid, NotFound
from ledger.queries import clock
from registry.models import ServedModel
from rollouts.core.policy_schema import stored_policy
from rollouts.core.watch.lifecycle import LIVE
from rollouts.core.watch.objective import Objective, objectives_of
from rollouts.core.watch.sequential_test import PAGE
from rollouts.core.watch.undo import ObjectiveResult, UndoVerdict, undo_verdict
from rollouts.core.watch.watched import Standing, Watched
from rollouts.models import Alarm, Rollout, WatchRecord
from serving.models import Environment, Route
from serving.queries.routes import route_of

#: Counts that are older than this, in seconds, are not shown: the watch writes them each minute.
STALE_S = 180.0
_LIVE = sorted(state.value for state in LIVE)


def live_alarms() -> QuerySet[Alarm]:
    return Alarm.objects.filter(state__in=_LIVE).select_related(
        "environment", "model__team", "release", "acknowledged_by"
    )


def alarms_for(actor: Actor, *, is_live: bool | None = None) -> QuerySet[Alarm]:
    """Alarms of the models that the actor may read, the newest first."""
    rows = Alarm.objects.select_related("environment", "model__team", "release", "acknowledged_by")
    if is_live is not None:
        rows = rows.filter(Q(state__in=_LIVE) if is_live else ~Q(state__in=_LIVE))
    teams = teams_where(actor, Verb.READ)
    return rows if teams is None else rows.filter(model__team__slug__in=teams)


def get_alarm(actor: Actor, pk: int) -> Alarm:
    """Raises NotFound("no_such_alarm")."""
    found = alarms_for(actor).filter(pk=pk).first()
    if found is None:
        raise NotFound(
            "no_such_alarm", f"There is no alarm {pk}. GET /alarms lists those of the models that you may read."
        )
    return found


def watched_objectives(model: ServedModel) -> tuple[Objective, ...]:
    """The objectives of the model that the watch judges; none if its policy cannot be read today."""
    try:
        return objectives_of(stored_policy(model.rollout_policy, model.objectives))
    except Invalid:
        return ()


@dataclass(frozen=True)
class ObjectiveNow:
    """How an objective stands.

    Attributes:
        standing: `not_judged` without counts of the last minutes.
        bad, attempts: since `since`, when the watch began to count the present stable release; None: it has not.
        burn_5m, burn_1h: share of bad attempts divided by the objective; None without an attempt.
        unknown_s: seconds since `since` without counts.
        alarm: the live one, that of the page before that of the ticket.
    """

    name: str
    words: str
    max_frac: float
    standing: Standing
    bad: int = 0
    attempts: int = 0
    since: datetime | None = None
    burn_5m: float | None = None
    burn_1h: float | None = None
    unknown_s: float = 0.0
    log_e_met: float = 0.0
    alarm: Alarm | None = None

    @property
    def judged(self) -> ObjectiveResult:
        return ObjectiveResult(
            self.name, self.words, self.max_frac, self.standing, self.bad, self.attempts, self.log_e_met
        )


def objectives_now(route: Route, *, alarms: Iterable[Alarm] | None = None) -> list[ObjectiveNow]:
    """How each objective of the route's stable release stands. `alarms`: the live ones of the model there, if they are known."""
    here = Q(environment=route.environment_id, model=route.model_id)
    live = list(live_alarms().filter(here) if alarms is None else alarms)
    record = WatchRecord.objects.filter(here).first()
    now = clock.now()
    is_counted = record is not None and (now - record.at).total_seconds() <= STALE_S
    told: dict[str, Any] = record.objectives if record is not None and is_counted else {}
    return [
        _standing(objective, told.get(objective.name), str(route.stable.digest), live, now)
        for objective in watched_objectives(route.model)
    ]


def _standing(
    objective: Objective, told: dict[str, Any] | None, stable: str, live: list[Alarm], now: datetime
) -> ObjectiveNow:
    alarm = next(
        iter(sorted((one for one in live if one.objective == objective.name), key=lambda one: one.tier != PAGE.name)),
        None,
    )
    plain: dict[str, Any] = {
        "name": objective.name,
        "words": objective.words,
        "max_frac": objective.max_frac,
        "alarm": alarm,
    }
    watched = Watched.from_json(told) if told else None
    if watched is None or watched.release != stable:
        return ObjectiveNow(**plain, standing=Standing.BURNING if alarm else Standing.NOT_JUDGED)
    limit = objective.max_frac
    return ObjectiveNow(
        **plain,
        standing=watched.standing(limit, is_burning=alarm is not None, now=now.timestamp()),
        bad=watched.bad,
        attempts=watched.attempts,
        since=datetime.fromtimestamp(watched.since, tz=now.tzinfo),
        burn_5m=watched.burn(5, limit),
        burn_1h=watched.burn(60, limit),
        unknown_s=watched.unknown_s,
        log_e_met=watched.log_e_met(limit),
    )


def judged_since_promotion(rollout: Rollout) -> tuple[UndoVerdict, list[ObjectiveResult]]:
    """Whether the promoted release meets its objectives, by counts since then; `not_judged` if it is no longer stable."""
    route = route_of(rollout.model_id, rollout.environment_id)
    judged = (
        [one.judged for one in objectives_now(route)]
        if route is not None and route.stable_id == rollout.candidate_id
        else []
    )
    return undo_verdict(judged), judged


def watched_in(environment: Environment, model: ServedModel) -> list[ObjectiveNow]:
    """`objectives_now` of the model in the environment; empty without a route."""
    route = route_of(model, environment)
    return objectives_now(route) if route is not None else []
