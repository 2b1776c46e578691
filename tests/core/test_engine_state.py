"""What is carried from tick to tick: every tick once, every source by itself, small, and readable by the next version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.evidence import Tolerance, Window
from rollouts.core.guard_tracker import GuardTracker, Recent
from rollouts.core.judged import judge_guard
from rollouts.core.mostly_failing import MostlyFailing
from rollouts.core.policy import Guard, Policy
from rollouts.core.policy_schema import parse_policy
from rollouts.core.snapshot import judged_all
from rollouts.core.tick_history import OpenSegment

STORED = Path(__file__).parents[1] / "histories" / "engine_state.json"
OBJECTIVES = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.05}}
SLOW = ("slow_100ms", "slow_250ms", "slow_500ms")
POLICY = parse_policy(
    {"guards": [{"indicator": "errors"}, {"indicator": "slow", "thresholds_ms": [100, 250, 500]}]}, OBJECTIVES
)
WRONG = Guard("wrong", 0.01, Tolerance(1.5, 0.01), Tolerance(2.0, 0.05))
WITH_PROBES = replace(POLICY, guards=(*POLICY.guards, WRONG))


def reading(at: float, candidate: int, bad: int, stable: int, stable_bad: int = 0, **slow: int) -> Reading:
    names = dict.fromkeys(("errors", *SLOW), 0)
    return Reading(
        "one",
        at,
        Counts(candidate, candidate, {**names, "errors": bad, **slow}),
        Counts(stable, stable, {**names, "errors": stable_bad}),
        candidate + stable,
        bad,
    )


def probes(at: float, calls: int, wrong: int) -> Reading:
    return Reading("p", at, Counts(calls, 0, {"wrong": wrong}), Counts(calls, 0, {"wrong": 0}))


def take(
    state: EngineState, tick: int, *readings: Reading, policy: Policy = POLICY, has_stable: bool = True, **more
) -> EngineState:
    named = {f"gateway{i}": one for i, one in enumerate(readings)}
    return update_state(state, tick=tick, readings=named, policy=policy, has_stable=has_stable, **more)


def watched(
    seconds: int, *, bad: int = 0, slow: dict[str, int] | None = None, policy: Policy = POLICY, has_stable: bool = True
) -> EngineState:
    """After so many seconds of 10 attempts of the candidate and 90 of stable, `bad` and `slow` of the candidate's bad each."""
    slow = slow or {}
    state = EngineState(readings={"gateway0": reading(1000.0, 0, 0, 0)})
    for t in range(1, seconds + 1):
        now = reading(1000.0 + t, 10 * t, bad * t, 90 * t, **{name: count * t for name, count in slow.items()})
        state = take(state, t, now, policy=policy, has_stable=has_stable)
    return state


def test_a_tick_taken_in_twice_changes_nothing_and_loses_nothing() -> None:
    once = watched(5, bad=1)
    again = take(once, 5, reading(1006.0, 90, 30, 500))
    assert again == once
    later = take(again, 6, reading(1006.0, 90, 30, 500))
    assert later.step.candidate.attempts == 90 and later.watches["errors"].evidence.candidate == 90


def test_no_reading_leaves_all_but_the_last_tick_as_it_was() -> None:
    state = watched(3, bad=1)
    blind = take(state, 4)
    assert blind.last.candidate.attempts == 0 and state.last.candidate.attempts == 10
    assert (blind.drawn, state.drawn) == (0, 10)
    assert replace(blind, last=state.last, drawn=10, tick=3) == state


def test_slow_requests_are_judged_at_every_point_and_averaged() -> None:
    """The tail doubles over 100 ms only: the objective's own threshold sees nothing, the average does."""
    state = watched(40, slow={"slow_100ms": 3})
    errors, slow = judged_all(state, POLICY, has_stable=True)
    assert errors.log_e_worse < 0
    assert slow.bad_candidate == 0 and slow.log_e_over < 0
    assert slow.log_e_worse > POLICY.bar_worse_of(slow.guard)
    assert slow.farthest == ("slow_100ms", Window(120, 400, 0, 3600))
    own = state.watches[slow.guard.name].evidence
    assert slow.log_e_worse == pytest.approx(own.log_e_worse("slow_100ms") - 1.0986, abs=0.01)


