"""Stable without a server: nothing waits for it without end, and a candidate that takes its place is judged as a first release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollouts.core.counter_deltas import Counts, Reading
from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.engine_state import EngineState, update_state
from rollouts.core.freeze import FreezeWindow
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.policy import OnUndecided, Policy, WhenStableIsGone
from rollouts.core.rules.stable_gone import StableServers, is_absent
from rollouts.core.snapshot import Observed
from tests.core.test_decide import ALONE, POLICY, judged, snapshot
from tests.support.worlds.snapshots import changed

S = RolloutState
REPLACE = replace(POLICY, when_stable_is_gone=WhenStableIsGone.REPLACE)
STATES = [S.PREPARING, *sorted(LIVE - {S.PAUSED})]


def gone(state: RolloutState, policy: Policy = REPLACE, gone_s: float = 60.0, **over: Any) -> Any:
    """Decision for a healthy rollout with a warm candidate, whose stable release has had no server for `gone_s` seconds."""
    return decide(snapshot(state=state, policy=policy, stable_servers=0, stable_gone_s=gone_s, waited_s=900.0, **over))


@pytest.mark.parametrize("state", STATES)
def test_the_policy_gives_the_candidate_all_traffic_once_stable_has_been_gone_for_its_time(state: RolloutState) -> None:
    done = gone(state)
    assert (done.action, done.code) == (Action.REPLACE, Code.STABLE_GONE)
    assert done.reason == (
        "r1 has had no serving server for 60 s, and the policy then replaces it: r2 takes all traffic, as a first release does, and is "
        "held to the absolute objectives only. There is no rollback target until r1 answers again."
    )
    restart = gone(state, gone_s=59.9)
    assert (restart.action, restart.code) == (Action.HOLD, Code.STABLE_GONE)
    assert "r2 takes all traffic once r1 has been gone for 60 s" in restart.reason


@pytest.mark.parametrize("state", [*STATES, S.PAUSED])
def test_by_default_it_holds_and_names_the_verb_that_a_release_manager_has(state: RolloutState) -> None:
    done = gone(state, POLICY, gone_s=1e6)
    assert done.action is Action.HOLD
    if state is not S.PAUSED:
        assert done.code is Code.STABLE_GONE and "`sluicegate rollout promote`" in done.reason


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"candidate_servers": 0}, "it has no server"),
        ({"is_stable_asleep": True}, "stable is being woken"),
        ({"problem": "provider_down"}, "no gateway tells anything"),
        ({"total_s": 1e9}, "the whole rollout is overdue"),
        ({"judged": (judged(0, bad_candidate=50, log_e_worse=30.0), judged(1))}, "it is proven worse"),
        ({"is_promoting": True}, "it is being promoted"),
        ({"stable_servers": 1}, "stable serves"),
        ({"stable_servers": None}, "it is unknown"),
    ],
)
def test_the_policy_replaces_nothing_where(over: dict[str, Any], why: str) -> None:
    done = decide(snapshot(**{"policy": REPLACE, "stable_servers": 0, "stable_gone_s": 1e6, "state": S.BAKING, **over}))
    assert done.action is not Action.REPLACE, why


def test_the_policy_ends_no_pause() -> None:
    assert gone(S.PAUSED, gone_s=1e6).action is Action.HOLD


def test_a_stable_release_that_declares_a_long_start_is_given_the_time_for_it() -> None:
    restart = gone(S.SHIFTING, gone_s=199.0, stable_start_s=200.0)
    assert restart.action is Action.HOLD and "once r1 has been gone for 200 s" in restart.reason
    assert gone(S.SHIFTING, gone_s=200.0, stable_start_s=200.0).action is Action.REPLACE
    assert gone(S.SHIFTING, gone_s=60.0, stable_start_s=5.0).action is Action.REPLACE


@pytest.mark.parametrize("stage", ["start", "step 2", "step 3", "bake", "promote"])
def test_all_traffic_at_once_skips_no_approval(stage: str) -> None:
    policy = replace(REPLACE, approvals={stage: 1})
    held = gone(S.PREPARING, policy)
    assert (held.code, held.facts["stage"], held.facts["held"]) == (Code.AWAITING_APPROVAL, stage, "replace")
    assert gone(S.PREPARING, policy, approvals={stage: 1}).action is Action.REPLACE


@pytest.mark.parametrize("policy", [POLICY, REPLACE])
@pytest.mark.parametrize("state", [S.PREPARING, S.BAKING, S.PAUSED])
def test_the_hold_names_every_approval_that_all_traffic_lacks(state: RolloutState, policy: Policy) -> None:
    policy = replace(policy, approvals={"start": 2, "promote": 1})
    ahead = "start needs 1 more approval and " if state is S.PREPARING else ""
    said = f"{ahead}promote needs 1 more approval."
    for gone_s in (1.0, 60.0):
        held = gone(state, policy, gone_s=gone_s, approvals={"start": 1}, paused_in=S.BAKING)
        assert held.action is Action.HOLD
        assert held.reason.endswith(said) or state is S.PAUSED, held.reason


def test_the_policy_waits_for_the_end_of_a_freeze_and_names_who_need_not() -> None:
    policy = replace(REPLACE, freeze_windows=(FreezeWindow(why="Holidays"),), approvals={"promote": 1})
    held = gone(S.PREPARING, policy)
    assert held.code is Code.FROZEN and "changes are frozen until" in held.reason
    assert "(Holidays). A release manager may give r2 all traffic at once: `sluicegate rollout promote" in held.reason
    assert held.reason.endswith("Before that, promote needs 1 more approval.")


#: What takes a candidate back by itself: evidence, a deadline, blindness.
TAKEN_BACK: list[dict[str, Any]] = [
    {"judged": (judged(0, bad_candidate=50, log_e_worse=30.0), judged(1))},
    {"judged": (judged(0), judged(1, bad_candidate=90, log_e_over=30.0, log_e_worse=3.0))},
    {"all_failing": 10, "all_failing_s": 1.0},
    {"now": 10_000.0, "judged": (judged(0, log_e_fine=0.0), judged(1))},
    {"total_s": 1e9},
    {"problem": "provider_down", "blind_s": 1e6},
    {"quiet_s": 999.0, "now": 10_000.0},
]


@pytest.mark.parametrize("over", TAKEN_BACK)
@pytest.mark.parametrize("state", sorted(LIVE))
def test_nothing_is_taken_back_to_a_release_without_a_server(state: RolloutState, over: dict[str, Any]) -> None:
    policy = replace(POLICY, on_undecided=OnUndecided.ROLL_BACK, on_blind=OnUndecided.ROLL_BACK)
    numbers = {"policy": policy, "state": state, **over}
    with_server = decide(snapshot(**numbers))
    without = decide(snapshot(stable_servers=0, stable_gone_s=5.0, **numbers))
    assert without.action is Action.HOLD
    if with_server.action is Action.ROLL_BACK and "breach" in with_server.facts:
        assert (
            without.code is Code.NO_ROLLBACK_TARGET
            and "r1, the rollback target, has no serving server" in without.reason
        )
        assert "`sluicegate rollout promote`" in without.reason or state is S.PAUSED


def test_unsealed_contents_are_taken_back_to_a_release_without_a_server() -> None:
    done = decide(snapshot(stable_servers=0, digest_mismatch="Its files are not those that were sealed."))
    assert (done.action, done.code) == (Action.ROLL_BACK, Code.DIGEST_MISMATCH)


def test_a_displaced_release_that_answers_again_is_the_rollback_target() -> None:
    broken = (judged(0, ALONE), judged(1, ALONE, bad_candidate=90, log_e_over=30.0))
    alone = snapshot(
        policy=ALONE,
        has_stable=False,
        displaced_name="r1",
        step_index=0,
        weight_bp=10_000,
        routed_stable=0,
        judged=broken,
    )
    nowhere = decide(alone)
    assert (nowhere.action, nowhere.code) == (Action.PAUSE, Code.NO_ROLLBACK_TARGET)
    assert "r1, the release before, has no serving server: it keeps its traffic" in nowhere.reason
    back = decide(changed(alone, displaced_servers=1))
    assert (back.action, back.code) == (Action.ROLL_BACK, Code.OBJECTIVE_BREACHED)
    assert back.reason.endswith("Rolling back to r1, which answers again.")
    paused = decide(changed(alone, displaced_servers=1, state=S.PAUSED))
    assert paused.action is Action.ROLL_BACK


@pytest.mark.parametrize(
    ("servers", "reported", "unanswered", "is_gone"),
    [
        (0, 0, 0, True),  # its agent reported that it ended
        (None, None, 99, False),  # unknown
        (1, 1, 99, False),  # an agent reports that it answers
        (1, 0, 9, False),  # a silent agent is no evidence
        (1, 0, 10, True),  # and gateways get no answer
        (1, None, 99, False),
    ],
)
def test_a_silent_agent_alone_is_no_evidence(servers: Any, reported: Any, unanswered: int, is_gone: bool) -> None:
    assert is_absent(Observed(0.0, stable_servers=servers, stable_reported=reported), unanswered, 10) is is_gone


def test_an_answer_shows_that_stable_is_there_and_a_request_that_was_shed_shows_nothing() -> None:
    def after(state: EngineState, tick: int, routed: int, attempts: int, failed: int, shed: int = 0) -> EngineState:
        stable = Counts(attempts, routed, {"errors": failed, "shed": shed})
        reading = Reading("one", float(tick), Counts(), stable)
        return update_state(state, tick=tick, readings={"gateway": reading}, policy=POLICY, has_stable=True)

    state = after(EngineState(), 1, 0, 0, 0)
    state = after(state, 2, 7, 0, 0)  # never sent anywhere
    assert state.of(StableServers).unanswered == 7
    state = after(state, 3, 12, 5, 5)
    assert EngineState.from_json(state.to_json()).of(StableServers).unanswered == 12
    assert after(state, 4, 13, 6, 5).of(StableServers).unanswered is None
    shed = after(state, 4, 17, 5, 5, shed=5)
    assert shed.of(StableServers).unanswered == 12
    assert after(shed, 5, 30, 8, 8, shed=15).of(StableServers).unanswered == 15
