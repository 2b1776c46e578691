"""REST view of a model's kept series."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.core.instants import EXAMPLES, read_instant
from ledger.core.errors import Invalid
from ledger.queries import clock
from registry.queries import visible_model
from serving.targets.queries import get_environment
from serving.traffic.queries.series import BY, MOST_POINTS, series_of

_ASKED = [
    OpenApiParameter("environment", str, required=True),
    OpenApiParameter("from", str, description=f"{EXAMPLES}; an hour ago if left out"),
    OpenApiParameter("to", str, description="likewise; now if left out"),
    OpenApiParameter("by", str, enum=BY, description="release if left out"),
    OpenApiParameter(
        "step", int, description=f"seconds; a multiple of 60, at most {MOST_POINTS} steps; 60 if left out"
    ),
]


class QuantileOut(serializers.Serializer[Any]):
    value = serializers.FloatField(help_text="interpolated on a log scale")
    low = serializers.FloatField(help_text="lower edge of the class that holds it")
    high = serializers.FloatField(help_text="upper edge")


class SeriesPointOut(serializers.Serializer[Any]):
    at = serializers.DateTimeField(help_text="begin of the step")
    unknown_s = serializers.FloatField(help_text="seconds without a reading")
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="empty without a reading")
    rate_per_s = serializers.FloatField(allow_null=True, help_text="requests per second that was read")
    error_frac = serializers.FloatField(
        allow_null=True, help_text="failed first attempts of a release; else failed requests without those shed"
    )
    p50_ms = QuantileOut(allow_null=True)
    p95_ms = QuantileOut(allow_null=True)
    p99_ms = QuantileOut(allow_null=True, help_text="null: no answer, or above the last edge")


class LineOut(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="release or tenant; empty: all users of the model")
    key = serializers.CharField(help_text="digest of the release, or the tenant")
    points = SeriesPointOut(many=True)


class SeriesOut(serializers.Serializer[Any]):
    environment = serializers.CharField()
    since = serializers.DateTimeField(help_text="begin of the first step")
    until = serializers.DateTimeField(help_text="end of the last step; the minute under way is left out")
    step_s = serializers.IntegerField()
    whole = LineOut()
    lines = LineOut(many=True)


class SeriesView(APIView):
    @extend_schema(operation_id="series_read", responses=SeriesOut, parameters=_ASKED)
    def get(self, request: Request, slug: str) -> Response:
        model = visible_model(actor_of(request), slug)
        given, now = request.query_params, clock.now()
        step = given.get("step", "60")
        found = series_of(
            model,
            get_environment(given.get("environment", "")),
            since=_instant(given.get("from", ""), now, "from") or now - timedelta(hours=1),
            until=_instant(given.get("to", ""), now, "to") or now,
            step_s=int(step) if step.isascii() and step.isdigit() and len(step) < 9 else 0,
            by=given.get("by", "release"),
            now=now,
        )
        return Response(SeriesOut(found).data)


def _instant(text: str, now: datetime, field: str) -> datetime | None:
    try:
        return read_instant(text, now)
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"{text!r} is no instant. Write {EXAMPLES}.", field=field) from None
