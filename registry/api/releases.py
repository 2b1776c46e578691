"""REST views of releases: draft, read, seal, waive."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api import actor_of, expected_version
from registry import actions, queries
from registry.api.answers import IF_MATCH, versioned
from registry.api.serializers import (
    DraftIn,
    DraftOut,
    ReleaseBrief,
    ReleaseOut,
    WaiverIn,
    WaiverOut,
    body_of,
    known_members,
)
from registry.core.schema import Flag, Problem
from registry.core.spec import refuse


@extend_schema_view(get=extend_schema(operation_id="releases_list", responses=ReleaseBrief(many=True)))
class ReleasesView(generics.ListAPIView[Any]):
    serializer_class = ReleaseBrief
    pagination_ordering = "-number"

    def get_queryset(self) -> Any:
        return queries.releases_of(queries.visible_model(actor_of(self.request), self.kwargs["slug"]))

    @extend_schema(operation_id="releases_draft", request=DraftIn, responses={201: DraftOut, 200: DraftOut})
    def post(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        body = dict(body_of(request.data))
        files, problems, began_at = body.pop("files", None), list[Problem](), timezone.now()
        resume = Flag().read(body.pop("resume", False), "resume", problems)
        refuse("invalid_spec", "The release", problems)
        draft = actions.create_draft(actor=actor, model=model, spec=body, files=files, resume=resume)
        return versioned(DraftOut(draft), status=201 if draft.created_at >= began_at else 200)


class ReleaseView(APIView):
    @extend_schema(operation_id="releases_read", responses=ReleaseOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        return versioned(ReleaseOut(queries.visible_release(actor_of(request), slug, name)))


class DraftView(APIView):
    @extend_schema(operation_id="releases_read_draft", responses=DraftOut)
    def get(self, request: Request, release_id: UUID) -> Response:
        return versioned(DraftOut(queries.visible_release_by_id(actor_of(request), release_id)))

    @extend_schema(operation_id="releases_discard", responses={204: None}, parameters=[IF_MATCH])
    def delete(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        version = expected_version(request) if "If-Match" in request.headers else None
        actions.discard_draft(actor=actor, release=release, expected_version=version)
        return Response(status=204)


class SealView(APIView):
    @extend_schema(operation_id="releases_seal", request=None, responses=ReleaseOut, parameters=[IF_MATCH])
    def post(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        version = expected_version(request) if "If-Match" in request.headers else None
        return versioned(ReleaseOut(actions.seal(actor=actor, release=release, expected_version=version)))


class WaiversView(APIView):
    @extend_schema(operation_id="releases_waive", request=WaiverIn, responses={201: WaiverOut})
    def post(self, request: Request, slug: str, name: str) -> Response:
        actor = actor_of(request)
        release = queries.visible_release(actor, slug, name)
        body = known_members(body_of(request.data), "reason", "kind")
        waiver = actions.grant_waiver(
            actor=actor, release=release, reason=body.get("reason", ""), kind=body.get("kind")
        )
        return Response(WaiverOut(waiver).data, status=201)
