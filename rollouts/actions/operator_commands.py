"""People's verbs on a running rollout. Each is checked: permission, version, state. Shutting is easier than opening.

Verbs that remove traffic (`pause`, `abort`, `cancel`, `roll_back`) also take None for the version: they act at any version,
and leave a closed rollout as it is. So they cannot fail because another person was a moment faster.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction

from accounts.core.access import Actor, Verb
from ledger.core.errors import StateChanged
from ledger.queries import clock
from rollouts.actions.preconditions import (
    lock_and_check,
    refuse_frozen,
    refuse_state,
    refuse_unapproved,
    refuse_without_headroom,
    require_reason,
    transition_with_record,
)
from rollouts.actions.take_over import take_over_by_hand
from rollouts.actions.transitions import drain_release, shut
from rollouts.core.approvals import BAKE, PROMOTE
from rollouts.core.lifecycle import ACTIVE, LIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.policy import Policy, Step
from rollouts.models import Rollout
from rollouts.queries.approvals import ahead_of
from rollouts.queries.target import is_stable_gone
from serving.environments.actions.locks import lock_routes
from serving.traffic.actions.routes import set_route
from serving.traffic.queries.endpoints import answers

S = RolloutState
_FORWARD = frozenset({S.SHADOWING, S.SHIFTING, S.BAKING})
#: Where a candidate may take all traffic at once, if stable has no server.
_MAY_TAKE_OVER = _FORWARD | {S.PREPARING, S.PAUSED, S.SECOND_LOOK}
#: Nothing of its candidate is opened any more.
_SHUT = frozenset({S.ROLLING_BACK, S.ROLLED_BACK, S.REVERTED, S.REJECTED, S.CANCELLED, S.SUPERSEDED})


def _lock_to_shut(
    actor: Actor,
    verb: Verb,
    rollout: Rollout,
    expected_version: int | None,
    states: frozenset[RolloutState],
    word: str,
    *,
    already: frozenset[RolloutState] = _SHUT,
) -> tuple[Rollout, bool]:
    """(the rollout, locked; whether it is as `already` says, so that nothing is left to do). Raises as `lock_and_check` does."""
    already = already if expected_version is None else frozenset()
    rollout = lock_and_check(actor, verb, rollout, expected_version, states, word, already=already)
    return rollout, rollout.state in already


@transaction.atomic
def pause(*, actor: Actor, rollout: Rollout, expected_version: int | None, reason: str) -> Rollout:
    """The weight stays, nothing advances; a breach still rolls back. A promotion that was asked for is asked for no longer."""
    is_paused = frozenset({S.PAUSED})
    states = _FORWARD | {S.SECOND_LOOK}
    rollout, is_done = _lock_to_shut(
        actor, Verb.PAUSE_ROLLOUT, rollout, expected_version, states, "pause", already=is_paused
    )
    if is_done:
        return rollout
    said = f"Paused by {actor.name} at {rollout.weight_bp / 100:g} %: {require_reason(reason)}"
    return transition_with_record(
        rollout, S.PAUSED, actor, "pause", said, resume_state=rollout.state, promote_now=False
    )


@transaction.atomic
def resume(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Resumes at the paused stage. The stage's clock starts again; its evidence is kept. Raises Refused("frozen").

    A rollout without its traffic begins its next look now, without the remaining wait; the crossing counts.
    Raises StateChanged("wrong_state") until the gateways have acknowledged weight 0.
    """
    states = {S.PAUSED, S.SECOND_LOOK}
    rollout = lock_and_check(actor, Verb.RESUME_ROLLOUT, rollout, expected_version, states, "resume")
    if rollout.is_withdrawn:
        return _begin_now(rollout, actor, require_reason(reason))
    to, plan, why = S(rollout.resume_state or S.SHIFTING), rollout.effective_policy, require_reason(reason)
    refuse_frozen(plan, "Resume")
    now = clock.now()
    due_at = now + timedelta(seconds=_stage_in(plan, to, rollout.step_index).deadline_s)
    # without an acknowledgement the clock has not begun yet: it begins with that
    begun: dict[str, Any] = {"step_started_at": now, "due_at": due_at} if rollout.step_started_at else {}
    said = f"Resumed by {actor.name} at {rollout.weight_bp / 100:g} %: {why}"
    return transition_with_record(
        rollout, to, actor, "resume", said, verb="rollout.resumed", resume_state="", promote_now=False, **begun
    )