def test_the_promote_side_needs_every_point() -> None:
    fine = judged_all(watched(100), POLICY, has_stable=True)[1]
    assert fine.log_e_fine > POLICY.bar_fine and fine.to_go == 0
    slower = judged_all(watched(100, slow={"slow_100ms": 1}), POLICY, has_stable=True)[1]
    assert slower.log_e_fine < 0 and slower.to_go is None


def test_a_point_that_no_gateway_counts_is_left_out() -> None:
    old = Counts(100, 100, {"errors": 0, "slow_250ms": 2})
    state = EngineState(readings={"gateway0": Reading("one", 1000.0, Counts(), Counts())})
    state = take(state, 1, Reading("one", 1001.0, old, old))
    assert set(state.watches["slow_250ms"].evidence.points) == {"slow_250ms"}
    slow = judged_all(state, POLICY, has_stable=True)[1]
    assert slow.log_e_worse == state.watches["slow_250ms"].evidence.log_e_worse("slow_250ms")


def test_without_a_stable_only_the_objective_counts_and_a_late_breach_is_found() -> None:
    policy = POLICY.facing(has_stable=False)
    state = watched(1800, policy=policy, has_stable=False)
    for t in range(1801, 1821):
        at = 1000.0 + t
        state = take(state, t, reading(at, 10 * t, 2 * (t - 1800), 90 * t), policy=policy, has_stable=False)
    errors = judged_all(state, policy, has_stable=False)[0]
    assert errors.log_e_over > policy.bar_worse_of(errors.guard) and errors.log_e_worse == 0
    assert errors.bad_candidate / errors.candidate < errors.limit  # the whole step together looks fine


def test_other_sources_count_for_their_own_guard_only() -> None:
    state = replace(watched(3, policy=WITH_PROBES), external={"wrong": probes(1003.0, 100, 2)})
    before = state.step
    state = take(state, 4, reading(1004.0, 40, 0, 360), policy=WITH_PROBES, external={"wrong": probes(1004.0, 110, 7)})
    assert state.step.candidate.attempts == before.candidate.attempts + 10
    assert state.last.candidate.attempts == 10 and state.total.candidate.attempts == 40
    watch = state.watches["wrong"]
    assert (watch.evidence.candidate, watch.evidence.point("wrong").bad_candidate) == (10, 5)
    assert watch.seen_at == 1004.0 and watch.first_bad_at == 1003.0
    again = take(state, 5, reading(1005.0, 50, 0, 450), policy=WITH_PROBES, external={"wrong": probes(1004.0, 110, 7)})
    assert again.watches["wrong"].evidence == watch.evidence
    assert again.watches["wrong"].seen_at == 1004.0
    assert again.watches["errors"].seen_at == 1005.0


def test_another_source_speaks_also_while_gateways_are_silent() -> None:
    state = replace(watched(3, policy=WITH_PROBES), external={"wrong": probes(1003.0, 100, 0)})
    state = take(state, 4, policy=WITH_PROBES, external={"wrong": probes(1004.0, 110, 5)})
    assert state.watches["wrong"].evidence.candidate == 10
    assert state.read_at == 1003.0 and state.last.candidate.attempts == 0
    judged = judge_guard(WRONG, state.watches["wrong"], has_stable=True, bar_fine=3.0)
    assert (judged.bad_candidate, judged.candidate, judged.stable) == (5, 10, 10)


def test_recent_is_the_last_five_to_ten_seconds() -> None:
    recent = Recent()
    for second in range(100, 120):
        recent = recent.after(float(second), 1, 10)
    assert 50 <= recent.attempts <= 100 and recent.bad * 10 == recent.attempts
    for second in range(120, 131):
        recent = recent.after(float(second), 0, 10)
    assert recent.bad == 0 and recent.attempts >= 50
    assert recent.after(500.0, 0, 0).attempts == 0
    assert Recent.from_json(json.loads(json.dumps(recent.to_json()))) == recent


