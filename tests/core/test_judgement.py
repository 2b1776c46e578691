"""The judge alone, on series of counters: calibrated under peeking, and strict about what it is given."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollouts.core.evidence import Tolerance
from rollouts.core.judgement import (
    MOST_POINTS,
    CounterJudgement,
    JudgementVerdict,
    JudgeQuestion,
    Point,
    judge,
    readings_of,
    series_problem,
)

V = JudgementVerdict
LOOKS, STREAMS = 60, 300
#: A sound candidate is as bad as stable. At this tolerance every false alarm that the statistics allow can show.
STRICT = JudgeQuestion(has_stable=True, fail_over=Tolerance(1.0, 0.0))


def series(
    rng: np.random.Generator, share: float, mean: float, looks: int = LOOKS, step_s: float = 15.0
) -> list[Point]:
    totals = rng.poisson(mean, looks)
    bad = np.cumsum(rng.binomial(totals, share))
    stamps = step_s * np.arange(1, looks + 1)
    return [(0.0, 0, 0), *zip(stamps.tolist(), bad.tolist(), np.cumsum(totals).tolist(), strict=True)]


def ask(question: JudgeQuestion, candidate: list[Point], stable: list[Point] | None = None) -> CounterJudgement:
    return judge(readings_of(candidate, stable, question.guard.name), question)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.002, 0.01, 0.1])
def test_a_sound_candidate_that_is_asked_about_60_times_fails_as_rarely_as_stated(share: float) -> None:
    """A failure stays one at each later look, so the last look has seen all of them."""
    rng = np.random.default_rng(20261128)
    pairs = [(series(rng, share, 20), series(rng, share, 80)) for _ in range(STREAMS)]
    failed = sum(ask(STRICT, *pair).verdict is V.FAILED for pair in pairs)
    assert failed <= STRICT.alpha_fail * STREAMS
    if share != 0.01:
        return
    by_default = [ask(JudgeQuestion(has_stable=True, max_frac=0.12), *pair).verdict for pair in pairs]
    assert by_default.count(V.FAILED) <= 1


@pytest.mark.slow
def test_a_sound_arm_alone_fails_as_rarely_as_stated() -> None:
    rng = np.random.default_rng(7)
    question = JudgeQuestion(has_stable=False, max_frac=0.01, fail_over=Tolerance(1.0, 0.0))
    failed = sum(ask(question, series(rng, 0.01, 50)).verdict is V.FAILED for _ in range(STREAMS))
    assert failed <= question.alpha_fail * STREAMS


@pytest.mark.slow
def test_a_fault_of_5_points_fails_and_soundness_passes() -> None:
    rng = np.random.default_rng(11)
    pairs = [(series(rng, 0.06, 20), series(rng, 0.01, 80)) for _ in range(100)]
    assert sum(ask(JudgeQuestion(has_stable=True), *pair).verdict is V.FAILED for pair in pairs) == 100
    sound = [ask(JudgeQuestion(has_stable=True), series(rng, 0.01, 100), series(rng, 0.01, 100)) for _ in range(50)]
    assert sum(one.verdict is V.PASSED for one in sound) >= 45
    alone = [ask(JudgeQuestion(has_stable=False, max_frac=0.01), series(rng, 0.06, 40)) for _ in range(50)]
    assert sum(one.verdict is V.FAILED for one in alone) == 50


def test_a_failure_stays_one_at_every_later_look() -> None:
    rng = np.random.default_rng(3)
    candidate, stable = series(rng, 0.3, 40), series(rng, 0.01, 40)
    verdicts = [ask(STRICT, candidate[:n], stable[:n]).verdict for n in range(2, len(candidate) + 1)]
    first = verdicts.index(V.FAILED)
    assert set(verdicts[first:]) == {V.FAILED}
    found = ask(STRICT, candidate, stable)
    assert found.code == "worse_than_stable" and found.until == candidate[first + 1][0] and found.since == 0.0
    assert "worse beyond doubt" in found.sentence


def test_what_is_missing_is_told_in_requests() -> None:
    candidate, stable = [(0.0, 0, 0), (15.0, 0, 100)], [(0.0, 0, 0), (15.0, 1, 100)]
    found = ask(JudgeQuestion(has_stable=True), candidate, stable)
    assert (found.verdict, found.code) == (V.INCONCLUSIVE, "not_proven")
    assert found.requests_to_go and f"about {found.requests_to_go} more" in found.sentence
    whole = ask(JudgeQuestion(has_stable=True, min_requests=9000), candidate, stable)
    assert whole.requests_to_go == 8900
    even: list[Point] = [(15.0 * n, 2 * n, 900 * n) for n in range(11)]
    passed = ask(JudgeQuestion(has_stable=True), even, even)
    assert (passed.verdict, passed.requests_to_go) == (V.PASSED, 0)


@pytest.mark.parametrize("empty", ["the candidate", "stable"])
def test_an_arm_without_requests_is_inconclusive(empty: str) -> None:
    none, some = [(0.0, 0, 0), (15.0, 0, 0)], [(0.0, 0, 0), (15.0, 5, 100)]
    pair = (none, some) if empty == "the candidate" else (some, none)
    found = ask(JudgeQuestion(has_stable=True), *pair)
    assert found.code == "no_data" and "both arms" in found.sentence


def test_an_incident_of_both_blames_nobody() -> None:
    both = [(15.0 * n, 30 * n, 100 * n) for n in range(20)]
    found = ask(JudgeQuestion(has_stable=True, max_frac=0.01), both, both)
    assert (found.verdict, found.code) == (V.INCONCLUSIVE, "both_arms_bad")


NOW = 1000.0
GOOD: list[Point] = [(0.0, 1, 10), (15.0, 1, 20)]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (GOOD, ""),
        (GOOD[:1], "There are 1 points"),
        ([(float(n), 0, n) for n in range(MOST_POINTS + 1)], "There are 2001 points"),
        ([*GOOD, (30.0, 0, 30)], "The counters fall at point 2"),
        ([*GOOD, (30.0, 1, 19)], "The counters fall at point 2"),
        ([*GOOD, (15.0, 1, 30)], "Point 2 is not later"),
        ([*GOOD, (1006.0, 1, 30)], "Point 2 lies 6 s in the future"),
        ([*GOOD, (30.0, math.nan, 30)], "Point 2 is not three finite numbers"),
        ([*GOOD, (math.inf, 1, 30)], "Point 2 is not three finite numbers"),
        ([*GOOD, (30.0, 31, 30)], "Point 2 has 31 bad of 30 requests"),
        ([*GOOD, (30.0, 1.5, 30)], "Point 2 has 1.5 bad"),
        ([*GOOD, (30.0, 5, 22)], "At point 2 more bad requests came than requests"),
    ],
)
def test_a_bad_series_is_refused_with_its_point(points: list[Point], said: str) -> None:
    found = series_problem(points, NOW)
    assert found.startswith(said) and bool(found) == bool(said)


def test_requests_of_one_arm_alone_are_compared_with_nothing() -> None:
    """Stable was bad before the candidate had traffic; since then the candidate is far worse."""
    stable, candidate = [(0.0, 0, 0)], [(0.0, 0, 0)]
    for second in range(1, 21):
        stable.append((float(second), 30 * second, 200 * second))
        candidate.append((float(second), 0, 0))
    for second in range(21, 241):
        stable.append((float(second), stable[-1][1] + 1, stable[-1][2] + 200))
        candidate.append((float(second), candidate[-1][1] + (2 if second % 2 else 1), candidate[-1][2] + 50))
    question = JudgeQuestion(has_stable=True)
    made = judge(readings_of(candidate, stable, question.guard.name), question)
    assert made.verdict is JudgementVerdict.FAILED and made.code == "worse_than_stable"
    apart = readings_of(
        [(1, 0, 0), (2, 0, 0), (3, 300, 1000)], [(1, 0, 0), (2, 300, 1000), (3, 300, 1000)], question.guard.name
    )
    assert judge(apart, question).verdict is JudgementVerdict.INCONCLUSIVE


@pytest.mark.parametrize("point", [(-1e300, 0, 0), (0.0, 1e300, 1e300)])
def test_what_no_counter_can_be_is_refused(point: tuple[float, float, float]) -> None:
    assert "out of range" in series_problem([point, (5.0, *point[1:])], now=10.0)
