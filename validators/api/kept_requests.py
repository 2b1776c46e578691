"""REST view of the requests that a model's policy allows to keep: how many there are, the golden set they make, their end."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from registry.queries import visible_model
from validators.actions import draft_golden_set, forget_requests
from validators.api.golden_check import GoldenCheckOut
from validators.core.golden_preview import as_json
from validators.queries.golden_preview import preview_golden_set
from validators.queries.kept_requests import kept_of


class KeptRequestsOut(serializers.Serializer[Any]):
    """What may be kept of a model's mirrored requests, and what is. Their contents are told in a draft alone."""

    most = serializers.IntegerField(allow_null=True, help_text="requests; null: the policy allows to keep none")
    max_age_days = serializers.FloatField(allow_null=True)
    max_bytes = serializers.IntegerField(allow_null=True, help_text="of one request with its answers")
    requests = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    oldest_at = serializers.DateTimeField(allow_null=True)
    newest_at = serializers.DateTimeField(allow_null=True)


class KeptDraftOut(serializers.Serializer[Any]):
    """A golden set that nobody added yet."""

    baseline = serializers.CharField(help_text="the release whose answers are expected; no truth is claimed")
    items = serializers.IntegerField()
    left_out = serializers.DictField(child=serializers.IntegerField(), help_text="requests by why they are no item")
    lines = serializers.CharField(help_text="JSON lines, as golden-sets takes them")
    proves = GoldenCheckOut(allow_null=True, help_text="what it can prove; null: there is no item")


class KeptRequestsView(APIView):
    @extend_schema(operation_id="kept_requests_show", responses=KeptRequestsOut)
    def get(self, request: Request, slug: str) -> Response:
        """How many requests are kept, and for how long."""
        return Response(KeptRequestsOut(kept_of(visible_model(actor_of(request), slug))).data)

    @extend_schema(operation_id="kept_requests_forget", responses={204: None})
    def delete(self, request: Request, slug: str) -> Response:
        """Deletes all of them. Golden sets that were made of them stay."""
        actor = actor_of(request)
        forget_requests(actor=actor, model=visible_model(actor, slug))
        return Response(status=204)


class KeptDraftView(APIView):
    refusals: ClassVar = {"POST": {422}}  # the golden section names no output that holds the answer

    @extend_schema(operation_id="kept_requests_draft", request=None, responses=KeptDraftOut)
    def post(self, request: Request, slug: str) -> Response:
        """The golden set that they make, to be looked at and then added to golden-sets. It is an event that it was read."""
        actor = actor_of(request)
        model = visible_model(actor, slug)
        found = draft_golden_set(actor=actor, model=model)
        told = {
            "baseline": found.baseline,
            "items": found.items,
            "left_out": found.left_out,
            "lines": found.lines.decode(),
            "proves": as_json(preview_golden_set(model, found.lines)) if found.items else None,
        }
        return Response(KeptDraftOut(told).data)
