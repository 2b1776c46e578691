"""Changes of a rollout's state, and the rows of every change."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import DomainError
from registry.core.ownership import ownership_facts
from registry.models import Release
from rollouts.core.decision import Code
from rollouts.core.lifecycle import FINAL, MOVES, RolloutState
from rollouts.models import DecisionRecord, Rollout
from serving.environments.actions.locks import lock_routes
from serving.targets.platforms import platform_of
from serving.traffic.actions.routes import refuse_forced, set_route

S = RolloutState
#: Where somebody may have to be called: the event says whom, for mails and webhooks.
_BROKEN = frozenset({S.SECOND_LOOK, S.ROLLING_BACK, S.ROLLED_BACK, S.STUCK})
#: The event of arriving in a state.
ARRIVED = {
    S.AWAITING_APPROVAL: "rollout.approval_requested",
    S.PREPARING: "rollout.preparing",
    S.SHADOWING: "rollout.shadowing",
    S.SHIFTING: "rollout.started",
    S.PAUSED: "rollout.paused",
    S.BAKING: "rollout.baking",
    S.PROMOTED: "rollout.promoted",
    S.REVERTED: "rollout.reverted",
    S.SECOND_LOOK: "rollout.second_look",
    S.ROLLING_BACK: "rollout.rolling_back",
    S.ROLLED_BACK: "rollout.rolled_back",
    S.STUCK: "rollout.stuck",
    S.REJECTED: "rollout.rejected",
    S.CANCELLED: "rollout.cancelled",
    S.SUPERSEDED: "rollout.superseded",
}


def move(
    rollout: Rollout,
    to: RolloutState,
    *,
    actor: Actor,
    reason: str,
    verb: str = "",
    facts: dict[str, Any] | None = None,
    keeps_reason: bool = False,
    **changes: Any,
) -> Rollout:
    """The rollout in another state, or in the same one with other fields (a step further). Must run in a transaction.

    Appends the event. `keeps_reason`: the row keeps its former reason, and only the event has this one.
    Raises StateChanged when the table has no such move, or when the row moved meanwhile.
    """
    changes |= {"ended_at": timezone.now()} if to in FINAL and rollout.state not in FINAL else {}
    changes |= {} if keeps_reason else {"reason": reason}
    changes |= {"mirror_bp": 0, "promote_now": False} if to in {S.ROLLING_BACK, S.SECOND_LOOK} else {}
    was = transition(rollout, to, moves=MOVES, may_stay=True, **changes)
    if to in FINAL:
        lock_routes(rollout.environment)  # before the event log's lock, as every writer of routes takes them
    append_event(
        verb=verb or ARRIVED[to],
        subject_type="rollout",
        subject_id=rollout.pk,
        actor=actor,
        from_state=was.value,
        to_state=to.value,
        reason=reason,
        facts=named(rollout) | (ownership_facts(rollout.model.ownership) if to in _BROKEN else {}) | (facts or {}),
    )
    if to in FINAL:
        refuse_forced(
            actor=actor, environment=rollout.environment, model=rollout.model, is_refusing=False,
            reason=f"Rollout {rollout.pk} has ended, so requests may force a release again.",
        )  # fmt: skip
    return rollout


def record(
    rollout: Rollout,
    *,
    actor: Actor,
    action: str,
    reason: str,
    code: Code | None = None,
    facts: dict[str, Any] | None = None,
) -> DecisionRecord:
    """Appends a decision record, which is never changed or deleted."""
    return DecisionRecord.objects.create(
        rollout=rollout,
        at=timezone.now(),
        tick=rollout.tick,
        action=action,
        reason=reason,
        code=code.value if code else "",
        actor=actor.name,
        facts=facts or {},
    )


def shut(rollout: Rollout, *, actor: Actor, reason: str, fence: int | None = None) -> None:
    """Writes weight 0 for the candidate, with the pinned stable release. The candidate stays in the route until it is drained."""
    if rollout.stable is None:
        return
    set_route(
        actor=actor,
        environment=rollout.environment,
        model=rollout.model,
        stable=rollout.stable,
        candidate=rollout.candidate,
        candidate_bp=0,
        fence=fence,
        reason=reason,
    )


def drain_release(rollout: Rollout, release: Release, *, actor: Actor, reason: str) -> None:
    """One of the rollout's releases is not wanted there any more. Holding the routes.

    Where its servers cannot be let go, a decision says that they stay: that costs memory, and must not hold up the end of a
    rollout.
    """
    try:
        platform_of(rollout.environment).stop(release, rollout.environment, actor=actor, reason=reason)
    except DomainError as error:
        record(
            rollout,
            actor=actor,
            action="hold",
            code=Code.ENDED,
            reason=f"{release.name} stays loaded: {error.message}",
            facts={"release": release.name, "because": error.code},
        )


def named(rollout: Rollout) -> dict[str, Any]:
    """Common facts of a rollout's events."""
    return {
        "model": rollout.model.slug,
        "environment": rollout.environment.slug,
        "candidate": rollout.candidate.name,
        "stable": rollout.stable.name if rollout.stable else None,
        **({"displaced": rollout.displaced.name} if rollout.displaced else {}),
        "step_index": rollout.step_index,
        "weight_bp": rollout.weight_bp,
    }
