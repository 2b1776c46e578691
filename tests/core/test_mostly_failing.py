"""The rule for a candidate that fails more often than not: it is taken back, one that had a bad moment is not."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from rollouts.core.commands import ForgetReplica
from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms, Counts
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy_schema import parse_policy
from rollouts.core.replay import Walk
from rollouts.core.rules.mostly_failing import MOST_QUIET_S, SIGMAS, MostlyFailing
from rollouts.core.rules.replica_differs import ReplicaDiffers
from rollouts.core.snapshot import Desired, Observed
from tests.core.test_all_failing import Ticks, last
from tests.core.test_all_failing import walked as walked_by
from tests.support.worlds.snapshots import keeping

#: Evidence that never convicts, so that only this rule speaks: a stable that fails now and then is no reason for it to be silent.
SLOW_TO_CONVICT = {"alpha_roll_back": 1e-12}
STABLE = (40, 0)


def walked(candidate: Ticks, stable: Ticks | None = None, *, tick_s: float = 0.25, **policy: object) -> list[Walk]:
    plan = {"guards": [{"indicator": "errors"}], **SLOW_TO_CONVICT, **policy}
    return walked_by(candidate, stable or [STABLE] * len(candidate), tick_s=tick_s, **plan)


def row(*readings: tuple[Counts, Counts], tick_s: float = 0.25) -> MostlyFailing:
    found = MostlyFailing()
    for i, (candidate, stable) in enumerate(readings):
        found = found.after(i * tick_s, [Arms(candidate, stable)])
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
    quiet = [(0, 0)] * 10
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
    assert MostlyFailing() == MostlyFailing(0, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0.0)
    uncounted = Counts(40, 40)
    assert not row((Counts(2, 2), uncounted)).readings
    found = row((counts(40, 24), counts(40)), (counts(1, 1), uncounted))
    assert (found.readings, found.bad, found.attempts, found.bad_stable) == (2, 1, 1, 0)


def test_each_bar_is_where_it_is_said_to_be() -> None:
    found, bars = (
        MostlyFailing(3, 1.0, 1.5, 20, 30, 0, 60, 13.0, 4.0),
        {"least_bad": 20, "over_s": 0.49, "tolerated_frac": 0.0},
    )
    assert found.is_proven(**bars)
    for more in ({"least_bad": 21}, {"over_s": 0.5}):
        assert not found.is_proven(**bars | more)
    assert not replace(found, attempts=40).is_proven(**bars) and replace(found, attempts=39).is_proven(**bars)
    assert not replace(found, readings=2).is_proven(**bars)
    assert replace(found, excess=SIGMAS * 2 + 0.5).is_proven(**bars)
    assert not replace(found, excess=SIGMAS * 2 + 0.49).is_proven(**bars)
    assert not replace(found, variance=0.0).is_proven(**bars)  # one arm alone tells nothing
    assert last(walked([(20, 12), (15, 10), (15, 10)])).code is Code.MOSTLY_FAILING  # twice ten
    assert last(walked([(20, 12), (15, 10), (15, 9)])).action is Action.HOLD


def test_more_than_is_tolerated_must_be_more_than_chance_adds() -> None:
    found = MostlyFailing(3, 1.0, 2.0, 300, 400, 0, 400, 100.0, 100.0)
    at = {"least_bad": 20, "over_s": 0.4}
    deviation = math.sqrt(400 * 0.6 * 0.4)  # 9.8; 300 are 6.1 of them over 240
    assert found.is_proven(**at, tolerated_frac=0.6) and SIGMAS * deviation < 60
    assert replace(found, bad=280).is_proven(**at, tolerated_frac=0.6)
    assert not replace(found, bad=279).is_proven(**at, tolerated_frac=0.6)
    assert not found.is_proven(**at, tolerated_frac=1.0)


def test_long_silence_makes_what_failed_before_another_event() -> None:
    bad = Arms(counts(40, 24), counts(40))
    known = row((counts(40, 24), counts(40)), (counts(40, 24), counts(40)))
    assert known.after(0.25 + MOST_QUIET_S, [bad]).readings == 3
    assert known.after(0.26 + MOST_QUIET_S, [bad]) == MostlyFailing(1, 0.26 + MOST_QUIET_S, 0.26 + MOST_QUIET_S)


def test_a_new_stage_begins_afresh() -> None:
    state = keeping(row(*[(counts(40, 24), counts(40))] * 3), stage="one")
    plan = parse_policy({"guards": [{"indicator": "errors"}]})
    assert state.entering("one", 5.0, plan).of(MostlyFailing).readings == 3
    assert not state.entering("two", 5.0, plan).of(MostlyFailing).readings


def test_a_guard_that_tolerates_so_much_is_heeded() -> None:
    threefold = {"indicator": "errors", "max_frac": 0.9, "roll_back_over": {"ratio": 3, "plus_frac": 0}}
    assert last(walked([(40, 24)] * 9, [(40, 8)] * 9, guards=[threefold])).action is Action.HOLD
    assert last(walked([(40, 35)] * 4, [(40, 8)] * 4, guards=[threefold])).code is Code.MOSTLY_FAILING
    roomy = {"indicator": "errors", "max_frac": 0.9, "roll_back_over": {"ratio": 1, "plus_frac": 0.9}}
    assert last(walked([(40, 24)] * 6, guards=[roomy])).action is Action.HOLD
    assert last(walked([(400, 399)] * 4, guards=[roomy])).code is Code.MOSTLY_FAILING


def test_without_an_acting_guard_of_errors_it_is_silent() -> None:
    bad = [(40, 24)] * 6
    slow = {"indicator": "slow", "threshold_ms": 100}
    for guards in ([slow], [slow, {"indicator": "errors", "dry_run": True}]):
        assert last(walked(bad, guards=guards)).action is Action.HOLD


def test_a_guard_that_is_not_critical_pauses() -> None:
    walks = walked([(40, 24)] * 3, guards=[{"indicator": "errors", "critical": False}])
    assert (last(walks).action, last(walks).code) == (Action.PAUSE, Code.MOSTLY_FAILING)


def test_the_excess_and_its_variance_are_those_of_the_hypergeometric_distribution_gateway_by_gateway() -> None:
    tables = [(9, 12, 3, 20), (5, 6, 0, 9), (2, 5, 0, 0), (0, 0, 1, 8)]
    arms = [Arms(counts(n, bad), counts(m, bad_stable)) for bad, n, bad_stable, m in tables]
    found = row((counts(40, 24), counts(40))).after(1.0, arms)
    excess = variance = 0.0
    for bad, n, bad_stable, m in (one for one in tables if one[1] and one[3]):
        k, whole = bad + bad_stable, n + m
        chances = {
            x: math.comb(k, x) * math.comb(whole - k, n - x) / math.comb(whole, n)
            for x in range(min(k, n) + 1)
            if n - x <= whole - k
        }
        mean = sum(x * chance for x, chance in chances.items())
        excess += bad - mean
        variance += sum((x - mean) ** 2 * chance for x, chance in chances.items())
    assert (found.excess, found.variance) == (pytest.approx(excess), pytest.approx(variance))
    assert (found.bad, found.attempts, found.bad_stable, found.attempts_stable) == (16, 23, 4, 37)


def test_one_regions_incident_is_not_the_candidates_though_that_has_more_of_its_traffic() -> None:
    """Of both arms 70 % fail at one gateway, which follows half; the other still follows a twentieth, and is well."""
    found = MostlyFailing()
    for i in range(40):
        found = found.after(0.25 * i, [Arms(counts(60, 42), counts(60, 42)), Arms(counts(6), counts(114))])
    assert found.bad * 2 > found.attempts and found.bad_stable < 0.25 * found.attempts_stable
    assert not found.is_proven(least_bad=20, over_s=0.4, tolerated_frac=0.3)
    blamed = row(*[(counts(66, 42), counts(174, 42))] * 3)  # what the sum would say
    assert blamed.is_proven(least_bad=20, over_s=0.4, tolerated_frac=0.3)


def test_an_incident_that_comes_and_goes_is_not_the_candidates_though_its_traffic_grows_with_it() -> None:
    alternating = [(counts(60, 42), counts(60, 42)), (counts(6, 2), counts(114, 38))] * 20
    assert not row(*alternating).is_stable_better


def test_a_stable_that_nobody_asked_is_no_proof() -> None:
    """Nor is one that had too few attempts to tell."""
    assert last(walked([(40, 24)] * 6, [(0, 0)] * 6)).action is Action.HOLD
    assert last(walked([(40, 24)] * 3, [(1, 0)] * 3)).action is Action.HOLD


def test_the_row_survives_json() -> None:
    state = keeping(row(*[(counts(40, 24), counts(40, 1))] * 3))
    kept = state.of(MostlyFailing)
    assert kept.readings == 3 and kept.excess > 20
    found = EngineState.from_json(json.loads(json.dumps(state.to_json()))).of(MostlyFailing)
    assert found == replace(kept, excess=pytest.approx(found.excess), variance=pytest.approx(found.variance, abs=1e-4))
    assert not EngineState().to_json()["rules"]


def test_what_was_of_a_replica_that_is_set_aside_is_forgotten() -> None:
    known = row(*[(counts(40, 24), counts(40))] * 3)
    ejected = keeping(known).obeying([ForgetReplica(("errors",), has_scatter=True)], Observed(10.0))
    assert not ejected.of(MostlyFailing).readings
    late = keeping(known, ReplicaDiffers("one", 10.0, 2))

    def readings(at: float) -> int:
        return late.observed(Observed(at), Desired(RolloutState.SHIFTING), has_stable=True).of(MostlyFailing).readings

    assert readings(12.0) == 0 and readings(16.0) == 3
