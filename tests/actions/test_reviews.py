"""Notes and comments: who may write them, what they may hold, and that the database keeps them."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from accounts.core.access import Role
from ledger.core.errors import Invalid, Refused, Stale, StateChanged
from registry import actions
from registry.models import Release, ReleaseNote, ReviewComment
from registry.queries.reviews import comments_of, note_of, open_comments
from tests.support.worlds.factories import make_actor, make_model, make_release, make_team
from tests.support.worlds.registry_setup import verbs

pytestmark = pytest.mark.django_db


@pytest.fixture
def release() -> Release:
    return make_release(make_model("sentiment", team=make_team("search")))


def test_a_note_keeps_its_history_and_the_version_that_was_seen_counts(release: Release) -> None:
    ana = make_actor(Role.MODEL_TEAM, name="ana")
    first = actions.write_note(
        actor=ana, release=release, text=" Trained anew.\r\nTwice. ", tags=["precision=int8"], expected_version=0
    )
    assert (first.version, first.text, first.tags) == (1, "Trained anew.\nTwice.", ["precision=int8"])
    with pytest.raises(Stale):
        actions.write_note(actor=ana, release=release, text="another", tags=[], expected_version=0)
    second = actions.write_note(actor=ana, release=release, text="", tags=["a", "b"], expected_version=1)
    again = actions.write_note(actor=ana, release=release, text="", tags=["a", "b"], expected_version=None)
    assert again == second == note_of(release)
    assert verbs(release.pk).count("release.noted") == 2
    with pytest.raises(IntegrityError), transaction.atomic():
        ReleaseNote.objects.filter(pk=first.pk).update(text="never said")
    with pytest.raises(IntegrityError), transaction.atomic():
        first.delete()


@pytest.mark.parametrize(
    ("text", "tags", "says"),
    [
        ("x" * 4001, [], "4001 characters"),
        ("a\0b", [], "control characters"),
        ("\ud800", [], "control characters"),
        ("", ["UPPER"], "no tag"),
        ("", ["a", "a"], "twice"),
        ("", [f"t{i}" for i in range(21)], "too many"),
        ("", ["<b>"], "no tag"),
    ],
)
def test_what_no_note_may_hold(release: Release, text: str, tags: list[str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        actions.write_note(actor=make_actor(), release=release, text=text, tags=tags, expected_version=None)


def test_an_outsider_writes_nothing(release: Release) -> None:
    eve = make_actor(team="sound")
    with pytest.raises(Refused):
        actions.write_note(actor=eve, release=release, text="x", tags=[], expected_version=None)
    with pytest.raises(Refused):
        actions.comment_on(actor=eve, release=release, against=None, section="code", text="x")


def test_a_comment_stands_at_its_place_and_is_resolved_once(release: Release) -> None:
    mara, older = make_actor(Role.RELEASE_MANAGER, name="mara"), make_release(release.model)
    comment = actions.comment_on(actor=mara, release=release, against=older, section="metrics", text=" Why slower? ")
    assert (comment.digest, comment.against_digest, comment.text) == (release.digest, older.digest, "Why slower?")
    assert open_comments(release) == 1 and list(comments_of(release)) == [comment]
    with pytest.raises(IntegrityError), transaction.atomic():
        ReviewComment.objects.filter(pk=comment.pk).update(text="never said")
    assert actions.resolve_comment(actor=mara, comment=comment).resolved_by == "mara"
    with pytest.raises(StateChanged, match="mara resolved"):
        actions.resolve_comment(actor=mara, comment=comment)
    assert open_comments(release) == 0
    assert verbs(release.pk)[-2:] == ["review.commented", "review.resolved"]
    for operation in (lambda: comment.delete(), lambda: ReviewComment.objects.update(resolved_at=None, resolved_by="")):
        with pytest.raises(IntegrityError), transaction.atomic():
            operation()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"section": "elsewhere"}, "no section"),
        ({"section": "code", "line": 3}, "no line"),
        ({"section": "code", "path": "../etc/passwd"}, "no path"),
        ({"section": "code", "path": "artifact/none.py", "line": 1}, "no such file"),
        ({"section": "code", "side": "left"}, "no side"),
        ({"section": "code", "text": " \n"}, "empty"),
        ({"section": "code", "text": "\x1b[31m"}, "control"),
    ],
)
def test_where_no_comment_may_stand(release: Release, where: dict[str, object], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        actions.comment_on(**{"actor": make_actor(), "release": release, "against": None, "text": "x", **where})  # type: ignore[arg-type]
