"""A model's tabs: empty, filled, for an outsider, through their forms, and how many queries they take."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.actions import actor_for
from accounts.core.access import Role
from accounts.models import User
from registry.actions.aliases import set_alias
from registry.models import Alias
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_admin, make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import report_for, with_stable

pytestmark = pytest.mark.django_db
TABS = (
    "model",
    "model_serving",
    "model_production",
    "model_diagnosis",
    "model_golden_sets",
    "model_aliases",
    "model_policies",
    "model_activity",
)
HOSTILE = '<script>alert("x")</script>\u202e{{ 7 }}'
MOST_QUERIES = 12


@pytest.fixture
def member() -> User:
    return make_user("ana", team="search", role=Role.MODEL_TEAM)


def queries_of(client: Client, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert client.get(address).status_code == 200
    return len(asked)


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_is_there_empty_and_filled_and_not_for_an_outsider(tab: str, member: User) -> None:
    empty = make_model("empty", team=make_team("search"), title=HOSTILE, description=HOSTILE)
    page = signed_in(member).get(reverse(tab, args=[empty.slug])).content.decode()
    assert 'aria-current="page"' in page and page.count("<h1>") == 1 and "<script>alert" not in page
    rollout, _ = with_stable()
    client = signed_in(member)
    assert client.get(reverse(tab, args=[rollout.model.slug])).status_code == 200
    outsider = signed_in(make_user("otto", team="other")).get(reverse(tab, args=["empty"]))
    assert outsider.status_code == 404 and HOSTILE not in outsider.content.decode()


def test_an_alias_is_set_moved_and_cleared_from_the_page(member: User) -> None:
    model = make_model("sentiment", team=make_team("search"))
    make_release(model), make_release(model)
    client, page, move = (
        signed_in(member),
        reverse("model_aliases", args=["sentiment"]),
        reverse("model_alias_move", args=["sentiment"]),
    )
    assert "No alias yet" in client.get(page).content.decode()
    for form, release in (
        ({"name": "champion", "version": "0", "release": "r1", "reason": HOSTILE}, "r1"),
        ({"name": "champion", "version": "1", "release": "2"}, "r2"),
        ({"name": "champion", "version": "2", "clear": "1"}, None),
    ):
        assert client.post(move, form).status_code == 302, form
        alias = Alias.objects.get(name="champion")
        assert (alias.release.name if alias.release else None) == release
    text = client.get(page).content.decode()
    assert "r1 → r2" in text and "r2 → –" in text and "<script>alert" not in text


@pytest.mark.parametrize(
    ("form", "status", "says"),
    [
        ({"name": "champion", "version": "0", "release": "r2"}, 412, "it changed meanwhile"),
        ({"name": "champion", "version": "1", "release": "r99", "reason": "typed"}, 404, "has no release r99"),
        ({"name": "latest", "version": "0", "release": "r2"}, 422, "reserved"),
        ({"name": "x" * 10_000, "version": "0", "release": "r2"}, 422, "no name of an alias"),
        ({"name": "champion", "release": "r2"}, 422, "no version"),
        ({"name": "a\x00b", "version": "0", "release": "r\x001"}, 404, "has no release"),
    ],
)
def test_a_refused_move_says_why_keeps_what_was_typed_and_changes_nothing(
    member: User, form: dict[str, str], status: int, says: str
) -> None:
    model = make_model("sentiment", team=make_team("search"))
    first, _ = make_release(model), make_release(model)
    set_alias(actor=actor_for(member), model=model, name="champion", release=first, expected_version=0)
    answer = signed_in(member).post(reverse("model_alias_move", args=["sentiment"]), form)
    assert answer.status_code == status and says in answer.content.decode()
    assert Alias.objects.get().release == first
    if "reason" in form:
        assert 'value="typed"' in answer.content.decode() and 'value="r99"' in answer.content.decode()


def test_who_may_not_move_aliases_is_offered_no_form_and_refused(member: User) -> None:
    model = make_model("sentiment", team=make_team("search"))
    release = make_release(model)
    set_alias(actor=make_admin(), model=model, name="champion", release=release, expected_version=0)
    client = signed_in(make_user("bot", team="search", role=Role.CI))
    assert "New alias" not in client.get(reverse("model_aliases", args=["sentiment"])).content.decode()
    form = {"name": "champion", "version": "1", "clear": "1"}
    answer = client.post(reverse("model_alias_move", args=["sentiment"]), form)
    assert answer.status_code == 403 and "may not set aliases" in answer.content.decode()


@pytest.mark.parametrize("tab", TABS)
def test_a_tab_asks_few_questions_however_many_rows_it_has(tab: str, member: User) -> None:
    rollout, _ = with_stable()
    model, client = rollout.model, signed_in(member)
    admin, address = make_admin(), reverse(tab, args=[rollout.model.slug])
    set_alias(actor=admin, model=model, name="a", release=rollout.candidate, expected_version=0)
    assert queries_of(client, address) <= MOST_QUERIES
    for number in range(200):
        release = make_release(model)
        set_alias(actor=admin, model=model, name=f"a{number}", release=release, expected_version=0)
    assert queries_of(client, address) <= MOST_QUERIES


def test_the_releases_tell_accuracy_size_and_aliases_and_two_can_be_compared(member: User) -> None:
    model = make_model("sentiment", team=make_team("search"))
    first, second = make_release(model), make_release(model)
    report = report_for(second)
    accuracy = {"value": 0.83, "low": 0.8, "high": 0.86, "n": 800}
    report.gate_run.results.create(gate="golden", position=0, evidence={"accuracy": accuracy, "predictions": [1] * 800})
    set_alias(actor=actor_for(member), model=model, name="champion", release=first, expected_version=0)
    client = signed_in(member)
    page = squeezed(client.get(reverse("model", args=["sentiment"])).content.decode())
    assert "80 % to 86 %" in page and ">champion</a>" in page
    assert f'value="{second.number}" aria-label="Compare r2"' in page
    address = reverse("model_compare", args=["sentiment"])
    answer = client.get(address, {"r": ["2", "1"]})
    assert answer.status_code == 302 and answer["Location"] == "/models/sentiment/r/2/diff/?against=r1"
    for chosen in ([], ["1"], ["1", "1"], ["x", "²"], ["1", "2", "3"]):
        assert client.get(address, {"r": chosen})["Location"] == "/models/sentiment/"
    assert signed_in(make_user("otto", team="other")).get(address, {"r": ["1", "2"]}).status_code == 404
