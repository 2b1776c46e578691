"""The time to the first response: how it is counted, and what it adds to the verdict on whole answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from validators.core.first_response import is_blamed, judge_first, summarise_first, token_times, until_first
from validators.core.load import Attempt, LoadSummary, count_tests, judge_load, max_lag_ms, summarise
from validators.core.policy import parse_policy
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
    first = summarise_first(attempts, duration_s=SECONDS, ttft_slo_ms=policy.get("ttft_slo_ms"))
    return judge_first(found or judge_load(whole, policy), whole, first, policy)


def test_it_counts_from_when_the_request_was_due() -> None:
    late = Attempt(1.0, 1.5, 3.0, came_s=(2.0, 2.5, 3.0))
    assert until_first(late).done_s == 2.0
    unary = Attempt(1.0, 1.5, 3.0)
    assert until_first(unary) is unary
    first = summarise_first([late, unary], duration_s=4, ttft_slo_ms=1000)
    assert (first.over, first.latency_ms["max"]) == (1, 2000.0)


def test_the_gaps_are_between_responses_of_answered_requests() -> None:
    answered = Attempt(0.0, 0.0, 1.0, came_s=(0.1, 0.2, 0.4))
    broken = Attempt(0.0, 0.0, 9.0, "boom", came_s=(5.0, 9.0))
    single = Attempt(0.0, 0.0, 0.3, came_s=(0.3,))
    first = summarise_first([answered, broken, single], duration_s=1, ttft_slo_ms=None)
    assert token_times([answered, broken, single], first) == {
        "ttft_ms": {"p50": 200.0, "p95": 290.0, "p99": 298.0},
        "itl_ms": {"p50": 150.0, "p95": 195.0, "p99": 199.0},
        "responses": 4,
    }
    assert token_times([single], summarise_first([single], duration_s=1, ttft_slo_ms=None))["itl_ms"] == {}
    assert token_times([Attempt(0.0, 0.0, 1.0)], first) == {}


def test_it_passes_where_both_objectives_are_proven() -> None:
    found = judged(streams(0.125), section())
    assert found.verdict is Verdict.PASSED and not is_blamed(found)
    assert found.evidence["ttft_test"]["over"] == 0 and "more than 125 ms for the first token: proven" in found.reason


def test_a_late_first_token_fails_a_release_whose_whole_answers_are_in_time() -> None:
    found = judged(streams(0.25, every=2), section())
    assert found.verdict is Verdict.FAILED and is_blamed(found)
    assert found.reason.startswith("Time to first token: ") and "at most 10.00% may: refuted" in found.reason
    assert found.evidence["over"] == 0 and found.evidence["ttft_slo_ms"] == 125


def test_what_is_open_for_the_first_token_is_open_for_all() -> None:
    found = judged(streams(0.25, every=10), section())
    assert found.verdict is Verdict.UNDECIDED and not is_blamed(found)
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

    def failures(policy: dict[str, Any], classes: int) -> int:
        """In how many runs, of all shares over, the first token is refuted."""
        own = policy | {"least_dispersion": 1}
        runs = [streams(0.25, every=every, count=160) for every in np.arange(1, 12).tolist()]
        whole: Any = LoadSummary(
            **{**vars(summarise(runs[0], duration_s=20, slo_ms=5000)), "classes": (None,) * classes}
        )
        firsts = [summarise_first(run, duration_s=20, ttft_slo_ms=125) for run in runs]
        passed = Judgement(Verdict.PASSED, "Fast.")
        return sum(judge_first(passed, whole, one, own).verdict is Verdict.FAILED for one in firsts)

    assert failures(section(), 0) > failures(section(), 100_000)
