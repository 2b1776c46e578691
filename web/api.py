"""API of post-mortems, which only the pages' room can put together with their plots."""

from __future__ import annotations

from typing import ClassVar

from django.urls import path, reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import DictField, ListField
from rest_framework.views import APIView

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from rollouts.queries import get_rollout
from web.pages.post_mortems import document
from web.post_mortem import post_mortem_of

_AS = [OpenApiParameter("as", str, enum=["html", "md"], description="the whole as one text too, in `document`")]


class PostMortemOut(Shape):
    """Post-mortem of an ended rollout. Instants ISO 8601 in UTC, durations in seconds."""

    rollout: int
    title: str
    outcome: str
    reason: str
    model: str
    environment: str
    candidate: str
    candidate_digest: str
    stable: str | None
    policy_digest: str
    requested_by: str | None
    began_at: str
    ended_at: str | None
    lasted_s: float | None
    clock = DictField()
    users = DictField()
    at_decision = DictField(allow_null=True)
    attempts = DictField()
    log = ListField(child=DictField())
    examples = ListField(child=DictField(), help_text="some requests that failed or were slow, by release")
    next: list[str] = described("what to do next, in sentences")
    document: str | None = described("with `as`: the whole as one text")
    told = ListField(child=DictField(), help_text="deliveries of its events to webhooks")


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