def _begin_now(rollout: Rollout, actor: Actor, why: str) -> Rollout:
    """Ends the wait after a crossing. The engine begins again at its next tick, if the candidate has a server."""
    plan = rollout.effective_policy
    refuse_frozen(plan, "Begin")
    if rollout.step_started_at is None:
        raise StateChanged(
            "wrong_state",
            f"The gateways still take the traffic of {rollout.candidate.name} away. Repeat when they have: {rollout.reason}",
            state=rollout.state,
        )
    crossings = [*rollout.crossings[:-1], {**rollout.crossings[-1], "begun_by": actor.name}]
    said = f"{actor.name} begins look {rollout.look} of {plan.second_look.looks} now: {why}"
    return transition_with_record(
        rollout, S.SECOND_LOOK, actor, "resume", said, verb="rollout.resumed", resume_state="", crossings=crossings
    )


def _stage_in(plan: Policy, state: RolloutState, step_index: int) -> Step:
    if state is S.BAKING:
        return plan.bake
    if state is S.SHADOWING and plan.shadow is not None:
        return plan.shadow.as_step
    return plan.steps[min(max(step_index, 0), len(plan.steps) - 1)]


@transaction.atomic
def advance(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """To the next stage without waiting for proof: from shadowing to the first step, from the last one to the bake.

    Breach is watched as before. If stable has no server the candidate takes all traffic, as by `promote_now`.
    Raises Refused("frozen", "approval_missing"), StateChanged("needs_replicas", "no_room") and, while baking,
    StateChanged("still_baking"): what promotes is evidence, or `promote_now`.
    """
    rollout = lock_and_check(actor, Verb.ADVANCE_ROLLOUT, rollout, expected_version, _MAY_TAKE_OVER, "advance")
    if is_stable_gone(rollout):
        return take_over_by_hand(rollout, actor, reason, "Advancing")
    refuse_state(rollout, _FORWARD, "advance")
    if rollout.state == S.BAKING:
        raise StateChanged(
            "still_baking",
            "The bake is the last look before stable is let go; it ends by evidence. Wait for it, promote now, or abort.",
        )
    plan, why = rollout.effective_policy, require_reason(reason)
    index = 0 if rollout.state == S.SHADOWING else rollout.step_index + 1
    is_last = index >= len(plan.steps)
    weight_bp = plan.bake.weight_bp if is_last else plan.steps[index].weight_bp
    refuse_frozen(plan, "Advance")
    refuse_unapproved(rollout, plan, [BAKE if is_last else plan.stage_name(index)], "Advancing")
    refuse_without_headroom(rollout, weight_bp, "Advancing")
    said = f"Advanced to {weight_bp / 100:g} % by {actor.name} without waiting for proof: {why}"
    return _opened(
        rollout,
        S.BAKING if is_last else S.SHIFTING,
        actor,
        "advance",
        said,
        weight_bp,
        verb="rollout.advanced",
        facts={"to_index": index},
        step_index=rollout.step_index if is_last else index,
    )


@transaction.atomic
def promote_now(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Straight to the bake's weight, and from there to the promotion, without waiting for evidence.

    Evidence against the candidate holds it, and so do gateways that cannot be read or do not follow. Every stage on the
    way that needs approvals must have them. If stable has no server the candidate takes all traffic instead, from any
    live state and while it prepares, and the rollout goes on by evidence as one of a first release.
    Raises Refused("frozen", "approval_missing") and StateChanged("already_promoting", "needs_replicas", "no_room").
    """
    rollout = lock_and_check(actor, Verb.PROMOTE_NOW, rollout, expected_version, _MAY_TAKE_OVER, "promote")
    if is_stable_gone(rollout):
        return take_over_by_hand(rollout, actor, reason, "Promoting")
    refuse_state(rollout, _FORWARD, "promote")
    if rollout.promote_now:
        raise StateChanged(
            "already_promoting",
            f"Rollout {rollout.pk} is being promoted already. Its reason is: {rollout.reason}",
        )
    plan, why = rollout.effective_policy, require_reason(reason)
    refuse_frozen(plan, "Promote")
    refuse_unapproved(rollout, plan, ahead_of(rollout, plan), "Promoting now")
    said = f"{actor.name} promotes {rollout.candidate.name} without waiting for proof: {why}"
    facts = {"from_state": str(rollout.state), "stage": PROMOTE, "to_index": len(plan.steps)}
    if rollout.state == S.BAKING:
        verb = "rollout.promoting"
        return transition_with_record(
            rollout, S.BAKING, actor, "promote_now", said, verb=verb, facts=facts, promote_now=True
        )
    refuse_without_headroom(rollout, plan.bake.weight_bp, "Promoting now")
    return _opened(
        rollout,
        S.BAKING,
        actor,
        "promote_now",
        said,
        plan.bake.weight_bp,
        verb="rollout.promoting",
        facts=facts,
        step_index=len(plan.steps) - 1,
        promote_now=True,
    )


def _opened(
    rollout: Rollout,
    to: RolloutState,
    actor: Actor,
    action: str,
    said: str,
    weight_bp: int,
    *,
    verb: str,
    facts: dict[str, Any],
    **changes: Any,
) -> Rollout:
    """More weight, in the route and in the row. The stage's clock begins when the gateways acknowledge it."""
    if rollout.stable is not None:
        set_route(
            actor=actor,
            environment=rollout.environment,
            model=rollout.model,
            stable=rollout.stable,
            candidate=rollout.candidate,
            candidate_bp=weight_bp,
            mirror_bp=rollout.mirror_bp,
            reason=said,
        )
    clock = {"step_started_at": None, "due_at": None}
    return transition_with_record(
        rollout, to, actor, action, said, verb=verb, facts=facts, weight_bp=weight_bp, **clock, **changes
    )


@transaction.atomic
def cancel(*, actor: Actor, rollout: Rollout, expected_version: int | None, reason: str) -> Rollout:
    """Drops a rollout that has no traffic yet."""
    rollout, is_done = _lock_to_shut(actor, Verb.ABORT_ROLLOUT, rollout, expected_version, WITHOUT_TRAFFIC, "cancel")
    return rollout if is_done else _cancelled(rollout, actor, reason)


@transaction.atomic
def abort(*, actor: Actor, rollout: Rollout, expected_version: int | None, reason: str) -> Rollout:
    """Ends the rollout in any state: weight 0 at once if it has traffic, else cancelled."""
    states = ACTIVE - {S.ROLLING_BACK}
    rollout, is_done = _lock_to_shut(actor, Verb.ABORT_ROLLOUT, rollout, expected_version, states, "abort")
    if is_done:
        return rollout
    if rollout.state in WITHOUT_TRAFFIC:
        return _cancelled(rollout, actor, reason)
    return begin_rollback(rollout, actor, require_reason(reason))


@transaction.atomic
def roll_back(*, actor: Actor, rollout: Rollout, expected_version: int | None, reason: str) -> Rollout:
    """All traffic back to the pinned stable release: the route is written in this very transaction."""
    states = LIVE | {S.STUCK}
    rollout, is_done = _lock_to_shut(actor, Verb.ROLL_BACK, rollout, expected_version, states, "roll back")
    return rollout if is_done else begin_rollback(rollout, actor, require_reason(reason))


def _cancelled(rollout: Rollout, actor: Actor, reason: str) -> Rollout:
    said = f"Cancelled by {actor.name} before any traffic: {require_reason(reason)}"
    was_preparing = rollout.state == S.PREPARING
    lock_routes(rollout.environment, rollout.candidate)
    transition_with_record(rollout, S.CANCELLED, actor, "cancel", said)
    if was_preparing:
        drain_release(rollout, rollout.candidate, actor=Actor.system("rollouts"), reason=said)
    return rollout


def begin_rollback(
    rollout: Rollout, actor: Actor, why: str, *, action: str = "roll_back", verb: str = "rollout.aborted"
) -> Rollout:
    """Weight 0 and no copies, in the route and in the row. `why` is a sentence. In a transaction that holds the row."""
    displaced = rollout.displaced
    if rollout.stable is None and displaced is not None and answers(displaced.pk, rollout.environment_id):
        rollout.stable = displaced  # it answers again
    if rollout.stable:
        said = f"Rolling back to {rollout.stable.name}, by {actor.name}: {why}"
        if is_stable_gone(rollout):
            said += f" {rollout.stable.name} has no serving server, so requests fail until it has one."
    else:
        kept = f"{rollout.candidate.name} keeps its traffic until another release replaces it: there is none to go back to."
        if displaced is not None:
            kept = (
                f"{displaced.name} has no serving server, so {rollout.candidate.name} keeps its traffic. Once {displaced.name} "
                "answers again, all traffic goes back to it, unless another release is being rolled out."
            )
        said = f"Ended by {actor.name}: {why} {kept}"
    shut(rollout, actor=actor, reason=said)
    changes: dict[str, Any] = {"weight_bp": 0, "stable": rollout.stable} if rollout.stable else {}
    changes |= {} if rollout.decided_at else {"decided_at": clock.now()}
    changes |= {"step_started_at": None, "due_at": None}
    return transition_with_record(rollout, S.ROLLING_BACK, actor, action, said, verb=verb, **changes)
