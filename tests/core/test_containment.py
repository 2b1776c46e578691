"""A node's report of its containment, and whether a release that brings code runs there."""

from __future__ import annotations

import pytest

from serving.targets.core.containment import Containment, may_run_code, not_contained, of_facts


def facts(tier: str, **more: object) -> dict[str, object]:
    return {"containment": {"tier": tier, **more}}


@pytest.mark.parametrize("tier", list(Containment))
def test_a_nodes_facts_state_its_containment(tier: Containment) -> None:
    assert of_facts(facts(tier.value)) is tier


@pytest.mark.parametrize("told", [{}, {"containment": None}, {"containment": {}}, facts("own_user"), facts("")])
def test_other_facts_leave_it_unknown(told: dict[str, object]) -> None:
    assert of_facts(told) is Containment.UNKNOWN
    assert may_run_code(told) is True  # the launcher will find out
    assert may_run_code({**told, "static": {}}) is False


@pytest.mark.parametrize("tier", [Containment.CONTAINED, Containment.NOT_CONTAINED])
def test_code_runs_where_it_is_contained_or_where_the_owner_allows_it(tier: Containment) -> None:
    is_contained = tier is Containment.CONTAINED
    assert may_run_code(facts(tier.value)) is is_contained
    assert may_run_code(facts(tier.value, allows_uncontained_code=False)) is is_contained
    assert may_run_code(facts(tier.value, allows_uncontained_code=True)) is True


def test_a_refusal_names_the_release_and_both_ways_out() -> None:
    message = not_contained("sentiment", "r3")
    assert message.startswith("sentiment r3 brings its own code") and "cannot contain code" in message
    assert "Run it on a node that can" in message and "SLUICEGATE_ALLOW_UNCONTAINED_CODE=1" in message
