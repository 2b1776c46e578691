"""The list of models: its filters, its orders, and that it stays fast to ask for."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.access import Role
from registry.models import ServedModel
from tests.support.worlds.factories import make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import production, put, serves, started

pytestmark = pytest.mark.django_db


def manager() -> Client:
    client = Client()
    client.force_login(make_user(team="search", role=Role.RELEASE_MANAGER))
    return client


def listed(client: Client, **asked: str) -> list[str]:
    page = client.get("/models/", asked)
    assert page.status_code == 200
    return re.findall(r'data-label="Model">\s*<a href="/models/([\w-]+)/"', page.content.decode())


@pytest.fixture
def three() -> None:
    """`ham` serves and was promoted, `spam` is being rolled out, `eggs` has nothing; the newest is `eggs`."""
    team = make_team("search")
    for age, slug in ((3, "spam"), (2, "ham"), (1, "eggs")):
        model = make_model(slug, team=team, title=f"The {slug}")
        ServedModel.objects.filter(pk=model.pk).update(created_at=timezone.now() - timedelta(days=age))
    ham, spam = make_release(ServedModel.objects.get(slug="ham")), make_release(ServedModel.objects.get(slug="spam"))
    serves(ham)
    put(started(candidate=make_release(ham.model)), "promoted", ended_at=timezone.now() - timedelta(days=1))
    put(started(candidate=spam), "shifting")


@pytest.mark.usefixtures("three")
def test_filters_stand_in_the_address() -> None:
    client = manager()
    assert listed(client) == ["eggs", "ham", "spam"]
    assert listed(client, text="AM") == ["ham", "spam"] and listed(client, text="the egg") == ["eggs"]
    assert listed(client, live="production") == ["ham"]
    assert listed(client, outcome="promoted") == ["ham"] and listed(client, outcome="moving") == ["spam"]
    assert listed(client, team="search", text="h") == ["eggs", "ham", "spam"]  # each title has it
    assert listed(client, outcome="no such", live="<b>", sort="nothing") == ["eggs", "ham", "spam"]
    page = client.get("/models/", {"text": "<script>\0"}).content.decode()
    assert "No model of yours fits" in page and "&lt;script&gt;" in page and "<script>\0" not in page


@pytest.mark.usefixtures("three")
def test_orders_stand_in_the_address_and_turn_round() -> None:
    client = manager()
    assert listed(client, sort="-name") == ["spam", "ham", "eggs"]
    assert listed(client, sort="releases") == ["eggs", "spam", "ham"]
    assert listed(client, sort="activity")[0] == "eggs"
    head = client.get("/models/", {"sort": "name", "text": "h"}).content.decode()
    assert 'aria-sort="ascending"' in head and "?sort=-name&amp;text=h" in head.replace(
        "text=h&amp;sort=-name", "sort=-name&amp;text=h"
    )


def test_nobody_without_a_model_is_told_that_there_is_none() -> None:
    make_model("spam", team=make_team("search"))
    client = Client()
    client.force_login(make_user("nobody"))
    page = client.get("/models/").content.decode()
    assert "that you may see" in page and "spam" not in page and "/models/new/" in page


@pytest.mark.parametrize("count", [1, 200])
def test_its_queries_do_not_grow(count: int, django_assert_max_num_queries: Any) -> None:
    team = make_team("search")
    for i in range(count):
        make_model(f"model-{i}", team=team)
    serves(make_release(ServedModel.objects.first()))
    production()
    client = manager()
    with django_assert_max_num_queries(12):
        shown = listed(client)
    assert len(shown) == min(count, 50)
    assert count < 50 or listed(client, page="2") != shown
