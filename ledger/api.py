"""The event log over REST."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api import actor_of
from accounts.core.access import Verb, require
from ledger.audit import verify_chain
from ledger.models import Event
from ledger.scope import visible_events


class EventSerializer(serializers.ModelSerializer[Event]):
    class Meta:
        model = Event
        exclude: list[str] = []


class ChainSerializer(serializers.Serializer[Any]):
    is_whole = serializers.BooleanField()
    events = serializers.IntegerField(help_text="how many were checked: all there are")
    head = serializers.CharField(help_text="hash of the last event; noted elsewhere, it pins everything before it")
    broken_at = serializers.IntegerField(allow_null=True)
    problem = serializers.CharField()


@extend_schema(
    parameters=[
        OpenApiParameter("subject_type", str),
        OpenApiParameter("subject_id", str),
        OpenApiParameter("verb", str),
    ]
)
class EventsView(ListAPIView[Event]):
    """Newest first; filter by subject or verb."""

    serializer_class = EventSerializer
    pagination_ordering = "-seq"

    def get_queryset(self) -> Any:
        wanted = {
            name: self.request.query_params[name]
            for name in ("subject_type", "subject_id", "verb")
            if name in self.request.query_params
        }
        return visible_events(actor_of(self.request)).filter(**wanted)


class AuditView(APIView):
    """Walks the whole hash chain."""

    @extend_schema(responses=ChainSerializer)
    def get(self, request: Request) -> Response:
        require(actor_of(request), Verb.ADMINISTER, "*")
        report = verify_chain()
        return Response(ChainSerializer(report).data)
