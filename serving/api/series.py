"""REST view of a model's kept series."""

from __future__ import annotations

from datetime import datetime, timedelta

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
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


class QuantileOut(Shape):
    value: float = described("interpolated on a log scale")
    low: float = described("lower edge of the class that holds it")
    high: float = described("upper edge")


class SeriesPointOut(Shape):
    at: datetime = described("begin of the step")
    unknown_s: float = described("seconds without a reading")
    counts: dict[str, int] = described("empty without a reading")
    rate_per_s: float | None = described("requests per second that was read")
    error_frac: float | None = described("failed first attempts of a release; else failed requests without those shed")
    p50_ms: QuantileOut | None
    p95_ms: QuantileOut | None
    p99_ms: QuantileOut | None = described("null: no answer, or above the last edge")


class LineOut(Shape):
    name: str = described("release or tenant; empty: all users of the model")
    key: str = described("digest of the release, or the tenant")
    points: list[SeriesPointOut]


class SeriesOut(Shape):
    environment: str
    since: datetime = described("begin of the first step")
    until: datetime = described("end of the last step; the minute under way is left out")
    step_s: int
    whole: LineOut
    lines: list[LineOut]


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
