"""The Production tab of a model."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.support.worlds.factories import make_model, make_user
from tests.support.worlds.rollout_setup import with_stable
from tests.support.worlds.series_setup import kept

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def shown(client: Client, slug: str, **asked: str) -> str:
    return client.get(reverse("model_production", args=[slug]), asked).content.decode()


def test_rate_failures_and_latency_by_release_with_their_tables(client: Client) -> None:
    rollout, _ = with_stable()
    client.force_login(make_user("root", is_admin=True))
    assert rollout.stable is not None
    empty = shown(client, rollout.model.slug)
    assert "No counts in this range." in empty and "two minutes later" in empty
    kept(rollout.environment, [rollout.stable, rollout.candidate])
    page = shown(client, rollout.model.slug)
    for name in ("rate", "failures", "latency"):
        assert f'id="plot-{name}"' in page
    assert page.count("as numbers</summary>") == 3
    assert rollout.stable.name in page and "all users" in page
    assert "300 s of this range have no reading" in page
    assert "300 s" in shown(client, rollout.model.slug, span="1h", environment="production")
    assert 'value="7d" selected' in shown(client, rollout.model.slug, span="7d")


def test_a_model_that_nothing_serves(client: Client) -> None:
    client.force_login(make_user("root", is_admin=True))
    assert "Nothing serves this model." in shown(client, make_model("idle").slug)
