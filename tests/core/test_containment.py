"""What a node says of how it shuts code in, and whether a release that brings code runs there."""

from __future__ import annotations

import pytest

from serving.core.containment import UNKNOWN, Containment, may_run_code, not_contained, of_facts, sentence_of

HOLDS = {Containment.OWN_USER, Containment.NAMESPACES, Containment.LANDLOCK, Containment.OTHER_USER}


def facts(tier: str, **more: object) -> dict[str, object]:
    return {"containment": {"tier": tier, **more}}


@pytest.mark.parametrize("tier", list(Containment))
def test_code_is_held_where_it_does_not_have_the_services_rights(tier: Containment) -> None:
    assert tier.holds_code == (tier in HOLDS)
    assert ("with the service's rights" in tier.sentence) == (tier not in HOLDS)
    # Only without any layer may code open connections; every sentence about another tier says that it may not.
    assert ("connect" in tier.sentence) == (tier is not Containment.NONE)


def test_each_tier_says_something_else() -> None:
    assert len({tier.sentence for tier in Containment}) == len(Containment)
    assert "user of its own" in Containment.OWN_USER.sentence and "user of its own" in Containment.OTHER_USER.sentence
    assert "what other releases on this node are being asked" in Containment.LANDLOCK.sentence


@pytest.mark.parametrize("tier", list(Containment))
def test_a_nodes_facts_tell_its_tier(tier: Containment) -> None:
    assert of_facts(facts(tier.value)) is tier
    assert sentence_of(facts(tier.value)) == tier.sentence


@pytest.mark.parametrize("told", [{}, {"containment": None}, {"containment": {}}, facts("unheard of"), facts("")])
def test_facts_that_tell_no_tier_leave_it_unknown(told: dict[str, object]) -> None:
    assert of_facts(told) is None
    assert sentence_of(told) == UNKNOWN
    assert may_run_code(told) is True  # the launcher will find out


@pytest.mark.parametrize("tier", list(Containment))
def test_code_runs_where_it_is_held_or_where_the_owner_lets_it(tier: Containment) -> None:
    assert may_run_code(facts(tier.value)) is (tier in HOLDS)
    assert may_run_code(facts(tier.value, allows_uncontained_code=False)) is (tier in HOLDS)
    assert may_run_code(facts(tier.value, allows_uncontained_code=True)) is True


def test_a_refusal_names_the_release_the_tier_and_both_ways_out() -> None:
    said = not_contained("sentiment", "r3", Containment.SECCOMP)
    assert said.startswith("sentiment r3 brings its own code") and "(seccomp)" in said
    assert "Run it on a node that can" in said and "SLUICEGATE_ALLOW_UNCONTAINED_CODE=1" in said
