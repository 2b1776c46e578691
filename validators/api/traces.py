"""REST view of a model's traces: recordings of when requests came, of which the gaps are kept alone."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from registry.queries import visible_model
from validators.actions import add_trace, remove_trace
from validators.actions.traces import MAX_RECORDING_BYTES
from validators.models import Trace
from validators.queries.traces import trace_shape, traces_of


class TraceShapeOut(serializers.Serializer[Any]):
    """What the arrivals are like. `cv` and `dispersion` are 1 where they are random."""

    rate_per_s = serializers.FloatField()
    cv = serializers.FloatField(help_text="of the gaps: their standard deviation over their mean")
    longest_gap_s = serializers.FloatField()
    dispersion = serializers.FloatField(
        allow_null=True, help_text="variance over mean of the counts in spans of ten gaps; null: too few"
    )
    words = serializers.CharField(help_text="at random, in bursts, evenly, or too few to tell")


class TraceOut(serializers.Serializer[Any]):
    """When requests once came. `digest` is what a gate policy names in load.trace."""

    digest = serializers.CharField()
    gaps = serializers.IntegerField(help_text="between requests, one less than these")
    lasts_s = serializers.FloatField(help_text="s, from the first request to the last")
    created_at = serializers.DateTimeField()
    shape = serializers.SerializerMethodField()

    @extend_schema_field(TraceShapeOut)
    def get_shape(self, trace: Trace) -> Any:
        return TraceShapeOut(trace_shape(trace.blob_id)).data


@extend_schema_view(get=extend_schema(operation_id="traces_list", responses=TraceOut(many=True)))
class TracesView(generics.ListAPIView[Any]):
    """A model's traces. The body of a new one is a recording, raw: CSV with a column TIMESTAMP, or a line for each instant."""

    parser_classes: list[Any] = []
    serializer_class = TraceOut

    def get_queryset(self) -> Any:
        return traces_of(visible_model(actor_of(self.request), self.kwargs["slug"]))

    @extend_schema(
        operation_id="traces_add",
        request={"text/csv": OpenApiTypes.BINARY, "text/plain": OpenApiTypes.BINARY},
        responses={201: TraceOut, 200: OpenApiResponse(TraceOut, "it was there already")},
    )
    def post(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = visible_model(actor, slug)
        recording = request._request.read(MAX_RECORDING_BYTES + 1)
        found, is_new = add_trace(actor=actor, model=model, recording=recording)
        return Response(TraceOut(found).data, status=201 if is_new else 200)


class TraceView(APIView):
    @extend_schema(operation_id="traces_remove", responses={204: None})
    def delete(self, request: Request, slug: str, digest: str) -> Response:
        """Removes a trace that neither the gate policy nor any gate run names."""
        actor = actor_of(request)
        remove_trace(actor=actor, model=visible_model(actor, slug), digest=digest)
        return Response(status=204)
