"""The way in by a browser: slowed for guessers, and pages that run nothing but our own files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import actions
from accounts.core.throttle import LIMITS, TallyKind
from ledger.core.errors import Refused
from tests.support.worlds.factories import make_user
from web.security_headers import CONTENT_SECURITY_POLICY

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
GOOD, BETTER = "a long pass phrase", "an even longer phrase"
#: What the policy does not let run: it would do nothing, silently.
FORBIDDEN = {
    "inline style": re.compile(r"<style|\sstyle="),
    "inline script": re.compile(r"<script(?![^>]*\ssrc=)"),
    "handler": re.compile(r"\s(?:on[a-z]+|hx-on[:a-z-]*)=|javascript:"),
    "filter that htmx evaluates": re.compile(r"hx-trigger=\"[^\"]*\["),
    "values that htmx evaluates": re.compile(r"hx-(?:vals|headers|vars)=[\"']js:"),
    "other origin": re.compile(r"(?:src|href|action)=\"(?:https?:)?//"),
}


@pytest.fixture(autouse=True)
def _one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every try is at the same time, however long a busy machine takes for it: the first wait is one second."""
    now = timezone.now()
    monkeypatch.setattr(sys.modules["accounts.actions.sign_in"], "timezone", SimpleNamespace(now=lambda: now))


def enter(client: Client, password: str, **headers: str) -> object:
    return client.post(reverse("sign_in"), {"username": "ana", "password": password}, headers=headers)


def test_a_page_session_begins_and_guesses_are_slowed() -> None:
    make_user("ana", password=GOOD)
    client = Client()
    for _ in range(LIMITS[TallyKind.PAIR].free):
        answer = enter(client, "wrong")
        assert answer.status_code == 200 and b"do not belong together" in answer.content  # type: ignore[attr-defined]
    answer = enter(client, GOOD)
    assert (answer.status_code, answer["Retry-After"]) == (429, "1")  # type: ignore[attr-defined,index]
    assert b"Too many wrong passwords" in answer.content  # type: ignore[attr-defined]
    # the API counts the same
    body = {"username": "ana", "password": GOOD}
    told = Client().post("/api/v1/tokens", body, content_type="application/json")
    assert (told.status_code, told["Retry-After"], told.json()["code"]) == (429, "1", "too_many_attempts")


def test_the_right_password_lets_in() -> None:
    make_user("ana", password=GOOD)
    client = Client()
    answer = enter(client, GOOD)
    assert answer.status_code == 302 and client.get("/").status_code == 200  # type: ignore[attr-defined]


def test_one_changes_ones_password_and_this_session_goes_on() -> None:
    ana = make_user("ana", password=GOOD)
    here, elsewhere = Client(), Client()
    enter(here, GOOD)
    enter(elsewhere, GOOD)
    token = actions.issue_token(user=ana, name="laptop", actor=actions.actor_for(ana))
    page = reverse("password")
    for form, says in (
        ({"old_password": "wrong", "password": BETTER, "again": BETTER}, b"not the password"),
        ({"old_password": GOOD, "password": BETTER, "again": GOOD}, b"passwords differ"),
        ({"old_password": GOOD, "password": "short", "again": "short"}, b"too short"),
    ):
        answer = here.post(page, form)
        assert answer.status_code == 422 and says in answer.content
    assert elsewhere.get("/").status_code == 200
    done = here.post(page, {"old_password": GOOD, "password": BETTER, "again": BETTER}, follow=True)
    assert b"Your password is changed" in done.content and here.get("/").status_code == 200
    assert elsewhere.get("/").status_code == 302 and Client().get(page).status_code == 302
    with pytest.raises(Refused):
        actions.user_of_token(token)
    assert enter(Client(), BETTER).status_code == 302  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "is_shared"),
    [
        (0, "198.51.100.{n}", True),
        (1, "198.51.{n}.1", False),
        (1, "{n}.0.0.1, 198.51.100.1", True),
        (2, "198.51.{n}.1, 10.0.0.1", False),
    ],
)
def test_addresses_are_those_that_our_own_proxies_saw(
    settings: object, proxies: int, forwarded: str, is_shared: bool
) -> None:
    settings.PROXIES = proxies  # type: ignore[attr-defined]
    make_user("ana", password=GOOD)
    tries = LIMITS[TallyKind.PAIR].free + 1
    answers = [enter(Client(), "wrong", **{"X-Forwarded-For": forwarded.format(n=n)}) for n in range(tries)]
    assert (answers[-1].status_code == 429) is is_shared  # type: ignore[attr-defined]


def test_every_answer_carries_the_policy() -> None:
    client = Client()
    member = Client()
    member.force_login(make_user(team="search"))
    for answer in (
        client.get(reverse("sign_in")), client.get("/static/web/tokens.css"), client.get("/nothing/"), client.get("/api/v1/me"),
        member.get("/"), member.get("/models/none/"), member.get("/audit/"),
    ):  # fmt: skip
        assert answer["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        answer.close()
        assert "camera=()" in answer["Permissions-Policy"] and answer["X-Content-Type-Options"] == "nosniff"
    assert "unsafe" not in CONTENT_SECURITY_POLICY and "default-src 'none'" in CONTENT_SECURITY_POLICY


#: A file to keep brings its own sheet, and is no page of ours.
KEPT = {"post_mortem_file.html"}
PAGES = sorted(path for path in (ROOT / "templates").rglob("*.html") if path.name not in KEPT)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_template_holds_what_the_policy_stops(path: Path) -> None:
    text = path.read_text()
    assert [name for name, pattern in FORBIDDEN.items() if pattern.search(text)] == []
