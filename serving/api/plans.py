"""What a request says that has done what was read as a plan before, and what a plan says of itself."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.api.requests import StrictSerializer
from serving.environments.core.reasons import LONGEST_REASON


class PlannedIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)
    is_confirmed = serializers.BooleanField(
        required=False, default=False, help_text="needed where it touches what users get"
    )
    plan_digest = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=71,
        help_text="of the plan that was read; confirms it, and is refused (`plan_changed`) where it is another by then",
    )


class PlanOut(serializers.Serializer[Any]):
    plan_digest = serializers.CharField(help_text="names what is said; sent along, it has nothing else done")
