"""REST views of what people say of releases: notes with tags, and comments on a comparison."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, ChoiceField, ListField
from rest_framework.views import APIView

from accounts.api.requests import IF_MATCH_OPTIONAL, PlainText, StrictSerializer, actor_of, read_body, version_if_sent
from accounts.api.responses import versioned
from accounts.api.shapes import Shape, described
from registry import actions, queries
from registry.core.reviews import SECTIONS, SIDES
from registry.queries import reviews


class NoteOut(Shape):
    """What people say of a release, outside its digest. Plain text: whoever shows it escapes it."""

    version: int = described("for If-Match")
    text: str
    tags: list[str]
    written_by: str
    at: datetime


class NoteIn(StrictSerializer):
    problem_code = "invalid_note"
    text = PlainText()
    tags = ListField(child=PlainText(), default=list, help_text="such as precision=int8")


class CommentOut(Shape):
    """A comment on a comparison, bound to the digests that were seen."""

    id: int
    release = CharField(source="release.name")
    digest: str
    against: str | None = described(source="against.name")
    against_digest: str = described("empty where it is about the release alone")
    section = ChoiceField(choices=list(SECTIONS))
    path: str = described("empty for the whole section")
    side = ChoiceField(choices=list(SIDES), help_text="which release's file the line is of")
    line: int | None
    text: str
    written_by: str
    at: datetime
    resolved_by: str = described("empty while it is open")
    resolved_at: datetime | None


class CommentIn(StrictSerializer):
    problem_code = "invalid_comment"
    text = PlainText()
    section = PlainText(help_text=", ".join(SECTIONS))
    against: str | None = described("the older release, such as r1", default=None, max_length=20)
    path = PlainText(default="")
    side = PlainText(default="new")
    line: int | None = described(default=None, min_value=1)


@extend_schema_view(get=extend_schema(operation_id="notes_list", responses=NoteOut(many=True)))
class NotesView(generics.ListAPIView[Any]):
    """The release's note: every version of it, the newest first."""

    serializer_class = NoteOut
    pagination_ordering = "-version"

    def get_queryset(self) -> Any:
        release = queries.visible_release(actor_of(self.request), self.kwargs["slug"], self.kwargs["name"])
        return reviews.notes_of(release)

    @extend_schema(operation_id="notes_write", request=NoteIn, responses=NoteOut, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, slug: str, name: str) -> Response:
        """The note from now on. If-Match names the version that was seen, 0 for none; without it, any."""
        actor = actor_of(request)
        note = actions.write_note(
            actor=actor,
            release=queries.visible_release(actor, slug, name),
            expected_version=version_if_sent(request),
            **read_body(NoteIn, request),
        )
        return versioned(NoteOut(note))


class CommentsView(generics.ListAPIView[Any]):
    """Comments on the release's comparisons, the newest first."""

    serializer_class = CommentOut

    def get_queryset(self) -> Any:
        release = queries.visible_release(actor_of(self.request), self.kwargs["slug"], self.kwargs["name"])
        found = reviews.comments_of(release)
        return found.filter(resolved_at__isnull=True) if self.request.GET.get("open") == "true" else found

    @extend_schema(
        operation_id="comments_list",
        responses=CommentOut(many=True),
        parameters=[OpenApiParameter("open", bool, description="true: only those that nobody has resolved")],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="comments_write", request=CommentIn, responses={201: CommentOut})
    def post(self, request: Request, slug: str, name: str) -> Response:
        actor = actor_of(request)
        said = read_body(CommentIn, request)
        release = queries.visible_release(actor, slug, name)
        against = said.pop("against")
        comment = actions.comment_on(
            actor=actor,
            release=release,
            against=None if against is None else queries.get_release(slug, against),
            **said,
        )
        return Response(CommentOut(comment).data, status=201)


class ResolveView(APIView):
    @extend_schema(operation_id="comments_resolve", request=None, responses=CommentOut)
    def post(self, request: Request, slug: str, name: str, comment_id: int) -> Response:
        """Settles the comment; it stays where it is."""
        actor = actor_of(request)
        comment = reviews.visible_comment(actor, queries.visible_release(actor, slug, name), comment_id)
        return Response(CommentOut(actions.resolve_comment(actor=actor, comment=comment)).data)
