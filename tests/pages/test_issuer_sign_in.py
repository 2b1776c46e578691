"""Signing in by an issuer, against a real one on loopback: who gets in as whom, and every way in which nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from accounts.actions import actor_for, grant_role, issue_token
from accounts.actions import issuers as issuer_actions
from accounts.actions.token_rules import create_role_rule, delete_role_rule
from accounts.models import Identity, Membership, Token, User
from accounts.models import Issuer as IssuerRow
from ledger.models import Event
from tests.support.servers.issuer import CLIENT, Issuer, new_key, return_path
from tests.support.worlds.factories import make_team, make_user
from tests.support.worlds.issuer_setup import SYSTEM, configured

pytestmark = pytest.mark.django_db


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def row(issuer: Issuer) -> IssuerRow:
    return configured(issuer, creates_accounts=True)


def leave(client: Client, row: IssuerRow, then: str = "") -> str:
    answer = client.get(f"/sign-in/with/{row.pk}/", {"next": then})
    assert answer.status_code == 302, answer.content
    return str(answer["Location"])


def sign_in(client: Client, issuer: Issuer, row: IssuerRow, then: str = "") -> Any:
    return client.get(return_path(issuer.authorize(leave(client, row, then))))


def who(client: Client) -> str | None:
    key = client.session.get("_auth_user_id")
    return User.objects.get(pk=key).username if key else None


class TestIn:
    def test_a_first_sign_in_makes_an_account_without_roles(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        answer = sign_in(client, issuer, row, "/models/?q=a")
        assert (answer.status_code, answer["Location"]) == (302, "/models/?q=a")
        user = User.objects.get(username="ann")
        assert who(client) == "ann" and not user.is_superuser and not user.has_usable_password()
        assert not Membership.objects.exists() and Identity.objects.get().sub == "ann-1"
        assert client.session.get_expiry_age() <= 12 * 3600
        assert issuer.refusals == []

    def test_use_does_not_make_the_session_longer(
        self, issuer: Issuer, row: IssuerRow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client()
        sign_in(client, issuer, row)
        ends_at = Session.objects.get().expire_date
        later = timezone.now() + timedelta(hours=6)
        with monkeypatch.context() as patched:
            patched.setattr("django.utils.timezone.now", lambda: later)
            patched.setattr("web.pages.session.time.time", later.timestamp)
            assert client.get("/models/").status_code == 200
        assert client.session["seen_at"] == later.timestamp()  # it was written anew
        assert abs(Session.objects.get().expire_date - ends_at) < timedelta(minutes=1)

    def test_the_second_is_the_same_person_whatever_the_name(self, issuer: Issuer, row: IssuerRow) -> None:
        sign_in(Client(), issuer, row)
        issuer.person = {"sub": "ann-1", "preferred_username": "annette", "email": "other@example.com"}
        client = Client()
        sign_in(client, issuer, row)
        assert who(client) == "ann" and User.objects.count() == 1

    def test_a_name_that_is_taken_is_never_linked(self, issuer: Issuer, row: IssuerRow) -> None:
        root = make_user("Root", is_admin=True, password="a long pass phrase")
        issuer.person = {
            "sub": "evil-1",
            "preferred_username": "root",
            "email": "root@example.com",
            "email_verified": True,
        }
        client = Client()
        sign_in(client, issuer, row)
        name = who(client)
        assert name is not None and name.startswith("root-") and name != root.username

    @pytest.mark.parametrize("name", ["<b>ann</b>", "ann\u202e", "a" * 5000, "", "\0", None, 7, ["a"], "system:engine"])
    def test_a_hostile_name_is_not_taken(self, issuer: Issuer, row: IssuerRow, name: Any) -> None:
        issuer.person = {"sub": "x-1", "preferred_username": name}
        client = Client()
        sign_in(client, issuer, row)
        assert str(who(client)).startswith("person-")

    def test_a_prepared_account(self, issuer: Issuer) -> None:
        row = configured(issuer)
        make_user("ann.smith", team="search")
        issuer_actions.prepare_identity(actor=SYSTEM, issuer=row, username="ann.smith", sub="ann-1")
        client = Client()
        sign_in(client, issuer, row)
        assert who(client) == "ann.smith" and client.get("/models/").status_code == 200

    def test_the_sign_in_page_offers_it_and_passwords(self, issuer: Issuer, row: IssuerRow) -> None:
        html = Client().get("/sign-in/?next=/models/").content.decode()
        assert "Sign in with Acme" in html and f"/sign-in/with/{row.pk}/?next=/models/" in html
        assert 'type="password"' in html and "ends only the session here" in html

    def test_two_tabs_at_once(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        one, two = leave(client, row), leave(client, row, "/models/")
        assert client.get(return_path(issuer.authorize(one))).status_code == 302
        assert client.get(return_path(issuer.authorize(two))).status_code in (302, 403)
        assert who(client) == "ann"


class TestShut:
    """Who has no other way to sign in keeps no token, either."""

    @pytest.mark.parametrize("what", ["issuer off", "not for people", "unlinked"])
    def test_own_tokens_end_where_there_is_no_other_way_in(self, issuer: Issuer, row: IssuerRow, what: str) -> None:
        users = {name: make_user(name) for name in ("ann", "never-ends", "elsewhere", "stranger")}
        users["by-password"] = make_user("by-password", password="a long pass phrase")
        other = issuer_actions.create_issuer(
            actor=SYSTEM, url="https://other.example", client_id="c", is_for_people=True
        )
        for name in ("ann", "never-ends", "elsewhere", "by-password"):
            issuer_actions.prepare_identity(actor=SYSTEM, issuer=row, username=name, sub=name)
        issuer_actions.prepare_identity(actor=SYSTEM, issuer=other, username="elsewhere", sub="7")
        for user in users.values():
            issue_token(user=user, name="laptop", actor=actor_for(user))
        Token.objects.filter(user=users["never-ends"]).update(expires_at=None)
        if what == "unlinked":
            for identity in Identity.objects.filter(issuer=row):
                issuer_actions.remove_identity(actor=SYSTEM, identity=identity)
        else:
            change = {"is_active": False} if what == "issuer off" else {"is_for_people": False}
            issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=1, changes=change)
        living = set(Token.objects.filter(revoked_at=None).values_list("user__username", flat=True))
        assert living == {"elsewhere", "stranger", "by-password"}
        ended = [event.facts["tokens_ended"] for event in Event.objects.filter(facts__has_key="tokens_ended")]
        assert sum(ended) == 2


class TestRoles:
    def test_groups_give_roles_and_take_them_away_again(self, issuer: Issuer, row: IssuerRow) -> None:
        make_team("search"), make_team("ads")
        create_role_rule(actor=SYSTEM, issuer=row, claims={"groups": "ml"}, team="search", role="model_team")
        create_role_rule(actor=SYSTEM, issuer=row, claims={"groups": "watch*"}, team="*", role="viewer")
        issuer.person |= {"groups": ["ml", "watchers", "golf"]}
        sign_in(Client(), issuer, row)
        assert roles() == {("search", "model_team"), ("*", "viewer")}
        issuer.person |= {"groups": ["golf"]}
        sign_in(Client(), issuer, row)
        assert roles() == set()
        verbs = list(Event.objects.filter(verb__startswith="role.").order_by("seq").values_list("verb", flat=True))
        assert verbs == ["role_rule.created"] * 0 + ["role.granted"] * 2 + ["role.revoked"] * 2

    def test_a_role_by_hand_stays(self, issuer: Issuer, row: IssuerRow) -> None:
        make_team("search")
        rule = create_role_rule(actor=SYSTEM, issuer=row, claims={"groups": "ml"}, team="search", role="model_team")
        issuer.person |= {"groups": ["ml"]}
        sign_in(Client(), issuer, row)
        grant_role(actor=SYSTEM, username="ann", team="search", role="model_team")
        delete_role_rule(actor=SYSTEM, rule=rule)
        sign_in(Client(), issuer, row)
        assert roles() == {("search", "model_team")}

    def test_nothing_but_the_rules_gives_any(self, issuer: Issuer, row: IssuerRow) -> None:
        issuer.person |= {"groups": ["administrator", "release_manager"], "roles": ["admin"], "is_superuser": True}
        sign_in(Client(), issuer, row)
        assert roles() == set() and not actor_for(User.objects.get(username="ann")).is_admin


def roles() -> set[tuple[str, str]]:
    return {(one.team_slug, one.role) for one in Membership.objects.filter(user__username="ann").select_related("team")}


class TestOut:
    def refused(self, client: Client, path: str, says: str, status: int = 403) -> None:
        answer = client.get(path)
        assert answer.status_code == status and says in answer.content.decode().replace("&#x27;", "'"), answer.content
        assert who(client) is None and not Identity.objects.exists()

    def test_nobody_without_an_account(self, issuer: Issuer) -> None:
        row, client = configured(issuer), Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), "prepare your account")
        assert not User.objects.exists()

    def test_a_person_who_is_not_active(self, issuer: Issuer, row: IssuerRow) -> None:
        sign_in(Client(), issuer, row)
        User.objects.update(is_active=False)
        client = Client()
        assert sign_in(client, issuer, row).status_code == 403 and who(client) is None

    def test_an_answer_that_this_browser_did_not_ask_for(self, issuer: Issuer, row: IssuerRow) -> None:
        address = return_path(issuer.authorize(leave(Client(), row)))
        self.refused(Client(), address, "began none")
        self.refused(Client(), f"/sign-in/with/{row.pk}/return/", "began none")

    def test_an_answer_twice(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        address = return_path(issuer.authorize(leave(client, row)))
        client.get(address)
        client.post("/sign-out/")
        answer = client.get(address)
        assert answer.status_code == 403 and who(client) is None

    def test_an_answer_of_another_issuer(self, issuer: Issuer, row: IssuerRow) -> None:
        issuer.iss_in_answer = "https://elsewhere.example"
        client = Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), "another issuer's")

    def test_an_answer_without_the_iss_that_was_announced(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        address = leave(client, row)
        issuer.answers_iss = False
        self.refused(client, return_path(issuer.authorize(address)), "does not say whose")

    def test_an_answer_to_another_issuers_sign_in(self, issuer: Issuer, row: IssuerRow) -> None:
        with Issuer() as other:
            theirs, client = configured(other, title="Other", creates_accounts=True), Client()
            address = return_path(issuer.authorize(leave(client, row)))
            moved = address.replace(f"/with/{row.pk}/", f"/with/{theirs.pk}/")
            self.refused(client, moved, "not to this browser")

    def test_an_answer_with_an_error_and_one_without_a_code(self, issuer: Issuer, row: IssuerRow) -> None:
        for more, says in (
            ("error=access_denied", "access_denied"),
            ("code=", "no code"),
            ("code=made-up", "invalid_grant"),
        ):
            client = Client()
            state = parse_qs(urlsplit(leave(client, row)).query)["state"][0]
            path = f"/sign-in/with/{row.pk}/return/?state={state}&iss={issuer.url}&{more}"
            self.refused(client, path, says)

    @pytest.mark.parametrize(
        ("person", "says"),
        [
            ({"aud": "somebody-else"}, "another audience"),
            ({"aud": [CLIENT, "somebody-else"]}, "other audiences"),
            ({"azp": "somebody-else"}, "azp"),
            ({"nonce": None}, "nonce"),
            ({"nonce": "another"}, "nonce"),
            ({"iss": "https://elsewhere.example"}, "another issuer"),
            ({"exp": 1000, "iat": 900}, "expired"),
            ({"sub": None}, "lacks the claim sub"),
        ],
    )
    def test_a_token_that_is_not_right(self, issuer: Issuer, row: IssuerRow, person: dict[str, Any], says: str) -> None:
        issuer.person |= person
        client = Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), says)

    def test_a_token_by_somebody_elses_key(self, issuer: Issuer, row: IssuerRow) -> None:
        forger = new_key()
        forger.kid = issuer.keys[0].kid
        issuer.token_override = issuer.token(_key=forger, aud=CLIENT)
        client = Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), "signature")

    def test_a_wrong_client_secret(self, issuer: Issuer, row: IssuerRow) -> None:
        issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=1, changes={"client_secret": "wrong"})
        client = Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), "invalid_client")

    def test_another_secret_key_of_ours(self, issuer: Issuer, row: IssuerRow) -> None:
        IssuerRow.objects.update(client_secret="not-encrypted-with-this-key")
        client = Client()
        self.refused(client, return_path(issuer.authorize(leave(client, row))), "Set it anew", 503)

    def test_an_issuer_that_is_away(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        address = return_path(issuer.authorize(leave(client, row)))
        issuer.leave()
        self.refused(client, address, "does not answer", 503)

    def test_an_issuer_that_is_off(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        address = return_path(issuer.authorize(leave(client, row)))
        issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=1, changes={"is_active": False})
        self.refused(client, address, "no such way to sign in", 404)
        assert "Acme" not in Client().get("/sign-in/").content.decode()

    @pytest.mark.parametrize(
        "then", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", "/\\evil"]
    )
    def test_no_way_out_to_somewhere_else(self, issuer: Issuer, row: IssuerRow, then: str) -> None:
        assert sign_in(Client(), issuer, row, then)["Location"] == "/"

    def test_the_secret_is_nowhere(self, issuer: Issuer, row: IssuerRow) -> None:
        from tests.support.servers.issuer import SECRET

        assert SECRET not in row.client_secret and SECRET not in str(
            list(Event.objects.values_list("facts", flat=True))
        )
        address = leave(Client(), row)
        assert SECRET not in address and "code_challenge_method=S256" in address
