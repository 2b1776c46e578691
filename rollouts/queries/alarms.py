"""Named reads of alarms, and of how each objective of stable stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject, Now

from accounts.core.access import Actor
from ledger.core.errors import Invalid, NotFound
from ledger.queries import clock
from registry.models import ServedModel
from registry.queries.releases import sight_of, within_sight
from rollouts.core.policy_schema import stored_policy
from rollouts.core.watch.lifecycle import LIVE
from rollouts.core.watch.objective import Objective, objectives_of, probed
from rollouts.core.watch.sequential_test import PAGE
from rollouts.core.watch.undo import ObjectiveResult, UndoVerdict, undo_verdict
from rollouts.core.watch.watched import Standing, Watched
from rollouts.models import Alarm, Rollout, WatchRecord
from serving.environments.queries.reporting import reports_since
from serving.models import Environment, Route
from serving.traffic.queries.routes import all_routes, every_route, model_routes
from validators.core.policy import asks_golden_set

#: Counts that are older than this, in seconds, are not shown: the watch writes them each minute.
STALE_S = 180.0
#: Condition on alarms.
LIVE_ALARMS = Q(state__in=sorted(state.value for state in LIVE))


def live_alarms() -> QuerySet[Alarm]:
    return Alarm.objects.filter(LIVE_ALARMS).select_related("environment", "model__team", "release", "acknowledged_by")


def loud_alarms() -> QuerySet[Alarm]:
    """Live alarms that are not muted now."""
    return live_alarms().exclude(muted_until__gt=Now())


def alarms_for(actor: Actor, *, is_live: bool | None = None) -> QuerySet[Alarm]:
    """Alarms of the models that the actor may read, the newest first."""
    rows = Alarm.objects.select_related("environment", "model__team", "release", "acknowledged_by")
    if is_live is not None:
        rows = rows.filter(LIVE_ALARMS if is_live else ~LIVE_ALARMS)
    return rows.filter(within_sight(*sight_of(actor), of="model__"))


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
    return readable_objectives(model) or ()


def readable_objectives(model: ServedModel) -> tuple[Objective, ...] | None:
    """The same; None if its policy cannot be read today."""
    try:
        found = objectives_of(stored_policy(model.rollout_policy, model.objectives))
        return (*found, probed(model.objectives)) if asks_golden_set(model.gate_policy) else found
    except Invalid:
        return None


@dataclass(frozen=True)
class ObjectiveNow:
    """How an objective stands.

    Attributes:
        standing: `not_judged` without counts of the last minutes.
        bad, attempts: since `since`, when the watch began to count the present stable release; None: it has not.
        burn_5m, burn_1h: share of bad attempts divided by the objective; None without an attempt.
        unknown_s: seconds since `since` without counts.
        asked_at: the last count with a request; None: none since `since`.
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
    is_silent: bool = False
    asked_at: datetime | None = None
    alarm: Alarm | None = None
    holds_undo: bool = True

    @property
    def share(self) -> float | None:
        """Of bad attempts since `since`; None without an attempt."""
        return self.bad / self.attempts if self.attempts else None

    @property
    def share_5m(self) -> float | None:
        return None if self.burn_5m is None else self.burn_5m * self.max_frac

    @property
    def share_1h(self) -> float | None:
        return None if self.burn_1h is None else self.burn_1h * self.max_frac

    @property
    def judged(self) -> ObjectiveResult:
        """For the undo window. An alarm without requests proves nothing more, and holds no window open for ever."""
        is_stuck = self.standing is Standing.BURNING and self.is_silent
        standing = Standing.NO_DATA if is_stuck else self.standing
        return ObjectiveResult(self.name, self.words, self.max_frac, standing, self.bad, self.attempts, self.log_e_met)


_OF_ALARM = ("id", "objective", "tier", "state", "reason", "opened_at")


def alarm_column() -> ArraySubquery:
    """For a query with the columns `environment` and `model`: the live alarms there, for `alarms_from`."""
    live = Alarm.objects.filter(LIVE_ALARMS, environment=OuterRef("environment"), model=OuterRef("model"))
    return ArraySubquery(live.values(row=JSONObject(**{name: name for name in _OF_ALARM})))


