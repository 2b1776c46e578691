"""A load ends when it has proven something, and is looked at no earlier than it can know of clumps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from validators.core.load import Attempt, arrivals
from validators.core.policy import parse_policy
from validators.core.proof import LEAST_WINDOWS, first_proof, proof_at
from validators.core.slo import judge_slo, most_over
from validators.core.verdict import Verdict
from validators.execution.gates.load_looks import is_proven, settled


def section(**load: Any) -> dict[str, Any]:
    return parse_policy({"load": {"slo_ms": 100, "slo_quantile": 0.95, "rate_per_s": 20, **load}}).of("load")


def test_the_first_proof_counts_whatever_comes_after_it() -> None:
    over, sent = [0] * 9 + [20] * 30, [20] * 39
    found = first_proof(over, sent, section())
    assert (found.windows, found.found.n, found.found.verdict) == (8, 160, Verdict.PASSED)
    fixed = first_proof(over, sent, section(duration_s=39))
    assert (fixed.windows, fixed.found.verdict) == (39, Verdict.FAILED), "a run of a fixed length is looked at once"


def test_a_stall_at_the_start_is_no_proof() -> None:
    stalled = [20] + [0] * 30
    assert proof_at(stalled[:1], [20], section()).found.verdict is Verdict.FAILED
    found = first_proof(stalled, [20] * 31, section())
    assert found.found.verdict is Verdict.UNDECIDED
    assert first_proof([20] * 31, [20] * 31, section()).windows == LEAST_WINDOWS


def test_clumps_weigh_less_by_what_the_policy_says_and_by_what_the_run_shows() -> None:
    clean, sent = [0] * 30, [20] * 30
    assert [first_proof(clean, sent, section(least_dispersion=phi)).windows for phi in (1.5, 3, 5)] == [8, 11, 18]
    assert proof_at([0, 8, 0, 0], [20] * 4, section(least_dispersion=2)).found.phi == pytest.approx(1.5 * 16 / 2)


def test_several_tests_of_one_run_share_the_chance_of_failing_needlessly() -> None:
    over = next(x for x in range(60) if judge_slo(x, 200, quantile=0.95, confidence=0.95).verdict is Verdict.FAILED)
    shared = judge_slo(over, 200, quantile=0.95, confidence=0.95, tests=5)
    assert shared.verdict is Verdict.UNDECIDED
    assert judge_slo(0, 200, quantile=0.95, confidence=0.95, tests=5).verdict is Verdict.PASSED, "but not of passing"


def test_the_most_that_can_be_over_is_where_the_test_passes() -> None:
    most = most_over(2, 300, confidence=0.95)
    for share, verdict in ((most + 1e-6, Verdict.PASSED), (most - 1e-6, Verdict.UNDECIDED)):
        assert judge_slo(2, 300, quantile=1 - share, confidence=0.95).verdict is verdict
    assert 2 / 300 < most < 0.05
    assert most_over(0, 0, confidence=0.95) == 1
    assert most_over(5, 5, confidence=0.95) == pytest.approx(1)


class Looks:
    """Looks at a run of 60 s at 20/s, whose requests take `took_s` seconds, as it would be seen at an instant."""

    def __init__(self, took_s: Any, kinds: tuple[str, ...] = ("usual",), **load: Any) -> None:
        self.schedule = arrivals(20, 60, seed=3)
        self.attempts = [Attempt(due, due, due + took_s(at), at=at) for at, due in enumerate(self.schedule.tolist())]
        self.attempts.sort(key=lambda one: one.done_s)
        self.look = is_proven(self.schedule, kinds, section(**load))

    def first(self) -> float | None:
        """Seconds until it has seen enough."""
        for now_s in np.arange(0.25, 70, 0.5).tolist():
            if self.look([one for one in self.attempts if one.done_s <= now_s], now_s):
                return float(now_s)
        return None


def test_a_run_is_enough_as_soon_as_it_is_proven() -> None:
    at_s = Looks(lambda at: 0.01).first()
    assert at_s is not None and 8 <= at_s <= 8.8, "eight windows and the next look"
    patient = Looks(lambda at: 0.01, slo_ms=5000).first()
    assert patient == at_s, "who has answered all is not waited for"
    assert Looks(lambda at: 0.01, slo_quantile=0.9999).first() is None


def test_who_waits_longer_than_the_objective_is_over_before_the_answer_is_there() -> None:
    """Answers alone would show the fast ones first: here nine in ten requests do not end for a minute."""
    at_s = Looks(lambda at: 0.01 if at % 10 == 0 else 600.0).first()
    assert at_s is not None and at_s <= 8.8


def test_a_slow_class_ends_a_run_that_all_together_would_go_on() -> None:
    kinds = ("short",) * 7 + ("longest",)
    mixed: dict[str, Any] = {"slo_quantile": 0.8, "slo_ms": 100}
    assert Looks(lambda at: 1.0 if at % 8 == 7 else 0.01, kinds, **mixed).first() is not None
    all_alike = Looks(lambda at: 1.0 if at % 8 == 7 else 0.01, **mixed).first()
    by_class = Looks(lambda at: 1.0 if at % 8 == 7 else 0.01, kinds, **mixed).first()
    assert all_alike is None or (by_class is not None and by_class <= all_alike)


def test_a_run_goes_on_until_the_first_tokens_are_proven_too() -> None:
    """Of answers within 5 s, streamed: the first response of each comes after so many seconds."""

    def looks(first_s: float) -> Looks:
        made = Looks(lambda at: 2.0, slo_ms=5000, ttft_slo_ms=100, slo_quantile=0.9)
        made.attempts = [replace(one, came_s=(one.due_s + first_s, one.done_s)) for one in made.attempts]
        return made

    early, late, never = looks(0.05), looks(0.5), looks(0.05)
    assert early.first() == late.first() == Looks(lambda at: 2.0, slo_ms=5000, slo_quantile=0.9).first()
    some = [replace(one, came_s=(one.due_s + (0.5 if one.at % 9 else 0.05),)) for one in never.attempts if one.at % 9]
    assert not never.look(some, 60.0), "who has not ended may have had the first response in time"


def test_a_run_goes_on_until_the_gaps_are_proven_too() -> None:
    """Of answers within 5 s: the responses of each but every `alone`th come after such gaps."""

    def looks(gap_s: float, alone: int = 10**6, **load: Any) -> float | None:
        made = Looks(lambda at: 2.0, slo_ms=5000, slo_quantile=0.9, **load)
        made.attempts = [
            replace(one, came_s=(one.due_s + 0.1,) if one.at % alone == 0 else (one.due_s, one.due_s + gap_s))
            for one in made.attempts
        ]
        return made.first()

    unasked = looks(0.5)
    assert unasked is not None and looks(0.05, itl_slo_ms=100) == looks(0.5, itl_slo_ms=100) == unasked
    assert looks(0.05, 1, itl_slo_ms=100) is None, "answers of one response prove nothing"
    some = looks(0.05, 2, itl_slo_ms=100, least_dispersion=4)
    assert some is not None and some > (looks(0.05, itl_slo_ms=100, least_dispersion=4) or 0)


def test_requests_are_settled_up_to_the_first_that_may_still_be_in_time() -> None:
    schedule = np.array([0.0, 0.5, 1.0, 2.0, 2.1])
    ended = [Attempt(0.5, 0.5, 0.6, at=1), Attempt(2.1, 2.1, 2.11, at=4)]

    def known(now_s: float) -> list[tuple[float, float]]:
        return [(one.due_s, one.done_s) for one in settled(schedule, ended, now_s, 250)]

    assert known(0.3) == []
    assert known(1.3) == [(0.0, float("inf")), (0.5, 0.6)]
    assert known(1.4) == [(0.0, float("inf")), (0.5, 0.6), (1.0, float("inf"))]
    assert known(2.4)[3:] == [(2.0, float("inf")), (2.1, 2.11)]
