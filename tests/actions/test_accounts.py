"""People, teams, roles and tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from accounts import actions
from accounts.adapters.session_users import SessionUsers
from accounts.core.access import Actor, Role, Verb, may
from accounts.models import Team, Token, User
from ledger.core.errors import Invalid, Refused, StateChanged
from ledger.models import Event
from tests.support.worlds.factories import events_of, make_admin, make_team, make_user

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")


class TestFirstAdministrator:
    def test_the_first_run_makes_one_and_says_the_password_once(self) -> None:
        password = actions.ensure_first_administrator()
        assert password is not None and len(password) >= 20
        admin = User.objects.get(username="admin")
        assert admin.check_password(password) and admin.is_superuser
        assert actions.ensure_first_administrator() is None

    def test_an_administrator_of_another_name_is_enough(self) -> None:
        make_user("root", is_admin=True)
        assert actions.ensure_first_administrator() is None
        assert not User.objects.filter(username="admin").exists()


class TestActor:
    def test_an_actor_carries_the_roles_of_now(self, django_assert_num_queries: Any) -> None:
        user = make_user("anna", team="search")
        actions.grant_role(actor=SYSTEM, username="anna", team="search", role=Role.CI)
        with django_assert_num_queries(1):
            actor = actions.actor_for(user)
        assert (actor.name, actor.user_id, actor.is_admin, actor.is_system) == ("anna", user.pk, False, False)
        assert actor.roles_in("search") == {Role.CI, Role.MODEL_TEAM}
        assert may(actor, Verb.PUSH_RELEASE, "search")

    def test_the_user_of_a_session_comes_with_the_same_roles(self, django_assert_num_queries: Any) -> None:
        user = make_user("anna", team="search")
        actions.grant_role(actor=SYSTEM, username="anna", team="search", role=Role.CI)
        actions.grant_role(actor=SYSTEM, username="anna", team="*", role=Role.RELEASE_MANAGER)
        with django_assert_num_queries(1):
            found: Any = SessionUsers().get_user(user.pk)
            actor = actions.actor_for(found, None, found.held)
        assert actor == actions.actor_for(user) and len(actor.roles) == 3
        User.objects.filter(pk=user.pk).update(is_active=False)
        assert SessionUsers().get_user(user.pk) is None

    @pytest.mark.parametrize("backend", settings.AUTHENTICATION_BACKENDS)
    def test_a_session_from_before_goes_on(self, client: Client, backend: str) -> None:
        client.force_login(make_user("anna", team="search"), backend=backend)
        assert client.get("/models/").status_code == 200


class TestTeams:
    def test_a_team_is_created_once(self) -> None:
        team = actions.create_team(actor=SYSTEM, slug="search", title="Search")
        assert actions.create_team(actor=SYSTEM, slug="search", title="Search") == team
        assert [e.verb for e in events_of("team", "search")] == ["team.created"]

    def test_another_team_of_the_same_name_is_refused(self) -> None:
        actions.create_team(actor=SYSTEM, slug="search", title="Search")
        with pytest.raises(StateChanged, match="titled 'Search'"):
            actions.create_team(actor=SYSTEM, slug="search", title="Other")

    @pytest.mark.parametrize("slug", ["", "-a", "Search", "a b", "a" * 51, "ü"])
    def test_a_bad_name_is_refused_with_the_fix(self, slug: str) -> None:
        with pytest.raises(Invalid, match="lower-case") as caught:
            actions.create_team(actor=SYSTEM, slug=slug)
        assert caught.value.facts["errors"][0]["field"] == "slug"
        assert Team.objects.count() == 0

    def test_only_administrators_make_teams_and_users_and_roles(self) -> None:
        anna = actions.actor_for(make_user("anna", team="search", role=Role.RELEASE_MANAGER))
        with pytest.raises(Refused):
            actions.create_team(actor=anna, slug="ads")
        with pytest.raises(Refused):
            actions.create_user(actor=anna, username="bob")
        with pytest.raises(Refused):
            actions.grant_role(actor=anna, username="anna", team="search", role=Role.CI)
        assert Event.objects.count() == 0


class TestUsers:
    def test_a_user_without_a_password_is_a_robot(self) -> None:
        robot = actions.create_user(actor=make_admin("root"), username="ci")
        assert not robot.has_usable_password()
        event = events_of("user", "ci").get()
        assert (event.actor, event.facts) == ("root", {"is_admin": False, "has_password": False})

    @pytest.mark.parametrize(
        "over",
        [
            {"username": ""},
            {"username": "a b"},
            {"username": "system:engine"},
            {"username": "x" * 151},
            {"password": "short"},
        ],
    )
    def test_bad_input_is_refused_and_nothing_is_made(self, over: dict[str, str]) -> None:
        with pytest.raises(Invalid):
            actions.create_user(actor=SYSTEM, **{"username": "anna", "password": "quite long enough", **over})
        assert (User.objects.count(), Event.objects.count()) == (0, 0)

    def test_a_name_is_given_once(self) -> None:
        actions.create_user(actor=SYSTEM, username="anna")
        with pytest.raises(StateChanged, match="There is a user anna already"):
            actions.create_user(actor=SYSTEM, username="anna")

    def test_a_role_is_granted_once(self) -> None:
        make_user("anna")
        make_team("search")
        first = actions.grant_role(actor=SYSTEM, username="anna", team="search", role="ci")
        assert actions.grant_role(actor=SYSTEM, username="anna", team="search", role=Role.CI) == first
        assert [e.facts for e in events_of("user", "anna")] == [{"team": "search", "role": "ci"}]

    @pytest.mark.parametrize("over", [{"username": "bob"}, {"team": "ads"}, {"role": "king"}])
    def test_a_role_needs_a_user_a_team_and_a_name_we_know(self, over: dict[str, str]) -> None:
        make_user("anna")
        make_team("search")
        with pytest.raises(Invalid) as caught:
            actions.grant_role(actor=SYSTEM, **{"username": "anna", "team": "search", "role": "ci", **over})
        assert caught.value.facts["errors"][0]["field"] == next(iter(over))


class TestTokens:
    @pytest.fixture
    def anna(self) -> User:
        return make_user("anna")

    def issue(self, user: User, **over: Any) -> str:
        return actions.issue_token(**{"user": user, "name": "laptop", "actor": actions.actor_for(user), **over})

    def test_the_clear_text_lets_in_and_is_stored_nowhere(self, anna: User) -> None:
        clear = self.issue(anna)
        assert clear.startswith("sg_") and len(clear) > 40
        assert actions.user_of_token(clear) == anna
        token = Token.objects.get()
        assert clear not in str(vars(token)) + str(list(Event.objects.values()))
        assert (token.name, clear.startswith(token.prefix), len(token.sha256)) == ("laptop", True, 64)

    @pytest.mark.parametrize("wrong", ["", "sg_", "sg_" + "x" * 43, "\udcff", "ü" * 50])
    def test_anything_else_does_not(self, anna: User, wrong: str) -> None:
        self.issue(anna)
        with pytest.raises(Refused, match="not known") as caught:
            actions.user_of_token(wrong)
        assert caught.value.code == "no_such_token"

    def test_a_revoked_token_lets_nobody_in(self, anna: User) -> None:
        clear = self.issue(anna)
        for _ in range(2):
            actions.revoke_token(actor=actions.actor_for(anna), token=Token.objects.get())
        with pytest.raises(Refused, match="was revoked"):
            actions.user_of_token(clear)
        assert [e.verb for e in events_of("user", "anna")] == ["token.revoked", "token.issued"]

    def test_an_expired_token_lets_nobody_in(self, anna: User) -> None:
        assert actions.user_of_token(self.issue(anna, expires_at=timezone.now() + timedelta(minutes=1))) == anna
        clear = self.issue(anna)
        Token.objects.filter(sha256=actions.token_digest(clear)).update(expires_at=timezone.now())
        with pytest.raises(Refused, match="has expired"):
            actions.user_of_token(clear)

    def test_a_token_has_an_end(self, anna: User, settings: Any) -> None:
        settings.TOKEN_DAYS, settings.TOKEN_MOST_DAYS = 7, 30
        now = timezone.now()
        self.issue(anna)
        assert now + timedelta(days=7) <= Token.objects.get().expires_at <= timezone.now() + timedelta(days=7)
        self.issue(anna, expires_at=now + timedelta(days=30))
        for wrong, match in ((now, "ended already"), (now + timedelta(days=31), "at most 30 days")):
            with pytest.raises(Invalid, match=match) as caught:
                self.issue(anna, expires_at=wrong)
            assert caught.value.facts["errors"][0]["field"] == "expires_at"

    def test_a_user_who_left_gets_in_no_more_and_gets_no_token(self, anna: User) -> None:
        clear = self.issue(anna)
        anna.is_active = False
        anna.save()
        with pytest.raises(Refused, match="not active"):
            actions.user_of_token(clear)
        with pytest.raises(Refused, match="not active"):
            self.issue(anna)

    def test_its_use_is_noted_at_most_once_a_minute(self, anna: User, django_assert_num_queries: Any) -> None:
        clear = self.issue(anna)
        with django_assert_num_queries(2):
            assert actions.user_of_token(clear) == anna
        with django_assert_num_queries(1):
            actions.user_of_token(clear)
        Token.objects.update(last_used_at=timezone.now() - timedelta(seconds=61))
        with django_assert_num_queries(2):
            actions.user_of_token(clear)

    def test_tokens_for_others_are_for_administrators(self, anna: User) -> None:
        with pytest.raises(Refused):
            self.issue(anna, actor=actions.actor_for(make_user("bob")))
        assert actions.user_of_token(self.issue(anna, actor=make_admin())) == anna
        with pytest.raises(Refused):
            actions.revoke_token(actor=actions.actor_for(User.objects.get(username="bob")), token=Token.objects.get())

    @pytest.mark.parametrize("name", ["", "x" * 121])
    def test_a_token_has_a_name(self, anna: User, name: str) -> None:
        with pytest.raises(Invalid, match="1 to 120"):
            self.issue(anna, name=name)


def test_no_act_goes_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("accounts.actions.people.append_event", full)
    with pytest.raises(OSError, match="no space"):
        actions.create_team(actor=SYSTEM, slug="search")
    assert not Team.objects.exists()
