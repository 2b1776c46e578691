"""Putting a model to sleep where nobody asks it, and waking it.

First the gateways are told, which answer for it from then on; once all of them have taken that, and nothing is in flight any more, its
servers are unloaded. So no request is lost, and whoever is killed in between leaves a state from which the next look goes on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import DomainError, Invalid, StateChanged
from registry.models import ServedModel
from serving.environments.actions.locks import lock_open, lock_routes, notify_routes
from serving.environments.core.lifecycle import ReplicaState
from serving.environments.core.reasons import LONGEST_REASON
from serving.environments.core.sleep_lifecycle import MOVES, SleepRule, SleepState
from serving.environments.queries.inventory import replicas_in
from serving.models import Environment, Sleep
from serving.targets.actions.lifecycle import drain_replica, ensure_replica
from serving.targets.core.sleep import Quiet, rule_problem, wake_s
from serving.targets.queries import ready_server
from serving.targets.queries.sleep import Sleeper, last_timings, sleepers
from serving.traffic.actions.routes import publish_again

S = SleepState
#: A server that could not be brought up is tried again this often.
RETRY = timedelta(seconds=10)


@transaction.atomic
def rule_sleep(
    *,
    actor: Actor,
    model: ServedModel,
    environment: Environment,
    rule: SleepRule,
    reason: str = "",
    expected_version: int | None = None,
) -> Sleep:
    """When the model may sleep there from now on. Saying what is so already changes nothing.

    Raises Refused, Stale, Invalid, and StateChanged("not_served"): it has no route there.
    """
    row = _locked(actor, model, environment, reason, expected_version)
    _sleeper(row)
    if problem := rule_problem(rule):
        raise Invalid("sleep_rule", problem)
    if row.rule == rule and row.changed_at is not None:
        return row
    before = row.rule
    Sleep.objects.filter(pk=row.pk).update(
        **_columns(rule),
        reason=reason,
        changed_by=actor.name,
        changed_at=timezone.now(),
        trouble="",
        version=F("version") + 1,
    )
    row.refresh_from_db()
    _append(row, "sleep.ruled", actor, reason, **_columns(rule), before=_columns(before))
    notify_routes()  # what callers are told of a model that sleeps rests on it
    return row


@transaction.atomic
def put_to_sleep(
    *, actor: Actor, model: ServedModel, environment: Environment, reason: str, expected_version: int | None = None
) -> Sleep:
    """From now on the gateways answer for the model; its servers are unloaded once they have taken that. Idempotent.

    Raises Refused, Stale, Invalid, and StateChanged: it has no route there ("not_served"), or is needed there ("model_in_use") by a rollout
    or an undo window; for what sleeps by itself also where a person said how many replicas there are to be.
    """
    row = _locked(actor, model, environment, reason, expected_version)
    if row.state == S.ASLEEP:
        return row
    one = _sleeper(row)
    needs = (*one.needs, *(one.by_hand if actor.is_system else ()))
    if needs:
        raise StateChanged(
            "model_in_use",
            f"{model.slug} cannot sleep in {environment.slug} now: {'; '.join(needs)}. Wait for that to end.",
            needs=list(needs),
        )
    seconds = wake_s(last_timings(one.route.stable, environment))
    if not actor.is_system:  # what was counted until now, perhaps not read yet, is no word against whoever says so
        Sleep.objects.filter(pk=row.pk).update(counts={})
    publish_again(one.route)  # the route before the log
    _move(row, S.ASLEEP, "sleep.begun", actor, reason, release=one.route.stable.name, wake_s=seconds)
    return row


@transaction.atomic
def unload_asleep(*, actor: Actor, sleep: Sleep) -> bool:
    """Its servers are drained, for whoever knows that every gateway answers for it and nothing is in flight. False where it is to
    wake, is needed since, or has none. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    environment = sleep.environment
    lock_routes(environment)
    one = _sleeper(sleep)
    sleep.refresh_from_db(fields=["state", "state_reason", "version"])
    if sleep.state != S.ASLEEP or one.needs:
        return False
    stable = one.route.stable
    lock_routes(environment, stable)
    replicas = list(replicas_in(stable, environment).filter(is_wanted=True))
    for replica in replicas:
        drain_replica(actor=actor, replica=replica, reason=sleep.state_reason, is_spare=True)
    if replicas:
        nodes = sorted({replica.node_id for replica in replicas})
        _append(sleep, "sleep.unloaded", actor, sleep.state_reason, release=stable.name, nodes=nodes)
    return bool(replicas)


