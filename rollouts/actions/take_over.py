"""Moves all traffic to a candidate whose stable release has no server, by the policy or by a release manager."""

from __future__ import annotations

import hashlib
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import Refused, StateChanged
from rollouts.actions.preconditions import refuse_unapproved, require_reason
from rollouts.actions.transitions import move, record
from rollouts.core.decision import Code
from rollouts.core.freeze import frozen, in_words
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import FULL_BP
from rollouts.core.rules.stable_gone import takes_over
from rollouts.models import Rollout
from rollouts.queries.approvals import ahead_of
from rollouts.queries.headroom import proofs_for
from rollouts.queries.obstacles import report_problem
from rollouts.queries.target import candidate_serving
from serving.environments.actions.locks import lock_routes
from serving.traffic.actions.routes import set_route

S = RolloutState


def take_over(
    rollout: Rollout, *, actor: Actor, reason: str, facts: dict[str, Any], fence: int | None = None
) -> Rollout:
    """Writes the route and the row: the candidate has all traffic, and stable is displaced. For a transaction that holds the row.

    A rollout that baked goes on baking, any other goes on at its one step: the stages of a first release. Its clock starts
    when the gateways acknowledge the route. `fence` is the leader's token, None for a person.
    """
    is_baking = S.BAKING in {rollout.state, rollout.resume_state}
    displaced = rollout.stable
    set_route(
        actor=actor, environment=rollout.environment, model=rollout.model, stable=rollout.candidate, fence=fence,
        proofs=proofs_for(rollout), reason=reason,
    )  # fmt: skip
    rollout.stable, rollout.displaced = None, displaced
    return move(
        rollout, S.BAKING if is_baking else S.SHIFTING, actor=actor, reason=reason, verb="rollout.took_over",
        facts={**facts, "weight_bp": FULL_BP}, stable=None, displaced=displaced, weight_bp=FULL_BP, mirror_bp=0, step_index=0,
        resume_state="", promote_now=False, step_started_at=None, due_at=None,
    )  # fmt: skip


def take_over_by_hand(rollout: Rollout, actor: Actor, reason: str, word: str) -> Rollout:
    """The same by a release manager, at once. For a transaction that holds the row; the caller knows that stable has no server.

    A freeze protects a release that serves, so it does not hold here; the event and the decision record one that was passed.
    Raises Refused("approval_missing", "report_not_passed") and StateChanged("candidate_not_ready", "digest_mismatch").
    """
    plan, why = rollout.effective_policy, require_reason(reason)
    _refuse_unproven(rollout)
    refuse_unapproved(rollout, plan, ahead_of(rollout, plan), f"{word} now")
    lock_routes(rollout.environment, rollout.candidate)
    assert rollout.stable is not None
    candidate, stable = rollout.candidate.name, rollout.stable.name
    facts: dict[str, Any] = {"from_state": str(rollout.state), "to_index": 0}
    if (freeze := frozen(plan.freeze_windows, timezone.now())) is not None:
        window, until = freeze
        why = f"The freeze until {in_words(window, until)} was passed. {why}"
        facts |= {"passed_freeze": {"until": until.isoformat(), "why": window.why}}
    said = f"{stable} has no serving server. By {actor.name}, {takes_over(candidate, stable)} {why}"
    take_over(rollout, actor=actor, reason=said, facts=facts)
    record(
        rollout,
        actor=actor,
        action="replace",
        code=Code.STABLE_GONE,
        reason=said,
        facts={**facts, "weight_bp": FULL_BP},
    )
    return rollout


def _refuse_unproven(rollout: Rollout) -> None:
    """Raises Refused and StateChanged unless the candidate's gates passed, its contents are as sealed, and a server of it is warm."""
    candidate, serving = rollout.candidate, candidate_serving(rollout)
    if problem := report_problem(candidate, rollout.environment, rollout.report):
        raise Refused("report_not_passed", problem, release=candidate.name)
    manifest = "sha256:" + hashlib.sha256((candidate.manifest or "").encode()).hexdigest()
    if serving.has_drifted or manifest != candidate.digest:
        said = f"{candidate.name} does not run what was sealed, so it takes no traffic. Push the release again."
        raise StateChanged("digest_mismatch", said)
    if not serving.count:
        said = f"{candidate.name} has no server that answers yet, so it can take no traffic: {rollout.reason}"
        raise StateChanged(
            "candidate_not_ready",
            f"{said.rstrip('.')}. Repeat when `sluicegate rollout watch {rollout.pk}` shows that it is ready.",
        )