def test_slowness_that_is_over_is_no_longer_recent() -> None:
    state = watched(20, slow=dict.fromkeys(SLOW, 5))
    assert state.watches["slow_250ms"].recent.bad >= 25
    last = state.readings["gateway0"]
    for t in range(21, 35):
        later = replace(
            last,
            at=1000.0 + t,
            candidate=replace(last.candidate, attempts=10 * t),
            stable=replace(last.stable, attempts=90 * t),
        )
        state = take(state, t, later)
    watch = state.watches["slow_250ms"]
    assert watch.recent.bad == 0 and watch.recent.attempts >= 50
    assert watch.evidence.point("slow_250ms").bad_candidate == 100


def test_an_empty_state_and_one_of_an_older_version_can_be_read() -> None:
    assert EngineState.from_json({}) == EngineState()
    old = {
        "readings": {"gateway0": reading(1000.0, 10, 1, 90).to_json()},
        "step": {"candidate": Counts(5, 5, {}).to_json(), "stable": Counts(6, 6, {}).to_json()},
        "watches": {
            "errors": {
                "evidence": {"worse": [0.1] * 8, "fine": [0.1] * 8, "tick": 7, "counts": [1, 10, 0, 90]},
                "dispersion": [0, 0, 0, 0, 0, 0, 0],
                "first_bad_at": 12.5,
            }
        },
        "said": "hold:need_more",
    }
    state = EngineState.from_json(old)
    assert state.last_decision == "hold:need_more" and state.step.candidate.attempts == 5
    assert state.watches["errors"].first_bad_at == 12.5 and state.watches["errors"].evidence.candidate == 0
    assert take(state, 8, reading(1001.0, 20, 2, 180)).watches["errors"].evidence.candidate == 10


def test_a_rollout_read_back_from_json_goes_on_the_same_way() -> None:
    kept = stored = watched(50, bad=1, slow={"slow_100ms": 2})
    for t in range(51, 61):
        now = reading(1000.0 + t, 10 * t, t, 90 * t, slow_100ms=2 * t)
        kept, stored = take(kept, t, now), take(EngineState.from_json(json.loads(json.dumps(stored.to_json()))), t, now)
    for one, other in zip(
        judged_all(kept, POLICY, has_stable=True), judged_all(stored, POLICY, has_stable=True), strict=True
    ):
        assert one.log_e_worse == pytest.approx(other.log_e_worse, abs=1e-3)
        assert one.log_e_fine == pytest.approx(other.log_e_fine, abs=1e-3)


def test_a_new_weight_begins_afresh_but_knows_the_scatter() -> None:
    begun = replace(watched(40, bad=1), stage="shifting:0")
    state = begun.entering("shifting:1", 1040.0, POLICY)
    watch = state.watches["errors"]
    assert watch.evidence.candidate == 0 and watch.evidence.log_e_worse("errors") == 0
    assert watch.dispersion == watched(40, bad=1).watches["errors"].dispersion
    assert state.step.candidate.attempts == 0 and state.tick == 40


def test_the_state_stays_small() -> None:
    state = watched(2000, bad=1, slow={"slow_100ms": 3, "slow_250ms": 1})
    assert len(json.dumps(state.to_json(), separators=(",", ":"))) <= 5120


def test_blindness_does_not_count_on_while_no_engine_looked() -> None:
    blind = EngineState().blinded(100.0, is_blind=True).blinded(101.0, is_blind=True)
    assert blind.blind_since == 100.0
    assert blind.blinded(701.0, is_blind=True).blind_since == 701.0
    assert blind.blinded(102.0, is_blind=False).blind_since is None
    assert EngineState.from_json(blind.to_json()).blinded(102.0, is_blind=True).blind_since == 100.0


def test_warm_up_is_dropped_only_so_often_in_one_stage() -> None:
    state = EngineState(watches={"slow_250ms": GuardTracker()}).forgetting("slow_250ms").forgetting("slow_250ms")
    assert state.forgotten == 2 and state.forgetting("unknown").forgotten == 2
    assert state.entering("another", 5.0, POLICY).forgotten == 0


# --- what is held against whom -----------------------------------------------------------------------------------------


def counts(n: int, bad: int = 0, common: int = 0, **more: int) -> Counts:
    return Counts(n, n, {"errors": bad, "common": common, **more})


ERRORS_ONLY = parse_policy({"guards": [{"indicator": "errors"}]})


