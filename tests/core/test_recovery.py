"""After a burst the objective holds again in time, or the release stays slow and fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from validators.core.load import Attempt
from validators.core.policy import parse_policy
from validators.core.recovery import LEAST_REQUESTS, is_asked, judge_recovery, recovered_after_s, surge
from validators.core.verdict import Judgement, Verdict

FOUND = Judgement(Verdict.PASSED, "Proven.", {"requests": 5})


def section(**load: Any) -> dict[str, Any]:
    return parse_policy({"load": {"slo_ms": 100, "slo_quantile": 0.95, "rate_per_s": 20, **load}}).of("load")


def queue(schedule: Any, service_s: Callable[[int], float]) -> list[Attempt]:
    """One request after the other; `service_s` of how many are waiting then."""
    out: list[Attempt] = []
    free_s = 0.0
    for at, due in enumerate(schedule.tolist()):
        waiting = sum(one.done_s > due for one in out)
        free_s = max(free_s, due) + service_s(waiting)
        out.append(Attempt(due, due, free_s, at=at))
    return out


def test_more_than_the_rate_comes_for_some_seconds_and_then_the_rate() -> None:
    due = surge(section(), seed=1)
    assert len(due[due < 3]) == 180 and (np.diff(due) >= 0).all()
    after_s = 10 + 3 * LEAST_REQUESTS / 20
    assert (due >= 3).sum() == round(20 * after_s) and due[-1] < 3 + after_s
    assert LEAST_REQUESTS == 31


def test_a_server_that_works_off_its_queue_is_back() -> None:
    due = surge(section(), seed=1)
    found = judge_recovery(FOUND, queue(due, lambda waiting: 1 / 40), section())
    assert (found.verdict, found.reason) == (Verdict.PASSED, "Proven.")
    told = found.evidence["recovery"]
    assert (told["burst_requests"], told["burst_per_s"], told["allowed_s"], found.evidence["requests"]) == (
        180,
        60,
        10,
        5,
    )
    assert 2 <= told["recovered_after_s"] <= 4, "60 waiting, of which 20 a second are worked off"


def test_a_server_that_slows_down_while_it_has_a_queue_never_comes_back() -> None:
    """It serves 40/s at leisure, and 18/s with ten waiting: at 20/s that never ends."""
    metastable = queue(surge(section(), seed=1), lambda waiting: 1 / 40 if waiting < 10 else 1 / 18)
    found = judge_recovery(FOUND, metastable, section())
    assert found.verdict is Verdict.FAILED
    assert found.reason == (
        "After 3 s at 60 requests/s it was not back within 100 ms at 20/s, and 10 s are allowed. Before: Proven."
    )
    assert found.evidence["recovery"]["recovered_after_s"] is None


def test_it_has_so_long_and_no_longer() -> None:
    attempts = queue(surge(section(), seed=1), lambda waiting: 1 / 40)
    back_s = recovered_after_s(attempts, section())
    assert back_s is not None
    assert judge_recovery(FOUND, attempts, section(recovery_s=back_s)).verdict is Verdict.PASSED
    late = judge_recovery(FOUND, attempts, section(recovery_s=back_s - 0.01))
    assert late.verdict is Verdict.FAILED and f"only after {back_s:.1f} s" in late.reason


def test_slow_ones_that_the_objective_allows_do_not_keep_it_from_being_back() -> None:
    attempts = [Attempt(3 + at / 20, 3 + at / 20, 3 + at / 20 + (1 if at % 15 == 4 else 0.01)) for at in range(200)]
    assert recovered_after_s(attempts, section()) is not None
    often = [Attempt(3 + at / 20, 3 + at / 20, 3 + at / 20 + (1 if at % 4 == 1 else 0.01)) for at in range(2000)]
    assert recovered_after_s(often, section()) is None


def test_an_error_is_no_answer_in_time_and_what_the_burst_itself_met_does_not_count() -> None:
    burst = [Attempt(at / 60, at / 60, 9.0, "full") for at in range(180)]
    quick = [Attempt(3 + at / 20, 3 + at / 20, 3 + at / 20 + 0.01) for at in range(100)]
    assert recovered_after_s(burst + quick, section()) == 0
    broken = [Attempt(one.due_s, one.sent_s, one.done_s, "gone") for one in quick]
    assert recovered_after_s(burst + broken, section()) is None


def test_what_was_not_sent_says_nothing_of_the_server() -> None:
    """Where an envelope declares few requests at once, some find no place at any rate; those that do are looked at."""
    full = [Attempt(3 + at / 20, 3 + at / 20, 3 + at / 20, "8 were unanswered", is_sent=False) for at in range(200)]
    quick = [Attempt(one.due_s, one.sent_s, one.done_s + 0.01) for one in full]
    every_third = [quick[at] if at % 3 == 0 else full[at] for at in range(200)]
    assert recovered_after_s(every_third, section()) == 0
    assert recovered_after_s(full, section()) is None


def test_a_client_that_was_late_says_nothing_of_the_server() -> None:
    late = [Attempt(3 + at / 20, 3.5 + at / 20, 3.51 + at / 20) for at in range(100)]
    found = judge_recovery(FOUND, late, section())
    assert found.verdict is Verdict.ERRORED
    assert found.reason.startswith(
        "generator_limited: After 3 s at 60 requests/s it sent 1 % of its requests more than 500"
    )


@pytest.mark.parametrize(
    ("load", "asked"),
    [({}, True), ({"burst_s": 0}, False), ({"slo_ms": None}, False), ({"rate_per_s": 0.05}, False), ({"rate_per_s": 0.06}, True)],
)  # fmt: skip
def test_it_is_asked_where_there_is_an_objective_and_enough_traffic_to_see_it(
    load: dict[str, Any], asked: bool
) -> None:
    assert is_asked(section(**load)) is asked
