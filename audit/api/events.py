"""The event log over REST, and whether its hash chain is whole."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from accounts.core.access import Verb, require
from accounts.core.instants import EXAMPLES, read_instant
from audit.queries.event_search import search_events, search_from
from ledger.core.errors import Invalid
from ledger.models import Event
from ledger.queries.chain_verification import verify_chain


class EventSerializer(serializers.ModelSerializer[Event]):
    model = serializers.CharField(allow_null=True, read_only=True, help_text="the model that it concerns, if any")

    class Meta:
        model = Event
        exclude: list[str] = []


class ChainSerializer(Shape):
    is_whole: bool
    events: int = described("how many were checked: all there are")
    head: str = described("hash of the last event; noted elsewhere, it pins everything before it")
    head_seq: int = described("number of the last event")
    broken_at: int | None
    problem: str


_INSTANT = "an instant, such as 2026-03-01T12:00:00Z, or 2h for two hours ago"
_FILTERS = {
    "actor": "exact name of the actor",
    "verb": "rollout.paused, or rollout.* for all of a kind",
    "subject_type": "",
    "subject_id": "",
    "model": "about which model",
    "environment": "",
    "since": _INSTANT,
    "until": _INSTANT,
    "q": "words or their beginnings; also `rollout 3`, `sentiment/r4` (everything about it), `r4`, a name",
}


@extend_schema(parameters=[OpenApiParameter(name, str, description=said) for name, said in _FILTERS.items()])
class EventsView(ListAPIView[Event]):
    """Events that the caller may read, newest first."""

    serializer_class = EventSerializer
    pagination_ordering = "-seq"
    refusals: ClassVar = {"GET": {422}}

    def get_queryset(self) -> Any:
        given = {name: self.request.query_params.get(name, "") for name in _FILTERS}
        instants = {name: _instant(name, given[name]) for name in ("since", "until")}
        return search_events(actor_of(self.request), search_from(given, **instants)).events


def _instant(name: str, text: str) -> datetime | None:
    """Raises Invalid."""
    try:
        return read_instant(text, timezone.now())
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"{text!r} is no instant. Write {EXAMPLES}.", field=name) from None


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
