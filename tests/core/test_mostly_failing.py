"""The rule for a candidate that fails more often than not: it is taken back, one that had a bad moment is not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms, Counts
from rollouts.core.decision import Action, Code, Decision
from rollouts.core.engine_state import EngineState
from rollouts.core.mostly_failing import CHANCE, MostlyFailing
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk, walk

#: Evidence that never convicts, so that only this rule speaks: a stable that fails now and then is no reason for it to be silent.
SLOW_TO_CONVICT = {"alpha_roll_back": 1e-12, "budget_bad": None}
STABLE = (40, 0)
Ticks = Sequence[tuple[int, int]]  # attempts and errors of one arm in each tick


def walked(candidate: Ticks, stable: Ticks | None = None, *, tick_s: float = 0.25, **policy: object) -> list[Walk]:
    plan = parse_policy({"guards": [{"indicator": "errors"}], **SLOW_TO_CONVICT, **policy})
    beside = stable or [STABLE] * len(candidate)

    def feed(tick: int, weight_bp: int) -> Arms | None:
        if tick > len(candidate):
            return None
        return Arms(*(Counts(n, n, {ERRORS: bad}) for n, bad in (candidate[tick - 1], beside[tick - 1])))

    return list(walk(plan, feed, tick_s=tick_s))


def last(walks: list[Walk]) -> Decision:
    return walks[-1].decision


def row(*readings: tuple[Counts, Counts], tick_s: float = 0.25) -> MostlyFailing:
    found = MostlyFailing()
    for i, (candidate, stable) in enumerate(readings):
        found = found.after(i * tick_s, Arms(candidate, stable))
    return found


def counts(attempts: int, bad: int = 0, **more: int) -> Counts:
    return Counts(attempts, attempts, {ERRORS: bad, **more})


def test_three_readings_convict_and_the_sentence_tells_what_was_counted() -> None:
    walks = walked([(40, 0), (40, 12), (40, 24), (40, 24), (40, 24)])
    assert (last(walks).action, last(walks).code, walks[-1].tick) == (Action.ROLL_BACK, Code.MOSTLY_FAILING, 4)
    assert (
        "48 of the last 80 attempts on the candidate failed, in 3 readings in a row, and 0 of 80 on stable"
        in last(walks).reason
    )
    assert last(walks).facts["guard"] == "errors"


def test_the_first_reading_only_begins_the_row_as_the_fault_may_have_begun_in_its_middle() -> None:
    found = row((counts(40, 10), counts(40)), (counts(40, 24), counts(40, 1)))
    assert (found.readings, found.bad, found.attempts, found.bad_stable, found.attempts_stable) == (2, 24, 40, 1, 40)


@pytest.mark.parametrize(
    "ticks",
    [
        [(40, 24), (40, 24)],  # two readings may be two halves of one event
        [(40, 40), (40, 9), (40, 40), (40, 40)],  # fewer than a quarter end the row
        [(40, 24), (40, 20), (40, 20)],  # half is not more than half
        [(20, 12), (15, 10), (15, 9)],  # nineteen are not twenty
    ],
    ids=["two readings", "interrupted", "half", "few"],
)
def test_less_than_that_is_left_to_the_evidence(ticks: Ticks) -> None:
    assert {one.decision.action for one in walked(ticks)} == {Action.HOLD}


def test_readings_that_lie_close_together_are_one_event() -> None:
    assert last(walked([(40, 24)] * 3, tick_s=0.19)).action is Action.HOLD
    assert last(walked([(40, 24)] * 3, tick_s=0.21)).code is Code.MOSTLY_FAILING


def test_readings_without_attempts_neither_end_nor_extend_the_row() -> None:
    quiet = [(0, 0)] * 5
    assert last(walked([(40, 24), *quiet, (40, 24), *quiet, (40, 24)])).code is Code.MOSTLY_FAILING
    assert last(walked([(40, 24), *quiet, (40, 24), *quiet])).action is Action.HOLD


def test_what_fails_on_stable_likewise_is_not_the_candidates() -> None:
    bad = [(40, 24)] * 6
    assert {one.decision.action for one in walked(bad, [(40, 22)] * 6)} == {Action.HOLD}
    common = counts(40, 24, **{COMMON: 24, SAVED: 0})
    assert not row(*[(common, counts(40))] * 5).readings
    saved = row(*[(counts(40, 24, **{COMMON: 4, SAVED: 20}), counts(40))] * 3)
    assert (saved.bad, saved.attempts, saved.bad_stable, saved.attempts_stable) == (40, 72, 8, 128)


def test_a_reading_in_which_all_is_common_says_nothing() -> None:
    all_common = (counts(10, 10, **{COMMON: 10}), counts(40))
    assert row((counts(40, 24), counts(40)), all_common) == row((counts(40, 24), counts(40)))


def test_the_row_begins_at_nothing_and_one_attempt_may_extend_it() -> None:
    assert MostlyFailing() == MostlyFailing(0, 0.0, 0.0, 0, 0, 0, 0)
    uncounted = Counts(40, 40)
    assert not row((Counts(2, 2), uncounted)).readings
    found = row((counts(40, 24), counts(40)), (counts(1, 1), uncounted))
    assert (found.readings, found.bad, found.attempts, found.bad_stable) == (2, 1, 1, 0)


def test_each_bar_is_where_it_is_said_to_be() -> None:
    found = MostlyFailing(3, 1.0, 1.5, 20, 30, 0, 60)
    assert found.is_proven(least_bad=20, over_s=0.49)
    assert not found.is_proven(least_bad=21, over_s=0.49) and not found.is_proven(least_bad=20, over_s=0.5)
    by_chance = MostlyFailing(3, 1.0, 1.5, 12, 20, 6, 47)  # 1.6 in ten thousand
    assert 1e-4 < math.exp(by_chance.log_chance) < 2e-4 and not by_chance.is_proven(least_bad=1, over_s=0.4)
    assert last(walked([(20, 12), (15, 10), (15, 10)])).code is Code.MOSTLY_FAILING  # twice ten


def test_many_attempts_are_no_trouble() -> None:
    assert MostlyFailing(3, 0.0, 1.0, 6_000, 10_000, 2_000, 90_000).log_chance < -1000


def test_a_guard_that_tolerates_so_much_is_heeded() -> None:
    fourfold = {"indicator": "errors", "max_frac": 0.9, "roll_back_over": {"ratio": 4, "plus_frac": 0}}
    assert last(walked([(40, 32)] * 3, [(40, 8)] * 3, guards=[fourfold])).action is Action.HOLD
    assert last(walked([(40, 33)] * 3, [(40, 8)] * 3, guards=[fourfold])).code is Code.MOSTLY_FAILING
    roomy = {"indicator": "errors", "max_frac": 0.9, "roll_back_over": {"ratio": 1, "plus_frac": 0.9}}
    assert last(walked([(40, 24)] * 6, guards=[roomy])).action is Action.HOLD
    assert last(walked([(40, 39)] * 6, guards=[roomy])).code is Code.MOSTLY_FAILING


def test_without_an_acting_guard_of_errors_it_is_silent() -> None:
    bad = [(40, 24)] * 6
    slow = {"indicator": "slow", "threshold_ms": 100}
    for guards in ([slow], [slow, {"indicator": "errors", "dry_run": True}]):
        assert last(walked(bad, guards=guards)).action is Action.HOLD


def test_a_guard_that_is_not_critical_pauses() -> None:
    walks = walked([(40, 24)] * 3, guards=[{"indicator": "errors", "critical": False}])
    assert (last(walks).action, last(walks).code) == (Action.PAUSE, Code.MOSTLY_FAILING)


def test_the_chance_is_the_tail_in_whole_numbers() -> None:
    for bad, attempts, bad_stable, attempts_stable in (
        (20, 30, 10, 40),
        (12, 20, 0, 12),
        (25, 40, 30, 70),
        (3, 5, 0, 0),
    ):
        all_bad, whole = bad + bad_stable, attempts + attempts_stable
        ways = sum(
            math.comb(all_bad, x) * math.comb(whole - all_bad, attempts - x)
            for x in range(bad, min(all_bad, attempts) + 1)
        )
        found = MostlyFailing(3, 0.0, 1.0, bad, attempts, bad_stable, attempts_stable)
        assert found.log_chance == pytest.approx(math.log(ways / math.comb(whole, attempts)), abs=1e-9)
        assert found.is_proven(least_bad=1, over_s=0.4) is (bad * 2 > attempts and found.log_chance <= math.log(CHANCE))


def test_a_stable_that_nobody_asked_is_no_proof() -> None:
    """Nor is one that had too few attempts to tell."""
    assert last(walked([(40, 24)] * 6, [(0, 0)] * 6)).action is Action.HOLD
    assert last(walked([(40, 24)] * 3, [(1, 0)] * 3)).action is Action.HOLD


def test_the_row_survives_json() -> None:
    kept = EngineState(mostly=row(*[(counts(40, 24), counts(40, 1))] * 3))
    assert kept.mostly.readings == 3
    assert EngineState.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    assert "mostly" not in EngineState().to_json()


def test_what_was_of_a_replica_that_is_set_aside_is_forgotten() -> None:
    state = EngineState(mostly=row(*[(counts(40, 24), counts(40))] * 3))
    aside = state.setting_aside("one", 10.0, 2)
    assert not aside.mostly.readings
    late = EngineState(aside=aside.aside, mostly=state.mostly)
    assert not late.settling(12.0).mostly.readings and late.settling(16.0).mostly.readings == 3
