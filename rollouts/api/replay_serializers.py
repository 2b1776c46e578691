"""A stored rollout that is judged again, as JSON."""

from __future__ import annotations

from datetime import datetime

from rest_framework import serializers

from accounts.api.shapes import Shape, described
from rollouts.api.serializers import DecisionOut
from rollouts.core.lifecycle import RolloutState

_STATES = [state.value for state in RolloutState]


class TurnOut(Shape):
    """A tick at which the policy's decision became another one. State and weight are those that really were."""

    tick: int
    at: datetime
    state: RolloutState
    step_index: int
    weight_bp: int
    action: str
    code: str
    reason: str


class HappenedOut(Shape):
    state: RolloutState
    reason: str
    decisions: list[DecisionOut] = described("but holds, oldest first")


class RolloutReplayOut(Shape):
    """A stored rollout judged again by another policy, beside what happened."""

    rollout: int
    policy = serializers.DictField()
    policy_digest: str
    is_own_policy: bool = described("the policy is the rollout's own, but for approvals")
    ticks: int
    turns: list[TurnOut]
    first_effect: TurnOut | None
    roll_back: TurnOut | None
    not_counted: list[str] = described("counters that the policy rests on and nobody counted then")
    happened: HappenedOut
