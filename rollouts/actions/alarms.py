"""Alarms: opened and closed by the watch, acknowledged and closed by people."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import StateChanged, field_error
from registry.core.ownership import ownership_facts
from rollouts.actions.preconditions import require_reason
from rollouts.core.watch.lifecycle import AGAIN_WITHIN_S, MOVES, AlarmState
from rollouts.models import Alarm
from rollouts.queries.alarms import live_alarms
from serving.models import Route

WATCH = Actor.system("watch")
A = AlarmState
LONGEST_MUTE = timedelta(days=7)


@transaction.atomic
def open_alarm(route: Route, *, objective: str, tier: str, at: datetime, reason: str, facts: dict[str, Any]) -> Alarm:
    """The alarm of this objective, open from now on; the live one if there is one already."""
    of_key = Alarm.objects.filter(
        environment=route.environment_id, model=route.model_id, objective=objective, tier=tier
    ).select_related("environment", "model", "release", "acknowledged_by")
    last = of_key.select_for_update(no_key=True, of=("self",)).order_by("-pk").first()
    if last is not None and last.state != A.CLOSED:
        return last
    facts = {**facts, "burn_peak": facts["burn"]}
    if last is not None and last.closed_at and last.closed_at >= at - timedelta(seconds=AGAIN_WITHIN_S):
        changes = {"acknowledged_at": None, "acknowledged_by": None, "closed_at": None, "closed_by": ""}
        return _move(last, A.OPEN, actor=WATCH, reason=reason, facts=facts, release=route.stable, **changes)
    alarm = Alarm.objects.create(
        environment=route.environment, model=route.model, release=route.stable, objective=objective, tier=tier, reason=reason,
        facts=facts, opened_at=at,
    )  # fmt: skip
    _append(alarm, "", actor=WATCH, reason=reason)
    return alarm


def update_alarm(alarm: Alarm, facts: dict[str, Any]) -> None:
    """The newest counts of a live alarm. No event."""
    peak = max(facts["burn"] or 0, alarm.facts.get("burn_peak") or 0)
    live = Alarm.objects.filter(pk=alarm.pk).exclude(state=A.CLOSED)
    live.update(facts={**alarm.facts, **facts, "since": alarm.facts["since"], "burn_peak": peak})


@transaction.atomic
def end_alarm(alarm: Alarm, *, at: datetime, reason: str) -> None:
    """Closed by the watch, unless a person closed it meanwhile."""
    found = live_alarms().select_for_update(no_key=True, of=("self",)).filter(pk=alarm.pk).first()
    if found is not None:
        _move(found, A.CLOSED, actor=WATCH, reason=reason, closed_at=at, closed_by=WATCH.name)


@transaction.atomic
def acknowledge(*, actor: Actor, alarm: Alarm, expected_version: int, reason: str) -> Alarm:
    """The actor looks after it. It stays live until the objective is met again, or a person closes it."""
    alarm = _lock(actor, alarm, expected_version)
    why = require_reason(reason)
    changes = {"acknowledged_at": timezone.now(), "acknowledged_by": actor.user_id}
    return _move(alarm, A.ACKNOWLEDGED, actor=actor, reason=f"{actor.name} looks after it: {why}", **changes)


@transaction.atomic
def close(*, actor: Actor, alarm: Alarm, expected_version: int, reason: str) -> Alarm:
    """Closed by a person. If the objective still burns, the watch opens it again."""
    alarm = _lock(actor, alarm, expected_version)
    why = require_reason(reason)
    changes = {"closed_at": timezone.now(), "closed_by": actor.name}
    return _move(alarm, A.CLOSED, actor=actor, reason=f"Closed by {actor.name}: {why}", **changes)


@transaction.atomic
def mute(*, actor: Actor, alarm: Alarm, expected_version: int, reason: str, until: datetime) -> Alarm:
    """Nothing but the alarm's end is sent until then, also if it closes and opens again. Raises Invalid, StateChanged."""
    alarm = _lock(actor, alarm, expected_version)
    why, now = require_reason(reason), timezone.now()
    if alarm.state == A.CLOSED:
        raise StateChanged("alarm_closed", f"Alarm {alarm.pk} is closed: nothing is sent of it. Read it again.")
    if not now < until <= now + LONGEST_MUTE:
        raise field_error(
            "until", f"{until.isoformat()} is no such time.", f"Choose a time within the next {LONGEST_MUTE.days} days."
        )
    _set_mute(alarm, until, actor.name)
    _append(alarm, alarm.state, actor=actor, reason=f"Muted by {actor.name}: {why}", verb="alarm.muted")
    return alarm


