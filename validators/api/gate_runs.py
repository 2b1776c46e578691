"""REST views of golden sets, gate runs and reports: parse the request, call an action or query, render the answer."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.actions.following import follow
from accounts.api.following import Followed
from accounts.api.requests import IF_MATCH, actor_of, expected_version, read_body
from accounts.api.responses import versioned
from accounts.api.waiting import TIMEOUT, VERSION, status_of_wait
from registry.core.mlbom import MEDIA_TYPE
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.queries import visible_model, visible_release
from serving.targets.platforms import platform_of
from serving.targets.queries import get_environment
from validators import actions, queries
from validators.api.serializers import CancelIn, DiffOut, GateRunIn, GateRunLogOut, GateRunOut, GoldenSetOut, ReportOut
from validators.core.lifecycle import UNFINISHED
from validators.models import GateRun
from validators.queries.golden_preview import MAX_GOLDEN_SET_BYTES, require_size
from validators.queries.ml_bom import bom_of
from validators.queries.release_diff import whole_diff


@extend_schema_view(get=extend_schema(operation_id="golden_sets_list", responses=GoldenSetOut(many=True)))
class GoldenSetsView(generics.ListAPIView[Any]):
    """A model's golden sets. The body of a new one is its file: JSON lines, raw."""

    parser_classes: list[Any] = []
    serializer_class = GoldenSetOut

    def get_queryset(self) -> Any:
        return queries.golden_sets_of(visible_model(actor_of(self.request), self.kwargs["slug"]))

    @extend_schema(
        operation_id="golden_sets_add",
        request={"application/jsonl": OpenApiTypes.BINARY},
        responses={201: GoldenSetOut, 200: OpenApiResponse(GoldenSetOut, "it was there already")},
    )
    def post(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = visible_model(actor, slug)
        data = request._request.read(MAX_GOLDEN_SET_BYTES + 1)
        require_size(data)
        found, is_new = actions.add_golden_set(actor=actor, model=model, data=data)
        return Response(GoldenSetOut(found).data, status=201 if is_new else 200)


@extend_schema_view(get=extend_schema(operation_id="gate_runs_list", responses=GateRunOut(many=True)))
class ReleaseGateRunsView(generics.ListAPIView[Any]):
    """The gate runs of a release, newest first."""

    serializer_class = GateRunOut

    def get_queryset(self) -> Any:
        release = visible_release(actor_of(self.request), self.kwargs["slug"], self.kwargs["name"])
        return queries.gate_runs().select_related("report").filter(release=release).order_by("-pk")

    @extend_schema(
        operation_id="gate_runs_start",
        request=GateRunIn,
        responses={202: GateRunOut, 200: OpenApiResponse(GateRunOut, "one is under way, or has passed: this")},
    )
    def post(self, request: Request, slug: str, name: str) -> Response:
        actor = actor_of(request)
        asked = read_body(GateRunIn, request)
        where = asked["environment"]
        gate_run, is_new = actions.request_gate_run(
            actor=actor,
            release=visible_release(actor, slug, name),
            environment=None if where is None else get_environment(where),
            only_expired=asked["only_expired"],
            unless_passed=asked["unless_passed"],
        )
        follow(actor, GateRunRead.subject_type, gate_run.pk)
        return _shown(queries.visible_gate_run(actor, gate_run.pk), status=202 if is_new else 200)


class MlBomView(APIView):
    @extend_schema(operation_id="releases_mlbom", responses={(200, MEDIA_TYPE): OpenApiTypes.OBJECT})
    def get(self, request: Request, slug: str, name: str) -> HttpResponse:
        """The release as a CycloneDX 1.6 ML-BOM, with what its newest report measured."""
        bom = bom_of(visible_release(actor_of(request), slug, name))
        response = HttpResponse(json.dumps(bom, ensure_ascii=False), content_type=MEDIA_TYPE)
        response["Content-Disposition"] = f'attachment; filename="{slug}-{name}.cdx.json"'
        return response


class DiffView(APIView):
    @extend_schema(
        operation_id="releases_diff",
        responses=DiffOut,
        parameters=[
            OpenApiParameter(
                "against",
                str,
                required=True,
                description="the older release: r1, or sentiment/r1 for one of another model",
            )
        ],
    )
    def get(self, request: Request, slug: str, name: str) -> Response:
        """What the release changes against another: files, configuration, tensors, tokenizer, image, and gate metrics."""
        actor = actor_of(request)
        model, _, old = request.query_params.get("against", "").rpartition("/")
        if not old:
            problem = Problem("against", "it is missing.", "Name the older release: ?against=r1.")
            refuse("invalid", "The query", [problem])
        release = visible_release(actor, slug, name)
        return Response(DiffOut(whole_diff(visible_release(actor, model or slug, old), release)).data)


class GateRunRead(Followed):
    subject_type = "gate_run"

    def run_end(self) -> tuple[int, datetime | None] | None:
        return queries.gate_run_end(self.kwargs["pk"])


class GateRunView(GateRunRead, APIView):
    @extend_schema(operation_id="gate_runs_read", responses=GateRunOut)
    def get(self, request: Request, pk: int) -> Response:
        """The gate run now: its state, and each gate with its progress, verdict, reason and evidence."""
        return _shown(queries.visible_gate_run(actor_of(request), pk))


class GateRunWaitView(GateRunRead, APIView):
    @extend_schema(
        operation_id="gate_runs_wait",
        parameters=[TIMEOUT, VERSION],
        responses={
            200: OpenApiResponse(GateRunOut, "it has ended, or has another version than the one named"),
            202: OpenApiResponse(GateRunOut, "the time is over; this is how it stands: ask again"),
        },
    )
    def get(self, request: Request, pk: int) -> Response:
        """The gate run, once it has finished or was cancelled."""
        gate_run = queries.visible_gate_run(actor_of(request), pk)
        return _shown(
            gate_run, status_of_wait(request, has_ended=gate_run.state not in UNFINISHED, version=gate_run.version)
        )


class GateRunLogView(APIView):
    @extend_schema(operation_id="gate_runs_log", responses=GateRunLogOut)
    def get(self, request: Request, pk: int) -> Response:
        """The last lines of the server's log: of servers that no user reaches, kept while they run and after."""
        gate_run = queries.visible_gate_run(actor_of(request), pk)
        trial = platform_of(gate_run.environment).trial(gate_run.release, gate_run.environment)
        text, at = (trial and trial.log_before(gate_run.ended_at)) or ("", None)
        return Response(GateRunLogOut({"text": text, "at": at}).data)


class CancelView(APIView):
    @extend_schema(
        operation_id="gate_runs_cancel",
        request=CancelIn,
        responses=GateRunOut,
        parameters=[IF_MATCH],
    )
    def post(self, request: Request, pk: int) -> Response:
        actor = actor_of(request)
        gate_run = actions.cancel_gate_run(
            actor=actor,
            gate_run=queries.visible_gate_run(actor, pk),
            reason=read_body(CancelIn, request)["reason"],
            expected_version=expected_version(request),
        )
        return _shown(queries.visible_gate_run(actor, gate_run.pk))


class ReportView(APIView):
    @extend_schema(operation_id="reports_read", responses=ReportOut)
    def get(self, request: Request, digest: str) -> Response:
        return Response(ReportOut(queries.visible_report(actor_of(request), digest)).data)


def _shown(gate_run: GateRun, status: int = 200) -> Response:
    found = GateRunOut(gate_run)
    return versioned(found, status, {"Location": found.data["url"]})
