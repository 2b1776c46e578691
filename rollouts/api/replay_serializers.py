"""A stored rollout that is judged again, as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from rollouts.api.serializers import DecisionOut
from rollouts.core.lifecycle import RolloutState

_STATES = [state.value for state in RolloutState]


class TurnOut(serializers.Serializer[Any]):
    """A tick at which the policy's decision became another one. State and weight are those that really were."""

    tick = serializers.IntegerField()
    at = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=_STATES)
    step_index = serializers.IntegerField()
    weight_bp = serializers.IntegerField()
    action = serializers.CharField()
    code = serializers.CharField()
    reason = serializers.CharField()


class HappenedOut(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=_STATES)
    reason = serializers.CharField(allow_blank=True)
    decisions = DecisionOut(many=True, help_text="but holds, oldest first")


class RolloutReplayOut(serializers.Serializer[Any]):
    """A stored rollout judged again by another policy, beside what happened."""

    rollout = serializers.IntegerField()
    policy = serializers.DictField()
    policy_digest = serializers.CharField()
    is_own_policy = serializers.BooleanField(help_text="the policy is the rollout's own, but for approvals")
    ticks = serializers.IntegerField()
    turns = TurnOut(many=True)
    first_effect = TurnOut(allow_null=True)
    roll_back = TurnOut(allow_null=True)
    not_counted = serializers.ListField(
        child=serializers.CharField(), help_text="counters that the policy rests on and nobody counted then"
    )
    happened = HappenedOut()
