"""Named reads of notes and review comments."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject

from accounts.core.access import Actor, Verb, may
from ledger.core.errors import NotFound
from registry.models import Release, ReleaseNote, ReviewComment


def note_of(release: Release) -> ReleaseNote | None:
    """The release's note of now."""
    return notes_of(release).first()


def notes_of(release: Release) -> QuerySet[ReleaseNote]:
    """Every version of the release's note, the newest first."""
    return ReleaseNote.objects.filter(release=release).order_by("-version")


@dataclass(frozen=True)
class CommentCount:
    """How many comments reviewers wrote on a release's comparisons, and how many of them nobody has resolved."""

    every: int
    unresolved: int


def comment_counts(releases: Collection[UUID]) -> dict[UUID, CommentCount]:
    """Of those of the releases that somebody commented on. One query, by an index."""
    rows = ReviewComment.objects.filter(release__in=releases).order_by().values_list("release")
    told = rows.annotate(every=Count("pk"), unresolved=Count("pk", filter=Q(resolved_at__isnull=True)))
    return {release: CommentCount(every, unresolved) for release, every, unresolved in told}


def with_comments(rows: QuerySet[Any], release: str) -> QuerySet[Any]:
    """Each row with `comments`: those on the release in this column as a dict of `CommentCount`'s fields, None without any."""
    found = ReviewComment.objects.filter(release=OuterRef(release)).order_by().values("release")
    unresolved = Count("pk", filter=Q(resolved_at__isnull=True))
    told = found.annotate(fact=JSONObject(every=Count("pk"), unresolved=unresolved))
    return rows.annotate(comments=Subquery(told.values("fact")))


def with_tags(releases: QuerySet[Release]) -> QuerySet[Release]:
    """Each with `tags`: those of its note of now, None where there is none. No further query."""
    newest = ReleaseNote.objects.filter(release=OuterRef("pk")).order_by("-version")
    return releases.annotate(tags=Subquery(newest.values("tags")[:1]))


def comments_of(release: Release) -> QuerySet[ReviewComment]:
    """The comments on the release's comparisons, the newest first."""
    found = ReviewComment.objects.filter(release=release).select_related("against__model", "release__model")
    return found.order_by("-pk")


def open_first(comments: QuerySet[ReviewComment]) -> QuerySet[ReviewComment]:
    """These comments with those that nobody has resolved at the beginning, the newest first; then those that were, the latest first."""
    return comments.order_by(F("resolved_at").desc(nulls_first=True), "-pk")


def open_comments(release: Release) -> int:
    """How many comments on the release nobody has resolved."""
    return ReviewComment.objects.filter(release=release, resolved_at__isnull=True).count()


def visible_comment(actor: Actor, release: Release, pk: int) -> ReviewComment:
    """Raises NotFound."""
    found = ReviewComment.objects.filter(release=release, pk=pk).select_related("release__model__team").first()
    if found is None or not may(actor, Verb.READ, found.release.model.team.slug, found.release.model.slug):
        raise NotFound("no_such_comment", f"There is no comment {pk} on {release.name}. List its comments.", comment=pk)
    return found
