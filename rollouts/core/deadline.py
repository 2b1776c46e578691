"""Holds past the deadline of their stage, and past that of the whole rollout."""

from __future__ import annotations

from dataclasses import replace

from rollouts.core.decision import Action, Code, Decision, facts_of, hold
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import OnUndecided
from rollouts.core.snapshot import Snapshot

#: The cause of a hold for a replica of stable.
STABLE_REPLICA = "stable_replica"


def late(s: Snapshot, found: Decision) -> Decision:
    """Returns the hold; past the stage's deadline, the decision of `on_undecided`, once."""
    if found.action is not Action.HOLD or s.desired.state is RolloutState.PAUSED or not is_late(s):
        return found
    return undecided(s, found)


def is_late(s: Snapshot) -> bool:
    """Past the stage's deadline, counted from its acknowledgement, or from its command if that never came."""
    waited_s = s.evidence.unacknowledged_s if s.observed.step_started_at is None else s.elapsed_s
    return waited_s >= s.stage.deadline_s


def undecided(s: Snapshot, found: Decision) -> Decision:
    """Returns the decision of `on_undecided`. Trouble of both arms never rolls back, nor does trouble of stable alone."""
    late = f"{found.reason.rstrip('.')}; the deadline of {s.stage.deadline_s:.0f} s has passed"
    is_of_stable = found.code is Code.BOTH_ARMS_BAD or found.because == STABLE_REPLICA
    may_go_back = s.identity.has_stable and not s.is_stable_gone
    if s.policy.on_undecided is OnUndecided.ROLL_BACK and may_go_back and not is_of_stable:
        said = f"{late}, and the policy then rolls back."
        return replace(found, action=Action.ROLL_BACK, code=Code.OVERDUE, reason=said, is_late=True)
    return replace(found, reason=f"{late}, so it waits for proof or for a person.", is_late=True)


def overdue(s: Snapshot) -> Decision | None:
    """Past the deadline of the whole rollout nothing opens by itself any more. None before."""
    if s.observed.total_s < s.policy.deadline_s:
        return None
    said = f"The rollout has lasted {s.observed.total_s:.0f} s, over its deadline of {s.policy.deadline_s:.0f} s"
    if s.policy.on_undecided is OnUndecided.ROLL_BACK and s.identity.has_stable and not s.is_stable_gone:
        return Decision(Action.ROLL_BACK, Code.OVERDUE, f"{said}, and the policy then rolls back.", facts_of(s))
    if s.where is RolloutState.SECOND_LOOK:  # neither of the other verbs begins a look
        resume = f"`sluicegate rollout resume {s.identity.rollout_id}`"
        return hold(s, Code.OVERDUE, f"{said}: a person must begin its next look ({resume}) or take it back.")
    return hold(s, Code.OVERDUE, f"{said}: a person must advance it, promote it or take it back.")
