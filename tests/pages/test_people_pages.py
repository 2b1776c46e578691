"""People, teams, tokens and one's account: in the browser as over REST, and nothing for who may not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts import actions
from accounts.core.access import EVERY_TEAM, Actor, Role, scope_from
from accounts.models import Membership, Team, Token, User, UserSession
from tests.pages.clients import signed_in
from tests.support.worlds.factories import make_team, make_user

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")
GOOD = "a long pass phrase"
ADMINISTRATORS = ("people", "tokens")
EVERYBODY = ("account", "teams", "password")


@pytest.fixture
def root() -> Client:
    return signed_in(make_user("root", is_admin=True, password=GOOD))


@pytest.fixture
def ana() -> User:
    return make_user("ana", team="search", password=GOOD)


def text_of(answer: Any) -> str:
    return re.sub(r"\s+", " ", answer.content.decode())


def post(client: Client, to: str, /, *args: Any, confirmed: bool = False, **fields: Any) -> Any:
    return client.post(reverse(to, args=args), {**fields, **({"confirmed": "yes"} if confirmed else {})}, follow=True)


class TestWhoSeesWhat:
    @pytest.mark.parametrize("name", [*ADMINISTRATORS, *EVERYBODY])
    def test_nobody_without_signing_in(self, name: str) -> None:
        assert Client().get(reverse(name)).status_code == 302

    @pytest.mark.parametrize("role", [None, *Role])
    def test_lists_of_everybody_are_for_administrators(self, role: Role | None) -> None:
        client = signed_in(make_user("x", team="search" if role else None, role=role or Role.CI))
        assert [client.get(reverse(name)).status_code for name in ADMINISTRATORS] == [403, 403]
        assert [client.get(reverse(name)).status_code for name in EVERYBODY] == [200, 200, 200]

    def test_another_persons_page_and_verbs_are_for_administrators(self, ana: User) -> None:
        make_user("bob", team="search")
        client = signed_in(ana)
        assert client.get(reverse("person", args=["bob"])).status_code == 403
        assert client.get(reverse("person", args=["nobody"])).status_code == 403
        for name in ("person_deactivate", "person_administer", "person_password", "role_give", "token_create"):
            assert post(client, name, "bob", name="x", team="search", role="ci", confirmed=True).status_code == 403
        bob = User.objects.get(username="bob")
        assert bob.is_active and not bob.is_superuser and not bob.tokens.exists()

    def test_ones_own_page_is_the_account(self, ana: User) -> None:
        assert signed_in(ana).get(reverse("person", args=["ana"])).url == reverse("account")  # type: ignore[attr-defined]

    def test_teams_are_those_of_ones_own(self, ana: User) -> None:
        make_user("bob", team="ads")
        told = text_of(signed_in(ana).get(reverse("teams")))
        assert "ana (model_team)" in told and "bob (" not in told and "A new team" not in told

    def test_settings_lead_to_a_page_that_one_may_open(self, root: Client, ana: User) -> None:
        for client in (root, signed_in(ana)):
            assert client.get(reverse("settings"), follow=True).status_code == 200


class TestPeople:
    def test_a_person_is_created_once_it_was_asked(self, root: Client) -> None:
        make_team("search")
        fields = {"username": "mara", "team": "search", "role": "release_manager"}
        told = text_of(post(root, "person_create", **fields))
        assert "mara becomes a user, with the role release_manager in team search." in told
        assert not User.objects.filter(username="mara").exists()
        post(root, "person_create", confirmed=True, **fields)
        assert Membership.objects.get(user__username="mara").team_slug == "search"

    def test_what_is_wrong_is_said_and_what_was_typed_stays(self, root: Client) -> None:
        answer = post(root, "person_create", username="a b", team="", role="")
        assert answer.status_code == 422 and 'value="a b"' in answer.content.decode()

    def test_a_password_is_made_and_shown_once(self, root: Client, ana: User) -> None:
        answer = post(root, "person_password", "ana")
        [password] = re.findall(r"<pre[^>]*>([^<]{15,40})</pre>", answer.content.decode())
        assert User.objects.get(pk=ana.pk).check_password(password)
        assert "no-store" in answer["Cache-Control"] and password not in text_of(
            root.get(reverse("person", args=["ana"]))
        )

    def test_shutting_out_is_one_click_and_ends_open_pages(self, root: Client, ana: User) -> None:
        theirs = signed_in(ana)
        page = text_of(root.get(reverse("person", args=["ana"])))
        assert "Every session, open page and token of ana ends at once." in page
        assert theirs.get(reverse("overview")).status_code == 200
        post(root, "person_deactivate", "ana", reason="left")
        assert theirs.get(reverse("overview")).status_code == 302
        assert theirs.get(reverse("overview_live")).status_code == 401
        assert "Let in again" in text_of(root.get(reverse("person", args=["ana"])))
        post(root, "person_reactivate", "ana")
        assert User.objects.get(pk=ana.pk).is_active

    def test_the_last_administrator_stays(self, root: Client) -> None:
        answer = post(root, "person_deactivate", "root")
        assert answer.status_code == 409 and "last administrator" in text_of(answer)
        assert post(root, "person_end-administration", "root").status_code == 409

    def test_roles_are_given_after_a_question_and_taken_at_once(self, root: Client, ana: User) -> None:
        fields = {"team": EVERY_TEAM, "role": "release_manager"}
        asked = text_of(post(root, "role_give", "ana", **fields))
        assert "ana has the role release_manager in every team" in asked and "made later" in asked
        assert not Membership.objects.filter(team=None).exists()
        post(root, "role_give", "ana", confirmed=True, **fields)
        assert "release_manager" in text_of(root.get(reverse("teams")))
        post(root, "role_take", "ana", **fields)
        assert not Membership.objects.filter(team=None).exists()

    @pytest.mark.parametrize(
        "fields", [{"team": "*", "role": "ci"}, {"team": "no", "role": "ci"}, {"team": "search", "role": "x"}, {}]
    )
    def test_a_role_that_cannot_be_is_refused_with_the_page(
        self, root: Client, ana: User, fields: dict[str, str]
    ) -> None:
        answer = post(root, "role_give", "ana", **fields)
        assert answer.status_code == 422 and "Roles" in text_of(answer)

    def test_filters(self, root: Client, ana: User) -> None:
        actions.deactivate_user(actor=SYSTEM, username="ana")
        make_user("bob", team="ads", role=Role.VIEWER)

        def found(**asked: str) -> set[str]:
            return set(
                re.findall(r'href="/settings/people/(\w+)/"', root.get(reverse("people"), asked).content.decode())
            )

        assert found() == {"ana", "bob", "root"}
        assert (found(q="AN"), found(role="viewer"), found(state="inactive")) == ({"ana"}, {"bob"}, {"ana"})
        assert found(state="administrators") == {"root"} and found(q="\0%") == set()
        assert "No user fits" in text_of(root.get(reverse("people"), {"q": "zzz"}))


class TestTokens:
    fields = {"name": "deploy", "which_verbs": "some", "verbs": ["ci"], "models": "search-*, b", "days": "7"}

    def test_it_is_asked_shown_once_rotated_and_revoked(self, ana: User) -> None:
        client = signed_in(ana)
        asked = text_of(post(client, "token_create", "ana", **self.fields))
        assert "acts as ana: " in asked and "on b, search-*" in asked and not Token.objects.exists()
        answer = post(client, "token_create", "ana", confirmed=True, **self.fields)
        [clear] = re.findall(r">(sg_[^<]+)<", answer.content.decode())
        token = actions.living_token(clear)
        assert token.scope == scope_from(["ci"], ["search-*", "b"]) and "no-store" in answer["Cache-Control"]
        page = text_of(client.get(reverse("account")))
        assert "deploy" in page and clear not in page
        assert "good for 7 days more" in text_of(post(client, "token_rotate", "ana", token.pk, overlap_h="168"))
        answer = post(client, "token_rotate", "ana", token.pk, overlap_h="168", confirmed=True)
        [new] = re.findall(r">(sg_[^<]+)<", answer.content.decode())
        assert {actions.living_token(one).pk for one in (clear, new)} == {token.pk}
        assert "previous secret valid until" in text_of(client.get(reverse("account")))
        post(client, "token_revoke", "ana", token.pk)
        assert Token.objects.get().revoked_at is not None

    @pytest.mark.parametrize(
        "over",
        [
            {"name": ""},
            {"verbs": []},
            {"verbs": ["king"]},
            {"models": "<b>"},
            {"days": "0"},
            {"days": "nan"},
            {"days": "1e9"},
            {"days": "x"},
        ],
    )
    def test_what_is_wrong_is_said_and_what_was_typed_stays(self, ana: User, over: dict[str, Any]) -> None:
        answer = post(signed_in(ana), "token_create", "ana", confirmed=True, **{**self.fields, **over})
        assert answer.status_code == 422 and not Token.objects.exists()
        assert "deploy" in answer.content.decode() or over == {"name": ""}

    def test_an_administrator_does_it_for_a_robot(self, root: Client) -> None:
        make_user("robot", team="search", role=Role.CI)
        answer = post(root, "token_create", "robot", confirmed=True, **self.fields)
        assert "sg_" in answer.content.decode() and Token.objects.get().user.username == "robot"
        assert "deploy" in text_of(root.get(reverse("person", args=["robot"])))

    def test_somebody_elses_token_is_not_there(self, ana: User) -> None:
        actions.issue_token(user=make_user("bob"), name="his", actor=SYSTEM)
        token = Token.objects.get()
        assert post(signed_in(ana), "token_revoke", "ana", token.pk).status_code == 404
        assert post(signed_in(ana), "token_revoke", "bob", token.pk).status_code == 403
        assert Token.objects.get().revoked_at is None

    def test_all_tokens_by_state(self, root: Client, ana: User) -> None:
        for name in ("good", "over"):
            actions.issue_token(user=ana, name=name, actor=SYSTEM)
        actions.revoke_token(actor=SYSTEM, token=Token.objects.get(name="over"))
        told = {
            state: text_of(root.get(reverse("tokens"), {"state": state})) for state in ("living", "ended", "unused")
        }
        assert "good" in told["living"] and ">over " not in told["living"] and ">over " in told["ended"]
        assert "No such token" in text_of(root.get(reverse("tokens"), {"q": "nothing like it"}))


class TestSessions:
    def test_signing_out_there(self, ana: User) -> None:
        there, here = Client(headers={"User-Agent": "Firefox Linux"}), Client()
        for client in (there, here):
            client.post(reverse("sign_in"), {"username": "ana", "password": GOOD})
        page = text_of(here.get(reverse("account")))
        assert "Firefox on Linux" in page and page.count("(this session)") == 1
        row = UserSession.objects.get(browser="Firefox on Linux")
        post(here, "session_end", "ana", row.pk)
        assert there.get(reverse("overview")).status_code == 302 and here.get(reverse("overview")).status_code == 200
        assert post(here, "session_end", "ana", row.pk).status_code == 200  # it has ended already

    def test_an_administrator_sees_and_ends_those_of_others(self, root: Client, ana: User) -> None:
        Client().post(reverse("sign_in"), {"username": "ana", "password": GOOD})
        row = UserSession.objects.get()
        assert "127.0.0.1" in text_of(root.get(reverse("person", args=["ana"])))
        make_user("bob")
        assert post(signed_in(User.objects.get(username="bob")), "session_end", "ana", row.pk).status_code == 403
        post(root, "session_end", "ana", row.pk)
        assert not UserSession.objects.exists()


def test_a_team_is_created_once_it_was_asked(root: Client) -> None:
    assert "without members or models" in text_of(post(root, "team_create", slug="ads", title=""))
    assert not Team.objects.exists()
    post(root, "team_create", slug="ads", title="", confirmed=True)
    assert Team.objects.get().slug == "ads"
    assert post(root, "team_create", slug="A B", title="").status_code == 422


def test_hostile_names_are_text(root: Client, ana: User) -> None:
    hostile = "<script>alert(1)</script>\"'\u202e"
    actions.issue_token(user=ana, name=hostile, actor=SYSTEM)
    for page in (reverse("tokens"), reverse("person", args=["ana"])):
        assert "<script>alert" not in root.get(page).content.decode()
    assert root.get(reverse("person", args=["\u202e"])).status_code == 404
    assert root.get("/settings/people/%00/").status_code == 404


@pytest.mark.parametrize("count", [1, 200])
def test_pages_ask_little_of_the_database(
    root: Client, ana: User, count: int, django_assert_max_num_queries: Any
) -> None:
    team = Team.objects.get(slug="search")
    for number in range(count):
        user = User.objects.create(username=f"u{number:03}")
        Membership.objects.create(user=user, team=team, role="viewer")
        Token.objects.create(user=ana, name=f"t{number}", sha256=f"{number:064}", prefix="sg_")
        Team.objects.create(slug=f"t{number:03}", title="x")
    pages = [reverse(name) for name in ("people", "tokens", "teams", "account")] + [reverse("person", args=["ana"])]
    for page in pages:
        with django_assert_max_num_queries(12):
            assert root.get(page).status_code == 200
