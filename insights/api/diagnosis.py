"""REST view of a diagnosis."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.core.instants import EXAMPLES
from insights.queries.diagnosis import explain
from registry.queries import visible_model
from serving.targets.queries import get_environment


class HypothesisOut(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="who, mix, volume, everyone, stage, resource or change")
    subject = serializers.CharField()
    score = serializers.FloatField(help_text="0 to 1; it ranks, and is no probability")
    evidence_for = serializers.ListField(child=serializers.CharField())
    against = serializers.ListField(child=serializers.CharField())
    unknown = serializers.ListField(child=serializers.CharField())
    next_step = serializers.CharField()


class LoadOut(serializers.Serializer[Any]):
    before_per_s = serializers.FloatField()
    now_per_s = serializers.FloatField()
    capacity_per_s = serializers.FloatField(allow_null=True, help_text="of all servers; null: no report proves one")
    at_capacity = serializers.BooleanField(allow_null=True)


class DiagnosisOut(serializers.Serializer[Any]):
    model = serializers.CharField()
    environment = serializers.CharField()
    from_at = serializers.DateTimeField()
    to_at = serializers.DateTimeField()
    verdict = serializers.ChoiceField(choices=["step", "rising", "no_shift", "cannot_tell"])
    answer = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    low = serializers.DateTimeField(allow_null=True, help_text="begin of the interval of `since`")
    high = serializers.DateTimeField(allow_null=True)
    signal = serializers.CharField(source="found.signal", help_text="what shifted: slow, errors, refused or p99")
    hypotheses = HypothesisOut(many=True, source="found.hypotheses", help_text="the best first")
    load = LoadOut(source="found.load", allow_null=True)
    missing = serializers.ListField(child=serializers.CharField(), source="found.missing")


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
