"""One replica that fails is told apart from a release that fails, by how its failures lie among the replicas."""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb

import pytest

from rollouts.core.odd_replica import CHANCE, OddReplica, ReplicaTally, odd_one_out
from rollouts.core.two_by_two import tail

LIKE_STABLE = 0.002


@pytest.mark.parametrize(
    ("least", "drawn", "bad", "whole"), [(3, 10, 5, 30), (0, 4, 2, 9), (1, 1, 1, 2), (8, 20, 9, 60), (5, 6, 8, 9)]
)
def test_the_tail_is_that_of_the_hypergeometric_distribution(least: int, drawn: int, bad: int, whole: int) -> None:
    exact = sum(
        Fraction(comb(bad, one) * comb(whole - bad, drawn - one), comb(whole, drawn))
        for one in range(least, min(drawn, bad) + 1)
        if drawn - one <= whole - bad
    )
    assert tail(least, drawn, bad, whole) == pytest.approx(float(exact), rel=1e-9)


def test_the_one_that_fails_is_named_with_what_the_others_did() -> None:
    found = odd_one_out(
        {"a:1": ReplicaTally(0, 104), "b:1": ReplicaTally(97, 99), "c:1": ReplicaTally(0, 104)}, tolerated=LIKE_STABLE
    )
    assert found is not None
    assert (found.name, found.own, found.others, found.replicas) == (
        "b:1",
        ReplicaTally(97, 99),
        ReplicaTally(0, 208),
        3,
    )


def test_one_that_was_set_aside_and_got_little_is_named() -> None:
    found = odd_one_out(
        {"a": ReplicaTally(0, 45), "b": ReplicaTally(5, 5), "c": ReplicaTally(0, 45)}, tolerated=LIKE_STABLE
    )
    assert found is not None and found.name == "b"


@pytest.mark.parametrize(
    "tallies",
    [
        {"a": ReplicaTally(97, 99)},  # nobody to compare with
        {"a": ReplicaTally(30, 100), "b": ReplicaTally(31, 100), "c": ReplicaTally(29, 100)},  # all alike
        {
            "a": ReplicaTally(5, 100),
            "b": ReplicaTally(90, 100),
            "c": ReplicaTally(4, 100),
        },  # one is worse, and the others are not well
        {"a": ReplicaTally(0, 19), "b": ReplicaTally(40, 40)},  # too little of the other
        {"a": ReplicaTally(0, 100), "b": ReplicaTally(2, 100)},  # may be chance
        {},
    ],
)
def test_nobody_is_named_where_it_may_be_the_release(tallies: dict[str, ReplicaTally]) -> None:
    assert odd_one_out(tallies, tolerated=LIKE_STABLE) is None


@pytest.mark.parametrize("replicas", [2, 3, 5, 9])
@pytest.mark.parametrize("each", [2, 4, 15, 300])
def test_no_past_of_one_makes_replicas_that_now_fail_alike_pass_as_one_bad(replicas: int, each: int) -> None:
    """Each fails as often in this stage; whatever the first had failed before, it has not all, or not now."""
    for before in range(0, 60 * each * replicas, each):
        tallies = {str(at): ReplicaTally(each, 10_000) for at in range(1, replicas)}
        found = odd_one_out({"0": ReplicaTally(each + before, 10_000), **tallies}, tolerated=0.05)
        assert found is None or not (found.has_all(0.0) and found.is_of_now(each * replicas)), before


def test_what_gateways_count_between_two_looks_is_of_now() -> None:
    one = OddReplica("b", own=ReplicaTally(40, 100), others=ReplicaTally(0, 200), replicas=3)
    assert one.is_of_now(40) and one.is_of_now(15) and not one.is_of_now(14)


def test_failures_that_come_in_clumps_name_nobody_as_soon() -> None:
    tallies = {"a": ReplicaTally(0, 200), "b": ReplicaTally(16, 200)}
    assert odd_one_out(tallies, tolerated=LIKE_STABLE) is not None
    assert odd_one_out(tallies, tolerated=LIKE_STABLE, phi=8.0) is None


def test_one_whose_node_is_gone_is_named_though_its_failures_come_in_clumps() -> None:
    gone = {"a": ReplicaTally(0, 120), "b": ReplicaTally(24, 140, unreached=20)}
    found = odd_one_out(gone, tolerated=LIKE_STABLE, phi=8.0)
    assert found is not None and found.name == "b" and found.own == gone["b"]
    assert odd_one_out({**gone, "b": ReplicaTally(24, 140)}, tolerated=LIKE_STABLE, phi=8.0) is None


def test_nobody_is_named_where_the_others_cannot_be_reached_either() -> None:
    alike = {"a": ReplicaTally(18, 120, 18), "b": ReplicaTally(24, 140, 24)}
    assert odd_one_out(alike, tolerated=0.5, phi=8.0) is None
    few = {"a": ReplicaTally(0, 120), "b": ReplicaTally(12, 140), "c": ReplicaTally(12, 140, 12)}
    assert odd_one_out(few, tolerated=LIKE_STABLE, phi=8.0) is None


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_that_are_alike_are_hardly_ever_named(replicas: int) -> None:
    draw, named = random.Random(7), 0
    for _ in range(2000):
        tallies = {}
        for at in range(replicas):
            attempts = draw.randint(20, 120)
            tallies[str(at)] = ReplicaTally(sum(draw.random() < 0.02 for _ in range(attempts)), attempts)
        named += odd_one_out(tallies, tolerated=1.0 / 50) is not None
    assert named <= 2000 * CHANCE * 3
