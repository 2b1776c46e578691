"""Who is called when a model breaks: changed by its team, shown where things break, and harmless whatever was typed."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from accounts import actions as accounts
from accounts.core.access import Actor, Role
from ledger.models import Event
from ledger.queries.chain_verification import link_of
from notifications.core.mail import mail_of
from registry.actions import change_model
from registry.core.contract import read_settings
from registry.core.ownership import contacts_of
from registry.models import ServedModel
from rollouts import actions
from rollouts.core.lifecycle import RolloutState
from tests.support.worlds.factories import make_model, make_release, make_team, make_user
from tests.support.worlds.rollout_setup import OBJECTIVES, put, serves, started

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")
KNOWN = {
    "on_call": "tel:+49-30-123",
    "runbook_url": "https://wiki.example.com/ranker",
    "escalation": "Mara, head of search",
}


@pytest.fixture
def model() -> ServedModel:
    return make_model("ranker", team=make_team("search"), objectives=OBJECTIVES)


def signed_in(role: Role, team: str = "search") -> Client:
    client = Client()
    client.force_login(make_user(f"{role}-{team}", team=team, role=role))
    return client


def told(model: ServedModel, **ownership: str) -> ServedModel:
    return change_model(actor=SYSTEM, model=model, expected_version=model.version, changes={"ownership": ownership})


@pytest.mark.parametrize(
    ("text", "is_link"),
    [
        ("https://wiki.example.com/a?b#c", True), ("mailto:mara@example.com", True), ("tel:+49-30-1", True),
        ("javascript:alert(1)", False), ("JAVASCRIPT:alert(1)", False), ("data:text/html,x", False), ("http://a", False),
        ("https://a b", False), (" https://a", False), ("https://a\u202e", False), ("Mara", False), ("//a", False),
    ],
)  # fmt: skip
def test_only_three_kinds_of_text_are_links(text: str, is_link: bool) -> None:
    [contact] = contacts_of({"on_call": text})
    assert (contact.text, contact.href) == (text, text if is_link else "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"runbook_url": "javascript:alert(1)"}, {"runbook_url": "http://wiki"}, {"runbook_url": ""}, {"on_call": "x" * 10_000},
        {"on_call": "a\0b"}, {"escalation": 7}, {"pager": "x"}, {"on_call": None},
    ],
)  # fmt: skip
def test_what_it_can_not_be_is_named(wrong: dict[str, Any]) -> None:
    _, problems = read_settings({"ownership": wrong})
    assert [problem.field for problem in problems] == [f"ownership.{next(iter(wrong))}"]


def test_it_is_changed_over_rest_by_its_team(model: ServedModel) -> None:
    for role, status in ((Role.VIEWER, 403), (Role.CI, 403), (Role.MODEL_TEAM, 200)):
        user = make_user(f"{role}-rest", team="search", role=role)
        token = accounts.issue_token(user=user, name="t", actor=SYSTEM)
        client = APIClient(headers={"Authorization": f"Bearer {token}", "If-Match": "1"})
        assert client.patch("/api/v1/models/ranker", {"ownership": KNOWN}, format="json").status_code == status
    assert client.get("/api/v1/models/ranker").json()["ownership"] == KNOWN
    assert Event.objects.get(verb="model.changed").facts["after"] == {"ownership": KNOWN}


def test_it_is_changed_on_its_page(model: ServedModel) -> None:
    page, team, viewer = reverse("model_ownership", args=["ranker"]), signed_in(Role.MODEL_TEAM), signed_in(Role.VIEWER)
    assert "Nobody is named yet" in viewer.get(page).content.decode()
    assert viewer.post(page, {**KNOWN, "version": "1"}).status_code == 403
    assert signed_in(Role.MODEL_TEAM, "ads").get(page).status_code == 404
    refused = team.post(page, {**KNOWN, "runbook_url": "ftp://x", "version": "1"})
    assert refused.status_code == 422 and 'value="ftp://x"' in refused.content.decode()
    assert team.post(page, {**KNOWN, "version": "1"}).status_code == 302
    assert team.post(page, {**KNOWN, "on_call": "Ada", "version": "1"}).status_code == 412
    shown = viewer.get(page).content.decode()
    assert 'href="https://wiki.example.com/ranker"' in shown and 'href="tel:+49-30-123"' in shown
    assert "Mara, head of search" in shown and "Keep it" not in shown


def test_title_and_description_are_changed_on_a_page(model: ServedModel) -> None:
    page, team, viewer = reverse("model_ownership", args=["ranker"]), signed_in(Role.MODEL_TEAM), signed_in(Role.VIEWER)
    form = {"about": "yes", "version": "1", "title": "Ranks", "description": "What it ranks.\r\nSecond line."}
    assert viewer.post(page, form).status_code == 403 and 'name="description"' not in viewer.get(page).content.decode()
    refused = team.post(page, {**form, "title": "\x07"})
    assert refused.status_code == 422 and "Second line." in refused.content.decode()
    assert team.post(page, form).status_code == 302
    model.refresh_from_db()
    assert (model.title, model.description) == ("Ranks", "What it ranks.\nSecond line.") and model.ownership == {}
    assert "What it ranks.<br>Second line." in viewer.get(reverse("model", args=["ranker"])).content.decode()


def test_it_stands_where_things_break(model: ServedModel) -> None:
    told(model, **KNOWN)
    stable, candidate = make_release(model), make_release(model)
    serves(stable)
    rollout = put(started(candidate=candidate), "stuck", reason="The gateway does not answer.")
    client = signed_in(Role.MODEL_TEAM)
    for page in (reverse("rollout", args=[rollout.pk]), reverse("overview")):
        assert 'href="https://wiki.example.com/ranker"' in client.get(page).content.decode(), page


def test_hostile_text_is_text(model: ServedModel) -> None:
    told(model, on_call="<script>alert(1)</script>", escalation="javascript:alert(1)")
    shown = signed_in(Role.VIEWER).get(reverse("model_ownership", args=["ranker"])).content.decode()
    assert "<script>alert" not in shown and 'href="javascript' not in shown


@pytest.mark.parametrize(("was", "to"), [("shifting", RolloutState.ROLLING_BACK), ("rolling_back", RolloutState.STUCK)])
def test_a_rollback_tells_whom_to_call_in_its_event_and_so_in_mails(
    model: ServedModel, was: str, to: RolloutState
) -> None:
    told(model, **KNOWN)
    stable, candidate = make_release(model), make_release(model)
    serves(stable)
    rollout = put(started(candidate=candidate), was, step_index=0, weight_bp=500)
    rollout.model.refresh_from_db()
    actions.transitions.move(rollout, to, actor=SYSTEM, reason="tried")
    event = Event.objects.order_by("-seq")[0]
    assert {name: event.facts[name] for name in KNOWN} == KNOWN
    _, text = mail_of(link_of(event), why="a test")
    assert "runbook_url: https://wiki.example.com/ranker" in text and "escalation: Mara, head of search" in text
