"""What a request says that has done what was read as a plan before, and what a plan says of itself."""

from __future__ import annotations

from rest_framework import serializers

from accounts.api.requests import StrictSerializer
from accounts.api.shapes import Shape, described
from serving.environments.core.reasons import LONGEST_REASON


class PlannedIn(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=LONGEST_REASON)
    is_confirmed: bool = described("needed where it touches what users get", required=False, default=False)
    plan_digest: str = described(
        "of the plan that was read; confirms it, and is refused (`plan_changed`) where it is another by then",
        required=False,
        default="",
        allow_blank=True,
        max_length=71,
    )


class PlanOut(Shape):
    plan_digest: str = described("names what is said; sent along, it has nothing else done")
