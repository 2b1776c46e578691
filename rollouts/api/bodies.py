"""The JSON bodies that verbs on rollouts take."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.api.requests import StrictSerializer
from accounts.api.shapes import described

_POLICY = "instead of the model's own; see docs/rollouts.md"


def _policy_object(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise serializers.ValidationError('Write the policy as an object, such as {"preset": "fast"}.')
    return value


class ReasonIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=2000)


class PreviewIn(StrictSerializer):
    model: str
    candidate: str = described("r2")
    environment: str
    policy: Any = described(_POLICY, required=False)

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class _AgainIn(PreviewIn):
    again: bool = described("also if the release was rolled back, reverted or rejected there before", default=False)


class SupposeIn(_AgainIn):
    rate_per_s: float | None = described(
        "requests a second to reckon with instead of what was counted",
        required=False,
        default=None,
        min_value=0.001,
        max_value=1e6,
    )


class StartIn(_AgainIn, ReasonIn):
    pass


class ApproveIn(ReasonIn):
    stage: str | None = described(
        "start, step 2, …, bake or promote; the next by default", required=False, default=None
    )


class SupersedeIn(ReasonIn):
    candidate: str = described("r3, of the same model")
    policy: Any = described(_POLICY, required=False)

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class JudgeIn(StrictSerializer):
    policy: Any = described("the policy to judge by; see docs/rollouts.md")

    def validate_policy(self, value: Any) -> Any:
        return _policy_object(value)


class RollbackIn(ReasonIn):
    environment: str
