"""Replay of a stored rollout with another policy: its advances and rollbacks, beside the real decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledger.core.errors import StateChanged
from rollouts.core.counter_deltas import Arms, Counts
from rollouts.core.decision import TAKES_BACK, Action
from rollouts.core.indicators import INDICATORS
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import parse_policy, stored_policy, watching_refusals
from rollouts.core.replay import Walk, replay, uncounted
from rollouts.core.tick_history import OpenSegment, Segment, TickRecord, rows_in
from rollouts.core.timeline import Moment, Timeline
from rollouts.models import Observation, Rollout
from rollouts.queries.rollout_view import decision_row

#: More changes of mind than this are not told one by one.
MOST_TURNS = 500


@dataclass(frozen=True)
class Judgement:
    """A stored rollout under a policy: each row of its history, and the state after it."""

    rollout: Rollout
    plan: Policy
    rows: list[TickRecord]
    walks: list[Walk]

    @property
    def moments(self) -> list[Moment]:
        """As plots draw them."""
        return Timeline(self.plan, has_stable=self.rollout.began_with_stable).with_walks(self.rows, self.walks).moments

    def to_json(self) -> dict[str, Any]:
        """Every turn of the policy's mind and its first effect; state and weight are those that were."""
        at = {row.tick: row.at for row in self.rows}
        turns = [_turn(walk, at[walk.tick]) for walk in _turns(self.walks)]
        effects = [turn for turn in turns if turn["action"] != Action.HOLD]
        plan, followed = self.plan.document, self.rollout.policy
        return {
            "rollout": self.rollout.pk,
            "policy": plan,
            "policy_digest": self.plan.digest,
            # approvals count as given here, and the one that an environment asks for is not in the model's policy
            "is_own_policy": {**plan, "approvals": {}} == {**followed, "approvals": {}},
            "ticks": len(self.walks),
            "turns": turns[:MOST_TURNS],
            "first_effect": effects[0] if effects else None,
            "roll_back": next((turn for turn in effects if turn["action"] in TAKES_BACK), None),
            "not_counted": list(uncounted(self.rows, self.plan.facing(has_stable=self.rollout.began_with_stable))),
        }


def plan_of(rollout: Rollout, policy: Mapping[str, Any] | None) -> Policy:
    """The policy in full. Without one: the model's own of today, with the guard on refused requests if the rollout has it. Raises
    Invalid if it cannot be read."""
    model = rollout.model
    if policy is not None:
        return parse_policy(policy, model.objectives)
    own = stored_policy(model.rollout_policy, model.objectives)
    is_watched = any(INDICATORS[guard["indicator"]].is_callers for guard in rollout.policy["guards"])
    return watching_refusals(own) if is_watched else own


def judged_by(rollout: Rollout, plan: Policy, history: list[Segment]) -> Judgement:
    """The rollout under the policy. `history` is the result of `history_of`. No query. Raises StateChanged("no_history")."""
    if not history:
        raise StateChanged(
            "no_history",
            f"Nothing was observed of rollout {rollout.pk} yet, so there is nothing to judge again.",
            rollout=rollout.pk,
        )
    rows = list(rows_in(history))
    return Judgement(rollout, plan, rows, list(replay(rows, plan, has_stable=rollout.began_with_stable)))


def replayed(rollout: Rollout, policy: Mapping[str, Any] | None) -> dict[str, Any]:
    """The policy's decisions, as JSON, beside the real ones. Raises as `plan_of` and `judged_by` do."""
    return beside_what_happened(rollout, judged_by(rollout, plan_of(rollout, policy), history_of(rollout)).to_json())


def beside_what_happened(rollout: Rollout, told: dict[str, Any]) -> dict[str, Any]:
    """The same of somebody who has judged already: `told` is the judgement as JSON."""
    decisions = rollout.decisions.exclude(action="hold").order_by("pk")
    happened = {
        "state": rollout.state, "reason": rollout.reason, "decisions": [decision_row(one) for one in decisions],
    }  # fmt: skip
    return {**told, "happened": happened}


def history_of(rollout: Rollout) -> list[Segment]:
    """The observations, oldest first, with the block that the engine has not stored yet."""
    rows = Observation.objects.filter(rollout=rollout).order_by("first_tick")
    stored = [block_of(one) for one in rows if one.ticks]
    unstored = OpenSegment.from_json(rollout.engine_state.get("history", {}))
    return [*stored, unstored.block()] if unstored.rows else stored


def block_of(row: Observation) -> Segment:
    """A stored block, as `rollouts.core` reads it."""
    arms = Arms(Counts.from_json(row.candidate), Counts.from_json(row.stable))
    return Segment(row.first_tick, row.tick, row.from_at.timestamp(), row.at.timestamp(), tuple(row.ticks), arms)


def _turns(walks: list[Walk]) -> Iterator[Walk]:
    """The ticks with a new decision."""
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
