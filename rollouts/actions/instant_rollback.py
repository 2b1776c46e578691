"""Rollback in one step and without gates: to the active rollout's stable release, or to the warm previous release."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import enqueue
from ledger.core.errors import NotFound, StateChanged
from registry.models import ServedModel
from rollouts.actions.operator_commands import abort
from rollouts.actions.preconditions import require_reason
from rollouts.actions.tick_records import ENGINE
from rollouts.actions.transitions import move, record
from rollouts.actions.undo_window import drain_when_followed, settle_undo_window
from rollouts.core.decision import Code
from rollouts.core.lifecycle import ACTIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.models import Rollout
from rollouts.queries.target import is_stable_gone
from rollouts.queries.undo_window import (
    aborted_take_overs,
    is_open,
    last_promoted,
    last_to_undo,
    release_before,
    serves,
)
from serving.environments.actions.locks import lock_open, lock_routes
from serving.models import Environment
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.endpoints import answers
from serving.traffic.queries.routes import route_of

S = RolloutState
_ACTIVE = sorted(state.value for state in ACTIVE)
#: The reverted release keeps its servers this long, so that requests in flight are answered.
LET_GO_AFTER_S = 60.0
DRAIN_REVERTED = "rollouts.let_go"


def roll_back_model(*, actor: Actor, model: ServedModel, environment: Environment, reason: str) -> Rollout:
    """Rolls the model's traffic back: the active rollout's, that of an aborted take-over, or the last promoted one's.

    A rollout without traffic is cancelled; if the previous release is warm, the traffic goes back to it as well.
    Nothing is asked but the database: no metrics, no broker, no blobs, no gates.
    Raises NotFound("no_active_rollout") if no rollout is active and the previous release is not warm, and
    StateChanged if the environment is retired, or ("nothing_to_roll_back") if stable has no server and that would only drop
    the candidate that can replace it.
    """
    require(actor, Verb.ROLL_BACK, model.team.slug, model.slug)
    of_model = Rollout.objects.filter(environment=environment, model=model)
    with transaction.atomic():
        # Held, so that the engine cannot move it on between this look and the abort: who shuts needs no version.
        active = of_model.select_for_update(no_key=True).filter(state__in=_ACTIVE).first()
        if active is not None and active.state == S.ROLLING_BACK:
            return active
        if active is not None:
            _refuse_dropping_the_way_on(active)
            ended = abort(actor=actor, rollout=active, expected_version=active.version, reason=reason)
            last = last_to_undo(model, environment) if active.state in WITHOUT_TRAFFIC else None
            return ended if last is None or not is_open(last) else _instantly_back(actor, last, reason)
        lock_open(environment)  # warm servers stay warm until the route is written
        if of_model.filter(state__in=_ACTIVE).exists():
            raise StateChanged("rollout_active", f"A rollout of {model.slug} was started just now. Roll back again.")
        last = last_to_undo(model, environment)
        if last is None:
            raise _nothing(model, environment, "There is nothing to take back.")
        return _instantly_back(actor, last, reason)


def _refuse_dropping_the_way_on(active: Rollout) -> None:
    """Raises StateChanged("nothing_to_roll_back") if the rollout has no traffic and no other release could serve."""
    if active.state not in WITHOUT_TRAFFIC or not is_stable_gone(active):
        return
    last = last_to_undo(active.model, active.environment)
    if last is not None and is_open(last):
        return
    assert active.stable is not None
    number, candidate = active.pk, active.candidate.name
    raise StateChanged(
        "nothing_to_roll_back",
        f"{active.stable.name} has no serving server, and no release before it is warm, so there is nothing to go back to. Rollout "
        f"{number} of {candidate} has no traffic yet. `sluicegate rollout promote {number}` gives {candidate} all traffic once it is "
        f"ready; `sluicegate rollout cancel {number}` drops it.",
        rollout=number,
        candidate=candidate,
    )


def shut_rollout(*, actor: Actor, rollout: Rollout, reason: str) -> Rollout:
    """This rollout's candidate loses its traffic, however far it has come meanwhile: aborted, or undone while that is possible.

    A rollout that is rolling back, or ended without its candidate, stays as it is. Needs no version, since it only removes traffic.
    Raises NotFound("no_active_rollout") if it was promoted and the previous release is not warm, and
    StateChanged("rollout_active") if it was promoted and another rollout has begun since.
    """
    require(actor, Verb.ROLL_BACK, rollout.model.team.slug, rollout.model.slug)
    model, environment = rollout.model, rollout.environment
    of_model = Rollout.objects.filter(environment=environment, model=model)
    with transaction.atomic():
        active = of_model.select_for_update(no_key=True).filter(pk=rollout.pk, state__in=_ACTIVE).first()
        if active is not None:
            return abort(actor=actor, rollout=active, expected_version=None, reason=reason)
    with transaction.atomic():
        lock_routes(environment)  # warm servers stay warm until the route is written
        rollout.refresh_from_db(fields=["state", "version", "reason", "undo_until"])
        if rollout.state != S.PROMOTED:
            return rollout
        other = of_model.filter(state__in=_ACTIVE).first()
        if other is not None:
            raise StateChanged(
                "rollout_active",
                f"{rollout.candidate.name} was promoted, and rollout {other.pk} has begun since. Roll back rollout {other.pk} first.",
                rollout=other.pk,
            )
        last = last_promoted(model, environment)
        if last is None or last.pk != rollout.pk:
            raise _nothing(model, environment, f"Another release was promoted after {rollout.candidate.name}.")
        return _instantly_back(actor, last, reason)


def _instantly_back(actor: Actor, last: Rollout, reason: str, code: Code = Code.BY_HAND) -> Rollout:
    """The last promoted rollout, or an aborted take-over, undone while the release before it answers. In a transaction that holds
    the routes."""
    model, environment, before = last.model, last.environment, release_before(last)
    is_aborted = last.state == S.ROLLED_BACK
    if before is None:
        raise _nothing(model, environment, f"{last.candidate.name} was the first release there.")
    if last.state == S.REVERTED or not serves(last):
        raise _nothing(model, environment, f"{last.candidate.name} does not serve any more: it was taken back already.")
    if not answers(before.pk, environment.pk):
        if is_aborted:
            why = f"{before.name} has no serving server yet. All traffic goes back to it once it answers again."
            raise _nothing(model, environment, why)
        raise _nothing(
            model,
            environment,
            f"{before.name}, the release before, is no longer warm: start a rollout of it.",
            release=before.name,
        )
    state = "which answers again" if is_aborted else "still warm"
    said = f"{actor.name} went back to {before.name}, {state}: {require_reason(reason)}"
    set_route(actor=actor, environment=environment, model=model, stable=before, reason=said)
    arms = {"from": last.candidate.name, "to": before.name}
    # Without `undo_until`, the replica that was kept warm is permanent again.
    move(
        last, S.ROLLED_BACK if is_aborted else S.REVERTED, actor=actor, reason=said, facts=arms, weight_bp=0, stable=before,
        undo_until=None, decided_at=timezone.now(),
    )  # fmt: skip
    record(last, actor=actor, action="roll_back", reason=said, code=code)
    enqueue(
        kind=DRAIN_REVERTED,
        key=f"{last.pk}",
        args={"rollout": last.pk},
        due_at=timezone.now() + timedelta(seconds=LET_GO_AFTER_S),
    )
    return last


@transaction.atomic
def roll_back_by_watch(rollout: Rollout, *, actor: Actor, reason: str) -> Rollout:
    """A promoted rollout is undone, because its release is worse than the control. Raises as `roll_back_model`."""
    lock_open(rollout.environment)
    rollout.refresh_from_db(fields=["state", "version", "reason", "undo_until"])
    of_model = Rollout.objects.filter(environment=rollout.environment, model=rollout.model)
    if of_model.filter(state__in=_ACTIVE).exists():
        raise StateChanged("rollout_active", f"Another rollout of {rollout.model.slug} has begun. It decides now.")
    if rollout.undo_until is None:
        raise StateChanged(
            "no_undo_window", f"The undo window of rollout {rollout.pk} was closed. A person decides now."
        )
    return _instantly_back(actor, rollout, reason, Code.WORSE_THAN_STABLE)


def settle_ended(rollout: Rollout) -> None:
    """Remaining work of a row of `ended_to_settle`. Idempotent."""
    (settle_undo_window if rollout.state == S.PROMOTED else _go_back_to_displaced)(rollout)


@transaction.atomic
def _go_back_to_displaced(rollout: Rollout) -> None:
    """All traffic of an aborted take-over goes back to the displaced release, which answers again. Idempotent.

    Nothing while another rollout is active: its stable release keeps the traffic.
    """
    lock_routes(rollout.environment)
    of_model = Rollout.objects.filter(environment=rollout.environment, model=rollout.model)
    is_free = not of_model.filter(state__in=_ACTIVE).exists()
    if is_free and aborted_take_overs().filter(pk=rollout.pk).exists() and is_open(rollout):
        _instantly_back(ENGINE, rollout, f"Rollout {rollout.pk} was aborted.")


def _nothing(model: ServedModel, environment: Environment, why: str, *, release: str = "RELEASE") -> NotFound:
    """Error for a model without a release to go back to. It names the rollout that moves the traffic, of `release` if that is known."""
    where = "" if environment.slug == "production" else f" --environment {environment.slug}"
    start = f"`sluicegate rollout start {model.slug}/{release}{where}` moves the traffic"
    route = route_of(model, environment)
    if route is not None and not answers(route.stable_id, environment.pk):
        start += f"; {route.stable.name} has no serving server, so a release manager may then give it all traffic by `rollout promote`"
    return NotFound("no_active_rollout", f"No rollout of {model.slug} is active in {environment.slug}. {why} {start}.")


def drain_reverted(rollout: Rollout) -> None:
    """Drains the candidate of a reverted rollout, unless it serves again or is rolled out again.

    Raises Again while a gateway may still follow the route of before.
    """
    drain_when_followed(rollout, rollout.candidate, f"Taken back: {rollout.reason}")
