"""The inbox: empty, filled, for the author, for an outsider, through its forms, and how many queries it takes."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.core.access import Actor, Role
from accounts.models import User
from registry.models import Release
from rollouts.models import Approval, Rollout
from rollouts.queries.approvals import pinned_by
from tests.actions.test_inbox import code_release
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import HOSTILE, MOST_QUERIES, queries_of, signed_in
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import awaiting

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager() -> User:
    return make_user("mia", team="search", role=Role.RELEASE_MANAGER)


def page_of(user: User) -> str:
    return squeezed(signed_in(user).get(reverse("approvals")).content.decode())


def form_for(rollout: Rollout, **over: str) -> dict[str, str]:
    pinned = pinned_by(rollout)
    digests = {"manifest": pinned.manifest, "report": pinned.report, "policy": pinned.policy}
    return {"version": str(rollout.version), "stage": "start", **digests, **over}


def decide(user: User, rollout: Rollout, verb: str, form: dict[str, str]) -> tuple[int, str]:
    answer = signed_in(user).post(reverse("approval_decide", args=[rollout.pk, verb]), form)
    return answer.status_code, squeezed(answer.content.decode())


def user_of(actor: Actor) -> User:
    return User.objects.get(pk=actor.user_id)


def test_an_empty_inbox_says_so() -> None:
    page = page_of(make_user("ana", team="search"))
    assert "Nothing waits for you" in page and page.count("<h1>") == 1


def test_a_card_repeats_what_a_yes_does_and_no_form_takes_the_enter_key(manager: User) -> None:
    rollout, requester, _ = awaiting()
    page = page_of(manager)
    assert "is loaded and warmed in Production; then it gets" in page and "Files: 1 changed" in page
    assert f'value="{rollout.candidate.digest}"' in page
    forms = [form for form in page.split("<form")[1:] if "/approvals/" in form.split(">")[0]]
    assert len(forms) == 2 and all(form.index("disabled hidden") < form.index('name="version"') for form in forms)
    asked = page_of(user_of(requester))
    assert "You asked for this rollout; someone else must approve it." in asked and "popovertarget" not in asked
    author = rollout.candidate.author
    assert author is not None and "You made r2; someone else must approve it." in page_of(author)


def test_an_outsider_sees_nothing_and_gets_404(manager: User) -> None:
    rollout, *_ = awaiting()
    outsider = make_user("otto", team="other", role=Role.RELEASE_MANAGER)
    assert rollout.model.slug not in page_of(outsider)
    status, text = decide(outsider, rollout, "approve", form_for(rollout))
    assert status == 404 and rollout.model.slug not in text and not Approval.objects.exists()
    waiver = signed_in(outsider).post(reverse("approval_waive", args=[code_release().pk]), {"reason": "x"})
    assert waiver.status_code == 404


def test_approve_in_place_and_find_it_among_what_was_decided(manager: User) -> None:
    rollout, *_ = awaiting()
    assert decide(manager, rollout, "approve", form_for(rollout, reason=HOSTILE))[0] == 302
    rollout.refresh_from_db()
    assert rollout.state == "preparing" and Approval.objects.get().approver == manager
    page = page_of(manager)
    assert "Nothing waits for you" in page and "rollout.approved" in page and "<script>alert" not in page


def test_reject_in_place_needs_a_reason(manager: User) -> None:
    rollout, *_ = awaiting()
    status, text = decide(manager, rollout, "reject", form_for(rollout, reason=" "))
    assert status == 422 and "Say why" in text
    assert decide(manager, rollout, "reject", form_for(rollout, reason="Not today."))[0] == 302
    rollout.refresh_from_db()
    assert rollout.state == "rejected"


@pytest.mark.parametrize(
    ("over", "status", "says"),
    [
        ({"version": "99"}, 412, "it changed meanwhile"),
        ({"manifest": "sha256:0"}, 412, "other digests than those"),
        ({"policy": ""}, 412, "other digests than those"),
        ({"stage": "bake\u202e"}, 422, "there is no stage"),
        ({"stage": "a\x00"}, 422, "there is no stage"),
        ({"reason": "x" * 2001}, 422, "the most"),
    ],
)
def test_a_refused_yes_says_why_keeps_the_comment_and_changes_nothing(
    manager: User, over: dict[str, str], status: int, says: str
) -> None:
    rollout, *_ = awaiting()
    found, text = decide(manager, rollout, "approve", form_for(rollout, **{"reason": "typed", **over}))
    assert found == status and says in text and not Approval.objects.exists()
    assert f'value="{over.get("reason", "typed")}"' in text


def test_the_author_is_refused_in_words(manager: User) -> None:
    rollout, requester, _ = awaiting()
    author = rollout.candidate.author
    assert author is not None
    for user in (author, user_of(requester)):
        status, text = decide(user, rollout, "approve", form_for(rollout))
        assert status == 403 and "someone else must approve it" in text
    status, text = decide(manager, rollout, "view", form_for(rollout))
    assert status == 422 and "neither" in text and not Approval.objects.exists()


def test_a_waiver_is_given_in_place_and_refused_to_who_pushed(manager: User) -> None:
    release: Release = code_release(author=make_user("ana", team="search", role=Role.RELEASE_MANAGER))
    assert "artifact/model.py" in page_of(manager)
    address = reverse("approval_waive", args=[release.pk])
    assert release.author is not None
    refused = signed_in(release.author).post(address, {"reason": "mine"})
    assert refused.status_code == 403 and "cannot waive it" in refused.content.decode()
    assert signed_in(manager).post(address, {"reason": ""}).status_code == 422
    assert signed_in(manager).post(address, {"reason": "Read by both."}).status_code == 302
    assert release.waivers.count() == 1 and "artifact/model.py" not in page_of(manager)


def test_the_fragment_is_the_list_and_asks_for_a_sign_in_by_401(manager: User) -> None:
    rollout, *_ = awaiting()
    live = reverse("approvals_live")
    text = signed_in(manager).get(live).content.decode()
    assert rollout.model.slug in text and "<html" not in text
    assert Client().get(live).status_code == 401


def test_the_page_asks_few_questions_however_much_waits(manager: User) -> None:
    client, address = signed_in(manager), reverse("approvals")
    counts = []
    for number in (1, 25):
        for _ in range(number):
            awaiting()
            code_release()
        counts.append(queries_of(client, address))
    assert max(counts) <= MOST_QUERIES
    with CaptureQueriesContext(connection) as asked:
        client.get(reverse("approvals_live"))
    assert len(asked) <= MOST_QUERIES
