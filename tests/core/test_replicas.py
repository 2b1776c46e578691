"""From the replicas that are there to those that are wanted: what is done, in which order, and what never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.environments.core.replicas import (
    MOST_REPLICAS,
    ReplicaStatus,
    ReplicaStep,
    What,
    desired_replicas,
    share_of,
    steps_to,
)


def replica(ordinal: int, **over: Any) -> ReplicaStatus:
    return ReplicaStatus(**{"key": ordinal + 1, "ordinal": ordinal, "node": "a", "answers": True, **over})


def test_missing_ones_take_the_lowest_free_ordinals() -> None:
    assert steps_to(3, [replica(1)]) == [ReplicaStep(What.PLACE, 0), ReplicaStep(What.PLACE, 2)]
    assert steps_to(1, []) == [ReplicaStep(What.PLACE, 0)]
    assert steps_to(2, [replica(0), replica(1)]) == []


def test_one_that_is_leaving_has_given_up_its_ordinal() -> None:
    assert steps_to(1, [replica(0, is_leaving=True)]) == [ReplicaStep(What.PLACE, 0)]


def test_one_that_is_set_aside_gives_its_ordinal_away_whether_it_failed_or_not() -> None:
    aside = replica(0, is_set_aside=True, answers=False)
    for one in (aside, replace(aside, has_failed=True)):
        [step] = steps_to(2, [one, replica(1)])
        assert (step.what, step.ordinal, step.key) == (What.RENEW, 0, 1)
    [gone] = steps_to(1, [aside, replica(1)])
    assert (gone.what, gone.key) == (What.REMOVE, 1)


def test_too_many_go_in_this_order() -> None:
    failed = replica(0, answers=False, has_failed=True)
    quiet = replica(1, answers=False)
    last, first = replica(4, node="b"), replica(3, node="c")
    every = [first, last, quiet, failed]
    order = [one.key for one in (failed, quiet, last)]
    assert [one.key for one in steps_to(1, every)] == order
    assert {one.what for one in steps_to(1, every)} == {What.REMOVE}


def test_none_goes_whose_answer_is_needed() -> None:
    """Two are wanted of four, of which two answer: only those that do not answer go."""
    every = [replica(0), replica(1), replica(2, answers=False), replica(3, answers=False)]
    assert sorted(one.key for one in steps_to(2, every)) == [3, 4]
    assert steps_to(1, [replica(0), replica(1, answers=False)]) == [
        ReplicaStep(What.REMOVE, 1, 2, "1 is wanted, and there are 2")
    ]


@st.composite
def fleets(draw: st.DrawFn) -> list[ReplicaStatus]:
    ordinals = draw(st.lists(st.integers(0, 8), unique=True, max_size=8))
    flags = st.booleans()
    staying = [replica(ordinal, answers=draw(flags), has_failed=draw(flags)) for ordinal in ordinals]
    leaving = [replica(20 + at, is_leaving=True, answers=draw(flags)) for at in range(draw(st.integers(0, 3)))]
    return staying + leaving


def after(replicas: list[ReplicaStatus], steps: list[ReplicaStep]) -> list[ReplicaStatus]:
    """What is there once the steps were taken, and what was placed answers."""
    gone = {one.key for one in steps if one.what is What.REMOVE}
    kept = [one for one in replicas if one.key not in gone]
    return kept + [
        ReplicaStatus(100 + one.ordinal, one.ordinal, "new", True) for one in steps if one.what is What.PLACE
    ]


@given(fleets(), st.integers(1, 6))
def test_it_ends_with_as_many_as_are_wanted_each_in_a_ordinal_of_its_own(
    replicas: list[ReplicaStatus], wanted: int
) -> None:
    steps = steps_to(wanted, replicas)
    answered = sum(one.answers and not one.is_leaving for one in replicas)
    found = after(replicas, steps)
    staying = [one for one in found if not one.is_leaving]
    assert len({one.ordinal for one in staying}) == len(staying)
    # nothing that is needed was taken away
    assert sum(one.answers for one in staying) >= min(answered, wanted)
    for _ in range(3):  # all answer
        found = [replace(one, answers=True) for one in after(found, steps_to(wanted, found))]
    assert steps_to(wanted, found) == []
    assert sum(not one.is_leaving for one in found) == wanted


@pytest.mark.parametrize(
    ("scaled", "declared", "wanted"),
    [(None, None, 1), (None, 3, 3), (2, 3, 2), (None, 0, 1), (None, 10_000, MOST_REPLICAS)],
)
def test_how_many_are_wanted(scaled: int | None, declared: int | None, wanted: int) -> None:
    assert desired_replicas(scaled, declared) == wanted


@pytest.mark.parametrize(
    ("stable", "weight_bp", "share"),
    [(1, 100, 1), (3, 1, 1), (3, 3333, 1), (3, 3334, 2), (3, 10_000, 3), (10, 5000, 5), (10, 5001, 6), (0, 5000, 1)],
)
def test_a_candidates_share_is_rounded_up(stable: int, weight_bp: int, share: int) -> None:
    assert share_of(stable, weight_bp) == share
