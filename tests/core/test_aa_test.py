"""Stable against itself: loud where failures come in spells, quiet on traffic that only looks like it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.aa_test import BEGIN, QUIET, Traffic, alone, clumps, fed, spells, swinging
from rollouts.core import aa_test as module
from rollouts.core.aa_test import AATest, Pair
from rollouts.core.counter_deltas import ERRORS, Counts

HOUR_S = 3600


def counts(attempts: int, errors: int) -> Counts:
    return Counts(attempts, attempts, {ERRORS: errors})


def steady(test: AATest, begin: int, last_s: int, *, attempts: int = 50, errors: int = 0) -> AATest:
    """With so many seconds more that are all alike."""
    for second in range(begin, begin + last_s):
        test = test.after(second, BEGIN + second, counts(attempts, errors))
    return test


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "rate", "fails", "mean_s"),
    [(1, 20.0, 0.2, 3.0), (1, 2000.0, 0.2, 10.0), (2, 200.0, 0.2, 30.0), (20, 200.0, 0.2, 120.0), (20, 2000.0, 0.05, 10.0)],
)  # fmt: skip
def test_spells_of_servers_alarm_within_three_hours(servers: int, rate: float, fails: float, mean_s: float) -> None:
    for seed in range(3):
        kind = partial(spells, servers=servers, fails=fails, mean_s=mean_s)
        _, alarmed_s = fed(kind(np.random.default_rng(seed), 3 * HOUR_S, rate))
        assert alarmed_s is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("rate", [20.0, 2000.0])
def test_other_traffic_does_not_alarm(name: str, rate: float) -> None:
    test, alarmed_s = fed(QUIET[name](np.random.default_rng(11), 12 * HOUR_S, rate))
    assert test.episodes > 68 and alarmed_s is None
    assert test.rejections <= (4 if "3 h" in name else 2)  # four incidents in twelve hours


@pytest.mark.slow
def test_errors_that_come_alone_hardly_ever_reject() -> None:
    test, _ = fed(alone(np.random.default_rng(3), 12 * HOUR_S, 50.0))
    assert test.rejections <= 1 and test.log_e < math.log(10)
    assert test.error_frac == pytest.approx(0.005, abs=0.003)


def test_without_the_tempering_by_seconds_clumps_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = clumps(np.random.default_rng(4), 4 * HOUR_S, 200.0, size=8, is_fixed=True)
    assert not fed(traffic)[0].rejections
    monkeypatch.setattr(module, "factor", lambda squares, bad, blocks: 1.0)
    assert fed(traffic)[1] is not None


def test_without_the_tempering_by_drift_a_swinging_load_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = swinging(np.random.default_rng(5), 3 * HOUR_S, 2000.0, period_s=1800.0, power=2.0)
    assert fed(traffic)[1] is None
    monkeypatch.setattr(module, "DRIFT_PER_MIN", 0.0)
    assert fed(traffic)[1] is not None


@pytest.mark.parametrize(
    ("attempts", "phi", "width_s"), [((40, 40), 1.0, 5.0), ((90, 10), 1.0, 60.0), ((40, 60), 3.0, 120.0)]
)
def test_the_evidence_of_a_pair_is_one_at_most_on_average(
    attempts: tuple[int, int], phi: float, width_s: float
) -> None:
    """Exactly, for every sum of errors: each of them falls into the first block with its share of the attempts."""
    part = attempts[0] / sum(attempts)
    for total in (0, 1, 2, 5, 20, 60):
        mean = np.zeros(8)
        for errors in range(total + 1):
            chance = math.comb(total, errors) * part**errors * (1 - part) ** (total - errors)
            log_e = Pair(0, phi, attempts, (errors, total - errors)).log_e(width_s, phi)
            mean += chance * np.exp(log_e)
        assert (mean <= 1 + 1e-9).all()
        if phi == 1.0 and total in (1, 2):
            assert mean == pytest.approx(1.0, abs=0.02)


def test_a_pair_speaks_alike_whichever_block_is_worse() -> None:
    one, other = Pair(0, 1.0, (500, 500), (30, 2)), Pair(0, 1.0, (500, 500), (2, 30))
    assert one.log_e(5.0, 1.0) == pytest.approx(other.log_e(5.0, 1.0))
    assert max(one.log_e(5.0, 1.0)) > 6
    assert Pair(0, 1.0, (500, 0), (30, 0)).log_e(5.0, 1.0) == []


def test_one_incident_is_one_rejection_even_at_the_end_of_an_episode() -> None:
    """It begins in one episode and ends in the next: without the quiet time after a rejection both would reject."""
    errors = np.zeros(3 * HOUR_S, dtype=np.int64)
    errors[5940:6060] = 50
    test, alarmed_s = fed(Traffic(np.full(len(errors), 500), errors))
    assert test.rejections == 1 and alarmed_s is None


@pytest.mark.parametrize(
    ("hours", "rejections", "alarms"), [(1, 3, True), (3, 3, False), (3, 4, True), (24, 10, False), (24, 11, True)]
)
def test_so_many_episodes_that_reject_make_the_alarm(hours: int, rejections: int, alarms: bool) -> None:
    episodes, test, has_alarmed = 6 * hours, AATest(), False
    rejecting = {int((i + 0.5) * episodes / rejections) for i in range(rejections)}
    for episode in range(episodes):
        at = 1.0 if episode in rejecting else None
        test = replace(test, rejected_at=at, evidence=(-0.12,) * len(test.evidence))._ended(float(episode))
        has_alarmed |= test.alarm
    assert has_alarmed is alarms


def test_weak_evidence_in_most_episodes_alarms_too() -> None:
    test = AATest()
    for episode in range(18):
        test = replace(test, evidence=(math.log(2.5),) * len(test.evidence))._ended(float(episode))
    assert test.rejections == 0 and test.alarm


def test_three_incidents_in_an_hour_alarm() -> None:
    errors = np.zeros(HOUR_S + 1800, dtype=np.int64)
    for begin in (900, 2100, 3300):
        errors[begin : begin + 120] = 50
    test, alarmed_s = fed(Traffic(np.full(len(errors), 500), errors))
    assert test.rejections == 3 and alarmed_s is not None


@pytest.mark.slow
def test_an_alarm_ends_within_a_day_after_the_spells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODE_S", 10.0)
    loud = replace(AATest(), log_m=(module._ALARM + module.MOST_OVER,) * 4, episodes=50, rejections=40)
    assert loud.alarm
    assert steady(loud, 0, 150).alarm  # 15 episodes
    assert not steady(loud, 0, 1440).alarm  # 144 episodes: a day, without an error that could tell anything


def test_seconds_that_are_not_in_a_row_are_let_go() -> None:
    test = AATest()
    for tick in range(1, 60):
        test = test.after(tick, BEGIN + 10 * tick, counts(100, tick % 7))
    assert test.pairs == 0 and test.seconds.known_s == 0
    whole = steady(AATest(), 0, 600)
    after = whole.after(700, BEGIN + 700, counts(5000, 5000))  # what was counted in a hundred seconds
    assert (after.seconds.errors, after.open) == (0.0, ())
    assert whole.after(599, BEGIN + 599, counts(50, 50)).seconds.errors == 0.0  # the same second once more


def test_the_state_is_small_and_goes_on_from_json() -> None:
    traffic = spells(np.random.default_rng(6), 2 * HOUR_S, 200.0, servers=2, fails=0.2, mean_s=10.0)
    whole, alarmed_s = fed(traffic)
    text = json.dumps(whole.to_json())
    assert len(text) < 3000 and alarmed_s is not None
    again = AATest.from_json(json.loads(text))
    assert (again.episodes, again.rejections, again.alarm) == (whole.episodes, whole.rejections, whole.alarm)
    assert again.log_e == pytest.approx(whole.log_e, abs=0.01) and again.open == ()
    begin = 2 * HOUR_S + 1
    one, other = (steady(test, begin, 1200) for test in (whole, again))
    assert (one.episodes, one.rejections) == (other.episodes, other.rejections)
    assert one.log_e == pytest.approx(other.log_e, abs=0.5)
    assert 0 < whole.pairs < other.pairs <= one.pairs
    assert AATest.from_json({}) == AATest()


def test_a_state_of_the_test_before_begins_anew_but_for_the_share_of_errors() -> None:
    old = {
        "seed": "1:2", "episodes": 40, "rejections": 1, "began_at": 1.0, "has_rejected": False, "pairs": 12_000, "arms": {},
        "carry": {}, "error_frac": 0.01, "rate_per_s": 20.0,
    }  # fmt: skip
    assert AATest.from_json(old) == AATest(error_frac=0.01)
    short = {**AATest().to_json(), "weights": [0.0]}
    assert AATest.from_json(short) == AATest()
    lacking = AATest(episodes=3).to_json()
    del lacking["rejected_at"]
    assert AATest.from_json(lacking).episodes == 3
