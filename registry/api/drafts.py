"""REST view of the drafts that one may see."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import generics, serializers

from accounts.api.requests import actor_of
from accounts.api.shapes import Shape, described
from registry.queries.drafts import drafts_for


class DraftBrief(Shape):
    """A draft in a list: what it announced, what of it is there, and what is on its way."""

    id: UUID
    model = serializers.CharField(source="model.slug")
    author: str | None = described(source="author.username")
    version: int = described("for If-Match")
    created_at: datetime
    announced_files: int = described("0: none were, and any may be sent")
    announced_bytes: int
    held_files: int = described("there and verified")
    held_bytes: int
    open_uploads: int = described("files of which parts are missing")
    read_uploads: int = described("files that are being verified")
    bad_uploads: int = described("files that were found wrong")


@extend_schema_view(
    get=extend_schema(
        operation_id="drafts_list",
        responses=DraftBrief(many=True),
        parameters=[
            OpenApiParameter("model", str, description="its slug"),
            OpenApiParameter("author", str, description="a user name"),
        ],
    )
)
class DraftsView(generics.ListAPIView[Any]):
    """The drafts of the models that you may read."""

    serializer_class = DraftBrief
    pagination_ordering = "-created_at"

    def get_queryset(self) -> Any:
        asked = {name: self.request.query_params.get(name, "").replace("\0", "")[:200] for name in ("model", "author")}
        return drafts_for(actor_of(self.request), **asked)
