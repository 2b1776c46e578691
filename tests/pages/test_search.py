"""The search: what it finds and for whom; the palette and the keys in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client

from accounts.core.access import Role
from accounts.models import User
from registry.models import Release
from registry.queries.search import by_digest
from tests.support.worlds.factories import make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import report_for, with_stable
from web.search import MOST_HITS

pytestmark = pytest.mark.django_db


def found(user: User, text: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get("/_search/", {"q": text})
    assert answer.status_code == 200 and answer.headers["Cache-Control"] == "no-store"
    page = client.get("/search/", {"q": text})
    assert page.status_code == 200
    hits = answer.content.decode()
    assert all(f'href="{url}"' in page.content.decode() for url in urls(hits))
    return hits


def urls(hits: str) -> list[str]:
    return [one.partition('"')[0] for one in hits.split('data-href="')[1:]]


def test_what_is_named_is_found() -> None:
    rollout, _ = with_stable()
    release, slug = rollout.candidate, rollout.model.slug
    user = make_user(team="search", role=Role.RELEASE_MANAGER)
    address = f"/models/{slug}/r/{release.number}/"
    assert urls(found(user, f"{slug}/r{release.number}"))[0] == address
    assert urls(found(user, f"  {slug.upper()}   r{release.number} "))[0] == address
    assert address in urls(found(user, release.name))
    assert urls(found(user, (release.digest or "")[:15]))[0] == address
    assert address in urls(found(user, (release.digest or "").removeprefix("sha256:")[:6].upper()))
    for text in (f"rollout {rollout.pk}", f"#{rollout.pk}", str(rollout.pk)):
        assert f"/rollouts/{rollout.pk}/" in urls(found(user, text)), text
    assert f"/models/{slug}/" in urls(found(user, slug[1:4]))
    assert "/approvals/" in urls(found(user, "appro")) and "/errors/store_full/" in urls(found(user, "store full"))


def test_other_teams_things_are_not_there() -> None:
    rollout, _ = with_stable()
    outsider = make_user(team="elsewhere", role=Role.RELEASE_MANAGER)
    release = rollout.candidate
    for text in (
        rollout.model.slug,
        f"{rollout.model.slug}/r{release.number}",
        release.digest or "",
        f"rollout {rollout.pk}",
    ):
        assert urls(found(outsider, text)) == [], text
    assert Client().get("/_search/", {"q": "a"}).status_code == 401
    assert Client().get("/search/?q=a").headers["Location"].startswith("/sign-in/")


def test_people_are_found_by_administrators_alone() -> None:
    make_user("ada-lovelace")
    make_user("a/slash")
    assert "/settings/people/ada-lovelace/" in urls(found(make_user("root", is_admin=True), "lovelace"))
    assert urls(found(make_user("root2", is_admin=True), "slash")) == []
    assert urls(found(make_user("bob"), "lovelace")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\0",
        "%",
        "_",
        "<script>alert(1)</script>",
        "\u202eabc",
        "'; DROP",
        "9" * 40,
        "x" * 10_000,
        "sha256:",
        "r0",
    ],
)
def test_hostile_words_find_nothing(text: str) -> None:
    with_stable()
    hits = found(make_user(team="search", role=Role.RELEASE_MANAGER), text)
    assert "<script" not in hits and [url for url in urls(hits) if url.startswith(("/models/", "/rollouts/"))] == []


def test_it_ends_with_few_queries_and_hits(django_assert_max_num_queries: Any) -> None:
    team = make_team("search")
    for i in range(40):
        make_release(make_model(f"model-{i}", team=team))
    client = Client()
    client.force_login(make_user(team="search", role=Role.RELEASE_MANAGER))
    with django_assert_max_num_queries(8):
        hits = client.get("/_search/", {"q": "1"}).content.decode()
    assert 0 < len(urls(hits)) <= MOST_HITS
    assert 0 < len(urls(client.get("/_search/", {"q": "model"}).content.decode())) <= MOST_HITS


def test_a_digest_s_beginning_is_found_by_its_index() -> None:
    """Whatever the planner finds cheapest for a few rows: it can use the index, which the collation of `digest` alone forbids."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = by_digest(Release.objects.all(), "9f86d0").values("pk").explain()
    assert "release_by_digest" in plan, plan


def test_error_codes_are_found_by_their_words_and_environments_and_gate_runs_by_name() -> None:
    rollout, _ = with_stable()
    run = report_for(rollout.candidate).gate_run
    user = make_user("ada", team="search", role=Role.RELEASE_MANAGER)
    assert "secret_unreadable" not in found(user, "ada") and "secret_unreadable" in found(user, "secret")
    assert "/settings/environments/production/" in urls(found(user, "production"))
    assert f"/gate-runs/{run.pk}/" in urls(found(user, f"gate run {run.pk}"))
    stranger = make_user("bob", team="elsewhere", role=Role.RELEASE_MANAGER)
    assert f"/gate-runs/{run.pk}/" not in urls(found(stranger, f"gate run {run.pk}"))
