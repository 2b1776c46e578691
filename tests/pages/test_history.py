"""Who served: now, at an instant, over time; for an outsider; with hostile input; and its cost."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Actor, Role
from accounts.models import User
from registry.models import ServedModel
from rollouts.actions.retiring import remove_environment
from rollouts.queries.serving_history import moves_of
from serving.traffic.actions.routes import set_route
from tests.pages.markup import squeezed
from tests.pages.test_model_tabs import HOSTILE, MOST_QUERIES, queries_of, signed_in
from tests.support.worlds.factories import make_admin, make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import production

pytestmark = pytest.mark.django_db


@pytest.fixture
def member() -> User:
    return make_user("ana", team="search", role=Role.VIEWER)


@pytest.fixture
def sentiment() -> ServedModel:
    """r1 served, then r2 at 25 %, then r2 alone."""
    model = make_model("sentiment", team=make_team("search"))
    first, second = make_release(model), make_release(model)
    system, place = Actor.system("test"), production()
    for stable, candidate, bp, why in (
        (first, None, 0, "First."),
        (first, second, 2500, HOSTILE),
        (second, None, 0, "=Done."),
    ):
        set_route(
            actor=system,
            environment=place,
            model=model,
            stable=stable,
            candidate=candidate,
            candidate_bp=bp,
            reason=why,
        )
    return model


def page_of(user: User, **query: str) -> str:
    return squeezed(signed_in(user).get(reverse("history"), query).content.decode())


def test_without_a_model_it_says_what_serves_everywhere(member: User, sentiment: ServedModel) -> None:
    page = page_of(member)
    assert "<strong>r2</strong> 100 %" in page and "model=sentiment" in page
    move = moves_of(sentiment, production()).all()[0]
    assert "<strong>r1</strong> 100 %" in page_of(member, at=move.at.isoformat())
    assert "nothing yet" in page_of(member, at=(move.at - timedelta(seconds=5)).isoformat())
    assert "Nothing has served yet." in page_of(make_user("otto", team="other"))


def test_at_an_instant_it_names_releases_weights_event_and_hash(member: User, sentiment: ServedModel) -> None:
    move = moves_of(sentiment, production()).all()[1]
    page = page_of(member, model="sentiment", environment="production", at=move.at.isoformat())
    arms = '<strong>r1</strong> 75 %</span><span class="arm"><strong>r2</strong> 25 %</span>'
    assert arms in page.split("Changes")[0]
    assert move.hash in page and reverse("audit_event", args=[move.seq]) in page and "as it was written" in page
    assert "<script>alert" not in page and page.count("<svg") >= 1
    before = page_of(member, model="sentiment", at=(move.at - timedelta(days=1)).isoformat())
    assert "Nothing was routed yet" in before


def test_of_a_retired_environment_it_says_that_nothing_serves(member: User, sentiment: ServedModel) -> None:
    remove_environment(actor=make_admin(), environment=production(), reason="moved to eu", is_confirmed=True)
    page = page_of(member)
    assert "<strong>r2</strong>" not in page and "moved to eu" in page and "nothing</span>" in page
    told = page_of(member, model="sentiment", at=timezone.now().isoformat()).split("Changes")[0]
    assert "to this day" in told and "moved to eu" in told and "Nothing was routed yet" not in told


def test_the_time_that_is_shown_is_in_the_address(member: User, sentiment: ServedModel) -> None:
    page = page_of(member, model="sentiment", span="7d")
    assert "span=30d" in page and "Earlier" in page and 'aria-current="true">7 days' in page
    old = page_of(member, model="sentiment", span="1h", at=(timezone.now() - timedelta(days=2)).isoformat())
    assert "Later" in old and "Nothing changed, and nothing was routed before." in old


@pytest.mark.parametrize("at", ["yesterday", "2999-01-01", "2026-99-99", HOSTILE, "\x00x", "9" * 50])
def test_an_instant_that_is_none_or_is_yet_to_come_is_refused(member: User, sentiment: ServedModel, at: str) -> None:
    answer = signed_in(member).get(reverse("history"), {"at": at, "model": "sentiment"})
    assert answer.status_code == 422 and "<script>alert" not in answer.content.decode()


def test_an_outsider_is_not_told_that_the_model_is_there(sentiment: ServedModel) -> None:
    outsider = make_user("otto", team="other")
    answer = signed_in(outsider).get(reverse("history"), {"model": "sentiment"})
    # As a word: a form's secret and a script's nonce are letters at random, and have r2 in them now and then.
    assert answer.status_code == 404 and not re.search(r"\br2\b", answer.content.decode())
    assert signed_in(outsider).get(reverse("history"), {"model": HOSTILE}).status_code == 404


def test_the_page_asks_few_questions_however_long_the_history(member: User, sentiment: ServedModel) -> None:
    system, place, client = Actor.system("test"), production(), signed_in(member)
    releases = list(sentiment.releases.order_by("number"))
    addresses = [
        reverse("history"), f"{reverse('history')}?model=sentiment&at=1s", f"{reverse('history')}?model=sentiment",
        reverse("model_serving", args=["sentiment"]),
    ]  # fmt: skip
    for number in (0, 200):
        for one in range(number):
            set_route(actor=system, environment=place, model=sentiment, stable=releases[one % 2], reason=str(one))
        time.sleep(1.1)  # the instant that is asked for is after all of them
        for address in addresses:
            assert queries_of(client, address) <= MOST_QUERIES, address
