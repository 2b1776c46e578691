"""Tokens: scope, rotation, and that no token makes or manages more than itself; roles that are held in every team."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts import actions
from accounts.core.access import EVERY_TEAM, Actor, Role, Verb, may, scope_from
from accounts.models import Membership, Token, User
from accounts.queries import cross_team_members, members_of, visible_teams
from audit.queries import visible_events
from ledger.core.errors import Invalid, Refused, StateChanged
from notifications.queries import webhooks_of
from registry.queries import visible_models
from rollouts.queries.approvals import approvers_of
from tests.support.worlds.factories import events_of, make_model, make_team, make_user

pytestmark = pytest.mark.django_db
SYSTEM = Actor.system("test")


@pytest.fixture
def anna() -> User:
    return make_user("anna", team="search")


def issued(
    user: User, verbs: list[str] | None = None, models: list[str] | None = None, **over: Any
) -> tuple[str, Token]:
    actor = actions.actor_for(user)
    clear = actions.issue_token(user=user, name="ci", actor=actor, scope=scope_from(verbs, models), **over)
    return clear, Token.objects.latest("pk")


def by(token: Token) -> Actor:
    return actions.actor_for(token.user, token)


class TestScope:
    def test_the_actor_carries_it(self, anna: User) -> None:
        _, token = issued(anna, ["release.push"], ["a-*"])
        actor = by(token)
        assert (actor.token_id, actor.scope) == (token.pk, scope_from(["release.push"], ["a-*"]))
        assert may(actor, Verb.PUSH_RELEASE, "search", "a-1") and not may(actor, Verb.PUSH_RELEASE, "search", "b")

    def test_a_token_that_was_issued_before_scopes_may_what_its_user_may(self, anna: User) -> None:
        _, token = issued(anna)
        assert (token.scope_verbs, token.scope_models, by(token).scope.is_whole) == (None, None, True)

    def test_the_log_says_what_was_given(self, anna: User) -> None:
        issued(anna, ["read"], ["a"])
        facts = events_of("user", "anna").filter(verb="token.issued").get().facts
        assert (facts["verbs"], facts["models"]) == (["read"], ["a"])

    def test_an_unknown_verb_of_a_stored_scope_gives_nothing(self, anna: User) -> None:
        _, token = issued(anna, ["read"])
        Token.objects.update(scope_verbs=["gone.verb"])
        token.refresh_from_db()
        assert not any(may(by(token), verb, "search", "a") for verb in Verb)

    @pytest.mark.parametrize(("verbs", "models"), [(["read"], None), (None, ["a"]), (["ci", "account.manage"], None)])
    def test_no_token_makes_a_wider_one(self, anna: User, verbs: Any, models: Any) -> None:
        _, token = issued(anna, verbs, models)
        with pytest.raises(Refused) as caught:
            actions.issue_token(user=anna, name="wider", actor=by(token))
        assert caught.value.code == "out_of_scope"
        assert Token.objects.count() == 1

    def test_one_that_may_manage_the_account_makes_a_narrower_one(self, anna: User) -> None:
        _, token = issued(anna, ["ci", "account.manage"])
        actions.issue_token(user=anna, name="thin", actor=by(token), scope=scope_from(["read"], ["a"]))
        assert Token.objects.latest("pk").scope_models == ["a"]

    def test_a_narrow_token_changes_no_password(self, anna: User) -> None:
        _, token = issued(anna, ["ci"])
        with pytest.raises(Refused, match=r"lacks the verb account\.manage"):
            actions.change_password(actor=by(token), user=anna, password="quite a long phrase")

    def test_lists_show_the_models_of_the_scope_alone(self, anna: User) -> None:
        team = make_team("search")
        for slug in ("a-1", "a-2", "b"):
            make_model(slug, team=team)
        _, token = issued(anna, None, ["a-*"])
        assert [m.slug for m in visible_models(by(token))] == ["a-1", "a-2"]
        assert not webhooks_of(by(token)).exists()

    def test_events_are_those_of_the_scope_alone(self, anna: User) -> None:
        from ledger.actions import append_event

        team = make_team("search")
        for slug in ("a", "b"):
            make_model(slug, team=team)
            with transaction.atomic():
                append_event(
                    verb="model.changed", subject_type="model", subject_id=slug, actor=actions.actor_for(anna), facts={}
                )
        _, token = issued(anna, None, ["a"])
        assert {event.subject_id for event in visible_events(by(token))} == {"a"}
        assert {event.subject_id for event in visible_events(actions.actor_for(anna))} >= {"a", "b", "anna"}


class TestRotation:
    def test_both_secrets_are_good_for_the_overlap_and_then_the_new_one(self, anna: User) -> None:
        old, token = issued(anna, ["read"], ["a"])
        new = actions.rotate_token(actor=actions.actor_for(anna), token=token, overlap=timedelta(hours=1))
        assert new != old and {actions.living_token(clear).pk for clear in (old, new)} == {token.pk}
        token.refresh_from_db()
        assert (token.scope_verbs, token.scope_models, token.name) == (["read"], ["a"], "ci")
        assert token.previous_used_at is not None
        Token.objects.update(previous_until=timezone.now() - timedelta(seconds=1))
        with pytest.raises(Refused) as caught:
            actions.living_token(old)
        assert caught.value.code == "token_rotated"
        assert actions.living_token(new).pk == token.pk

    def test_without_an_overlap_the_old_secret_ends_at_once(self, anna: User) -> None:
        old, token = issued(anna)
        actions.rotate_token(actor=actions.actor_for(anna), token=token, overlap=timedelta())
        with pytest.raises(Refused, match="rotated"):
            actions.living_token(old)

    def test_twice_within_the_overlap_ends_the_first_at_once(self, anna: User) -> None:
        first, token = issued(anna)
        second = actions.rotate_token(actor=actions.actor_for(anna), token=token)
        third = actions.rotate_token(actor=actions.actor_for(anna), token=token)
        with pytest.raises(Refused, match="not known"):
            actions.living_token(first)
        assert {actions.living_token(clear).pk for clear in (second, third)} == {token.pk}

    def test_revoking_ends_both_secrets(self, anna: User) -> None:
        old, token = issued(anna)
        new = actions.rotate_token(actor=actions.actor_for(anna), token=token)
        actions.revoke_token(actor=actions.actor_for(anna), token=token)
        for clear in (old, new):
            with pytest.raises(Refused, match="revoked"):
                actions.living_token(clear)

    def test_a_token_rotates_itself_and_lives_no_longer(self, anna: User) -> None:
        ends_at = timezone.now() + timedelta(minutes=15)
        _, token = issued(anna, ["read"], ["a"], expires_at=ends_at)
        actions.rotate_token(actor=by(token), token=token)
        token.refresh_from_db()
        assert token.expires_at == ends_at
        with pytest.raises(Invalid, match="later end"):
            actions.rotate_token(actor=by(token), token=token, expires_at=ends_at + timedelta(days=1))

    def test_the_secret_of_before_makes_no_other(self, anna: User) -> None:
        old, token = issued(anna)
        new = actions.rotate_token(actor=by(token), token=token)
        thief, owner = (by(actions.living_token(clear)) for clear in (old, new))
        for refused in (
            lambda: actions.rotate_token(actor=thief, token=token),
            lambda: actions.issue_token(actor=thief, user=anna, name="mine"),
        ):
            with pytest.raises(Refused) as caught:
                refused()
            assert caught.value.code == "previous_secret"
        assert actions.living_token(new).pk == token.pk and Token.objects.count() == 1
        actions.issue_token(actor=owner, user=anna, name="more")
        actions.rotate_token(actor=owner, token=token)

    def test_a_secret_rotates_a_token_once_however_many_come_with_it_at_once(self, anna: User) -> None:
        """They all signed in before the first of them rotated it."""
        secret, _ = issued(anna)
        early = [actions.living_token(secret) for _ in range(3)]
        actions.rotate_token(actor=by(early[0]), token=early[0])
        for one in early[1:]:
            with pytest.raises(Refused) as caught:
                actions.rotate_token(actor=by(one), token=one)
            assert caught.value.code == "previous_secret"
            with pytest.raises(Refused):
                actions.issue_token(actor=by(one), user=anna, name="mine")

    def test_a_token_that_was_revoked_since_it_signed_in_makes_no_other(self, anna: User) -> None:
        """The token signed in before somebody revoked it."""
        secret, token = issued(anna)
        early = by(actions.living_token(secret))
        actions.revoke_token(actor=actions.actor_for(anna), token=token)
        for refused in (
            lambda: actions.rotate_token(actor=early, token=token),
            lambda: actions.issue_token(actor=early, user=anna, name="mine"),
        ):
            with pytest.raises(Refused) as caught:
                refused()
            assert caught.value.code == "token_revoked"
        assert Token.objects.count() == 1

    def test_it_rotates_and_revokes_no_other_token(self, anna: User) -> None:
        _, other = issued(anna)
        _, token = issued(anna, ["ci"])
        with pytest.raises(Refused, match="scope"):
            actions.rotate_token(actor=by(token), token=other)
        with pytest.raises(Refused, match="scope"):
            actions.revoke_token(actor=by(token), token=other)

    def test_nobody_rotates_into_more_than_they_came_with(self, anna: User) -> None:
        _, whole = issued(anna)
        _, token = issued(anna, ["ci", "account.manage"])
        with pytest.raises(Refused, match="can give no more"):
            actions.rotate_token(actor=by(token), token=whole)

    def test_strangers_rotate_nothing(self, anna: User) -> None:
        _, token = issued(anna)
        with pytest.raises(Refused, match="only an administrator"):
            actions.rotate_token(actor=actions.actor_for(make_user("bob")), token=token)

    def test_what_ended_is_not_rotated_back_to_life(self, anna: User) -> None:
        _, token = issued(anna)
        actions.revoke_token(actor=actions.actor_for(anna), token=token)
        with pytest.raises(StateChanged, match="has ended"):
            actions.rotate_token(actor=actions.actor_for(anna), token=token)

    @pytest.mark.parametrize("overlap", [timedelta(seconds=-1), timedelta(days=31)])
    def test_the_overlap_has_an_end(self, anna: User, overlap: timedelta) -> None:
        _, token = issued(anna)
        with pytest.raises(Invalid, match="30 days"):
            actions.rotate_token(actor=actions.actor_for(anna), token=token, overlap=overlap)

    def test_the_log_has_no_secret(self, anna: User) -> None:
        old, token = issued(anna)
        new = actions.rotate_token(actor=actions.actor_for(anna), token=token)
        event = events_of("user", "anna").filter(verb="token.rotated").get()
        assert not any(secret in str(event.facts) for secret in (old, new))


class TestEveryTeam:
    @pytest.fixture
    def mara(self) -> User:
        user = make_user("mara")
        actions.grant_role(actor=SYSTEM, username="mara", team=EVERY_TEAM, role=Role.RELEASE_MANAGER)
        return user

    def test_it_is_held_in_each_team_also_in_those_to_come(self, mara: User) -> None:
        later = make_team("later")
        assert may(actions.actor_for(mara), Verb.APPROVE_ROLLOUT, later.slug)
        assert later in visible_teams(actions.actor_for(mara))
        assert [row.team_slug for row in members_of("later")] == [EVERY_TEAM]
        assert mara.username in approvers_of(make_model("m", team=later), excluded=[])

    def test_nobody_approves_their_own(self, mara: User) -> None:
        assert mara.username not in approvers_of(make_model("m"), excluded=[mara.pk])

    @pytest.mark.parametrize("role", [Role.MODEL_TEAM, Role.CI])
    def test_who_pushes_does_so_team_by_team(self, mara: User, role: Role) -> None:
        with pytest.raises(Invalid, match="team by team"):
            actions.grant_role(actor=SYSTEM, username="mara", team=EVERY_TEAM, role=role)
        with pytest.raises(IntegrityError), transaction.atomic():
            Membership.objects.create(user=mara, team=None, role=role)

    def test_it_is_given_once_and_taken_back(self, mara: User) -> None:
        actions.grant_role(actor=SYSTEM, username="mara", team=EVERY_TEAM, role=Role.RELEASE_MANAGER)
        assert cross_team_members().count() == 1
        actions.revoke_role(actor=SYSTEM, username="mara", team=EVERY_TEAM, role=Role.RELEASE_MANAGER)
        assert actions.actor_for(mara).roles == ()

    def test_the_database_has_it_once(self, mara: User) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            Membership.objects.create(user=mara, team=None, role=Role.RELEASE_MANAGER)
