"""The table of role × verb, cell by cell."""

from __future__ import annotations

import itertools

import pytest

from accounts.core.access import DOING, MAY, Actor, Role, Verb, may, require, require_version
from ledger.core.errors import Refused, Stale

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


@pytest.mark.parametrize("role", list(Role))
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
        (Verb.READ, "ads", "anna may not read the models of team ads; it takes the role ci, model_team or release_manager."),
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


@pytest.mark.parametrize("expected", [None, 3])
def test_a_version_that_was_seen_or_not_asked_for_will_do(expected: int | None) -> None:
    require_version(3, expected, "Gate run 7")


@pytest.mark.parametrize("expected", [2, 4, 0])
def test_another_version_is_stale_and_says_what_there_is(expected: int) -> None:
    with pytest.raises(Stale, match=f"Gate run 7 is at version 3, not {expected}") as refused:
        require_version(3, expected, "Gate run 7", state="running")
    assert refused.value.facts == {"version": 3, "state": "running"}
