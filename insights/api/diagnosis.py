"""REST view of a diagnosis."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from accounts.core.instants import EXAMPLES
from insights.queries.diagnosis import explain
from registry.queries import visible_model
from serving.targets.queries import get_environment


class HypothesisOut(Shape):
    kind: str = described("who, mix, volume, everyone, stage, resource or change")
    subject: str
    score: float = described("0 to 1; it ranks, and is no probability")
    evidence_for: list[str]
    against: list[str]
    unknown: list[str]
    next_step: str


class LoadOut(Shape):
    before_per_s: float
    now_per_s: float
    capacity_per_s: float | None = described("of all servers; null: no report proves one")
    at_capacity: bool | None


class DiagnosisOut(Shape):
    model: str
    environment: str
    from_at: datetime
    to_at: datetime
    verdict = serializers.ChoiceField(choices=["step", "rising", "no_shift", "cannot_tell"])
    answer: str
    since: datetime | None
    low: datetime | None = described("begin of the interval of `since`")
    high: datetime | None
    signal: str = described("what shifted: slow, errors, refused or p99", source="found.signal")
    hypotheses: list[HypothesisOut] = described("the best first", source="found.hypotheses")
    load: LoadOut | None = described(source="found.load")
    missing: list[str] = described(source="found.missing")


class DiagnosisView(APIView):
    @extend_schema(
        operation_id="diagnosis_read",
        responses=DiagnosisOut,
        parameters=[
            OpenApiParameter("environment", str, description="production if left out"),
            OpenApiParameter("since", str, description=f"{EXAMPLES}; 1h if left out"),
            OpenApiParameter("baseline", str, description="how much is read before `since`, as `1h`"),
        ],
    )
    def get(self, request: Request, slug: str) -> Response:
        """Since when the model's traffic is worse, who has it, which stage, and what changed then."""
        given = request.query_params
        model = visible_model(actor_of(request), slug)
        environment = get_environment(given.get("environment") or "production")
        window = given.get("since", ""), given.get("baseline", "")
        return Response(DiagnosisOut(explain(model, environment, timezone.now(), *window)).data)
