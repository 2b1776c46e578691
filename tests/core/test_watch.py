"""The watch of stable's objectives: alarms, and the proof that an objective is met."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration.watch.tests import Detector
from ledger.core.errors import Invalid
from rollouts.core.counter_deltas import Counts
from rollouts.core.evidence import Tolerance
from rollouts.core.policy_schema import parse_policy
from rollouts.core.watch.comparison import BETWEEN, BINS_TO_CONVICT, EVEN_BP, SETTLING, Comparison, bar_of
from rollouts.core.watch.objective import LEAST_FRAC, objectives_of
from rollouts.core.watch.sequential_test import CLOSES_AT, EVEN, NONE, PAGE, TICKET, TIERS, Tier, closing, is_closed
from rollouts.core.watch.undo import ObjectiveResult, UndoVerdict, undo_verdict
from rollouts.core.watch.watched import MINUTES, NO_DATA_S, Standing, Watched

LIMIT = 0.01


def run(bins: int, bad: int, attempts: int, watched: Watched | None = None, begin: float = 1_800_000_000.0) -> Watched:
    watched = watched or Watched("sha256:a", begin)
    for number in range(bins):
        watched = watched.after(
            (watched.at or begin) + PAGE.bin_s if number or watched.at else begin, bad, attempts, LIMIT
        )
    return watched


def bins_until(tier: Tier, bad: int, attempts: int, most: int = 5000) -> int | None:
    sums = NONE
    for number in range(1, most):
        sums = tier.after(sums, bad, attempts, LIMIT)
        if tier.is_over(sums):
            return number
    return None


@pytest.mark.parametrize(("bad", "attempts"), [(1000, 1000), (300, 1000), (100, 1000)])
def test_a_failure_of_ten_times_the_objective_pages_within_150_s(bad: int, attempts: int) -> None:
    bins = bins_until(PAGE, bad, attempts)
    assert bins is not None and bins * PAGE.bin_s <= 130


def test_one_burst_alone_pages_nobody_however_large() -> None:
    """Every request of 100 s fails, and none before or after."""
    assert bins_until(PAGE, 10_000, 10_000) == pytest.approx(PAGE.bins_to_open, abs=1)
    watched = run(10, 10_000, 10_000)
    assert not watched.is_over("page")
    assert not run(500, 0, 10_000, watched).is_over("page")


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_a_share_within_the_null_hypothesis_raises_no_alarm(tier: Tier) -> None:
    attempts = 1000
    assert bins_until(tier, round(tier.null(LIMIT) * attempts), attempts, most=20_000) is None


def test_twice_the_objective_is_a_ticket_and_no_page() -> None:
    assert bins_until(PAGE, 20, 1000) is None
    bins = bins_until(TICKET, 120, 6000)
    assert bins is not None and 40 <= bins <= 62


@given(st.floats(1e-5, 0.6), st.integers(1, 60), st.sampled_from(TIERS))
def test_the_mean_evidence_of_a_bin_is_at_most_one_at_the_null_hypothesis(
    limit: float, attempts: int, tier: Tier
) -> None:
    """M grows by 1 and no more in each bin, so false alarms are as rare as `bar` says: for each alternative, capped or not."""
    p0 = tier.null(limit)
    mean = [0.0] * len(NONE)
    for bad in range(attempts + 1):
        chance = math.comb(attempts, bad) * p0**bad * (1 - p0) ** (attempts - bad)
        mean = [total + chance * m for total, m in zip(mean, tier.after(NONE, bad, attempts, limit), strict=True)]
    assert max(mean) <= 1 + 1e-9


def test_bins_without_an_attempt_are_no_evidence() -> None:
    watched = run(100_000 // 100, 0, 0)
    assert not watched.is_over("page") and not watched.is_over("ticket") and not watched.has_ended("page")
    assert watched.standing(LIMIT, is_burning=False, now=watched.at) is Standing.NO_DATA


def test_the_expected_delay_is_that_of_steady_counts() -> None:
    for share, rate in ((1.0, 100.0), (0.3, 100.0), (0.1, 10.0), (0.1, 1.0)):
        expected = PAGE.expected_delay_s(share, rate, LIMIT)
        attempts = rate * PAGE.bin_s
        bins = bins_until(PAGE, round(share * attempts), round(attempts))
        assert expected is not None and bins is not None
        assert expected == pytest.approx(bins * PAGE.bin_s, rel=0.4)
    assert PAGE.expected_delay_s(2 * LIMIT, 1000.0, LIMIT) is None, "it is the ticket's"


def test_an_alarm_ends_five_minutes_after_the_fault_and_not_before() -> None:
    watched = run(40, 500, 1000).begun_anew("page")
    watched = run(60, 500, 1000, watched)
    assert not watched.has_ended("page")
    watched = run(29, 0, 1000, watched)
    assert not watched.has_ended("page")
    assert run(1, 0, 1000, watched).has_ended("page")


def test_a_share_at_the_objective_ends_no_alarm() -> None:
    sums = EVEN
    for _ in range(2000):
        sums = closing(sums, 10, 1000, LIMIT)
    assert not is_closed(sums) and sum(sums) / len(sums) < CLOSES_AT


def test_an_objective_is_met_by_the_counts_since_the_release_is_stable() -> None:
    few = run(1, 0, 100)
    assert few.standing(LIMIT, is_burning=False, now=few.at) is Standing.NOT_JUDGED
    enough = run(10, 0, 100)
    assert enough.standing(LIMIT, is_burning=False, now=enough.at) is Standing.MET
    assert enough.standing(LIMIT, is_burning=True, now=enough.at) is Standing.BURNING
    assert enough.standing(LIMIT, is_burning=False, now=enough.at + NO_DATA_S + 1) is Standing.NO_DATA
    at_limit = run(1000, 1, 100)
    assert at_limit.standing(LIMIT, is_burning=False, now=at_limit.at) is Standing.NOT_JUDGED


def test_seconds_without_a_reading_are_unknown_and_no_evidence() -> None:
    before = run(5, 3, 1000)
    after = before.unread(before.at, 30.0)
    assert (after.unknown_s, after.attempts, after.page) == (30.0, before.attempts, before.page)


def test_burn_and_its_beginning_are_told_by_the_minute() -> None:
    watched = run(60, 0, 100)  # ten minutes
    watched = run(12, 50, 100, watched)
    assert watched.last(5)[1] == 3000
    assert watched.burn(2, LIMIT) == pytest.approx(50.0, rel=0.2)
    assert watched.at - 180 <= watched.bad_since(LIMIT) <= watched.at - 100
    assert len(run(60 * 6 * 2, 0, 1, watched).minutes) <= MINUTES


def test_what_is_stored_is_read_back() -> None:
    watched = run(77, 30, 1000)
    again = Watched.from_json(watched.to_json())
    assert again.page == pytest.approx(watched.page, rel=1e-5) and again.ticket == pytest.approx(
        watched.ticket, rel=1e-5
    )
    assert (again.minutes, again.part, again.bad) == (watched.minutes, watched.part, watched.bad)


def test_the_objectives_are_those_that_gateways_count_and_a_release_can_break() -> None:
    objectives = {"errors_max_frac": 0.02, "slow": {"threshold_ms": 250, "max_frac": 0.01}, "wrong": {"max_frac": 0.1}}
    found = objectives_of(parse_policy({}, objectives))
    assert [(one.name, one.max_frac) for one in found] == [("errors", 0.02), ("slow_250ms", 0.01)]
    assert found[0].counted(Counts(10, 10, {"errors": 3})) == (3, 10)
    assert found[1].counted(Counts(10, 10, {"slow_250ms": 2, "timed": 9, "given_up:slow_250ms": 1})) == (2, 10)
    assert objectives_of(parse_policy({}, {"errors_max_frac": 0.0}))[0].max_frac == LEAST_FRAC
    dry = {"guards": [{"indicator": "errors"}, {"indicator": "slow", "threshold_ms": 250, "dry_run": True}]}
    assert [one.name for one in objectives_of(parse_policy(dry, objectives))] == ["errors"]


@pytest.mark.parametrize(
    ("standings", "verdict"),
    [
        ([Standing.MET, Standing.MET], UndoVerdict.MET),
        ([Standing.MET, Standing.BURNING], UndoVerdict.BURNING),
        ([Standing.MET, Standing.NO_DATA], UndoVerdict.NOT_JUDGED),
        ([Standing.NOT_JUDGED], UndoVerdict.NOT_JUDGED),
        ([], UndoVerdict.NOT_JUDGED),
    ],
)
def test_an_undo_window_closes_by_proof_of_each_objective(standings: list[Standing], verdict: UndoVerdict) -> None:
    judged = [ObjectiveResult("errors", "errors", LIMIT, one, 1, 1000, 4.0) for one in standings]
    assert undo_verdict(judged) is verdict
    assert all(one.sentence == "1 of 1000 errors (0.10%), with 1.00% allowed" for one in judged)


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_the_benchmark_simulates_the_tests_of_the_product(tier: Tier) -> None:
    rng = np.random.default_rng(5)
    detector, sums = Detector(tier, LIMIT, 2), [NONE, NONE]
    for _ in range(200):
        requests = rng.poisson(300, 2)
        bad = rng.binomial(requests, [0.002, 0.1])
        over = detector.after(bad, requests)
        for i in range(2):
            sums[i] = tier.after(sums[i], int(bad[i]), int(requests[i]), LIMIT)
            assert tier.is_over(sums[i]) == over[i]
            sums[i] = NONE if over[i] else sums[i]
        assert np.allclose(detector.sums, np.array(sums))


# --- the control ------------------------------------------------------------------------------------------------------

PLAN = parse_policy({"watch": {"control_pct": 5, "roll_back": "undo_window"}})
OVER = Tolerance(1.2, 0.001)


def compared(
    bins: int,
    stable: tuple[int, int],
    control: tuple[int, int],
    found: Comparison = Comparison(500),  # noqa: B008 - frozen
) -> Comparison:
    bar = bar_of(PLAN, 1, 0)
    for _ in range(bins):
        found = found.after(stable, control, OVER, bar)
    return found


def test_a_release_that_is_worse_than_its_control_is_convicted_in_a_minute_and_not_sooner() -> None:
    bar = bar_of(PLAN, 1, 0)
    assert compared(BINS_TO_CONVICT - 1, (950, 950), (0, 50)).log_e < bar
    assert compared(BINS_TO_CONVICT + 2, (950, 950), (0, 50)).log_e >= bar
    assert compared(12, (190, 950), (1, 50)).log_e >= bar


@pytest.mark.parametrize(
    ("stable", "control"), [((190, 950), (10, 50)), ((1, 950), (0, 50)), ((950, 950), (0, 0)), ((0, 0), (5, 50))]
)
def test_two_bad_releases_two_good_ones_and_one_alone_convict_nobody(
    stable: tuple[int, int], control: tuple[int, int]
) -> None:
    assert compared(3000, stable, control).log_e < bar_of(PLAN, 1, 0)


def test_a_release_that_is_no_worse_is_rolled_back_no_more_often_than_the_policy_allows() -> None:
    """300 windows of an hour; `alpha_roll_back` is 1 %."""
    rng, bar, convicted = np.random.default_rng(7), bar_of(PLAN, 1, 0), 0
    for _ in range(300):
        found = Comparison(500)
        share = rng.uniform(0.001, 0.2)
        for _ in range(360):
            stable, control = int(rng.binomial(190, share)), int(rng.binomial(10, share))
            found = found.after((stable, 190), (control, 10), OVER, bar)
            if found.log_e >= bar:
                convicted += 1
                break
    assert convicted <= 3


def test_a_comparison_is_stored_and_read_back() -> None:
    found = compared(20, (30, 950), (1, 50))
    again = Watched.from_json(replace(Watched("sha256:a", 0.0), control=found).to_json()).control
    assert again is not None and again.log_e == pytest.approx(found.log_e, rel=1e-4)
    assert (again.bad, again.control_attempts) == (600, 1000)


def test_a_rollback_after_a_promotion_needs_a_control() -> None:
    assert (PLAN.control.share_bp, PLAN.control.rolls_back) == (500, True)
    for wrong in (
        {"watch": {"roll_back": "undo_window"}},
        {"watch": {"control_pct": 5, "roll_back": "undo_window"}, "instant_window_s": 0},
    ):
        with pytest.raises(Invalid, match="without a control nothing could show"):
            parse_policy(wrong)
    with pytest.raises(Invalid):
        parse_policy({"watch": {"control_pct": 6}})
    assert parse_policy({"watch": {"control_pct": 2}}).control.rolls_back is False


def test_a_look_leaves_out_the_queues_from_before_and_ends_in_three_minutes() -> None:
    bar = bar_of(PLAN, 1, 0)
    small = compared(20, (475, 950), (0, 50))
    assert small.log_e >= bar and small.may_look
    look, bar = small.at(EVEN_BP), bar_of(PLAN, 1, 1)
    assert (look.is_look, look.looks, look.attempts, look.may_look) == (True, 1, 0, False)
    settling = compared(SETTLING, (500, 500), (0, 500), look)
    assert settling.log_e <= 0 and settling.attempts == 0
    assert compared(BINS_TO_CONVICT + 2, (250, 500), (0, 500), settling).log_e >= bar
    alike = compared(18, (250, 500), (250, 500), look)
    assert alike.log_e < bar
    again = alike.at(500)
    assert not again.may_look and compared(BETWEEN, (475, 950), (0, 50), again).may_look


def test_all_looks_together_have_the_policys_chance_to_roll_back() -> None:
    shares = [math.exp(-bar_of(PLAN, 1, look)) for look in range(1, 60)]
    assert sum(shares) == pytest.approx(PLAN.alpha_roll_back, rel=1e-6)


@pytest.mark.parametrize(("bad", "attempts"), [(0, 100), (100, 100), (0, 0), (3, 100)])
def test_no_sum_grows_for_ever(bad: int, attempts: int) -> None:
    """Three days of the same bins: what is stored can be read as JSON."""
    watched = run(3 * 8640, bad, attempts)
    text = json.dumps(watched.to_json(), allow_nan=False)
    assert Watched.read(json.loads(text)) is not None
    assert watched.has_ended("page") == (bad == 0 and attempts > 0)
    assert watched.is_over("page") == (bad == 100)


def test_a_stored_value_of_another_version_is_left_out() -> None:
    told = run(3, 1, 100).to_json()
    del told["page_ends"]
    assert Watched.read(told) is None and Watched.read({}) is None and Watched.read(None) is None


def test_silence_beside_a_gateway_that_was_not_read_is_no_statement_about_requests() -> None:
    watched = run(3, 0, 100)
    later = watched.at + NO_DATA_S + 1
    assert watched.standing(LIMIT, is_burning=False, now=later) is Standing.NO_DATA
    assert watched.unread(later, 10.0).standing(LIMIT, is_burning=False, now=later) is Standing.NOT_JUDGED


@pytest.mark.parametrize("limit", [0.0, 1e-12, 0.5, 0.9999999999999999])
def test_every_objective_that_may_be_stored_can_be_judged(limit: float) -> None:
    (objective,) = objectives_of(parse_policy({}, {"errors_max_frac": limit}))
    watched = Watched("sha256:a", 0.0)
    for _ in range(20):
        watched = watched.after(watched.at + PAGE.bin_s, 5, 10, objective.max_frac)
    assert all(math.isfinite(one) for one in (*watched.page, *watched.page_ends))
