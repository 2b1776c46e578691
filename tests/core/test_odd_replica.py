"""One replica that fails is told apart from a release that fails, by how its failures lie among the replicas."""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb

import pytest

from rollouts.core.odd_replica import CHANCE, ReplicaTally, odd_one_out, tail

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


def test_failures_that_come_in_clumps_name_nobody_as_soon() -> None:
    tallies = {"a": ReplicaTally(0, 200), "b": ReplicaTally(16, 200)}
    assert odd_one_out(tallies, tolerated=LIKE_STABLE) is not None
    assert odd_one_out(tallies, tolerated=LIKE_STABLE, phi=8.0) is None


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
