"""The post-mortem of a rollout: one page to share, one file that needs nothing from elsewhere, markdown that markup cannot break out of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from accounts.models import User
from ledger.models import Event
from notifications.models import Delivery, Webhook
from rollouts.models import Rollout
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import put, with_stable
from tests.support.worlds.rollout_story import Story
from web.post_mortem import post_mortem_of

pytestmark = pytest.mark.django_db
HOSTILE = "</style><script>alert(1)</script> | [x](javascript:1) \u202e `c` <b>"


@pytest.fixture
def story() -> Story:
    """Slow from the beginning, and rolled back for it."""
    told = Story()
    told.gateway.set_arm(told.candidate.digest, latency_ms=400.0, spread=0.1)
    told.until("rolled_back", requests=60)
    return told


def client_of(story: Story) -> Client:
    client = Client()
    client.force_login(User.objects.get(pk=story.admin.user_id))
    return client


def test_one_page_tells_all_of_it(story: Story) -> None:
    event = Event.objects.filter(subject_type="rollout").order_by("-seq").first()
    hook = Webhook.objects.create(
        kind="webhook", target="https://x.example/secret", title="On-call", last_seq=0, created_by="a"
    )
    Delivery.objects.create(webhook=hook, event=event, state="delivered", due_at=event.at, attempts=1)  # type: ignore[union-attr]
    client, address = client_of(story), reverse("post_mortem", args=[story.rollout.pk])
    page = squeezed(client.get(address).content.decode())
    for words in (
        "r2 over r1 in Production: rolled back", "Evidence: slow requests", "Weight and attempts", "Decision to weight 0",
        "Counted when it was decided", "On-call (webhook) of",
        "r1 serves again", "A release never changes",
    ):  # fmt: skip
        assert words in page, words
    assert "secret" not in page
    outsider = Client()
    outsider.force_login(make_user(team="elsewhere"))
    assert outsider.get(address).status_code == 404
    for name in ("rollout", "rollout_live"):  # the page that saw it end leads there, too
        assert f'href="{address}"' in client.get(reverse(name, args=[story.rollout.pk])).content.decode()


def test_the_file_needs_nothing_from_elsewhere_and_says_what_people_typed_as_text(story: Story) -> None:
    Rollout.objects.filter(pk=story.rollout.pk).update(reason=HOSTILE, version=99)
    answer = client_of(story).get(reverse("post_mortem", args=[story.rollout.pk]), {"format": "html"})
    text = answer.content.decode()
    assert f'filename="post-mortem-{story.rollout.pk}.html"' in answer["Content-Disposition"]
    assert not re.search(r"<script|<link|<img|<iframe|url\(|@import|src=|href=", text)
    assert text.count("<style>") == text.count("</style>") == 1 and "&lt;/style&gt;" in text
    assert text.count('role="img"') >= 4 and "--candidate" in text


def test_markdown_is_text_whatever_was_typed(story: Story) -> None:
    Rollout.objects.filter(pk=story.rollout.pk).update(reason=HOSTILE, version=98)
    answer = client_of(story).get(reverse("post_mortem", args=[story.rollout.pk]), {"format": "md"})
    text = answer.content.decode()
    assert answer["Content-Type"].startswith("text/markdown") and "## What to do next" in text
    assert "<script" not in text and not re.search(r"(?<!\\)\]\(", text) and "\u202e" not in text and r"\`c\`" in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) <= 2


def test_a_rollout_that_goes_on_has_none_yet() -> None:
    rollout, _ = with_stable()
    client = Client()
    client.force_login(make_user(team="search"))
    answer = client.get(reverse("post_mortem", args=[rollout.pk]))
    assert answer.status_code == 409 and "has not ended" in answer.content.decode()


def test_one_without_a_history_is_told_too() -> None:
    rollout, _ = with_stable()
    put(rollout, "cancelled")
    found = post_mortem_of(rollout)
    assert found["next"] == [
        "Nothing was moved: users saw no difference. Start another rollout when its cause is settled."
    ]
    client = Client()
    client.force_login(make_user(team="search"))
    assert client.get(reverse("post_mortem", args=[rollout.pk]), {"format": "exe"}).status_code == 422


def test_the_api_gives_facts_and_the_whole_text(story: Story) -> None:
    client = APIClient()
    client.force_authenticate(User.objects.get(pk=story.admin.user_id))
    address = f"/api/v1/rollouts/{story.rollout.pk}/post-mortem"
    plain = client.get(address).json()
    assert plain["document"] is None and plain["outcome"] == "rolled_back" and plain["clock"]["decision_to_zero_s"] >= 0
    assert client.get(address, {"as": "md"}).json()["document"].startswith("# model")
    assert "<style>" in client.get(address, {"as": "html"}).json()["document"]
    assert client.get(address, {"as": "pdf"}).status_code == 422
    json.dumps(plain)


def test_a_post_mortem_asks_few_queries(story: Story, django_assert_max_num_queries: object) -> None:
    client, address = client_of(story), reverse("post_mortem", args=[story.rollout.pk])
    client.get(address)
    with django_assert_max_num_queries(22):  # type: ignore[operator]
        assert client.get(address).status_code == 200


def test_sheets_are_found(tmp_path: Path) -> None:
    from web.pages.post_mortems import _sheets

    assert "--candidate" in _sheets() and ".plot" in _sheets() and "</" not in _sheets()
