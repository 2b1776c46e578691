"""Every 10 s: reads the gateways' counts of each routed model, judges its objectives, opens and closes alarms."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import structlog
from django.db import OperationalError, close_old_connections, connection

from ledger.actions.leadership import Leadership, LeadershipLost
from ledger.core.errors import DomainError
from registry.queries.releases import LARGE
from rollouts.actions.alarms import WATCH, end_alarm, open_alarm, update_alarm
from rollouts.actions.control import has_control, share_control
from rollouts.actions.instant_rollback import roll_back_by_watch
from rollouts.core.counter_deltas import Arms
from rollouts.core.indicators import Source
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.core.policy import Policy
from rollouts.core.watch.comparison import EVEN_BP, LOOK_S, Comparison, bar_of
from rollouts.core.watch.objective import Objective
from rollouts.core.watch.pace import left_s
from rollouts.core.watch.sequential_test import PAGE, TICKET, TIERS
from rollouts.core.watch.watched import Watched
from rollouts.engine.gateway_counters import counts_of
from rollouts.models import Alarm, Rollout, WatchRecord
from rollouts.queries.alarms import live_alarms, readable_objectives
from rollouts.queries.prober_tallies import probe_readings
from serving.models import Gateway, Route
from serving.ports import GatewayCounters, GatewayError, TrafficCounters
from serving.targets.queries import gateways_in
from serving.traffic.actions.recorder import Recorder
from serving.traffic.queries.routes import all_routes

log = structlog.get_logger(__name__)
READ_TIMEOUT_S = 2.0
#: Time (s) between two writes; a change of an alarm writes at once. A new leader loses no more than this.
WRITE_EVERY_S = 60.0
#: Minutes whose counts an alarm shows when it opens and when it closes.
TOLD = {PAGE.name: (5, 5), TICKET.name: (60, 30)}

Key = tuple[int, int]  # environment, model
Pages = dict[str, dict[str, GatewayCounters]]  # by gateway and model


@dataclass
class _Model:
    """One model in one environment. `readings`: (epoch, counts of control and stable) of the last reading, by gateway; "" is
    the prober."""

    route: Route
    objectives: dict[str, Objective] = field(default_factory=dict)
    watched: dict[str, Watched] = field(default_factory=dict)
    readings: dict[str, tuple[str, Arms]] = field(default_factory=dict)
    policy: tuple[Any, ...] | None = None  # what `objectives` were read from
    is_readable: bool = True  # whether the policy could be read; else the objectives are the last that could
    promoted: Rollout | None = None  # if the release before it is the control

    @property
    def plan(self) -> Policy | None:
        """Of the rollout that has a control."""
        return self.promoted.effective_policy if self.promoted is not None else None

    def take_route(self, route: Route, promoted: Rollout | None, at: float) -> None:
        """Takes the present route and policy. Another stable release or control is counted anew."""
        if promoted is not None and (route.stable_id, route.candidate_id) != (
            promoted.candidate_id,
            promoted.stable_id,
        ):
            promoted = None
        if (promoted and promoted.pk) != (
            self.promoted and self.promoted.pk
        ) or route.stable_id != self.route.stable_id:
            self.readings = {}
        self.promoted = promoted
        self.route, stable = route, str(route.stable.digest)
        policy = (route.model.rollout_policy, route.model.objectives, route.model.gate_policy)
        if policy != self.policy:
            self.readings = {}  # a new objective has not counted what came before it
            found = readable_objectives(route.model)
            self.policy, self.is_readable = policy, found is not None
            self.objectives = {one.name: one for one in found} if found is not None else self.objectives
        known = self.watched
        self.watched = {}
        for name in self.objectives:
            before = known.get(name)
            watched = before if before is not None and before.release == stable else Watched(stable, at)
            control = (watched.control or Comparison()).at(route.candidate_bp) if promoted is not None else None
            self.watched[name] = replace(watched, control=control)

    def take(self, pages: Pages, gateways: list[Gateway]) -> tuple[Arms, bool]:
        """Counts of stable and its control since the last reading, and whether each gateway gave its own."""
        found, is_known = Arms(), bool(gateways)
        stable, control = (
            str(self.route.stable.digest),
            str(self.route.candidate.digest) if self.promoted and self.route.candidate else "",
        )
        edges = [
            (name, one.guard.threshold_us, one.guard.kind.measure)
            for name, one in self.objectives.items()
            if one.guard.kind.has_thresholds
        ]
        for gateway in gateways:
            page = pages.get(gateway.name)
            if page is None:
                is_known = False
                continue
            told = page.get(self.route.model.slug)
            if told is None:
                continue  # the gateway had no request for it
            now = Arms(*(counts_of(told.by_release.get(digest), edges) for digest in (control, stable)))
            since = self._since(gateway.name, told.epoch, now)
            is_known = is_known and since is not None
            found = found + (since or Arms())
        return found, is_known

    def take_probes(self, told: tuple[str, Arms] | None) -> tuple[Arms, bool]:
        """The same of golden probes; None: the prober does not ask this release."""
        since = self._since("", *told) if told is not None else None
        return since or Arms(), since is not None

    def _since(self, source: str, epoch: str, now: Arms) -> Arms | None:
        """Counts since the last reading; None if it is the first, or if counts began anew."""
        known, before = self.readings.get(source, ("", Arms()))
        self.readings[source] = (epoch, now)
        if epoch != known or now.stable.fell(before.stable) or now.candidate.fell(before.candidate):
            return None
        return Arms(now.candidate.since(before.candidate), now.stable.since(before.stable))


class StableWatch:
    """Runs in a thread of its own, so that it never delays a tick.

    It writes under the engine's `lead`. `now` is the database's clock. `recorder` keeps the readings.
    """

    def __init__(
        self, counters: TrafficCounters, lead: Leadership, now: Callable[[], datetime], recorder: Recorder | None = None
    ) -> None:
        self.counters, self.lead, self.now, self.recorder = counters, lead, now, recorder
        self._models: dict[Key, _Model] = {}
        self._is_loaded, self._written_at, self._last_at = False, 0.0, 0.0

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set."""
        while not stopping.wait(left_s(self.now().timestamp(), PAGE.bin_s)):
            try:
                if self.lead.holds():
                    self.turn()
                else:
                    self._forget()
            except LeadershipLost:
                self._forget()
            except OperationalError as error:  # a row was locked for long: the counts stay, and the next turn goes on
                log.warning("stable_watch_waits", error=str(error))
                close_old_connections()
            except Exception:  # nothing of this may end the engine
                log.warning("stable_watch_failed", traceback=traceback.format_exc())
                self._forget()
                close_old_connections()
        connection.close()

    def _forget(self) -> None:
        self._models, self._is_loaded = {}, False
        if self.recorder is not None:
            self.recorder.forget()

    def turn(self) -> None:
        """One bin of every routed model. Raises LeadershipLost before a write if another engine leads."""
        now = self.now()
        at = now.timestamp()
        took_s = at - self._last_at if self._is_loaded else PAGE.bin_s
        self._last_at = at
        self._take_routes(at)
        gateways = gateways_in({one.route.environment_id for one in self._models.values()})
        pages = self._read([one for here in gateways.values() for one in here])
        probes = probe_readings(now)
        for key, one in self._models.items():
            with self._apart(one):
                counts = {
                    Source.GATEWAY: one.take(pages, gateways.get(one.route.environment_id, [])),
                    Source.PROBES: one.take_probes(probes.get((*key, one.route.stable_id))),
                }
                _count(one, counts, at, took_s)
        changed = self._judge(now)
        if changed or at - self._written_at >= WRITE_EVERY_S:
            self._written_at = at
            self._write(now)
        if self.recorder is not None:
            routed = ((*key, one.route.model.slug) for key, one in self._models.items())
            self.recorder.keep(routed, gateways, pages, at)

    def _take_routes(self, at: float) -> None:
        stored = {} if self._is_loaded else _stored(at)
        self._is_loaded = True
        known, self._models = self._models, {}
        related = Rollout.objects.select_related("candidate", "stable", "model__team", "environment")
        kept = related.filter(state=RolloutState.PROMOTED, undo_until__isnull=False, stable__isnull=False)
        promoted = {(one.environment_id, one.model_id): one for one in kept.order_by("pk") if has_control(one)}
        large = [f"{arm}__{column}" for arm in ("stable", "candidate") for column in LARGE]
        for route in all_routes().defer(*large):
            key = (route.environment_id, route.model_id)
            one = self._models[key] = known.get(key) or _Model(route, watched=stored.get(key, {}))
            with self._apart(one):
                one.take_route(route, promoted.get(key), at)

    @contextlib.contextmanager
    def _apart(self, one: _Model) -> Iterator[None]:
        """What fails for one model costs no other its watch; that model is counted anew."""
        try:
            yield
        except (ArithmeticError, DomainError, LookupError, TypeError, ValueError):
            log.warning("model_not_watched", model=one.route.model.slug, traceback=traceback.format_exc())
            one.watched, one.readings, one.policy = {}, {}, None

    def _read(self, gateways: list[Gateway]) -> Pages:
        """Counts of each gateway; without those that cannot be read."""
        found: Pages = {}
        for one in gateways:
            try:
                found[one.name] = self.counters.read(
                    gateway=one.name, admin_url=one.admin_url, timeout_s=READ_TIMEOUT_S
                )
            except GatewayError as error:
                log.info("gateway_not_watched", gateway=one.name, error=str(error))
        return found

    # -- alarms -------------------------------------------------------------------------------------------------------

    def _judge(self, now: datetime) -> bool:
        """Opens and closes alarms; whether any did."""
        live = {(one.environment_id, one.model_id, one.objective, one.tier): one for one in live_alarms()}
        changed = False
        for one in self._models.values():
            if one.promoted is not None:
                with self._apart(one):
                    changed |= self._compare(one, live, now)
        for alarm in live.values():
            changed |= self._close(alarm, self._models.get((alarm.environment_id, alarm.model_id)), now)
        for key, one in self._models.items():
            for name, watched in one.watched.items():
                for tier in TIERS:
                    if watched.is_over(tier.name) and (*key, name, tier.name) not in live:
                        self._open(one, name, tier.name, now)
                        changed = True
        return changed

    def _compare(self, one: _Model, live: dict[Any, Alarm], now: datetime) -> bool:
        """Begins and ends a look at both releases under equal load, and undoes the promotion if the release is worse in it.

        Returns whether it changed something. `live`: alarms.
        """
        plan, rollout, key = one.plan, one.promoted, (one.route.environment_id, one.route.model_id)
        if plan is None or rollout is None or not plan.control.rolls_back:
            return False
        found = {name: watched.control for name, watched in one.watched.items() if watched.control is not None}
        worse = [
            name
            for name, each in found.items()
            if each.log_e >= bar_of(plan, len(one.objectives), each.looks) and (*key, name, PAGE.name) in live
        ]
        why = _why_worse(rollout, one, worse[0]) if worse else ""
        is_look = one.route.candidate_bp == EVEN_BP
        if is_look and worse and self._is_done(lambda: roll_back_by_watch(rollout, actor=WATCH, reason=why)):
            return True
        if is_look and (now - one.route.changed_at).total_seconds() >= LOOK_S:
            share_bp = plan.control.share_bp
            reason = "Under equal load neither release is proven to be worse."
        elif not is_look and any(found[name].may_look for name in worse) and not _another_waits(rollout):
            share_bp = EVEN_BP
            reason = f"{why} Both get half, to compare them."
        else:
            return False
        return self._is_done(lambda: share_control(rollout, share_bp, actor=WATCH, reason=reason))

    def _close(self, alarm: Alarm, one: _Model | None, now: datetime) -> bool:
        """Closes an alarm whose objective is met again or was removed; else updates its counts."""
        if one is not None and not one.is_readable:
            return False
        if one is None or alarm.objective not in one.objectives:
            with self.lead.locked():
                end_alarm(alarm, at=now, reason=_no_objective(alarm))
            return True
        if alarm.objective not in one.watched:
            return False
        watched, objective = one.watched[alarm.objective], one.objectives[alarm.objective]
        if not watched.has_ended(alarm.tier):
            if watched.at - self._written_at >= WRITE_EVERY_S:
                with self.lead.locked():
                    update_alarm(alarm, _facts(watched, objective, TOLD[alarm.tier][0]))
            return False
        minutes = TOLD[alarm.tier][1]
        bad, attempts = watched.last(minutes)
        words = f"{bad} of {attempts} {objective.words} in the last {minutes} min"
        with self.lead.locked():
            end_alarm(alarm, at=now, reason=f"{one.route.stable.name} is within the objective again: {words}.")
        one.watched[alarm.objective] = watched.begun_anew(alarm.tier)
        return True

    def _open(self, one: _Model, name: str, tier: str, now: datetime) -> None:
        watched, objective = one.watched[name], one.objectives[name]
        minutes = TOLD[tier][0]
        facts = _facts(watched, objective, minutes)
        reason = (
            f"{facts['bad']} of {facts['attempts']} {objective.words} of {one.route.stable.name} in the last {minutes} min. The "
            f"objective allows {objective.max_frac:.2%}; this is {facts['burn']:.1f} times that, "
            f"since {datetime.fromisoformat(facts['since']):%H:%M} UTC."
        )
        with self.lead.locked():
            open_alarm(one.route, objective=name, tier=tier, at=now, reason=reason, facts=facts)
        one.watched[name] = watched.begun_anew(tier)

    def _is_done(self, act: Callable[[], Any]) -> bool:
        """Whether the route was written. If not, the alarm stays, and a person decides."""
        try:
            with self.lead.locked():
                act()
        except DomainError as error:
            log.warning("control_not_compared", code=error.code, error=error.message)
            return False
        return True

    def _write(self, now: datetime) -> None:
        rows = [
            WatchRecord(
                environment_id=environment,
                model_id=model,
                objectives={name: watched.to_json() for name, watched in one.watched.items()},
                at=now,
            )
            for (environment, model), one in self._models.items()
        ]
        with self.lead.locked():
            WatchRecord.objects.bulk_create(
                rows, update_conflicts=True, unique_fields=["environment", "model"], update_fields=["objectives", "at"],
                batch_size=200,
            )  # fmt: skip


