"""The table of role × verb, cell by cell."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.core.access import (
    DOING,
    MAY,
    OF_ONESELF,
    Actor,
    Role,
    Verb,
    may,
    require,
    require_own,
    require_version,
    scope_from,
    teams_where,
    verbs_of,
)
from accounts.core.scope import MOST_STARS, PATTERN, models_regex
from ledger.core.errors import Invalid, Refused, Stale

SHUT = {Verb.PAUSE_ROLLOUT, Verb.ABORT_ROLLOUT, Verb.ROLL_BACK}


@pytest.mark.parametrize(("role", "verb"), list(itertools.product(Role, Verb)))
def test_a_role_holds_in_its_team_only(role: Role, verb: Verb) -> None:
    actor = Actor(name="anna", user_id=1, roles=(("search", role),))
    assert may(actor, verb, "search") == (verb in MAY[role])
    assert not may(actor, verb, "ads")


@pytest.mark.parametrize("verb", list(Verb))
def test_administrators_and_the_system_may_everything(verb: Verb) -> None:
    assert may(Actor(name="root", is_admin=True), verb, "search")
    assert may(Actor.system("engine"), verb, "search")
    assert not may(Actor(name="outsider"), verb, "search")


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.VIEWER])
def test_everyone_may_shut(role: Role) -> None:
    assert MAY[role] >= SHUT | {Verb.READ}


def test_nobody_both_pushes_and_waives() -> None:
    assert not any({Verb.PUSH_RELEASE, Verb.WAIVE_CODE} <= verbs for verbs in MAY.values())
    assert not any({Verb.PUSH_RELEASE, Verb.APPROVE_ROLLOUT} <= verbs for verbs in MAY.values())


@pytest.mark.parametrize("verb", [Verb.APPROVE_ROLLOUT, Verb.ADVANCE_ROLLOUT, Verb.PROMOTE_NOW])
def test_only_a_release_manager_says_yes_or_skips_the_proof(verb: Verb) -> None:
    assert {role for role in Role if verb in MAY[role]} == {Role.RELEASE_MANAGER}


def test_whoever_may_start_may_supersede() -> None:
    assert all((Verb.START_ROLLOUT in MAY[role]) == (Verb.SUPERSEDE_ROLLOUT in MAY[role]) for role in Role)


def test_verbs_of_a_person_are_those_of_the_roles_and_of_oneself() -> None:
    team = Actor("ada", 1, roles=(("search", Role.MODEL_TEAM),))
    assert verbs_of(team) == MAY[Role.MODEL_TEAM] | OF_ONESELF and Verb.ADMINISTER not in verbs_of(team)
    assert verbs_of(Actor("root", 2, is_admin=True)) == set(Verb) and verbs_of(Actor("new", 3)) == OF_ONESELF


def test_no_role_administers() -> None:
    assert not any(Verb.ADMINISTER in verbs for verbs in MAY.values())


def test_several_roles_add_up() -> None:
    actor = Actor(name="anna", roles=(("search", Role.CI), ("search", Role.RELEASE_MANAGER), ("ads", Role.MODEL_TEAM)))
    assert actor.roles_in("search") == {Role.CI, Role.RELEASE_MANAGER}
    assert may(actor, Verb.PUSH_RELEASE, "search") and may(actor, Verb.APPROVE_ROLLOUT, "search")


@pytest.mark.parametrize(
    ("verb", "team", "says"),
    [
        (Verb.WAIVE_CODE, "search", "anna may not waive the code of releases of team search; it takes the role release_manager."),
        (Verb.SET_ALIAS, "search", "anna may not set aliases of team search; it takes the role model_team or release_manager."),
        (
            Verb.PUSH_RELEASE,
            "search",
            "anna may not push releases of team search; it takes the role ci or model_team.",
        ),
        (Verb.READ, "ads", "anna may not read the models of team ads; it takes the role ci, model_team, release_manager or viewer."),
        *((Verb.ADMINISTER, team, "anna may not administer this installation; only an administrator may.") for team in ("search", "", "*")),
    ],
)  # fmt: skip
def test_a_refusal_is_a_sentence_that_names_the_roles_that_would_do(verb: Verb, team: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        require(Actor(name="anna"), verb, team)
    assert caught.value.message == says
    assert caught.value.facts["verb"] == verb.value and caught.value.facts["team"] == team


def test_every_verb_can_be_said() -> None:
    assert set(DOING) == set(Verb)


def test_the_system_says_which_part_of_it_acts() -> None:
    assert Actor.system("engine").name == "system:engine"


@pytest.mark.parametrize("expected", [2, 4, 0])
def test_another_version_than_the_one_seen_is_stale_and_says_what_there_is(expected: int) -> None:
    for fits in (None, 3):
        require_version(3, fits, "Gate run 7")
    with pytest.raises(Stale, match=f"Gate run 7 is at version 3, not {expected}") as refused:
        require_version(3, expected, "Gate run 7", state="running")
    assert refused.value.facts == {"version": 3, "state": "running"}


class TestEveryTeam:
    everywhere = Actor(name="mara", roles=(("*", Role.RELEASE_MANAGER), ("ads", Role.CI)))

    def test_a_role_in_every_team_holds_in_each(self) -> None:
        assert may(self.everywhere, Verb.APPROVE_ROLLOUT, "search") and may(
            self.everywhere, Verb.APPROVE_ROLLOUT, "ads"
        )
        assert not may(self.everywhere, Verb.PUSH_RELEASE, "search") and may(self.everywhere, Verb.PUSH_RELEASE, "ads")
        assert self.everywhere.roles_in("ads") == {Role.RELEASE_MANAGER, Role.CI}

    def test_it_administers_nothing(self) -> None:
        assert not may(self.everywhere, Verb.ADMINISTER, "*")

    def test_the_teams_in_which_somebody_may(self) -> None:
        assert teams_where(self.everywhere, Verb.READ) is None
        assert teams_where(self.everywhere, Verb.PUSH_RELEASE) == {"ads"}
        assert teams_where(Actor(name="root", is_admin=True), Verb.ADMINISTER) is None
        assert teams_where(Actor(name="nobody"), Verb.READ) == frozenset()


def narrow(verbs: list[str] | None, models: list[str] | None, **over: Any) -> Actor:
    return Actor(
        **{"name": "anna", "user_id": 7, "roles": (("search", Role.MODEL_TEAM),), **over},
        scope=scope_from(verbs, models),
    )


class TestScope:
    @pytest.mark.parametrize(("role", "verb"), list(itertools.product(Role, Verb)))
    def test_no_scope_gives_more_than_the_role(self, role: Role, verb: Verb) -> None:
        actor = Actor(name="anna", roles=(("search", role),), scope=scope_from(list(Verb), None))
        assert may(actor, verb, "search", "a") == (verb in MAY[role])

    def test_a_verb_that_is_not_in_it_is_refused_by_name(self) -> None:
        actor = narrow(["release.push"], None)
        require(actor, Verb.PUSH_RELEASE, "search", "a")
        with pytest.raises(Refused, match="lacks the verb rollout.start") as caught:
            require(actor, Verb.START_ROLLOUT, "search", "a")
        assert caught.value.code == "out_of_scope"
        assert caught.value.facts["scope"] == {"verbs": ["read", "release.push"], "models": None}

    def test_a_model_that_is_not_in_it_is_refused_by_name(self) -> None:
        actor = narrow(None, ["a", "search-*"])
        for model in ("a", "search-", "search-x-y"):
            require(actor, Verb.PUSH_RELEASE, "search", model)
        for model in ("b", "aa", "search", "x-search-1", "A"):
            with pytest.raises(Refused, match=f"lacks the model {model}"):
                require(actor, Verb.PUSH_RELEASE, "search", model)

    def test_what_is_about_no_single_model_takes_all_models(self) -> None:
        with pytest.raises(Refused, match="lacks all models"):
            require(narrow(None, ["*"]), Verb.MANAGE_WEBHOOKS, "search")

    def test_it_narrows_administrators_too(self) -> None:
        root = narrow(["read"], ["a"], roles=(), every_role=True)
        assert may(root, Verb.READ, "any", "a") and not may(root, Verb.READ, "any", "b")
        assert not may(root, Verb.ADMINISTER, "*") and not root.is_admin

    def test_ones_own_account_takes_its_verb_and_all_models(self) -> None:
        require_own(narrow(None, None), 7)
        require_own(narrow(["account.manage"], None), 7)
        for verbs, models in ((["read"], None), (None, ["a"])):
            with pytest.raises(Refused, match="scope"):
                require_own(narrow(verbs, models), 7)
        with pytest.raises(Refused, match="only an administrator"):
            require_own(narrow(None, None), 8)

    def test_a_role_stands_for_its_verbs_and_a_rollback_for_the_abort_before_it(self) -> None:
        assert scope_from(["ci"], None).verbs == {verb.value for verb in MAY[Role.CI]}
        assert scope_from(["rollout.roll_back"], None).verbs == {"read", "rollout.roll_back", "rollout.abort"}

    @pytest.mark.parametrize(
        "models", [[], [""], ["Ä"], ["a b"], ["-a"], ["a'--"], ["*a*b*c*"], ["x" * 200], ["a"] * 51 + ["b\0"]]
    )
    def test_what_can_be_no_model_is_refused(self, models: list[str]) -> None:
        with pytest.raises(Invalid):
            scope_from(None, models)

    def test_what_is_no_verb_is_refused(self) -> None:
        with pytest.raises(Invalid, match="is no verb and no role"):
            scope_from(["release.*"], None)

    @pytest.mark.parametrize(
        ("wide", "thin", "is_within"),
        [
            ((None, None), (None, ["a"]), True),
            ((None, ["a"]), (None, None), False),
            ((["ci"], None), (["read"], ["a"]), True),
            ((["read"], None), (["ci"], None), False),
            ((["read"], None), (None, None), False),
            ((None, ["s-*"]), (None, ["s-1", "s-*"]), True),
            ((None, ["s-*"]), (None, ["s-1*"]), False),
            ((None, ["s-*"]), (None, ["t"]), False),
        ],
    )
    def test_one_scope_within_another(self, wide: Any, thin: Any, is_within: bool) -> None:
        assert scope_from(*wide).holds(scope_from(*thin)) is is_within

    @given(
        st.from_regex(PATTERN, fullmatch=True).filter(lambda p: p.count("*") <= MOST_STARS),
        st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True),
    )
    def test_the_database_and_python_mean_the_same_models(self, pattern: str, name: str) -> None:
        scope = scope_from(None, [pattern])
        assert scope.models is not None
        assert scope.has_model(name) == bool(re.search(models_regex(scope.models), name))
