"""A stored rollout judged again by another policy: where it would have gone on, where back, beside what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ledger.core.errors import StateChanged
from ledger.queries.statements import Statement
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import Action
from rollouts.core.policy_schema import parse_policy, stored_policy
from rollouts.core.replay import Walk, replay, uncounted
from rollouts.core.tick_history import OpenSegment, Segment, rows_of
from rollouts.models import Observation, Rollout
from rollouts.queries.rollout_view import decision_row

#: More changes of mind than this are not told one by one.
MOST_TURNS = 500


def replayed(rollout: Rollout, policy: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the policy would have said, as JSON: every turn of its mind, its first effect, and what really happened.

    Without a policy it is the model's own of today. State and weight are those that were.
    Raises Invalid (the policy cannot be read) and StateChanged("no_history").
    """
    return {
        **judged_by(rollout, policy, history_of(rollout)),
        "happened": {
            "state": rollout.state,
            "reason": rollout.reason,
            "decisions": [decision_row(one) for one in rollout.decisions.exclude(action="hold").order_by("pk")],
        },
    }


def judged_by(rollout: Rollout, policy: Mapping[str, Any] | None, history: list[Segment]) -> dict[str, Any]:
    """The same without what really happened, for somebody who has read what `history_of` says. No query."""
    model = rollout.model
    asked, read = (model.rollout_policy, stored_policy) if policy is None else (policy, parse_policy)
    plan = read(asked, model.objectives)
    if not history:
        raise StateChanged(
            "no_history",
            f"Nothing was observed of rollout {rollout.pk} yet, so there is nothing to judge again.",
            rollout=rollout.pk,
        )
    has_stable = rollout.stable_id is not None
    at = {row.tick: row.at for block in history for row in rows_of(block.first_tick, block.from_at, block.ticks)}
    walks = list(replay(history, plan, has_stable=has_stable))
    turns = [_turn(walk, at[walk.tick]) for walk in _turns(walks)]
    effects = [turn for turn in turns if turn["action"] != Action.HOLD]
    return {
        "rollout": rollout.pk,
        "policy": plan.document,
        "policy_digest": plan.digest,
        # approvals count as given here, and the one that an environment asks for is not in the model's policy
        "is_own_policy": {**plan.document, "approvals": {}} == {**rollout.policy, "approvals": {}},
        "ticks": len(walks),
        "turns": turns[:MOST_TURNS],
        "first_effect": effects[0] if effects else None,
        "roll_back": next((turn for turn in effects if turn["action"] == Action.ROLL_BACK), None),
        "not_counted": list(uncounted(history, plan.facing(has_stable=has_stable))),
    }


def history_of(rollout: Rollout) -> list[Segment]:
    """What was observed, the oldest first, with the block that the engine has not stored yet."""
    stored = [
        Segment(
            one.first_tick,
            one.tick,
            one.from_at.timestamp(),
            one.at.timestamp(),
            tuple(one.ticks),
            Arms(Counts.from_json(one.candidate), Counts.from_json(one.stable)),
        )
        for one in _BLOCKS.objects(rollout=rollout.pk)
        if one.ticks
    ]
    unstored = OpenSegment.from_json(rollout.engine_state.get("history", {}))
    return [*stored, unstored.block()] if unstored.rows else stored


_BLOCKS = Statement(lambda rollout: Observation.objects.filter(rollout=rollout).order_by("first_tick"))


def _turns(walks: list[Walk]) -> Iterator[Walk]:
    """The ticks at which the decision became another one."""
    said: tuple[Any, ...] = ()
    for walk in walks:
        now = (walk.decision.action, walk.decision.code, walk.state, walk.step_index)
        if now != said:
            yield walk
        said = now


def _turn(walk: Walk, at: float) -> dict[str, Any]:
    decision = walk.decision
    return {
        "tick": walk.tick, "at": datetime.fromtimestamp(at, UTC).isoformat(), "state": walk.state.value,
        "step_index": walk.step_index, "weight_bp": walk.weight_bp, "action": decision.action.value,
        "code": decision.code.value, "reason": decision.reason,
    }  # fmt: skip
