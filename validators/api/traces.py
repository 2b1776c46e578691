"""REST view of a model's traces: recordings of when requests came, of which the gaps are kept alone."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.requests import actor_of
from registry.queries import visible_model
from validators.actions import add_trace
from validators.actions.traces import MAX_RECORDING_BYTES
from validators.queries.traces import traces_of


class TraceOut(serializers.Serializer[Any]):
    """When requests once came. `digest` is what a gate policy names in load.trace."""

    digest = serializers.CharField()
    gaps = serializers.IntegerField(help_text="between requests, one less than these")
    lasts_s = serializers.FloatField(help_text="s, from the first request to the last")
    created_at = serializers.DateTimeField()


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
