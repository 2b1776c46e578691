"""The JSON bodies that verbs on rollouts take."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.api.requests import StrictSerializer

_POLICY = "instead of the model's own; see docs/rollouts.md"


def _policy_object(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise serializers.ValidationError('Write the policy as an object, such as {"preset": "fast"}.')
    return value


class ReasonIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)


class PreviewIn(StrictSerializer):
    model = serializers.CharField()
    candidate = serializers.CharField(help_text="r2")
    environment = serializers.CharField()
    policy = serializers.JSONField(required=False, help_text=_POLICY)

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class _AgainIn(PreviewIn):
    again = serializers.BooleanField(
        default=False, help_text="also if the release was rolled back, reverted or rejected there before"
    )


class SupposeIn(_AgainIn):
    rate_per_s = serializers.FloatField(
        required=False, allow_null=True, default=None, min_value=0.001, max_value=1e6,
        help_text="requests a second to reckon with instead of what was counted",
    )  # fmt: skip


class StartIn(_AgainIn, ReasonIn):
    pass


class ApproveIn(ReasonIn):
    stage = serializers.CharField(
        required=False,
        allow_null=True,
        default=None,
        help_text="start, step 2, …, bake or promote; the next by default",
    )


class SupersedeIn(ReasonIn):
    candidate = serializers.CharField(help_text="r3, of the same model")
    policy = serializers.JSONField(required=False, help_text=_POLICY)

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class JudgeIn(StrictSerializer):
    policy = serializers.JSONField(help_text="the policy to judge by; see docs/rollouts.md")

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class RollbackIn(ReasonIn):
    environment = serializers.CharField()
