"""The capacity search: which rate it measures next, what it claims, and that on simulated servers it claims too much too seldom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.capacity import PLAN, WORLDS, limit_of, search
from validators.core.capacity_search import (
    Ended,
    Purpose,
    Run,
    SearchPlan,
    Step,
    is_hopeless,
    next_step,
    proves,
    refutes,
)
from validators.core.overload_curve import Seen, curve_through
from validators.core.slo import proven_at_once

FIRST, *_ = WORLDS


def run(rate: float, seconds: int, over_frac: float, purpose: Purpose = Purpose.PROBE) -> Run:
    """A run in which so many of each second's requests, on average, were over, as evenly as can be."""
    sent = [max(1, round(rate))] * seconds
    until = np.round(np.cumsum(sent) * over_frac).astype(int)
    over = np.diff(until, prepend=0).tolist()
    return Run(Step(rate, seconds, purpose), tuple(over), tuple(sent))


def step(runs: list[Run], plan: SearchPlan = PLAN) -> Step:
    found = next_step(runs, plan)
    assert isinstance(found, Step)
    return found


def ended(runs: list[Run], plan: SearchPlan = PLAN) -> Ended:
    found = next_step(runs, plan)
    assert isinstance(found, Ended)
    return found


def test_rates_are_doubled_until_one_is_clearly_missed() -> None:
    runs = [run(8, 10, 0.0)]
    assert step(runs) == Step(16, 5, Purpose.PROBE)
    runs.append(run(16, 10, 0.02))  # a clump, perhaps
    assert step(runs) == Step(32, 5, Purpose.PROBE)
    runs.append(run(32, 10, 0.1))
    assert step(runs).purpose is Purpose.NEAR


def test_a_first_rate_that_is_missed_is_halved_until_the_search_gives_up() -> None:
    runs: list[Run] = []
    for _ in range(7):
        runs.append(run(step(runs).rate_per_s, 10, 1.0))
    assert [one.step.rate_per_s for one in runs] == [8, 4, 2, 1, 0.5, 0.25, 0.125]
    assert ended(runs) == Ended(None, "it misses its objective even at 0.125/s")


def test_a_limit_without_a_slope_is_found_by_halving() -> None:
    runs = [run(8, 10, 0.0), run(16, 10, 1.0)]
    while (found := step(runs)).purpose is Purpose.PROBE:
        runs.append(run(found.rate_per_s, 10, 0.0 if found.rate_per_s < 13 else 1.0))
    assert found.purpose is Purpose.CONFIRM
    assert 12.3 < found.rate_per_s < 13


def test_the_greatest_rate_that_may_be_asked_is_confirmed_itself() -> None:
    plan = replace(PLAN, most_per_s=12)
    assert step([run(8, 10, 0.0)], plan).rate_per_s == 12
    held = [run(8, 10, 0.0), run(12, 10, 0.0)]
    assert step(held, plan) == Step(12, plan.first_confirm_s, Purpose.CONFIRM)
    proof = run(12, 138, 0.0, Purpose.CONFIRM)
    assert ended([*held, proof], plan).claim is proof  # no more may be asked


def near_the_limit() -> list[Run]:
    """Of a server whose log odds of being over grow tenfold with the log of the rate, and whose limit is 60/s."""
    runs = [run(30, 5, 0.0), run(90, 5, 0.4)]
    for rate in (65, 60, 57):
        odds = 0.01 / 0.99 * (rate / 60) ** 10
        runs.append(run(rate, 35, odds / (1 + odds), Purpose.NEAR))
    return runs


def test_a_safe_rate_is_confirmed_first_and_then_a_nearer_one_with_all_that_is_left() -> None:
    runs = near_the_limit()
    first = step(runs)
    assert (first.purpose, first.seconds) == (Purpose.CONFIRM, PLAN.first_confirm_s)
    assert 48 < first.rate_per_s < 52
    safe = run(first.rate_per_s, 138, 0.002, Purpose.CONFIRM)
    nearer = step([*runs, safe])
    assert (nearer.purpose, nearer.seconds) == (Purpose.CONFIRM, 600 - 115 - 138)
    assert 54 < nearer.rate_per_s < 57
    proof = run(nearer.rate_per_s, 347, 0.004, Purpose.CONFIRM)
    assert ended([*runs, safe, proof]).claim is proof


