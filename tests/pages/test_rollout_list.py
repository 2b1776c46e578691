"""The list of rollouts: narrowed by its address; and a rollout judged by another policy."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rollouts.models import Rollout
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_model, make_release, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, production
from tests.support.worlds.rollout_story import Story
from web.listing import Filter

pytestmark = pytest.mark.django_db
ADDRESS = reverse("rollouts")


def client_of(team: str = "search") -> Client:
    client = Client()
    client.force_login(make_user(team=team))
    return client


def some(count: int = 3, slug: str = "sentiment", **columns: object) -> list[Rollout]:
    model = make_model(slug, objectives=OBJECTIVES)
    release = make_release(model)
    return [
        Rollout.objects.create(
            model=model, environment=production(), candidate=release, policy={}, policy_digest="x",
            **{"state": "promoted", "reason": "So.", "ended_at": timezone.now(), **columns},
        )
        for _ in range(count)
    ]  # fmt: skip


def test_the_list_is_narrowed_by_its_address() -> None:
    some(2)
    ann = make_user(team="search")
    (hers,) = some(1, "fraud", state="rolled_back", requested_by=ann)
    Rollout.objects.filter(pk=hers.pk).update(created_at=timezone.now() - timedelta(days=3))
    client = client_of()

    def count(**asked: str) -> int:
        answer = client.get(ADDRESS, asked)
        assert answer.status_code == 200
        return answer.context["page"].paginator.count

    assert count() == 3 and count(model="fraud") == 1 and count(state="promoted") == 2 and count(state="ended") == 3
    assert count(state="going on") == 0 and count(person=ann.username) == 1 and count(since="2 d") == 2
    assert count(until="2 d") == 1 and count(environment="production", model="fraud", state="promoted") == 0
    assert count(model="no-such\x01", state="yolo") == 3  # an option that does not exist is as if nothing was said
    refused = client.get(ADDRESS, {"since": "yesterday-ish<b>"})
    assert (
        refused.status_code == 422
        and "is no instant" in refused.content.decode()
        and "<b>" not in refused.content.decode()
    )
    page = squeezed(client.get(ADDRESS, {"model": "fraud"}).content.decode())
    assert ann.username in page and "Lasted" in page and 'value="fraud" selected' in page


@pytest.mark.parametrize("count", [1, 200])
def test_a_list_of_any_length_asks_few_queries(count: int, django_assert_max_num_queries: object) -> None:
    some(count)
    client = client_of()
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        assert client.get(ADDRESS).status_code == 200


def test_a_story_is_judged_again_by_a_json_policy_with_a_plot() -> None:
    story = Story()
    story.gateway.set_arm(story.candidate.digest, error_frac=0.3)
    story.until("rolled_back", requests=60)
    client, address = client_of(), reverse("rollout_replay", args=[story.rollout.pk])
    policy = {"preset": "fast", "guards": [{"indicator": "errors", "max_frac": 0.01}]}
    page = squeezed(client.get(address, {"preset": "json", "policy_json": json.dumps(policy)}).content.decode())
    assert "Evidence: errors" in page and "It would have rolled back" in page and "this policy rolls back" in page
    for broken in ("{", "[]", "[" * 3000):
        assert "policy_not_json" in client.get(address, {"preset": "json", "policy_json": broken}).content.decode()


def test_the_options_of_a_filter_are_text_and_the_chosen_one_is_marked() -> None:
    options = [("a", "A & B"), ('"><b>', "<b>")]
    drawn = Filter("state", "State", options, value='"><b>').choices
    quoted = "&quot;&gt;&lt;b&gt;"
    assert drawn == (
        '<option value="">all</option><option value="a">A &amp; B</option>'
        f'<option value="{quoted}" selected>&lt;b&gt;</option>'
    )
