"""What Prometheus scrapes, as its HTTP service discovery reads it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.shapes import Shape, described
from ledger.queries.processes import processes
from serving.models import Server


class TargetSerializer(Shape):
    targets: list[str] = described("host:port")
    labels: dict[str, str]


class PrometheusTargetsView(APIView):
    """Processes of this installation and the inference servers that run. Any signed-in caller may read it."""

    pagination_class = None

    @extend_schema(responses=TargetSerializer(many=True), operation_id="prometheus_targets")
    def get(self, request: Request) -> Response:
        return Response([*_processes(), *_servers()])


def _processes() -> list[dict[str, Any]]:
    return [{"targets": [one.address], "labels": {"job": "sluicegate", "process": one.name}} for one in processes()]


def _servers() -> list[dict[str, Any]]:
    """Servers that state a port for metrics."""
    rows = (
        Server.objects.filter(ended_at=None, metrics_port__gt=0)
        .order_by("pk")
        .values_list(
            "host",
            "metrics_port",
            "replica__environment__slug",
            "replica__release__model__slug",
            "replica__release__number",
        )
    )
    return [
        {
            "targets": [f"{host}:{port}"],
            "labels": {"job": "inference", "environment": environment, "model": model, "release": f"r{number}"},
        }
        for host, port, environment, model, number in rows
    ]
