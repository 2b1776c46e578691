"""Which approvals count, and which stages are still ahead."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollouts.core.approvals import ApprovalFacts, Digests, Void, missing, stages_ahead, stages_of, valid, void_because
from rollouts.core.lifecycle import FINAL, RolloutState
from rollouts.core.policy_schema import parse_policy

S = RolloutState
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PINNED = Digests("sha256:m", "sha256:r", "sha256:p")
YES = ApprovalFacts(1, "start", PINNED, NOW - timedelta(hours=1), NOW + timedelta(hours=1), may_approve=True)
FACTS: dict[str, Any] = {"pinned": PINNED, "newest_report": "sha256:r", "excluded": frozenset({7, 8}), "now": NOW}


def test_an_approval_of_exactly_these_digests_counts() -> None:
    assert void_because(YES, **FACTS) is None
    assert void_because(replace(YES, expires_at=None), **FACTS) is None


@pytest.mark.parametrize(
    ("changed", "facts", "why"),
    [
        ({"digests": replace(PINNED, manifest="sha256:x")}, {}, Void.OTHER_DIGESTS),
        ({"digests": replace(PINNED, report="")}, {}, Void.OTHER_DIGESTS),
        ({"digests": replace(PINNED, policy="sha256:x")}, {}, Void.OTHER_DIGESTS),
        ({}, {"newest_report": "sha256:newer"}, Void.REPORT_SUPERSEDED),
        ({"approver": 7}, {}, Void.OWN_RELEASE),
        ({"approver": 8}, {}, Void.OWN_RELEASE),
        ({"may_approve": False}, {}, Void.NO_LONGER_MAY),
        ({"expires_at": NOW}, {}, Void.EXPIRED),
        ({"stage": "bake"}, {"crossed_at": NOW}, Void.BEFORE_CROSSING),
        ({"stage": "bake"}, {"crossed_at": NOW - timedelta(hours=2)}, None),
        ({}, {"crossed_at": NOW}, None),  # the start was approved, and nothing of it changed
        ({"expires_at": NOW + timedelta(microseconds=1)}, {}, None),
    ],
)
def test_what_makes_one_void(changed: dict[str, Any], facts: dict[str, Any], why: Void | None) -> None:
    assert void_because(replace(YES, **changed), **{**FACTS, **facts}) is why


def test_a_report_that_comes_where_none_was_pinned_voids_it_too() -> None:
    none = Digests("sha256:m", "", "sha256:p")
    bare = replace(YES, digests=none)
    assert void_because(bare, **{**FACTS, "pinned": none, "newest_report": ""}) is None
    assert void_because(bare, **{**FACTS, "pinned": none, "newest_report": "sha256:r"}) is Void.REPORT_SUPERSEDED


def test_the_same_person_twice_is_one_yes_and_stages_do_not_mix() -> None:
    given = [YES, YES, replace(YES, approver=2), replace(YES, stage="bake"), replace(YES, approver=7)]
    assert valid(given, **FACTS) == {"start": {1, 2}, "bake": {1}}


@pytest.mark.parametrize(
    ("state", "step", "paused_in", "ahead"),
    [
        ("awaiting_approval", -1, "shifting", ("start", "step 2", "step 3", "bake", "promote")),
        ("preparing", -1, "shifting", ("start", "step 2", "step 3", "bake", "promote")),
        ("shadowing", -1, "shifting", ("start", "step 2", "step 3", "bake", "promote")),
        ("shifting", 0, "shifting", ("step 2", "step 3", "bake", "promote")),
        ("shifting", 2, "shifting", ("bake", "promote")),
        ("paused", 1, "shifting", ("step 3", "bake", "promote")),
        ("paused", -1, "shadowing", ("start", "step 2", "step 3", "bake", "promote")),
        ("paused", 2, "baking", ("promote",)),
        ("baking", 2, "shifting", ("promote",)),
        ("rolling_back", 1, "shifting", ()),
        ("stuck", 1, "shifting", ()),
    ],
)
def test_the_stages_ahead(state: str, step: int, paused_in: str, ahead: tuple[str, ...]) -> None:
    assert stages_ahead(parse_policy({}), S(state), step, S(paused_in)) == ahead


@pytest.mark.parametrize("state", sorted(FINAL))
def test_nothing_is_ahead_of_what_has_ended(state: RolloutState) -> None:
    assert stages_ahead(parse_policy({}), state, 1, S.SHIFTING) == ()


def test_a_first_release_has_one_step() -> None:
    assert stages_of(parse_policy({}).facing(has_stable=False)) == ("start", "bake", "promote")


def test_what_is_missing_is_counted_over_the_stages_asked_about() -> None:
    wanted, given = {"start": 1, "step 2": 2, "promote": 1}, {"start": 1, "step 2": 1}
    assert missing(wanted, given, ("start", "step 2", "bake", "promote")) == {"step 2": 1, "promote": 1}
    assert missing(wanted, {"promote": 5}, ("promote",)) == {}
