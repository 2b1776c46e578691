"""One tick, evaluated from plain values: without a database, without a clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState
from rollouts.core.evaluate import TickInput, evaluate
from rollouts.core.lifecycle import RolloutState
from rollouts.core.rules.servers_gone import CandidateServers
from rollouts.core.rules.stable_gone import StableServers
from rollouts.core.snapshot import Desired, Identity, Observed, People
from rollouts.core.tick import Tick
from tests.core.test_decide import POLICY
from tests.support.worlds.snapshots import keeping

S = RolloutState
AT = 1_000.0
FAST = replace(POLICY, steps=tuple(replace(step, min_s=0.0) for step in POLICY.steps))


def reading(at: float, candidate: int, bad: int, stable: int) -> Reading:
    names = {"slow_250ms": 0}
    return Reading(
        "one",
        at,
        Counts(candidate, candidate, {"errors": bad, **names}),
        Counts(stable, stable, {"errors": 0, **names}),
    )


def given(number: int = 1, *, seconds: float = 1.0, state: EngineState | None = None, **observed: Any) -> TickInput:
    """A rollout at 25 % whose counters have not been read before."""
    begun = EngineState(readings={"gateway": reading(AT, 0, 0, 0)})
    seen = {"candidate_servers": 1, "stable_servers": 1, "step_started_at": AT, **observed}
    return TickInput(
        number,
        FAST,
        Identity(7, candidate_name="r2", stable_name="r1"),
        Desired(S.SHIFTING, step_index=1, weight_bp=2500),
        Observed(AT + seconds, **seen),
        state or begun,
    )


def walked(seconds: int, bad: int) -> Tick:
    """So many ticks of 25 attempts of the candidate, `bad` of which fail, and 75 of stable."""
    state, tick = given().engine_state, None
    for t in range(1, seconds + 1):
        news = {"gateway": reading(AT + t, 25 * t, bad * t, 75 * t)}
        tick = evaluate(replace(given(t, seconds=t, state=state), readings=news), gone_over_s=0.5)
        if tick.is_effect:
            break
        state = tick.engine_state
    assert tick is not None
    return tick


def test_a_failing_candidate_is_rolled_back_and_a_good_one_goes_on() -> None:
    bad, good = walked(60, bad=5), walked(60, bad=0)
    assert (bad.decision.action, bad.decision.code) == (Action.ROLL_BACK, Code.WORSE_THAN_STABLE)
    assert "r2" in bad.decision.reason and bad.number < 60
    assert (good.decision.action, good.decision.code) == (Action.ADVANCE, Code.PROVEN)


def test_the_same_input_gives_the_same_tick_and_is_left_as_it_was() -> None:
    once = replace(given(), readings={"gateway": reading(AT + 1, 25, 1, 75)})
    first = evaluate(once, gone_over_s=0.5)
    assert evaluate(once, gone_over_s=0.5) == first
    assert once.engine_state.total.candidate.attempts == 0
    assert first.engine_state.total.candidate.attempts == 25
    assert first.record.arms.candidate.attempts == 25 and first.record.tick == 1
    assert first.history.began_at == AT + 1 and first.acked_at is None


def test_a_first_acknowledgement_begins_the_step() -> None:
    known = replace(given().engine_state, stage="shifting:1:2500", step=given().engine_state.total)
    seen = replace(given(state=known, is_newly_acknowledged=True, step_started_at=AT + 1))
    tick = evaluate(replace(seen, readings={"gateway": reading(AT + 1, 25, 0, 75)}), gone_over_s=0.5)
    assert tick.acked_at is not None and tick.acked_at.timestamp() == AT + 1
    assert tick.engine_state.step.candidate.attempts == 0  # what began before it counts for no step
    assert tick.engine_state.total.candidate.attempts == 25


def test_one_look_without_a_server_is_not_gone_and_a_second_one_is() -> None:
    first = evaluate(given(1, candidate_servers=0), gone_over_s=0.5)
    assert first.decision.action is Action.HOLD and first.record.mark.lost == ""
    assert first.engine_state.of(CandidateServers).gone_since == AT + 1
    soon = evaluate(given(2, seconds=1.5, state=first.engine_state, candidate_servers=0), gone_over_s=0.5)
    assert soon.decision.action is Action.HOLD
    later = evaluate(given(2, seconds=1.6, state=first.engine_state, candidate_servers=0), gone_over_s=0.5)
    assert later.decision.code is Code.SERVERS_GONE and later.record.mark.lost == "candidate"
    back = evaluate(given(2, seconds=9.0, state=first.engine_state), gone_over_s=0.5)
    assert back.engine_state.of(CandidateServers).gone_since is None


def test_a_blink_of_an_arm_cancels_no_rollout_that_a_freeze_has_held_all_night() -> None:
    def tick(number: int, state: EngineState, seconds: float, **servers: int) -> Tick:
        seen = given(number, seconds=seconds, state=state, step_started_at=None, waited_s=32_400.0 + seconds, **servers)
        return evaluate(replace(seen, desired=Desired(S.PREPARING), readings={}), gone_over_s=0.5)

    limit = FAST.prepare_deadline_s
    for arm, after in (
        ("stable_servers", (Action.HOLD, Code.STABLE_GONE)), ("candidate_servers", (Action.CANCEL, Code.SERVERS_GONE)),
    ):  # fmt: skip
        first = tick(1, given().engine_state, 1.0, **{arm: 0})
        assert first.decision.action is Action.HOLD
        kept = EngineState.from_json(first.engine_state.to_json())
        last = tick(2, kept, 1.0 + limit, **{arm: 0})
        assert (last.decision.action, last.decision.code) == after
        back = tick(2, kept, limit, **{arm: 1})
        assert (back.engine_state.of(CandidateServers).gone_since, back.engine_state.of(StableServers).gone_since) == (
            None,
            None,
        )
        assert tick(3, back.engine_state, 1.0 + limit, **{arm: 0}).decision.action is Action.HOLD
        unknown = evaluate(replace(given(2, state=kept), observed=Observed(AT + 9.0)), gone_over_s=60.0)
        assert (unknown.engine_state.of(CandidateServers).gone_since, unknown.engine_state.of(StableServers).gone_since) == (
            kept.of(CandidateServers).gone_since, kept.of(StableServers).gone_since,
        )  # fmt: skip


def test_a_candidate_that_failed_before_is_gone_at_the_first_look() -> None:
    failed = keeping(CandidateServers(has_failed=True), readings=given().engine_state.readings)
    assert evaluate(given(state=failed, candidate_servers=0), gone_over_s=60.0).decision.code is Code.SERVERS_GONE


def test_approvals_are_part_of_the_input_so_that_one_decision_is_enough() -> None:
    policy = replace(FAST, approvals={"start": 1}, shadow=None)
    preparing = replace(
        given(), policy=policy, desired=Desired(S.PREPARING), readings={"gateway": reading(AT + 1, 0, 0, 75)}
    )
    held = evaluate(preparing, gone_over_s=0.5)
    assert held.decision.code is Code.AWAITING_APPROVAL and held.history.began_at is None
    approved = replace(preparing, people=People(approvals={"start": 1}))
    assert evaluate(approved, gone_over_s=0.5).decision.action is Action.START
    refused = replace(approved, people=People({"start": 1}, report_problem="Its gates failed."))
    assert evaluate(refused, gone_over_s=0.5).decision.code is Code.REPORT_NOT_VALID


def test_the_record_names_each_arm_that_is_gone() -> None:
    gone = keeping(CandidateServers(AT - 60.0), readings=given().engine_state.readings)

    def lost(candidate: int, stable: int) -> str:
        return evaluate(
            given(state=gone, candidate_servers=candidate, stable_servers=stable), gone_over_s=0.5
        ).record.mark.lost

    assert [lost(1, 1), lost(0, 1), lost(1, 0), lost(0, 0)] == ["", "candidate", "stable", "both"]
    unknown = evaluate(given(state=gone, candidate_servers=None), gone_over_s=0.5)
    assert unknown.engine_state.of(CandidateServers).gone_since == AT - 60.0  # nobody knows, so nothing changes


def test_the_record_names_the_stage_that_a_paused_rollout_was_in() -> None:
    paused = replace(given(), desired=Desired(S.PAUSED, S.BAKING, 2, 9500))
    assert evaluate(paused, gone_over_s=0.5).record.mark.paused_in == "baking"
    assert evaluate(given(), gone_over_s=0.5).record.mark.paused_in == ""


def test_answers_are_on_their_way_while_they_are_at_any_gateway() -> None:
    settled, early = reading(AT + 1, 25, 0, 75), replace(reading(AT + 1, 25, 0, 75), answer_s=10.0)

    def is_settling(*readings: Reading) -> bool:
        named = {f"g{i}": one for i, one in enumerate(readings)}
        return evaluate(replace(given(), readings=named), gone_over_s=0.5).record.mark.is_settling

    assert [is_settling(), is_settling(settled), is_settling(settled, early)] == [False, False, True]
