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
from rollouts.core.aa_test import AATest, Pair, Seconds
from rollouts.core.counter_deltas import ERRORS, Counts
from rollouts.core.dispersion import factor
from rollouts.core.evidence import Scatter, Tolerance, Window

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


# --- by hand ----------------------------------------------------------------------------------------------------------

#: A whole pair of the widest blocks begins here, so that one of each other width does.
AT = 240.0 * 8_000_000


def told(group: object) -> dict[str, object]:
    return {name: value for name, value in vars(group).items() if value}


def test_the_test_is_the_one_that_is_documented() -> None:
    """docs/rollouts.md, "The A/A test"."""
    assert module.WIDTHS_S == (5.0, 15.0, 40.0, 120.0)
    assert (module.EPISODE_S, module.ALPHA, module.ALPHA_ALARM, module.DRIFT_PER_MIN) == (600.0, 0.01, 0.001, 0.1)
    assert all(width % module.WIDTHS_S[0] == 0 and module.EPISODE_S % width == 0 for width in module.WIDTHS_S)


def test_at_first_nothing_is_known() -> None:
    assert Seconds() == (0.0, 0.0, 0.0, 0.0, 0, -1) and Seconds().phi == 1.0
    test = AATest()
    assert set(told(test)) == {"seconds", "evidence", "weights", "block"} and test.block == (0, 0, 0)
    assert set(test.evidence) == {0.0} and sum(math.exp(one) for one in test.weights) == pytest.approx(1.0)
    assert (test.log_e, test.log_e_episode, test.alarm) == (0.0, pytest.approx(0.0), False)


def test_the_scatter_of_seconds_is_half_the_squared_difference_of_neighbours_less_what_their_loads_explain() -> None:
    first = Seconds().after(50, 2)
    assert first == (0.0, 0.0, 0.0, 0.0, 2, 50)
    second = first.after(60, 5)  # 4 % failed: ten attempts more explain 0.4
    assert second == pytest.approx((0.5 * 2.6**2, 5.0, 60.0, 1.0, 5, 60))
    kept, share = 1 - 1 / 900, 10 / 120
    third = second.after(40, 1)
    square = 0.5 * (-4 + 20 * share) ** 2
    assert third == pytest.approx((3.38 * kept + square, 5 * kept + 1, 60 * kept + 40, kept + 1, 1, 40))
    assert Seconds().after(0, 0).after(10, 1)[:4] == (0.5, 1.0, 10.0, 1.0)  # a second without an attempt is one


def test_three_seconds_show_a_scatter() -> None:
    assert Seconds(90.0, 10.0, 500.0, 2.99).phi == 1.0
    assert Seconds(90.0, 10.0, 500.0, 3.0).phi == factor(90.0, 10.0, 3.0) > 10


def test_a_pairs_evidence_is_the_average_of_both_sides_tempered_by_scatter_and_drift() -> None:
    """In 120 s a load drifts by a fifth: 1.5 * 0.2^2 / 2 * 20 errors a block = 0.6."""
    pair = Pair(7, 1.5).after(False, 300, 25).after(True, 200, 8).after(False, 100, 5).after(True, 100, 2)
    assert pair == Pair(7, 1.5, (400, 300), (30, 10))
    scatter = Scatter(2.1, 2.1, 2.6, 2.6)
    sides = [
        scatter.of([window], Tolerance(1.0, 0.0)) for window in (Window(30, 400, 10, 300), Window(10, 300, 30, 400))
    ]
    expected = [math.log((math.exp(one) + math.exp(other)) / 2) for one, other in zip(*sides, strict=True)]
    assert pair.log_e(120.0, 2.0) == pytest.approx(expected)
    assert Pair(0, 1.0) == Pair(0, 1.0, (0, 0), (0, 0))
    assert max(Pair(0, 1.0, (9999, 9999), (5000, 0)).log_e(5.0, 1.0)) == 30.0  # no pair says more


