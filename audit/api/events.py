"""The event log over REST, and whether its hash chain is whole."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.core.access import Verb, require
from audit.queries import visible_events
from ledger.core.errors import Invalid
from ledger.models import Event
from ledger.queries.chain_verification import verify_chain


class EventSerializer(serializers.ModelSerializer[Event]):
    class Meta:
        model = Event
        exclude: list[str] = []


class ChainSerializer(serializers.Serializer[Any]):
    is_whole = serializers.BooleanField()
    events = serializers.IntegerField(help_text="how many were checked: all there are")
    head = serializers.CharField(help_text="hash of the last event; noted elsewhere, it pins everything before it")
    head_seq = serializers.IntegerField(help_text="number of the last event")
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

    @extend_schema(
        responses=ChainSerializer,
        parameters=[
            OpenApiParameter("head", str, description="SEQ:HASH as it was noted elsewhere; the log must still have it")
        ],
    )
    def get(self, request: Request) -> Response:
        require(actor_of(request), Verb.ADMINISTER, "*")
        report = verify_chain(_pin(request.query_params.get("head", "")))
        return Response(ChainSerializer(report).data)


def _pin(text: str) -> tuple[int, str] | None:
    """(seq, hash) of `SEQ:HASH`; None for no text. Raises Invalid."""
    if not text:
        return None
    noted = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text)
    if noted is None:
        raise Invalid("not_a_head", "head is SEQ:HASH, as `sluicegate audit verify` prints it.", field="head")
    return int(noted[1]), noted[2]
