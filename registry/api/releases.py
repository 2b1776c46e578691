"""REST views of releases: draft, read, seal, waive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OPTIONAL, actor_of, read_body, version_if_sent
from accounts.api.responses import versioned
from accounts.core.access import Verb, require
from ledger.core.errors import field_error
from registry import actions, queries
from registry.adapters.json_yaml import read_text
from registry.api.serializers import (
    DraftIn,
    DraftOut,
    ReleaseBrief,
    ReleaseOut,
    WaiverIn,
    WaiverOut,
)
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.queries.release_filter import filter_releases

_WHERE = OpenApiParameter(
    "where",
    str,
    many=True,
    description="a condition, such as `envelope.accelerator.memory_mib_min<24000`, `metric.golden.accuracy>=0.9` or `verdict=passed`; "
    "with several, those for which all hold (docs/ci.md)",
)


@extend_schema_view(
    get=extend_schema(operation_id="releases_list", parameters=[_WHERE], responses=ReleaseBrief(many=True))
)
class ReleasesView(generics.ListAPIView[Any]):
    serializer_class = ReleaseBrief
    pagination_ordering = "-number"

    def get_queryset(self) -> Any:
        found = queries.releases_of(queries.visible_model(actor_of(self.request), self.kwargs["slug"]))
        return filter_releases(found, self.request.query_params.getlist("where"))

    @extend_schema(operation_id="releases_draft", request=DraftIn, responses={201: DraftOut, 200: DraftOut})
    def post(self, request: Request, slug: str) -> Response:
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        require(actor, Verb.PUSH_RELEASE, model.team.slug, model.slug)  # before a long text is read for nothing
        spec = _with_text(read_body(DraftIn, request))
        files, resume = spec.pop("files", None), spec.pop("resume")
        draft, is_new = actions.create_draft(actor=actor, model=model, spec=spec, files=files, resume=resume)
        return versioned(DraftOut(draft), status=201 if is_new else 200)


def _with_text(spec: dict[str, Any]) -> dict[str, Any]:
    """The members as they were sent, and those of `release_yaml`. Raises Invalid with each mistake of the text and its line."""
    if "release_yaml" not in spec:
        return spec
    text = spec.pop("release_yaml")
    if not isinstance(text, str):
        raise field_error("release_yaml", "it is no text.", "Send the text of release.yaml, or its members as JSON.")
    read = read_text(text)
    problems = [
        Problem(
            one.field or "release_yaml",
            f"line {one.place.line}, column {one.place.column}: {one.message}." if one.place else f"{one.message}.",
            "Correct release.yaml.",
        )
        for one in read.mistakes
    ]
    if not problems and not isinstance(read.document, Mapping):
        problems = [Problem("release_yaml", "it has no fields.", "Write a mapping, as docs/release-folder.md shows.")]
    refuse("invalid_spec", "release.yaml", problems)
    return {**read.document, **spec}


class ReleaseView(APIView):
    @extend_schema(operation_id="releases_read", responses=ReleaseOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        return versioned(ReleaseOut(queries.visible_release(actor_of(request), slug, name)))


class DraftView(APIView):
    @extend_schema(operation_id="releases_read_draft", responses=DraftOut)
    def get(self, request: Request, release_id: UUID) -> Response:
        return versioned(DraftOut(queries.visible_release_by_id(actor_of(request), release_id)))

    @extend_schema(operation_id="releases_discard", responses={204: None}, parameters=[IF_MATCH_OPTIONAL])
    def delete(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        actions.discard_draft(actor=actor, release=release, expected_version=version_if_sent(request))
        return Response(status=204)


class SealView(APIView):
    @extend_schema(operation_id="releases_seal", request=None, responses=ReleaseOut, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, release_id: UUID) -> Response:
        actor = actor_of(request)
        release = queries.visible_release_by_id(actor, release_id)
        sealed = actions.seal(actor=actor, release=release, expected_version=version_if_sent(request))
        return versioned(ReleaseOut(sealed))


class WaiversView(APIView):
    @extend_schema(operation_id="releases_waive", request=WaiverIn, responses={201: WaiverOut})
    def post(self, request: Request, slug: str, name: str) -> Response:
        actor = actor_of(request)
        release = queries.visible_release(actor, slug, name)
        waiver = actions.grant_waiver(actor=actor, release=release, **read_body(WaiverIn, request))
        return Response(WaiverOut(waiver).data, status=201)