def test_seconds_fill_blocks_and_blocks_fill_pairs_of_each_width() -> None:
    test = AATest()
    for second in range(240):
        test = test.after(second, AT + second, counts(50, 0))
    assert test.pairs == 23 + 7 + 2  # of 10, 30 and 80 s
    assert test.block == (int(AT) // 5 + 47, 250, 0)
    last = test.open[0]
    assert (last.number, last.attempts) == (int(AT) // 10 + 23, (250, 0))
    assert test.open[3].attempts == (24 * 250 - 50, 23 * 250)  # nothing is known of what came before the first second
    test = test.after(240, AT + 240, counts(50, 0))
    assert test.pairs == 24 + 8 + 3 + 1 and {one.attempts for one in test.open} == {(0, 0)}
    assert [one.number for one in test.open] == [int(AT + 240) // whole for whole in (10, 30, 80, 240)]


def test_a_pair_that_ended_speaks_for_its_width_with_each_stake() -> None:
    test = AATest()
    for second in range(11):
        test = test.after(second, AT + second, counts(50, 6 if second in {6, 8} else 0))
        if second in {0, 9}:
            assert test.pairs == 0
    more = Pair(0, 1.0, (200, 250), (0, 12)).log_e(5.0, scatter_before(test).phi)
    assert test.pairs == 1
    assert test.evidence[:16] == pytest.approx(
        [math.log1p(stake * math.expm1(one)) for stake in (0.05, 0.5) for one in more]
    )
    assert set(test.evidence[16:]) == {0.0}


def scatter_before(test: AATest) -> Seconds:
    """The scatter of ten seconds, as it was when the last of them had ended."""
    seconds = Seconds()
    for second in range(1, 10):
        seconds = seconds.after(50, 6 if second in {6, 8} else 0)
    assert seconds.after(50, 0) == test.seconds
    return seconds


@pytest.mark.parametrize(("gap_s", "is_known"), [(0.0, False), (0.1, True), (3.0, True), (3.1, False), (-1.0, False)])
def test_seconds_are_in_a_row_up_to_three_seconds_apart(gap_s: float, is_known: bool) -> None:
    test = steady(AATest(), 0, 3)
    at = BEGIN + 2 + gap_s
    after = test.after(3, at, counts(60, 1))
    assert after.seconds.last == 60 if is_known else after.seconds.last < 0
    assert bool(after.open) is is_known
    assert after.last_at == at and after.began_at == BEGIN


def test_the_share_of_errors_is_that_of_some_minutes() -> None:
    test = steady(AATest(), 0, 2, errors=5)
    assert test.error_frac == pytest.approx(0.1)
    worse = test.after(2, BEGIN + 2, counts(50, 50))
    assert worse.error_frac == pytest.approx(0.1 + 0.9 / 300)
    assert worse.after(3, BEGIN + 3, counts(0, 0)).error_frac == worse.error_frac


@pytest.mark.parametrize(
    ("rejected_at", "at", "is_over"),
    [(None, 1599.0, False), (None, 1600.0, True), (1290.0, 1599.0, False), (1300.0, 1600.0, True), (1301.0, 1600.0, False)],
)  # fmt: skip
def test_an_episode_lasts_ten_minutes_and_five_after_a_rejection(rejected_at, at: float, is_over: bool) -> None:
    test = AATest(began_at=1000.0, rejected_at=rejected_at, last_at=at - 1)
    after = test.after(1, at, counts(50, 0))
    assert (after.episodes, after.rejections) == (is_over, is_over and rejected_at is not None)
    assert (after.began_at, after.rejected_at) == ((at, None) if is_over else (1000.0, rejected_at))
    assert not AATest(last_at=at - 1)._is_over(at)  # it has not begun


def test_an_episode_rejects_at_its_bar_and_says_no_more_then(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(0, 1.0, (500, 500), (12, 4))
    test = AATest()._judged([(0, pair)], 1.0, 5.0)
    assert test.rejected_at is None and test.pairs == 1
    monkeypatch.setattr(module, "_REJECT", test.log_e_episode)
    rejecting = AATest()._judged([(0, pair)], 1.0, 5.0)
    assert rejecting.rejected_at == 5.0
    later = rejecting._judged([(0, pair), (1, Pair(0, 1.0))], 1.0, 9.0)
    assert (later.rejected_at, later.pairs, later.evidence) == (5.0, 2, rejecting.evidence)


@pytest.mark.parametrize(
    ("evidence", "rejected_at", "factors"),
    [
        (0.0, None, (1 - 9 / 99, 1 - 19 / 99, 1 - 49 / 99, 1.0)),
        (math.log(2), None, (1 - 9 / 99, 1 - 19 / 99, 1 - 49 / 99, 1.9)),  # 0.1 + 0.9 * 2
        (4.0, None, (1 - 9 / 99, 1 - 19 / 99, 1 - 49 / 99, 9.1)),  # ten times at most
        (9.0, 1.0, (10.0, 20.0, 50.0, 1.45)),  # half as much again at most
    ],
)
def test_what_an_episode_brings_the_alarm(evidence: float, rejected_at: float | None, factors: tuple) -> None:
    """Nine tenths are kept for what is there from the first episode on, and a fiftieth fades."""
    test = AATest(evidence=(evidence,) * 64, rejected_at=rejected_at)._ended(9.0)
    assert test.log_m == pytest.approx([math.log(0.9 * one) - 0.02 for one in factors])
    assert (test.evidence, test.episodes, test.rejections) == (AATest().evidence, 1, rejected_at is not None)
    assert test.log_e == pytest.approx(math.log(0.1 + sum(0.9 * one * math.exp(-0.02) for one in factors) / 4))


def test_the_alarm_is_held_a_little_over_its_bar() -> None:
    loud = AATest(log_m=(50.0,) * 4, episodes=9)._ended(9.0)
    assert loud.log_m == pytest.approx((math.log(1000) + 2.0,) * 4) and loud.alarm


def test_members_whose_evidence_grew_weigh_more_in_the_next_episode() -> None:
    """One of 64 grew a hundredfold, and by no more than the bar counts: 95 % go by that, 5 % are shared alike."""
    weights = AATest(evidence=(1000.0,) + (0.0,) * 63)._ended(9.0).weights
    shares = [0.95 * 100 / 163 + 0.05 / 64] + [0.95 / 163 + 0.05 / 64] * 63
    assert [math.exp(one) for one in weights] == pytest.approx(shares)


def test_the_state_is_kept_with_few_digits() -> None:
    precise = AATest(
        seconds=Seconds(1.23456, 2.34567, 3.45678, 4.56789, 5, 6), log_m=(1.234567,) * 4, evidence=(0.123456,) * 64,
        weights=(-4.123456,) * 64, error_frac=0.12345678, pairs=3, rejected_at=5.5, began_at=4.5,
    )  # fmt: skip
    kept = precise.to_json()
    assert (kept["seconds"], kept["log_m"]) == ([1.235, 2.346, 3.457, 4.568], [1.2346] * 4)
    assert (kept["evidence"], kept["weights"], kept["error_frac"]) == ([0.123] * 64, [-4.123] * 64, 0.123457)
    assert (kept["pairs"], kept["rejected_at"], kept["began_at"]) == (3, 5.5, 4.5)