def alarms_from(rows: Iterable[dict[str, Any]]) -> list[Alarm]:
    """The alarms of an `alarm_column`, those of the tier page first."""
    found = [Alarm(**{**row, "opened_at": datetime.fromisoformat(row["opened_at"])}) for row in rows]
    return sorted(found, key=lambda one: one.tier != PAGE.name)


def watched_routes(model: ServedModel) -> list[Route]:
    """As `routes_of` of serving, each with the columns that `objectives_now` reads. One query."""
    found = list(_watched(model_routes(model.pk, reports_since())))
    for route in found:
        route.model = model
    return found


def every_watched_route() -> QuerySet[Route]:
    """As `all_routes` of serving, each with the same."""
    return _watched(all_routes())


def _watched(routes: QuerySet[Route]) -> QuerySet[Route]:
    record = WatchRecord.objects.filter(environment=OuterRef("environment"), model=OuterRef("model"))
    counted = Subquery(record.values(row=JSONObject(at="at", objectives="objectives")))
    return routes.annotate(counted=counted, alarms=alarm_column())


def _watched_route(environment: int, model: int) -> Route | None:
    return _watched(every_route()).filter(environment=environment, model=model).first()


def objectives_now(route: Route, now: datetime | None = None) -> list[ObjectiveNow]:
    """How each objective of the stable release of a watched route stands. No query, but for `now` by the database's clock."""
    record: dict[str, Any] | None = route.counted  # type: ignore[attr-defined]
    now = now or clock.now()
    is_counted = record is not None and (now - datetime.fromisoformat(record["at"])).total_seconds() <= STALE_S
    told: dict[str, Any] = record["objectives"] if record is not None and is_counted else {}
    live = alarms_from(route.alarms)  # type: ignore[attr-defined]
    return [
        _standing(objective, told.get(objective.name), str(route.stable.digest), live, now)
        for objective in watched_objectives(route.model)
    ]


def _standing(
    objective: Objective, told: dict[str, Any] | None, stable: str, live: list[Alarm], now: datetime
) -> ObjectiveNow:
    alarm = next((one for one in live if one.objective == objective.name), None)
    plain: dict[str, Any] = {
        "name": objective.name,
        "words": objective.words,
        "max_frac": objective.max_frac,
        "alarm": alarm,
        "holds_undo": objective.guard.kind.holds_undo,
    }
    watched = Watched.read(told) if told else None
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
        is_silent=watched.is_silent(now.timestamp()),
        asked_at=None if watched.asked_at is None else datetime.fromtimestamp(watched.asked_at, tz=now.tzinfo),
    )


def judged_since_promotion(rollout: Rollout, route: Route | None = None) -> tuple[UndoVerdict, list[ObjectiveResult]]:
    """Whether the promoted release meets its objectives, by counts since then; `not_judged` if it is no longer stable. `route`: the
    watched route, if it is known."""
    route = route or _watched_route(rollout.environment_id, rollout.model_id)
    is_stable = route is not None and route.stable_id == rollout.candidate_id
    stand = objectives_now(route) if route is not None and is_stable else []
    judged = [one.judged for one in stand if one.holds_undo or one.alarm]
    return undo_verdict(judged), judged


@dataclass(frozen=True)
class ProlongedWindow:
    """Why an undo window is open beyond its policy's time. `closes_at`: without proof; None while an objective burns."""

    verdict: UndoVerdict
    judged: list[ObjectiveResult]
    closes_at: datetime | None


def prolonged_window(rollout: Rollout, route: Route | None = None) -> ProlongedWindow | None:
    """None if the window still runs by its policy's time. `route`: as above."""
    if not rollout.is_undo_prolonged:
        return None
    verdict, judged = judged_since_promotion(rollout, route)
    began_at = rollout.ended_at or rollout.created_at
    is_burning = verdict is UndoVerdict.BURNING
    closes_at = began_at + timedelta(seconds=rollout.effective_policy.undo_max_s)
    return ProlongedWindow(verdict, judged, None if is_burning else closes_at)


def watched_in(environment: Environment, model: ServedModel) -> list[ObjectiveNow]:
    """`objectives_now` of the model in the environment; empty without a route."""
    route = _watched_route(environment.pk, model.pk)
    return objectives_now(route) if route is not None else []