def test_between_what_was_proven_and_what_was_not_a_last_rate_is_tried() -> None:
    runs = [*near_the_limit(), run(50, 138, 0.002, Purpose.CONFIRM), run(56, 60, 0.0085, Purpose.CONFIRM)]
    between = step(runs)
    assert 50 < between.rate_per_s <= 0.97 * 56
    assert between.seconds == 600 - 115 - 138 - 60
    found = ended([*runs, run(between.rate_per_s, 60, 0.012, Purpose.CONFIRM)])
    assert found.claim is runs[-2]  # what was proven stays proven


def test_a_rate_that_is_not_proven_is_followed_by_a_lower_one_and_after_that_by_none() -> None:
    runs = [*near_the_limit(), run(50, 60, 0.007, Purpose.CONFIRM)]
    lower = step(runs)
    assert lower.purpose is Purpose.CONFIRM
    assert 35 < lower.rate_per_s < 0.97 * 50
    found = ended([*runs, run(lower.rate_per_s, 60, 0.012, Purpose.CONFIRM)])
    assert found.claim is None
    assert found.why.startswith("600 s were not enough to prove 50/s and 39")


def test_a_last_rate_is_not_tried_where_nothing_lies_between() -> None:
    runs = [*near_the_limit(), run(50, 138, 0.002, Purpose.CONFIRM), run(51.5, 60, 0.012, Purpose.CONFIRM)]
    assert ended(runs).claim is runs[-2]


def test_a_claim_rests_on_its_own_whole_run_and_on_nothing_else() -> None:
    good = run(50, 480, 0.002, Purpose.CONFIRM)
    assert ended([*near_the_limit(), good]).claim is good
    assert ended([run(8, 10, 1.0), run(4, 60, 0.0), good]).claim is good  # whatever came before
    cut = Run(good.step, good.over_per_window[:479], good.sent_per_window[:479])
    assert not proves(cut, PLAN)


def test_slow_requests_that_come_together_weigh_less() -> None:
    sent = (50,) * 240
    even, clumped = (0, 0, 0, 0, 1, 0) * 40, (0,) * 120 + (40,) + (0,) * 119
    assert sum(even) == sum(clumped)
    whole = Step(50, 240, Purpose.CONFIRM)
    assert proves(Run(whole, even, sent), PLAN)
    assert not proves(Run(whole, clumped, sent), PLAN)


def test_a_confirmation_is_given_up_once_it_will_not_pass() -> None:
    assert is_hopeless(run(50, 60, 0.009, Purpose.CONFIRM), PLAN)
    assert not is_hopeless(run(50, 59, 0.009, Purpose.CONFIRM), PLAN)
    assert not is_hopeless(run(50, 60, 0.007, Purpose.CONFIRM), PLAN)
    assert not is_hopeless(run(50, 60, 0.009, Purpose.NEAR), PLAN)


def test_a_run_refutes_only_what_it_clearly_missed() -> None:
    assert refutes(run(50, 10, 0.5), PLAN)
    assert not refutes(run(50, 10, 0.01), PLAN)


def test_one_look_asks_for_the_lower_tail_of_the_binomial() -> None:
    # .99 ** 298 = .0500…, .99 ** 299 = .0495…: the least run of which none is over
    assert not proven_at_once(0, 298, quantile=0.99, chance=0.05)
    assert proven_at_once(0, 299, quantile=0.99, chance=0.05)
    assert not proven_at_once(0, 299, quantile=0.99, chance=0.05, phi=1.1)
    assert not proven_at_once(5, 5, quantile=0.99, chance=0.05)


def test_the_curve_goes_through_what_was_measured() -> None:
    seen = [Seen(rate, n * p, n) for rate, p, n in ((50, 0.002, 1e6), (60, 0.01, 1e6))]
    curve = curve_through(seen)
    assert curve.rate_at(0.01) == pytest.approx(60, rel=1e-3)
    assert curve.rate_at(0.002) == pytest.approx(50, rel=1e-3)


def test_on_a_simulated_queue_few_searches_claim_too_much_and_most_come_close() -> None:
    limit = limit_of(WORLDS[FIRST], PLAN.quantile)
    found = [search(WORLDS[FIRST], PLAN, 9000 + at) for at in range(8)]
    parts = [ended.claim.step.rate_per_s / limit if ended.claim else 0.0 for ended, _ in found]
    assert max(parts) <= 1
    assert np.median(parts) > 0.85
    assert min(parts) > 0.5
    assert max(sum(len(run.over_per_window) for run in runs) for _, runs in found) <= PLAN.budget_s
