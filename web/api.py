"""API of post-mortems, which only the pages' room can put together with their plots."""

from __future__ import annotations

from typing import Any, ClassVar

from django.urls import path, reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from rollouts.queries import get_rollout
from web.pages.post_mortems import document
from web.post_mortem import post_mortem_of

_AS = [OpenApiParameter("as", str, enum=["html", "md"], description="the whole as one text too, in `document`")]


class PostMortemOut(serializers.Serializer[Any]):
    """Post-mortem of an ended rollout. Instants ISO 8601 in UTC, durations in seconds."""

    rollout = serializers.IntegerField()
    title = serializers.CharField()
    outcome = serializers.CharField()
    reason = serializers.CharField()
    model = serializers.CharField()
    environment = serializers.CharField()
    candidate = serializers.CharField()
    candidate_digest = serializers.CharField()
    stable = serializers.CharField(allow_null=True)
    policy_digest = serializers.CharField()
    requested_by = serializers.CharField(allow_null=True)
    began_at = serializers.CharField()
    ended_at = serializers.CharField(allow_null=True)
    lasted_s = serializers.FloatField(allow_null=True)
    clock = serializers.DictField()
    users = serializers.DictField()
    at_decision = serializers.DictField(allow_null=True)
    attempts = serializers.DictField()
    log = serializers.ListField(child=serializers.DictField())
    examples = serializers.ListField(
        child=serializers.DictField(), help_text="some requests that failed or were slow, by release"
    )
    told = serializers.ListField(child=serializers.DictField(), help_text="deliveries of its events to webhooks")
    next = serializers.ListField(child=serializers.CharField(), help_text="what to do next, in sentences")
    document = serializers.CharField(allow_null=True, help_text="with `as`: the whole as one text")


class PostMortemView(APIView):
    refusals: ClassVar = {"GET": {409}}

    @extend_schema(operation_id="rollouts_post_mortem", parameters=_AS, responses=PostMortemOut)
    def get(self, request: Request, rollout_id: int) -> Response:
        """Post-mortem: timeline, users hit, notifications, other policies, next steps."""
        rollout = get_rollout(actor_of(request), rollout_id)
        found = post_mortem_of(rollout)
        kind = request.query_params.get("as", "")
        address = request.build_absolute_uri(reverse("post_mortem", args=[rollout.pk]))
        text = document(rollout, found, kind, address) if kind else None
        return Response(PostMortemOut({**found, "document": text}).data)


urlpatterns = [path("rollouts/<int:rollout_id>/post-mortem", PostMortemView.as_view())]
