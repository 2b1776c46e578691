"""The times of responses: how they are counted, and what they add to the verdict on whole answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from validators.core.load import Attempt, LoadSummary, count_tests, judge_load, max_lag_ms, summarise
from validators.core.policy import parse_policy
from validators.core.token_times import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    OBJECTIVES,
    blamed,
    judge_tokens,
    mean_gap,
    summarise_seen,
    token_times,
    until_first,
)
from validators.core.verdict import Judgement, Verdict

SECONDS = 40


def section(**load: Any) -> dict[str, Any]:
    asked = {"slo_ms": 5000, "ttft_slo_ms": 125, "slo_quantile": 0.9, "rate_per_s": 8}
    return parse_policy({"load": {**asked, **load}}).of("load")


def streams(first_s: float, *, every: int = 1, lag_s: float = 0.0, count: int = 8 * SECONDS) -> list[Attempt]:
    """Eight requests a second: of `every` so many the first response comes after so long, of all others at once."""
    out = []
    for at in range(count):
        due = at / 8
        came = due + (first_s if at % every == 0 else 0.0625)
        out.append(Attempt(due, due + lag_s, came + 1, at=at, came_s=(came, came + 0.25, came + 1)))
    return out


def judged(attempts: list[Attempt], policy: dict[str, Any], found: Judgement | None = None) -> Judgement:
    whole = summarise(attempts, duration_s=SECONDS, slo_ms=policy["slo_ms"])
    seen = {one: summarise_seen(attempts, one, duration_s=SECONDS, policy=policy) for one in OBJECTIVES}
    return judge_tokens(found or judge_load(whole, policy), whole, seen, policy)


def test_it_counts_from_when_the_request_was_due() -> None:
    late = Attempt(1.0, 1.5, 3.0, came_s=(2.0, 2.5, 3.0))
    assert until_first(late).done_s == 2.0
    unary = Attempt(1.0, 1.5, 3.0)
    assert until_first(unary) is unary
    first = summarise_seen([late, unary], FIRST_TOKEN, duration_s=4, policy={"ttft_slo_ms": 1000})
    assert (first.over, first.latency_ms["max"]) == (1, 2000.0)


def test_the_gaps_are_between_responses_of_answered_requests() -> None:
    answered = Attempt(0.0, 0.0, 1.0, came_s=(0.1, 0.2, 0.4))
    broken = Attempt(0.0, 0.0, 9.0, "boom", came_s=(5.0, 9.0))
    single = Attempt(0.0, 0.0, 0.3, came_s=(0.3,))
    first = summarise_seen([answered, broken, single], FIRST_TOKEN, duration_s=1, policy={})
    assert token_times([answered, broken, single], first) == {
        "ttft_ms": {"p50": 200.0, "p95": 290.0, "p99": 298.0},
        "itl_ms": {"p50": 150.0, "p95": 195.0, "p99": 199.0},
        "ttft_low_ms": {"p99": 100.0},
        "itl_low_ms": {},
        "streams": 1,
        "responses": 4,
    }
    alone = summarise_seen([single], FIRST_TOKEN, duration_s=1, policy={})
    assert token_times([single], alone)["itl_ms"] == {}
    assert token_times([Attempt(0.0, 0.0, 1.0)], first) == {}


def test_it_passes_where_both_objectives_are_proven() -> None:
    found = judged(streams(0.125), section())
    assert found.verdict is Verdict.PASSED and blamed(found) is None
    assert found.evidence["ttft_test"]["over"] == 0 and "more than 125 ms for the first token: proven" in found.reason


def test_a_late_first_token_fails_a_release_whose_whole_answers_are_in_time() -> None:
    found = judged(streams(0.25, every=2), section())
    assert found.verdict is Verdict.FAILED and blamed(found) is FIRST_TOKEN
    assert found.reason.startswith("Time to first token: ") and "at most 10.00% may: refuted" in found.reason
    assert found.evidence["over"] == 0 and found.evidence["ttft_slo_ms"] == 125


def test_what_is_open_for_the_first_token_is_open_for_all() -> None:
    found = judged(streams(0.25, every=10), section())
    assert found.verdict is Verdict.UNDECIDED and blamed(found) is None
    undecided = judged(streams(0.125), section(), Judgement(Verdict.UNDECIDED, "Open."))
    assert undecided.verdict is Verdict.UNDECIDED and undecided.reason.endswith("proven.")


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.ERRORED])
def test_what_failed_for_its_whole_answers_is_not_blamed_twice(verdict: Verdict) -> None:
    found = Judgement(verdict, "Slow.")
    assert judged(streams(0.25), section(), found) is found


def test_who_is_not_asked_is_judged_as_ever() -> None:
    found = Judgement(Verdict.PASSED, "Fast.")
    assert judged(streams(9.0), section(ttft_slo_ms=None), found) is found


def test_a_late_generator_blames_nobody_and_can_prove() -> None:
    policy = section(max_lag_ms=50)
    late = judged(streams(0.25, every=2, lag_s=0.0625), policy, Judgement(Verdict.PASSED, "Fast."))
    assert late.verdict is Verdict.ERRORED and late.reason.startswith("generator_limited: ")
    assert judged(streams(0.125, lag_s=0.0625), policy, Judgement(Verdict.PASSED, "Fast.")).verdict is Verdict.PASSED
    assert (max_lag_ms(section()), max_lag_ms(section(ttft_slo_ms=None))) == (25, 1000)


def test_the_error_is_shared_by_one_test_more() -> None:
    assert [count_tests(section(), 3), count_tests(section(ttft_slo_ms=None), 3)] == [5, 4]
    assert count_tests(section(itl_slo_ms=50), 3) == 6

    def failures(policy: dict[str, Any], classes: int) -> int:
        """In how many runs, of all shares over, the first token is refuted."""
        own = policy | {"least_dispersion": 1}
        runs = [streams(0.25, every=every, count=160) for every in np.arange(1, 12).tolist()]
        whole: Any = LoadSummary(
            **{**vars(summarise(runs[0], duration_s=20, slo_ms=5000)), "classes": (None,) * classes}
        )
        firsts = [summarise_seen(run, FIRST_TOKEN, duration_s=20, policy=own) for run in runs]
        passed = Judgement(Verdict.PASSED, "Fast.")
        return sum(judge_tokens(passed, whole, {FIRST_TOKEN: one}, own).verdict is Verdict.FAILED for one in firsts)

    assert failures(section(), 0) > failures(section(), 100_000)


BETWEEN: dict[str, Any] = {"ttft_slo_ms": None, "itl_slo_ms": 125}


def gaps(*gaps_s: float, every: int = 1, alone: int = 0, lag_s: float = 0.0, error: str = "") -> list[Attempt]:
    """Eight requests a second: of `every` so many the first has these gaps, all others of 62.5 ms; each `alone`th has none."""
    out = []
    for at in range(8 * SECONDS):
        first = at / 8 + 0.0625
        own = gaps_s if at % every == 0 else (0.0625,) * len(gaps_s)
        came = (first, *(first + np.cumsum(own)).tolist())[: 1 if alone and at % alone == 0 else None]
        out.append(Attempt(at / 8, at / 8 + lag_s, came[-1], error, at=at, came_s=came))
    return out


def test_a_stream_counts_by_the_mean_of_its_gaps() -> None:
    uneven = Attempt(1.0, 1.5, 3.0, came_s=(2.0, 2.0, 2.25, 3.0))
    seen = mean_gap(uneven)
    assert seen is not None and seen.done_s - seen.due_s == pytest.approx(1 / 3)
    assert mean_gap(Attempt(1.0, 1.5, 3.0)) is mean_gap(Attempt(1.0, 1.5, 3.0, came_s=(3.0,))) is None
    broken = Attempt(1.0, 1.5, 1.5, "boom", came_s=(1.25,))
    assert mean_gap(broken) is broken
    twice = Attempt(1.0, 1.5, 1.5, "boom", came_s=(1.25, 1.26))
    run = summarise_seen([uneven, broken, twice], BETWEEN_TOKENS, duration_s=4, policy={"itl_slo_ms": 400})
    assert (run.requests, run.over) == (3, 2), "what fails is over, however fast it began"


def test_slow_tokens_fail_a_release_whose_first_comes_at_once() -> None:
    asked = section(itl_slo_ms=125)
    found = judged(gaps(0.25, 0.25, every=2), asked)
    assert found.verdict is Verdict.FAILED and blamed(found) is BETWEEN_TOKENS
    assert found.reason.startswith("Time between tokens: ") and "more than 125 ms from response to resp" in found.reason
    assert found.evidence["ttft_test"]["verdict"] == "passed" and found.evidence["itl_slo_ms"] == 125
    assert judged(gaps(0.25, 0.25, every=2), section()).verdict is Verdict.PASSED, "nobody asked"
    assert judged(gaps(0.25, 0.25, every=10), asked).verdict is Verdict.UNDECIDED


def test_a_pause_within_a_stream_is_shared_by_its_gaps() -> None:
    assert judged(gaps(0.03125, 0.1875, 0.03125, 0.1875), section(**BETWEEN)).verdict is Verdict.PASSED


def test_answers_of_one_response_say_nothing_of_gaps() -> None:
    found = judged(gaps(alone=1), section(**BETWEEN))
    assert found.verdict is Verdict.UNDECIDED and "0 of 0 took" in found.reason and "320 had no second" in found.reason
    half = judged(gaps(0.25, alone=2), section(**BETWEEN))
    assert half.verdict is Verdict.FAILED, "half are in one piece, and do not hide the others"
    assert half.evidence["itl_test"]["unseen"] == 160
    assert half.evidence["itl_test"]["requests"] == half.evidence["itl_test"]["over"]
    assert judged(gaps(0.0625, alone=2), section(**BETWEEN)).verdict is Verdict.PASSED
    assert "unseen" not in judged(gaps(0.0625), section(**BETWEEN)).evidence["itl_test"]


@pytest.mark.parametrize("gap_s", [0.0625, 0.25])
def test_a_late_generator_proves_nothing_of_gaps(gap_s: float) -> None:
    """Who reads the first response late sees shorter ones."""
    late = judged(gaps(gap_s, lag_s=0.0625), section(**BETWEEN), Judgement(Verdict.PASSED, "Fast."))
    assert late.verdict is Verdict.ERRORED and late.reason.endswith("nothing about the time between tokens.")
