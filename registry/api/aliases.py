"""REST views of aliases: where they point, moving them, and their history."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OPTIONAL, StrictSerializer, actor_of, read_body, version_if_sent
from accounts.api.responses import versioned
from accounts.api.shapes import Shape, described
from registry import actions, queries
from registry.queries import aliases


class AliasOut(Shape):
    """A name that points to a release, and the digest of that release: pin the digest, not the name."""

    model = CharField(source="model.slug")
    name: str
    release: str | None = described("such as r14; null once it was cleared", source="release.name")
    digest: str | None = described(source="release.digest")
    version: int = described("for If-Match")
    changed_at: datetime


class AliasIn(StrictSerializer):
    release: str | None = described("such as r14; null clears the alias")
    reason = CharField(required=False, default="", allow_blank=True, max_length=2000)


class AliasEventOut(Shape):
    version: int
    from_release: str | None = described(source="from_release.name")
    to_release: str | None = described(source="to_release.name")
    actor: str
    reason: str
    at: datetime


@extend_schema_view(get=extend_schema(operation_id="aliases_list", responses=AliasOut(many=True)))
class AliasesView(generics.ListAPIView[Any]):
    serializer_class = AliasOut
    pagination_ordering = "name"

    def get_queryset(self) -> Any:
        return aliases.aliases_of(queries.visible_model(actor_of(self.request), self.kwargs["slug"]))


class AliasView(APIView):
    @extend_schema(operation_id="aliases_read", responses=AliasOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        return versioned(AliasOut(aliases.get_alias(queries.visible_model(actor_of(request), slug), name)))

    @extend_schema(operation_id="aliases_set", request=AliasIn, responses=AliasOut, parameters=[IF_MATCH_OPTIONAL])
    def put(self, request: Request, slug: str, name: str) -> Response:
        """Points the alias to a release. If-Match names the version that was seen; leave it out, or 0, for a new alias."""
        actor = actor_of(request)
        model = queries.visible_model(actor, slug)
        said = read_body(AliasIn, request)
        alias = actions.set_alias(
            actor=actor,
            model=model,
            name=name,
            release=None if said["release"] is None else queries.get_release(slug, said["release"]),
            expected_version=version_if_sent(request),
            reason=said["reason"],
        )
        return versioned(AliasOut(alias))


@extend_schema_view(get=extend_schema(operation_id="aliases_history", responses=AliasEventOut(many=True)))
class AliasHistoryView(generics.ListAPIView[Any]):
    """Every move of the alias, newest first."""

    serializer_class = AliasEventOut
    pagination_ordering = "-version"

    def get_queryset(self) -> Any:
        model = queries.visible_model(actor_of(self.request), self.kwargs["slug"])
        return aliases.history_of(aliases.get_alias(model, self.kwargs["name"]))
