"""Sessions of browsers: listed by their owner, ended from elsewhere, and by what shuts a person out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import actions
from accounts.core.access import Actor, scope_from
from accounts.core.browsers import browser_text
from accounts.models import User, UserSession
from accounts.queries import sessions_of
from ledger.core.errors import Refused
from tests.support.worlds.factories import events_of, make_user

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")
GOOD, BETTER = "a long pass phrase", "an even longer phrase"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture
def ana() -> User:
    return make_user("ana", team="search", password=GOOD)


def entered(**headers: str) -> Client:
    client = Client(headers={"User-Agent": FIREFOX, **headers})
    assert client.post(reverse("sign_in"), {"username": "ana", "password": GOOD}).status_code == 302
    return client


def is_in(client: Client) -> bool:
    return client.get(reverse("overview")).status_code == 200


def test_a_sign_in_is_a_row_without_its_key(ana: User) -> None:
    client = entered()
    row = sessions_of(ana).get()
    key = client.session.session_key
    assert key is not None
    assert (row.key_sha256, row.browser, row.address) == (actions.session_digest(key), "Firefox on Linux", "127.0.0.1")
    assert key not in str(vars(row)) + str(list(events_of("user", "ana").values()))
    event = events_of("user", "ana").get(verb="session.begun")
    assert (event.actor, event.facts) == ("ana", {"session": row.pk, "browser": "Firefox on Linux"})


def test_signing_out_there_ends_it_at_the_next_request_and_no_other(ana: User) -> None:
    lost, here = entered(), entered()
    row = UserSession.objects.get(key_sha256=actions.session_digest(str(lost.session.session_key)))
    for _ in range(2):
        actions.end_session(actor=actions.actor_for(ana), session=row)
    assert not is_in(lost) and is_in(here)
    assert sessions_of(ana).count() == 1 and Session.objects.count() == 1
    assert events_of("user", "ana").filter(verb="session.ended").count() == 1


def test_signing_out_here_takes_the_row_along(ana: User) -> None:
    client = entered()
    client.post(reverse("sign_out"))
    assert not sessions_of(ana).exists() and not is_in(client)


def test_a_new_password_ends_the_others_and_this_one_goes_on(ana: User) -> None:
    there, here = entered(), entered()
    changed = {"old_password": GOOD, "password": BETTER, "again": BETTER}
    assert here.post(reverse("password"), changed).status_code == 302
    assert not is_in(there) and is_in(here)
    assert sessions_of(ana).get().key_sha256 == actions.session_digest(str(here.session.session_key))


def test_who_is_shut_out_loses_every_open_page(ana: User) -> None:
    clients = [entered(), entered()]
    actions.deactivate_user(actor=SYSTEM, username="ana")
    assert not any(is_in(client) for client in clients)
    assert not UserSession.objects.exists() and not Session.objects.exists()
    actions.reactivate_user(actor=SYSTEM, username="ana")
    assert not any(is_in(client) for client in clients)


def test_others_end_nothing(ana: User) -> None:
    entered()
    with pytest.raises(Refused):
        actions.end_session(actor=actions.actor_for(make_user("bob")), session=sessions_of(ana).get())


def test_a_token_of_little_scope_ends_no_session(ana: User) -> None:
    entered()
    actor = Actor(name="ana", user_id=ana.pk, scope=scope_from(["ci"], None))
    with pytest.raises(Refused, match="scope"):
        actions.end_session(actor=actor, session=sessions_of(ana).get())


def test_use_is_written_down_every_five_minutes_and_not_at_each_request(
    ana: User, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    client = entered()
    before = timezone.now() - timedelta(hours=1)
    UserSession.objects.update(seen_at=before)
    assert is_in(client) and sessions_of(ana).get().seen_at == before
    monkeypatch.setattr(actions, "SEEN_EVERY", timedelta())
    assert is_in(client) and sessions_of(ana).get().seen_at > before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("table", ["accounts_usersession", "django_session"])
def test_a_request_is_answered_though_its_use_cannot_be_written_down(
    ana: User, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    client = entered()
    before = sessions_of(ana).get().seen_at
    monkeypatch.setattr(actions, "SEEN_EVERY", timedelta())
    here = connection.settings_dict
    other = psycopg.connect(
        dbname=here["NAME"], user=here["USER"], password=here["PASSWORD"], host=here["HOST"], port=here["PORT"]
    )
    with other, connection.cursor() as cursor:
        other.execute(f"SELECT FROM {table} FOR UPDATE")
        cursor.execute("SET lock_timeout = '50ms'")
        answer = client.get("/api/v1/teams")
        cursor.execute("RESET lock_timeout")
    assert answer.status_code == 200 and "sessionid" not in answer.cookies
    first = sessions_of(ana).get().seen_at
    assert (first == before) is (table == "accounts_usersession")  # only what is held is not written
    again = client.get("/api/v1/teams")
    assert again.status_code == 200 and sessions_of(ana).get().seen_at > first
    assert "sessionid" in again.cookies  # it lasts as long as the session, which was just made to last longer


def test_a_row_that_is_gone_ends_the_session(ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    client = entered()
    UserSession.objects.all().delete()
    monkeypatch.setattr(actions, "SEEN_EVERY", timedelta())
    client.get(reverse("overview"))
    assert not is_in(client)


def test_rows_of_sessions_that_ran_out_go(ana: User, settings: Any) -> None:
    entered()
    old = timezone.now() - timedelta(seconds=settings.SESSION_COOKIE_AGE + 1)
    UserSession.objects.update(seen_at=old)
    entered()
    assert sessions_of(ana).count() == 1


@pytest.mark.parametrize("told", ["", "x" * 100_000, "<script>alert(1)</script>", "\u202e\x00evil", "Mozilla/5.0"])
def test_what_a_browser_claims_is_not_repeated(told: str) -> None:
    assert browser_text(told) == "another browser"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (FIREFOX, "Firefox on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/1 Safari/537.36 Edg/1",
            "Edge on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605 Version/18 Mobile Safari/604",
            "Safari on iPhone",
        ),
        ("Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/1 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.5.0", "curl"),
    ],
)
def test_browsers_have_names(told: str, words: str) -> None:
    assert browser_text(told) == words
