"""REST views of the serving history: what served a model in an environment at an instant, and every change of it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import DateTimeField, FloatField, Serializer
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from accounts.core.instants import EXAMPLES, read_instant
from ledger.core.errors import Invalid
from ledger.models import Event
from ledger.queries import events
from registry.queries import visible_model
from rollouts.queries import serving_history
from serving.targets.queries import get_environment

_AT = OpenApiParameter("at", str, description=f"{EXAMPLES}; now if left out")


class ServedArmOut(Shape):
    role: str = described("stable or candidate")
    release: str
    digest: str
    weight_pct: float = described("of users' requests, as the gateways were told")


class ServedEventOut(Shape):
    seq: int
    hash: str
    is_intact: bool = described("the event still has its hash; `audit verify` checks the whole chain")


class ServedDecisionOut(Shape):
    at: datetime
    action: str
    code: str
    reason: str
    actor: str


class ServedRolloutOut(Shape):
    id: int
    candidate: str
    under_way: bool = described("false: it had ended, and this is what it left")
    policy_digest: str
    report_digest: str | None
    decision: ServedDecisionOut | None = described("its last one up to then")


class ServedCountsOut(Shape):
    candidate: int
    stable: int


# `from` is no name for a field in Python.
ServedObservationOut = type(
    "ServedObservationOut",
    (Serializer,),
    {
        "from": DateTimeField(),
        "to": DateTimeField(),
        "requests": ServedCountsOut(),
        "candidate_pct": FloatField(allow_null=True),
    },
)


class ServedOut(Shape):
    """What served, from the hash-chained log."""

    environment: str
    model: str
    at: datetime
    arms: list[ServedArmOut] = described("empty: nothing was routed, yet or any more")
    mirrored_pct: float
    since: datetime | None
    until: datetime | None = described("null: still")
    reason: str
    actor: str
    event: ServedEventOut | None
    rollout: ServedRolloutOut | None
    observed = ServedObservationOut(allow_null=True, help_text="what the gateways counted then, in a rollout")


class MoveOut(Shape):
    """One change of what serves."""

    at: datetime
    arms: list[ServedArmOut]
    mirrored_pct: float
    reason: str
    actor: str
    event: ServedEventOut


class ServedView(APIView):
    @extend_schema(operation_id="environments_served", responses=ServedOut, parameters=[_AT])
    def get(self, request: Request, slug: str, model: str) -> Response:
        """Which releases served the model there at that instant, at which weights, and why."""
        found = visible_model(actor_of(request), model)
        at = _instant(request)
        return Response(ServedOut(asdict(serving_history.served_at(found, get_environment(slug), at))).data)


class ServedHistoryView(generics.ListAPIView[Event]):
    """Every change of what serves the model there, newest first."""

    serializer_class = MoveOut
    pagination_ordering = "-seq"

    @extend_schema(operation_id="environments_served_history", responses=MoveOut(many=True))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        model = visible_model(actor_of(request), self.kwargs["model"])
        events = self.paginate_queryset(serving_history.moves_of(model, get_environment(self.kwargs["slug"]))) or []
        moves = [asdict(move) for move in serving_history.changes_of_moves(model, events)]
        return self.get_paginated_response(MoveOut(moves, many=True).data)

    def get_queryset(self) -> Any:
        return events().none()


def _instant(request: Request) -> datetime | None:
    text = request.query_params.get("at", "")
    try:
        return read_instant(text, timezone.now())
    except (ValueError, OverflowError):
        raise Invalid("not_an_instant", f"{text!r} is no instant. Write {EXAMPLES}.", field="at") from None