def after(
    seconds: int, candidate: Counts, stable: Counts, *, policy: Policy = ERRORS_ONLY, state: EngineState | None = None
):
    """So many seconds in each of which these were counted."""
    state = state or EngineState(readings={"one": Reading("one", 0.0, Counts(), Counts())})
    for _ in range(seconds):
        before = state.readings["one"]
        now = Reading("one", before.at + 1, before.candidate + candidate, before.stable + stable)
        state = update_state(state, tick=state.tick + 1, readings={"one": now}, policy=policy, has_stable=True)
    return state


def log_e(state: EngineState) -> float:
    return judged_all(state, ERRORS_ONLY, has_stable=True)[0].log_e_worse


def test_requests_that_fail_wherever_they_go_are_nobodys_regression() -> None:
    """One caller's bad requests, drawn for the candidate by chance: all its errors, and stable could not answer them either."""
    poisoned = after(60, counts(10, 2, common=2), counts(190, 0))
    assert log_e(poisoned) < 0
    assert log_e(after(60, counts(10, 2), counts(190, 0))) > ERRORS_ONLY.bar_worse


def test_a_regression_beside_them_is_found_as_soon_as_without() -> None:
    """The candidate's own 8 % beside 4 % that nobody can answer."""

    def ticks(candidate: Counts, stable: Counts, state: EngineState) -> int:
        for tick in range(1, 200):
            state = after(1, candidate, stable, state=state)
            if log_e(state) >= ERRORS_ONLY.bar_worse:
                return tick
        raise AssertionError("never found")

    healthy = after(120, counts(25, 1, common=1), counts(475, 19, common=19)).entering("next", 120.0, ERRORS_ONLY)
    clean = after(120, counts(25), counts(475)).entering("next", 120.0, ERRORS_ONLY)
    beside = ticks(counts(25, 3, common=1), counts(475, 19, common=19), healthy)
    alone = ticks(counts(25, 2), counts(475), clean)
    assert beside <= 1.6 * alone


def test_what_only_stables_second_attempts_say_is_no_excuse_for_the_candidate() -> None:
    """Stable's errors fail twice because its second attempts go to stable again: they still count beside the candidate's."""
    alike = after(200, counts(100, 2), counts(900, 18, common=18))
    assert log_e(alike) < 0


def test_the_budget_counts_a_regression_beside_them_too() -> None:
    """The candidate's own 2 % beside 2 % that nobody can answer cost as much as the 2 % alone."""

    def cost(candidate: Counts, stable: Counts) -> float:
        state = after(600, candidate, stable).entering("next", 600.0, ERRORS_ONLY)
        return state.harm_so_far(ERRORS_ONLY)["errors"][0]

    alone = cost(counts(50, 1), counts(450))
    beside = cost(counts(50, 2, common=1), counts(450, 9, common=9))
    assert beside > 0.9 * alone > 400


def test_gateways_that_follow_other_weights_are_compared_each_by_itself() -> None:
    """One region fails 8 %, the other 0.5 %; one gateway sends the candidate half of its traffic, the other a twentieth."""
    state = EngineState(readings={name: Reading(name, 0.0, Counts(), Counts()) for name in ("a", "b")})
    news = {"a": (counts(50, 4), counts(50, 4)), "b": (counts(10, 0), counts(190, 1))}
    for _ in range(300):
        now = {
            name: Reading(name, was.at + 1, was.candidate + news[name][0], was.stable + news[name][1])
            for name, was in state.readings.items()
        }
        state = update_state(state, tick=state.tick + 1, readings=now, policy=ERRORS_ONLY, has_stable=True)
    judged = judged_all(state, ERRORS_ONLY, has_stable=True)[0]
    assert judged.rate_candidate > 2 * judged.rate_stable and judged.log_e_worse < 0


def test_while_answers_are_on_their_way_nothing_is_held_against_anybody() -> None:
    """Failures end at once, successes after ten seconds."""
    nothing = Reading("one", 0.0, Counts(), Counts(), others={1: (Counts(), Counts())})
    state = EngineState(readings={"one": nothing})
    for second in range(1, 15):
        now = Reading("one", float(second), counts(5 * second, 5 * second), counts(20, 1), slot=1, answer_s=10.0)
        state = update_state(state, tick=second, readings={"one": now}, policy=ERRORS_ONLY, has_stable=True)
    assert log_e(state) == 0.0 and state.step.candidate.attempts == 70
    later = Reading("one", 17.0, counts(90, 90), counts(60, 1), slot=1, answer_s=10.0)
    assert log_e(update_state(state, tick=15, readings={"one": later}, policy=ERRORS_ONLY, has_stable=True)) > 0


