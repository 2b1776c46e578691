"""REST views of retirement and garbage collection: retire, restore, show the plan with its reasons, run it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH, StrictSerializer, actor_of, expected_version, read_body
from accounts.api.responses import versioned
from accounts.api.shapes import Shape, described
from accounts.core.access import Verb, require
from registry import actions, queries
from registry.api.serializers import ReleaseOut
from registry.core.garbage_collection import Fate
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.queries import gc_plan

MOST_ITEMS = 1000
_KEPT = (Fate.KEEP, Fate.RETIRED, Fate.GONE)


class ReleaseReasonIn(StrictSerializer):
    reason = serializers.CharField(max_length=2000)


class ItemOut(Shape):
    """A release, a blob (by its sha256) or bytes that no blob names (by their key), what becomes of it, and why."""

    kind: str = described("release, blob or bytes")
    subject: str
    fate: Fate
    reason: str
    size_bytes: int
    until: datetime | None


class PlanOut(Shape):
    totals = serializers.DictField(help_text="{fate: {releases, blobs, bytes}}")
    items: list[ItemOut]
    more: int = described("how many items follow; ask again with `from` grown by those shown")


class CollectedOut(Shape):
    drafts: int = described("abandoned drafts that were discarded")
    marked: int
    restored: int = described("marks taken away, because something needs the bytes again")
    deleted: int
    freed_bytes: int
    left: int = described("what this run did not get to; run again")


class RetireView(APIView):
    @extend_schema(operation_id="releases_retire", request=ReleaseReasonIn, responses=ReleaseOut, parameters=[IF_MATCH])
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Nothing may begin to use the release any more, and its bytes may be collected. 409 while anything uses it."""
        return _decided(request, slug, name, actions.retire)


class RestoreView(APIView):
    @extend_schema(
        operation_id="releases_restore", request=ReleaseReasonIn, responses=ReleaseOut, parameters=[IF_MATCH]
    )
    def post(self, request: Request, slug: str, name: str) -> Response:
        """Takes a retirement back, while the release's bytes are there."""
        return _decided(request, slug, name, actions.restore)


def _decided(request: Request, slug: str, name: str, verb: Any) -> Response:
    actor = actor_of(request)
    release = queries.visible_release(actor, slug, name)
    reason = read_body(ReleaseReasonIn, request)["reason"]
    done = verb(actor=actor, release=release, expected_version=expected_version(request), reason=reason)
    return versioned(ReleaseOut(done))


class CollectionView(APIView):
    @extend_schema(
        operation_id="registry_collection_plan",
        responses=PlanOut,
        parameters=[
            OpenApiParameter("all", bool, description="also what stays, with its reason"),
            OpenApiParameter("from", int, description="how many items to leave out at the beginning"),
        ],
    )
    def get(self, request: Request) -> Response:
        """What a collection would do now, and why; it changes nothing."""
        require(actor_of(request), Verb.ADMINISTER, "")
        start = _number(request.query_params.get("from", "0"))
        plan = gc_plan.present_plan()
        is_all = request.query_params.get("all", "") in {"1", "true", "yes"}
        items = [item for item in plan.items if is_all or item.fate not in _KEPT]
        shown = items[start : start + MOST_ITEMS]
        more = max(0, len(items) - start - len(shown))
        return Response(PlanOut({"totals": plan.totals(), "items": shown, "more": more}).data)

    @extend_schema(operation_id="registry_collection_run", request=None, responses=CollectedOut)
    def post(self, request: Request) -> Response:
        """Does it, for up to 1,000 blobs a call: `left` says whether to call again."""
        return Response(CollectedOut(actions.collect_unused(actor=actor_of(request)).as_json()).data)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        refuse("invalid", "The request", [Problem("from", f"{text!r} is no number.", "Write 0 or more.")])
    return int(text)
