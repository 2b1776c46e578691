"""What people say of releases: notes and tags outside the digest, and comments on a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.utils import timezone

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event
from ledger.core.errors import StateChanged
from registry.actions.releases import lock_release
from registry.core.reviews import note_problems, place_problems, text_problems
from registry.core.schema import Problem
from registry.core.spec import refuse
from registry.models import Release, ReleaseNote, ReviewComment
from registry.queries import require_sealed
from registry.queries.reviews import note_of


@transaction.atomic
def write_note(
    *, actor: Actor, release: Release, text: str, tags: Sequence[str], expected_version: int | None
) -> ReleaseNote:
    """The release's note from now on; the one before stays in its history. Nothing is written where it says the same.

    `expected_version` is that of the note that was seen: 0 where there was none, None for any. Raises Refused, Stale, Invalid,
    and StateChanged for a draft.
    """
    release = lock_release(release)
    require(actor, Verb.ANNOTATE_RELEASE, release.model.team.slug, release.model.slug)
    require_sealed(release, "can have a note", or_retired=True)
    before = note_of(release)
    version = before.version if before else 0
    require_version(version, expected_version, f"The note on {release.model.slug} {release.name}")
    tags, text = list(tags), text.replace("\r\n", "\n").strip()
    refuse("invalid_note", "The note", note_problems(text, tags))
    if before and (before.text, before.tags) == (text, tags):
        return before
    note = ReleaseNote.objects.create(
        release=release,
        version=version + 1,
        text=text,
        tags=tags,
        author_id=actor.user_id,
        written_by=actor.name,
        at=timezone.now(),
    )
    append_event(
        verb="release.noted",
        subject_type="release",
        subject_id=str(release.pk),
        actor=actor,
        reason=text[:500],
        facts={"model": release.model.slug, "release": release.name, "version": note.version, "tags": tags},
    )
    return note


@transaction.atomic
def comment_on(
    *,
    actor: Actor,
    release: Release,
    against: Release | None,
    section: str,
    text: str,
    path: str = "",
    side: str = "new",
    line: int | None = None,
) -> ReviewComment:
    """A comment on the comparison of two releases, bound to the digests that they have. Raises Refused, Invalid, StateChanged."""
    require(actor, Verb.ANNOTATE_RELEASE, release.model.team.slug, release.model.slug)
    require_sealed(release, "can be commented on", or_retired=True)
    text = text.replace("\r\n", "\n").strip()
    problems = [*text_problems(text, is_needed=True), *place_problems(section, path, side, line)]
    if not problems and path:
        of = against if side == "old" else release
        if of is None or not of.files.filter(path=path).exists():
            problems.append(
                Problem("path", f"{of.name if of else 'no release'} has no such file.", "Name one of its files.")
            )
    refuse("invalid_comment", "The comment", problems)
    comment = ReviewComment.objects.create(
        release=release,
        digest=release.digest or "",
        against=against,
        against_digest=(against.digest or "") if against else "",
        section=section,
        path=path,
        side=side,
        line=line,
        text=text,
        author_id=actor.user_id,
        written_by=actor.name,
        at=timezone.now(),
    )
    _tell(comment, actor, "review.commented")
    return comment


@transaction.atomic
def resolve_comment(*, actor: Actor, comment: ReviewComment) -> ReviewComment:
    """The comment, settled. Raises Refused, and StateChanged("already_resolved")."""
    require(actor, Verb.ANNOTATE_RELEASE, comment.release.model.team.slug, comment.release.model.slug)
    settled = ReviewComment.objects.filter(pk=comment.pk, resolved_at__isnull=True).update(
        resolved_at=timezone.now(), resolved_by=actor.name
    )
    comment.refresh_from_db()
    if not settled:
        raise StateChanged(
            "already_resolved", f"{comment.resolved_by} resolved this comment already.", comment=comment.pk
        )
    _tell(comment, actor, "review.resolved")
    return comment


def _tell(comment: ReviewComment, actor: Actor, verb: str) -> None:
    release = comment.release
    place = f"{comment.path}:{comment.line}" if comment.line else comment.path
    append_event(
        verb=verb,
        subject_type="release",
        subject_id=str(release.pk),
        actor=actor,
        reason=comment.text[:500],
        facts={
            "model": release.model.slug,
            "release": release.name,
            "comment": comment.pk,
            "against": comment.against.name if comment.against else None,
            "section": comment.section,
            "place": place,
        },
    )