def _count(one: _Model, counts: dict[Source, tuple[Arms, bool]], at: float, took_s: float) -> None:
    for name, watched in one.watched.items():
        objective = one.objectives[name]
        arms, is_known = counts[objective.guard.source]
        found = watched.after(at, *objective.counted(arms.stable), objective.max_frac, objective.page)
        found = replace(found, control=_compared(one, objective, arms, watched.control))
        one.watched[name] = found if is_known else found.unread(at, took_s)


def _another_waits(rollout: Rollout) -> bool:
    """Whether a rollout of the model has begun there, so that a look could end in no rollback."""
    active = sorted(state.value for state in ACTIVE)
    return Rollout.objects.filter(environment=rollout.environment_id, model=rollout.model_id, state__in=active).exists()


def _stored(at: float) -> dict[Key, dict[str, Watched]]:
    """The counts as they were written last. The time since then is unknown."""
    return {
        (row.environment_id, row.model_id): {
            name: watched.unread(at, max(0.0, at - row.at.timestamp()))
            for name, told in row.objectives.items()
            if (watched := Watched.read(told)) is not None
        }
        for row in WatchRecord.objects.all()
    }


def _compared(one: _Model, objective: Objective, counts: Arms, before: Comparison | None) -> Comparison | None:
    plan = one.plan
    if plan is None or before is None:
        return None
    arms = objective.counted(counts.stable), objective.counted(counts.candidate)
    return before.after(*arms, objective.guard.roll_back_over, bar_of(plan, len(one.objectives), before.looks))


def _why_worse(promoted: Rollout, one: _Model, name: str) -> str:
    found, control = one.watched[name].control, promoted.stable
    assert found is not None and control is not None
    return (
        f"{promoted.candidate.name} is worse than its control {control.name}: {found.bad} of {found.attempts} "
        f"{one.objectives[name].words} against {found.control_bad} of {found.control_attempts}."
    )


def _facts(watched: Watched, objective: Objective, minutes: int) -> dict[str, Any]:
    bad, attempts = watched.last(minutes)
    since = datetime.fromtimestamp(watched.bad_since(objective.max_frac), tz=UTC)
    return {
        "bad": bad, "attempts": attempts, "minutes": minutes, "max_frac": objective.max_frac,
        "burn": round(watched.burn(minutes, objective.max_frac) or 0.0, 2), "since": since.isoformat(),
    }  # fmt: skip


def _no_objective(alarm: Alarm) -> str:
    return f"{alarm.objective} of {alarm.model.slug} is no objective in {alarm.environment.slug} any more."
