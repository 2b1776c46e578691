"""How many comments reviewers wrote stands where people decide: on the rollout and in the inbox, the open ones first."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from accounts.core.access import Actor, Role
from accounts.models import User
from registry.actions import comment_on, resolve_comment
from registry.models import Release, ReviewComment
from registry.queries.reviews import CommentCount, comment_counts
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import signed_in
from tests.support.worlds.factories import make_actor, make_release, make_user
from tests.support.worlds.rollout_setup import awaiting

pytestmark = pytest.mark.django_db


def said(release: Release, text: str, by: Actor) -> ReviewComment:
    return comment_on(actor=by, release=release, against=None, section="configuration", text=text)


def test_the_rollout_and_the_inbox_count_them_and_lead_to_the_compare_page() -> None:
    rollout, *_ = awaiting()
    mia = make_user("mia", team="search", role=Role.RELEASE_MANAGER)
    places = (reverse("rollout", args=[rollout.pk]), reverse("rollout_live", args=[rollout.pk]), reverse("approvals"))
    for place in places:
        assert '#comments"> ' not in squeezed(text_of(mia, place))
    by, candidate = make_actor(name="ana"), rollout.candidate
    first, _, _ = (said(candidate, text, by) for text in ("One?", "Two.", "Three."))
    said(make_release(rollout.model), "Of another release.", by)
    resolve_comment(actor=by, comment=first)
    compared = reverse("release_diff", args=[rollout.model.slug, candidate.number])
    assert rollout.stable is not None
    for place in places:
        page = text_of(mia, place)
        assert "2 open</span> of" in page, place
        assert re.search(
            rf'href="{re.escape(compared)}\?against={rollout.stable.name}#comments"> ?3 comments</a>', page
        )
    assert comment_counts([candidate.pk]) == {candidate.pk: CommentCount(3, 2)}


def test_open_comments_stand_before_resolved_ones() -> None:
    rollout, *_ = awaiting()
    by = make_actor(name="ana")
    for text in ("First words.", "Second words.", "Third words."):
        said(rollout.candidate, text, by)
    resolve_comment(actor=by, comment=ReviewComment.objects.get(text="Third words."))
    page = text_of(
        make_user(team="search"), reverse("release_diff", args=[rollout.model.slug, rollout.candidate.number])
    )
    places = [page.index(text) for text in ("Second words.", "First words.", "Third words.")]
    assert places == sorted(places)


def text_of(user: User, address: str) -> str:
    answer = signed_in(user).get(address)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())