@transaction.atomic
def unmute(*, actor: Actor, alarm: Alarm, expected_version: int, reason: str) -> Alarm:
    """What happens to the alarm is sent again."""
    alarm = _lock(actor, alarm, expected_version)
    if not alarm.is_muted:
        raise StateChanged("alarm_not_muted", f"Alarm {alarm.pk} is not muted. Read it again.")
    why = require_reason(reason)
    _set_mute(alarm, None, "")
    _append(alarm, alarm.state, actor=actor, reason=f"Unmuted by {actor.name}: {why}", verb="alarm.unmuted")
    return alarm


def end_mutes() -> None:
    """Ends expired mutes of live alarms."""
    for pk in list(live_alarms().filter(muted_until__lte=Now()).values_list("pk", flat=True)):
        with transaction.atomic():
            over = live_alarms().select_for_update(no_key=True, of=("self",)).filter(pk=pk, muted_until__lte=Now())
            if (alarm := over.first()) is not None:
                _set_mute(alarm, None, "")
                _append(alarm, alarm.state, actor=WATCH, reason="The time of the mute is over.", verb="alarm.unmuted")


def _set_mute(alarm: Alarm, until: datetime | None, by: str) -> None:
    Alarm.objects.filter(pk=alarm.pk).update(muted_until=until, muted_by=by, version=F("version") + 1)
    alarm.refresh_from_db(fields=["muted_until", "muted_by", "version"])


def _lock(actor: Actor, alarm: Alarm, expected_version: int) -> Alarm:
    require(actor, Verb.HANDLE_ALARM, alarm.model.team.slug, alarm.model.slug)
    related = Alarm.objects.select_related("environment", "model__team", "release", "acknowledged_by")
    found = related.select_for_update(no_key=True, of=("self",)).get(pk=alarm.pk)
    require_version(found.version, expected_version, f"Alarm {found.pk}", state=found.state)
    return found


def _move(alarm: Alarm, to: AlarmState, *, actor: Actor, reason: str, **changes: Any) -> Alarm:
    was = transition(alarm, to, moves=MOVES, reason=reason, **changes)
    _append(alarm, was.value, actor=actor, reason=reason)
    return alarm


#: The event of arriving in a state.
ARRIVED = {A.OPEN: "alarm.opened", A.ACKNOWLEDGED: "alarm.acknowledged", A.CLOSED: "alarm.closed"}


def _append(alarm: Alarm, was: str, *, actor: Actor, reason: str, verb: str = "") -> None:
    """`quiet` is a fact of a notification that is not sent, because the alarm is muted."""
    verb = verb or ARRIVED[A(alarm.state)]
    is_told = not alarm.is_muted or verb in {"alarm.muted", "alarm.closed"}
    append_event(
        verb=verb, subject_type="alarm", subject_id=alarm.pk, actor=actor, from_state=was,
        to_state=alarm.state, reason=reason,
        facts={
            "model": alarm.model.slug, "environment": alarm.environment.slug, "release": alarm.release.name,
            "objective": alarm.objective, "tier": alarm.tier, **alarm.facts, **ownership_facts(alarm.model.ownership),
            **({"muted_until": alarm.muted_until.isoformat()} if alarm.is_muted and alarm.muted_until else {}),
            **({} if is_told else {"quiet": True}),
        },
    )  # fmt: skip