def test_answers_that_set_in_after_failures_are_no_clump() -> None:
    """Slow answers: for nine seconds only failures have ended; then answers come at their full rate."""
    state, total = EngineState(readings={"one": Reading("one", 0.0, Counts(), Counts())}), [0, 0]
    for second in range(1, 61):
        n = 100 if second > 9 else 1
        total = [total[0] + n, total[1] + 1]
        arm = counts(total[0], total[1])
        now = Reading("one", float(second), counts(second), arm, slot=1, answer_s=9.0)
        state = update_state(state, tick=second, readings={"one": now}, policy=ERRORS_ONLY, has_stable=True)
    assert state.watches["errors"].dispersion.phi("errors") == 1.0


def test_being_better_than_tolerated_is_no_credit() -> None:
    state = after(1000, counts(100), counts(100, 3)).entering("next", 1000.0, ERRORS_ONLY)
    assert state.harm_so_far(ERRORS_ONLY).get("errors", (0.0, 0.0))[0] == 0.0
    harmed = after(20, counts(100, 30), counts(100, 0), state=state)
    assert harmed.harm_so_far(ERRORS_ONLY)["errors"][0] == pytest.approx(20 * (30 - 0.1) - 30, abs=0.5)
    more = after(20, counts(100, 30), counts(100, 0), state=harmed.entering("after", 1020.0, ERRORS_ONLY))
    assert more.harm_so_far(ERRORS_ONLY)["errors"][0] == pytest.approx(40 * (30 - 0.1) - 60, abs=0.5)


def test_one_burst_spends_no_budget_and_a_second_one_does() -> None:
    """Bursts of 500 failures within a second, a minute apart, beside a stable release that fails now and then."""
    state = after(60, counts(100), counts(100, 1))
    costs = []
    for _ in range(2):
        state = after(1, counts(600, 500), counts(100, 1), state=after(59, counts(100), counts(100, 1), state=state))
        costs.append(state.harm_so_far(ERRORS_ONLY)["errors"][0])
    assert costs[0] < ERRORS_ONLY.budget_bad < costs[1]


def test_bursts_before_the_rollout_do_not_blind_it() -> None:
    state = EngineState(readings={"one": Reading("one", 0.0, Counts(), Counts())})
    for burst in range(3):
        state = after(19, Counts(), counts(190, burst % 2), state=state)
        state = after(1, Counts(), counts(390, 200), state=state)
    assert state.watches["errors"].dispersion.phi("errors") > 50
    state = state.entering("first", 60.0, ERRORS_ONLY)
    assert state.watches["errors"].dispersion.phi("errors") < 20
    state = after(60, counts(10), counts(190, 1), state=state)
    assert state.watches["errors"].dispersion.phi("errors") < 6


def test_a_state_that_was_stored_before_fields_were_renamed_is_read_whole() -> None:
    """Rows of rollouts that run during an upgrade. The file was written by the version before."""
    stored = json.loads(STORED.read_text())
    history = stored.pop("history")
    state = EngineState.from_json({**stored, "history": history})
    assert state.to_json() == stored
    later = {
        "stable_gone_since",
        "stable_looks",
        "stable_odd",
        "mostly",
        "load_failure",
        "stable_unanswered",
    }  # kept since later
    before = EngineState.from_json({name: value for name, value in stored.items() if name not in later})
    assert before == replace(state, **dict.fromkeys(later - {"mostly"}), mostly=MostlyFailing())
    assert (state.last_decision, state.asked_at, state.is_promoting) == ("hold:need_more", 250.25, True)
    assert state.watches["errors"].evidence.candidate > 0 and state.harm["errors"] == (1.5, 2.25)
    unset = {name for name, value in vars(EngineState()).items() if getattr(state, name) == value}
    assert unset == {
        "load_failure",
        "stable_unanswered",
        "unsteady_since",
        "refuses_forced",
    }  # of a candidate that loads or is away, of a stable release that is silent, and of forced requests
    assert OpenSegment.from_json(history).began_at == 301.0
