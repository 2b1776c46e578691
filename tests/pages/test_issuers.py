"""Settings, Issuers: for administrators, others, empty, filled, and through every form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.actions.issuers import prepare_identity
from accounts.models import Identity, RoleRule, TokenRule
from accounts.models import Issuer as IssuerRow
from tests.support.servers.issuer import SECRET, Issuer
from tests.support.worlds.factories import make_user
from tests.support.worlds.issuer_setup import GITHUB_RULE, SYSTEM, configured, rule_for

pytestmark = pytest.mark.django_db
MARKUP = "<b>x</b>"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", is_admin=True))
    return client


def confirmed(client: Client, path: str, form: dict[str, Any]) -> Any:
    """The question, which changes nothing, and then the answer to it."""
    before = (IssuerRow.objects.count(), TokenRule.objects.count(), RoleRule.objects.count(), Identity.objects.count())
    question = client.post(path, form)
    assert question.status_code == 200 and b"This will happen" in question.content, question.content
    assert "no-store" in question["Cache-Control"]  # it repeats a secret that was typed
    after = (IssuerRow.objects.count(), TokenRule.objects.count(), RoleRule.objects.count(), Identity.objects.count())
    assert before == after
    return client.post(path, {**form, "confirmed": "yes"})


def test_nobody_and_others() -> None:
    client = Client()
    assert client.get("/settings/issuers/").status_code == 302
    client.force_login(make_user("ann", team="search"))
    for path in ("/settings/issuers/", "/settings/issuers/1/", "/settings/issuers/try/"):
        assert client.get(path).status_code == 403
    assert "Issuers" not in client.get("/", follow=True).content.decode().split("<main")[1].split("Settings")[0]
    for path in (
        "new/",
        "1/change/",
        "1/off/",
        "1/on/",
        "1/check/",
        "1/rules/new/",
        "1/roles/new/",
        "1/people/new/",
        "try/",
    ):
        assert client.post(f"/settings/issuers/{path}", {"url": "https://a.example"}).status_code == 403, path
    assert not IssuerRow.objects.exists()


def test_empty_and_what_to_do_next(root: Client) -> None:
    html = root.get("/settings/issuers/").content.decode()
    assert "No issuer yet" in html and "/sign-in/with/N/return/" in html
    assert "no issuer yet" in root.get("/settings/issuers/try/").content.decode()
    assert root.get("/settings/issuers/9/").status_code == 404


def test_an_issuer_is_added_asked_changed_and_shut(issuer: Issuer, root: Client) -> None:
    form = {
        "url": issuer.url, "kind": "github", "title": MARKUP, "client_id": "c", "client_secret": SECRET,
        "audience": "https://a.example", "is_for_people": "on", "session_hours": "8",
    }  # fmt: skip
    answer = confirmed(root, "/settings/issuers/new/", form)
    row = IssuerRow.objects.get()
    page = f"/settings/issuers/{row.pk}/"
    assert (answer.status_code, answer["Location"]) == (302, page) and row.session_hours == 8
    html = root.get(page).content.decode()
    assert MARKUP not in html and "&lt;b&gt;x" in html and SECRET not in html and row.client_secret not in html
    assert "It answers" in root.post(page + "check/", follow=True).content.decode()
    change = {**form, "version": "1", "title": "Acme", "client_secret": ""}
    confirmed(root, page + "change/", change)
    row.refresh_from_db()
    assert (row.title, row.version) == ("Acme", 2) and row.client_secret
    assert root.post(page + "change/", {**change, "title": "Late"}).status_code == 412
    root.post(page + "off/")
    row.refresh_from_db()
    assert not row.is_active
    confirmed(root, page + "on/", {"version": str(row.version)})
    row.refresh_from_db()
    assert row.is_active


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"url": "http://issuer.example"}, "https"),
        ({"url": "https://a.example", "kind": "okta"}, "no kind"),
        ({"url": "https://a.example", "session_hours": "0"}, "1 to 168"),
        ({"url": "https://a.example", "session_hours": "9" * 30}, "1 to 168"),
        ({"url": "https://a.example", "is_for_people": "on"}, "client_id|People cannot sign in"),
        ({"url": "https://a.example", "title": "x" * 10_000}, "1 to 80"),
        ({"url": "https://a.example", "title": "a\u202eb"}, "printable"),
        ({"url": "https://a.example", "audience": "a\0b"}, "printable"),
    ],
)
def test_a_refused_form_keeps_what_was_typed(root: Client, form: dict[str, str], says: str) -> None:
    answer = root.post("/settings/issuers/new/", {"kind": "github", "client_id": "", "session_hours": "12", **form})
    html = answer.content.decode()
    assert answer.status_code == 422 and any(one in html for one in says.split("|")), html
    assert form["url"] in html and not IssuerRow.objects.exists()


def test_an_issuer_that_does_not_answer_says_why(issuer: Issuer, root: Client) -> None:
    row = configured(issuer)
    issuer.fault = "wrong_issuer"
    answer = root.post(f"/settings/issuers/{row.pk}/check/")
    assert answer.status_code == 503 and "it calls itself" in answer.content.decode()


def test_rules_are_made_turned_off_and_on_and_deleted(issuer: Issuer, root: Client) -> None:
    row = configured(issuer)
    page = f"/settings/issuers/{row.pk}/"
    assert "sluicegate api POST /users username=" in root.get(page).content.decode()
    make_user("robot", team="search")
    form = {
        "rule_title": "main", "claims": "repository_id = 4711\nref=refs/heads/main\n", "username": "robot",
        "verbs": "ci, alias.set", "models": "ranker search-*", "life_min": "20",
    }  # fmt: skip
    confirmed(root, page + "rules/new/", form)
    rule = TokenRule.objects.get()
    assert rule.claims == GITHUB_RULE and rule.life_s == 1200 and rule.scope_models == ["ranker", "search-*"]
    assert "alias.set" in rule.scope_verbs
    root.post(f"{page}rules/{rule.pk}/off/")
    rule.refresh_from_db()
    assert not rule.is_active
    stale = root.post(f"{page}rules/{rule.pk}/on/", {"version": rule.version - 1, "confirmed": "yes"})
    assert stale.status_code == 412 and not TokenRule.objects.get().is_active
    assert root.post(f"{page}rules/{rule.pk}/sideways/").status_code == 404
    assert f'name="version" value="{rule.version}"' in root.get(page).content.decode()
    confirmed(root, f"{page}rules/{rule.pk}/on/", {"version": rule.version})
    rule.refresh_from_db()
    assert rule.is_active
    for wrong, says in (
        ({"claims": "repository_id"}, "name = value"),
        ({"claims": "a=1\na=2"}, "name = value"),
        ({"claims": "ref = refs/heads/main"}, "Nothing in the rule lasts"),
        ({"life_min": "forever"}, "whole number of minutes"),
        ({"life_min": "61"}, "900 to 3600"),
    ):
        answer = root.post(page + "rules/new/", {**form, **wrong})
        assert answer.status_code == 422 and says in answer.content.decode() and "search-*" in answer.content.decode()
    root.post(f"{page}rules/{rule.pk}/delete/")
    assert not TokenRule.objects.exists()


def test_roles_and_people(issuer: Issuer, root: Client) -> None:
    row = configured(issuer)
    page = f"/settings/issuers/{row.pk}/"
    make_user("ann", team="search")
    confirmed(root, page + "roles/new/", {"role_claims": "groups = ml", "role": "viewer", "team": "*"})
    rule = RoleRule.objects.get()
    assert rule.team is None and rule.claims == {"groups": "ml"}
    assert root.post(page + "roles/new/", {"role_claims": "groups = ml", "role": "ci", "team": "*"}).status_code == 422
    confirmed(root, page + "people/new/", {"person": "ann", "sub": "7"})
    assert root.post(page + "people/new/", {"person": "ann", "sub": "7"}).status_code == 409
    assert root.post(page + "people/new/", {"person": "nobody", "sub": "8"}).status_code == 422
    html = root.get(page).content.decode()
    assert "groups = ml" in html and "<code>7</code>" in html
    root.post(f"{page}roles/{rule.pk}/delete/")
    root.post(f"{page}people/{Identity.objects.get().pk}/remove/")
    assert not RoleRule.objects.exists() and not Identity.objects.exists()


def test_what_would_this_token_get(issuer: Issuer, root: Client) -> None:
    row = configured(issuer)
    rule_for(row, title=MARKUP)
    token = issuer.github_token(ref="refs/heads/dev", weird=MARKUP)
    answer = root.post("/settings/issuers/try/", {"id_token": token})
    html = answer.content.decode()
    assert "is not met" in html and "refs/heads/dev" in html and "it differs" in html and MARKUP not in html
    assert token not in html and "no-store" in answer["Cache-Control"]
    html = root.post("/settings/issuers/try/", {"id_token": issuer.github_token()}).content.decode()
    assert "gives a token" in html
    told = {"id_token": json.dumps(GITHUB_RULE), "issuer": str(row.pk)}
    assert "gives a token" in root.post("/settings/issuers/try/", told).content.decode()
    for text in ("{", "x", "\0", "{}" * 9000):
        assert (
            "Nothing:"
            in root.post("/settings/issuers/try/", {"id_token": text, "issuer": str(row.pk)}).content.decode()
        )


@pytest.mark.parametrize("count", [1, 200])
def test_few_queries(issuer: Issuer, root: Client, count: int) -> None:
    row = configured(issuer)
    for i in range(count):
        rule_for(row, title=f"rule {i}") if i < 100 else None
        make_user(f"u{i}", team=f"t{i}")
        prepare_identity(actor=SYSTEM, issuer=row, username=f"u{i}", sub=str(i))
    for path in ("/settings/issuers/", f"/settings/issuers/{row.pk}/"):
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert root.get(path).status_code == 200
        assert len(seen) <= 12, [one["sql"][:90] for one in seen]