@transaction.atomic
def wake_model(
    *, actor: Actor, model: ServedModel, environment: Environment, reason: str, expected_version: int | None = None
) -> Sleep:
    """Servers of the model are to answer there again. Idempotent. Raises as `rule_sleep`."""
    row = _locked(actor, model, environment, reason, expected_version)
    _sleeper(row)
    if row.state == S.ASLEEP:
        _move(row, S.WAKING, "sleep.ending", actor, reason)
        notify_routes()
    return row


def continue_waking(*, actor: Actor, sleep: Sleep) -> None:
    """Its first server is asked for, and once one answers it is awake; agents place the others. What keeps it is written down. Raises
    Refused, and StateChanged: it moved meanwhile."""
    require(actor, Verb.ADMINISTER, "")
    one = _sleeper(sleep)
    stable, environment = one.route.stable, one.route.environment
    if ready_server(stable, environment) is not None:
        with transaction.atomic():
            lock_routes(environment)
            waited_s = (timezone.now() - (sleep.state_since or timezone.now())).total_seconds()
            reason = f"{stable.name} answers {waited_s:.1f} s after it was asked for."
            _move(sleep, S.AWAKE, "sleep.ended", actor, reason, release=stable.name, waited_s=round(waited_s, 3))
        return
    note_sleep_trouble(sleep, _brought_up(actor, one, sleep))


def _brought_up(actor: Actor, one: Sleeper, sleep: Sleep) -> str:
    """Why no server of it comes, as a sentence; empty where one is on its way."""
    stable, environment = one.route.stable, one.route.environment
    found = replicas_in(stable, environment).first()
    failed = found if found is not None and found.state == ReplicaState.FAILED else None
    if failed is not None and failed.failed_at is not None and timezone.now() < failed.failed_at + RETRY:
        return failed.reason
    try:
        ensure_replica(actor=actor, release=stable, environment=environment, reason=sleep.state_reason)
    except DomainError as error:
        return error.message
    return ""


def note_sleep_trouble(sleep: Sleep, trouble: str) -> None:
    """Why it does not wake, stays loaded, or whether it is asked is not known: for pages, without an event."""
    if trouble != sleep.trouble:
        Sleep.objects.filter(pk=sleep.pk).update(trouble=trouble)


def keep_quiet(sleep: Sleep, quiet: Quiet) -> None:
    """Writes down since when nobody asked, so that the next to look goes on from there."""
    Sleep.objects.filter(pk=sleep.pk).update(
        quiet_since=None if quiet.since is None else datetime.fromtimestamp(quiet.since, UTC),
        counts={gateway: [one.epoch, one.requests, one.asleep] for gateway, one in quiet.counts.items()},
    )


def _locked(
    actor: Actor, model: ServedModel, environment: Environment, reason: str, expected_version: int | None
) -> Sleep:
    """The row, made where there was none, with the environment's routes locked."""
    require(actor, Verb.SCALE_RELEASE, model.team.slug, model.slug)
    if not environment.is_routed:
        raise Invalid("not_scaled", f"{environment.slug} has no gateway that could answer for a model that sleeps.")
    if len(reason) > LONGEST_REASON:
        raise Invalid("reason_too_long", f"The reason has {len(reason)} characters; {LONGEST_REASON} are the most.")
    lock_open(environment)
    found = Sleep.objects.filter(model=model, environment=environment).first()
    require_version(found.version if found else 0, expected_version, f"The sleep of {model.slug}")
    return found or Sleep.objects.create(model=model, environment=environment)


def _sleeper(row: Sleep) -> Sleeper:
    found = sleepers({row.place}).get(row.place)
    if found is None:
        raise StateChanged(
            "not_served", f"{row.model.slug} is not served in {row.environment.slug}; a rollout brings it there."
        )
    return found


def _columns(rule: SleepRule) -> dict[str, Any]:
    return {
        "unload_after_s": rule.unload_after_s,
        "yields_after_s": rule.yields_after_s,
        "loads_on_demand": rule.loads_on_demand,
    }


def _move(row: Sleep, to: SleepState, verb: str, actor: Actor, reason: str, **facts: Any) -> None:
    changes = {name: facts[name] for name in ("wake_s",) if name in facts}
    changes |= {"state_since": timezone.now(), "state_reason": reason, "state_by": actor.name, "trouble": ""}
    was = transition(row, to, moves=MOVES, **changes)
    _append(row, verb, actor, reason, from_state=was, to_state=to, **facts)


def _append(
    row: Sleep, verb: str, actor: Actor, reason: str, *, from_state: str = "", to_state: str = "", **facts: Any
) -> None:
    append_event(
        verb=verb, subject_type="model", subject_id=row.model.slug, actor=actor, reason=reason,
        from_state=str(from_state), to_state=str(to_state),
        facts={"model": row.model.slug, "environment": row.environment.slug, **facts},
    )  # fmt: skip
