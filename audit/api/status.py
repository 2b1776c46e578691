"""How our own processes are, over REST."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from accounts.core.access import EVERY_TEAM, Verb, may
from audit.queries.process_status import Health, overall, process_status, readable_parts

_HEALTHS = [health.value for health in Health]


class PartStatusOut(Shape):
    """One process, or one thing that processes rest on."""

    group: str
    name: str
    health: Health = described("unknown: no information")
    detail: str
    seen_at: datetime | None = described("time of its last sign of life, if recorded")


class StatusOut(Shape):
    health: Health = described("the worst that is known")
    parts: list[PartStatusOut]


class StatusView(APIView):
    @extend_schema(operation_id="status_retrieve", responses=StatusOut)
    def get(self, request: Request) -> Response:
        """Engine, workers, agents, gateways, database, broker, store and Prometheus, as they are now. Takes up to 3 s."""
        is_admin = may(actor_of(request), Verb.ADMINISTER, EVERY_TEAM)
        parts = readable_parts(process_status(), is_admin=is_admin)
        return Response(
            StatusOut({"health": overall(parts), "parts": parts}).data, headers={"Cache-Control": "no-store"}
        )
