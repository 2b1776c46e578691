"""No weight is opened for which too few servers answer, or are proven for too little; and nothing that shuts waits for any."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.core.decide import decide
from rollouts.core.decision import OPENING, Action, Code
from rollouts.core.headroom import Headroom, weight_ahead
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import FULL_BP
from rollouts.core.policy_schema import parse_policy
from rollouts.core.shortage import shortage_at
from rollouts.core.snapshot import Identity
from serving.environments.core.replicas import share_of
from tests.core.test_decide import BREACHES, POLICY, snapshot
from tests.support.worlds.snapshots import changed

S = RolloutState
WHO = Identity(candidate_name="r2", stable_name="r1")
SHADOWED = parse_policy({"shadow": {"sample_pct": 5, "min_s": 0, "min_samples": 1, "deadline_s": 9}}).facing(
    has_stable=True
)


@pytest.mark.parametrize(
    ("state", "index", "weight_bp"),
    [
        (S.PREPARING, -1, 500), (S.SHADOWING, -1, 500), (S.SHIFTING, 0, 2500), (S.SHIFTING, 1, 5000),
        (S.SHIFTING, 2, POLICY.bake.weight_bp), (S.BAKING, 2, FULL_BP), (S.PAUSED, 1, 0), (S.ROLLING_BACK, 1, 0),
    ],
)  # fmt: skip
def test_what_comes_next_is_what_servers_are_asked_for(state: RolloutState, index: int, weight_bp: int) -> None:
    assert POLICY.shadow is None and weight_ahead(POLICY, state, index) == weight_bp
    assert SHADOWED.shadow is not None and weight_ahead(SHADOWED, S.PREPARING, -1) == 0


def test_a_step_waits_for_the_servers_that_its_share_takes_and_says_why_they_do_not_come() -> None:
    held = decide(snapshot(headroom=Headroom(4, candidate=1, stable=4, why="No node has room.")))
    assert (held.action, held.code) == (Action.HOLD, Code.NEEDS_REPLICAS)
    assert held.reason == (
        "Ready to go on, but 50 % needs 2 servers of r2, and 1 answers: waiting for one more. No node has room."
    )
    assert (held.facts["needed"], held.facts["answering"], held.facts["held"]) == (2, 1, "advance")
    assert decide(snapshot(headroom=Headroom(4, candidate=2, stable=4))).action is Action.ADVANCE


STAGES: list[tuple[dict[str, Any], int]] = [
    ({"state": S.PREPARING, "step_index": -1, "weight_bp": 0}, 500),
    ({}, 5000),
    ({"step_index": 2, "weight_bp": 5000, "routed_candidate": 1000, "routed_stable": 1000}, POLICY.bake.weight_bp),
    ({"state": S.BAKING, "weight_bp": 9500, "routed_candidate": 950, "routed_stable": 50}, FULL_BP),
    (
        {
            "state": S.BAKING,
            "weight_bp": 9500,
            "routed_candidate": 950,
            "routed_stable": 50,
            "promote_now": True,
            "now": 901.0,
        },
        FULL_BP,
    ),
]


@pytest.mark.parametrize(("stage", "weight_bp"), STAGES)
def test_every_stage_that_is_entered_needs_its_servers(stage: dict[str, Any], weight_bp: int) -> None:
    needed = share_of(40, weight_bp)
    held = decide(snapshot(**stage, headroom=Headroom(40, candidate=needed - 1, stable=40)))
    assert held.code is Code.NEEDS_REPLICAS and f" {needed} servers of r2" in held.reason
    opened = decide(snapshot(**stage, headroom=Headroom(40, candidate=needed, stable=40)))
    assert opened.action in OPENING and opened.action is not Action.SHADOW


def test_what_is_promoted_already_and_copies_wait_for_no_server() -> None:
    none = Headroom(40, candidate=1, stable=40)
    assert decide(snapshot(state=S.BAKING, is_promoting=True, headroom=none)).code is Code.PROMOTING
    prepared = snapshot(state=S.PREPARING, step_index=-1, weight_bp=0, policy=SHADOWED, headroom=none)
    assert decide(prepared).action is Action.SHADOW


@pytest.mark.parametrize(("breach", "code"), BREACHES)
def test_a_breach_waits_for_no_server(breach: dict[str, Any], code: Code) -> None:
    none = Headroom(40, candidate=0, stable=0, proven_candidate=0.1, proven_stable=0.1)
    done = decide(snapshot(**breach, headroom=none))
    assert (done.action, done.code) == (Action.ROLL_BACK, code)


def test_a_step_that_would_be_over_what_the_servers_are_proven_for_is_not_taken() -> None:
    """2,000 requests in 100 s: at 50 % the candidate would get 10 of 20 a second."""
    over = decide(snapshot(headroom=Headroom(2, candidate=1, stable=2, proven_candidate=9.5, proven_stable=11)))
    assert (over.action, over.code) == (Action.HOLD, Code.NEEDS_REPLICAS)
    assert over.reason == ("Ready to go on, but at 50 % r2 would get 10 requests/s; its one server is proven for 9.5.")
    back = decide(snapshot(headroom=Headroom(2, candidate=2, stable=2, proven_candidate=9.5, proven_stable=9.9)))
    assert back.reason == (
        "Ready to go on, but r1, the way back, may have to take 20 requests/s; its 2 servers are proven for 19.8."
    )
    assert (back.facts["per_s"], back.facts["proven_per_s"]) == (20.0, 19.8)
    fits = Headroom(2, candidate=2, stable=2, proven_candidate=9.5, proven_stable=10)
    assert decide(snapshot(headroom=fits)).action is Action.ADVANCE
    unknown = snapshot(headroom=Headroom(2, 2, 2, 0.1, 0.1), routed_candidate=0, routed_stable=0)
    assert decide(unknown).action is Action.ADVANCE  # nobody counted


HEADROOMS = st.builds(
    Headroom,
    st.none() | st.integers(1, 100),
    st.integers(0, 100),
    st.integers(0, 100),
    st.none() | st.floats(0.01, 1000),
    st.none() | st.floats(0.01, 1000),
)


@settings(max_examples=300, deadline=None)
@given(headroom=HEADROOMS, stage=st.sampled_from(STAGES), trouble=st.sampled_from([{}, *(one for one, _ in BREACHES)]))
def test_room_only_ever_holds_what_would_open(
    headroom: Headroom, stage: tuple[dict[str, Any], int], trouble: Any
) -> None:
    given_stage, weight_bp = stage
    bare = snapshot(**{**given_stage, **trouble})
    before, after = decide(bare), decide(changed(bare, headroom=headroom))
    if after != before:
        assert before.action in OPENING and after.action is Action.HOLD
        assert after.code is Code.NEEDS_REPLICAS
    if after.action in OPENING:
        assert headroom.candidate >= headroom.needed_at(weight_bp) or headroom.needed_at(weight_bp) == 1
        assert shortage_at(headroom, weight_bp, bare.routed_per_s, WHO) is None


@given(headroom=HEADROOMS)
def test_what_a_decision_may_rest_on_is_kept(headroom: Headroom) -> None:
    kept = Headroom.from_json(headroom.as_json())
    for weight_bp in (100, 5000, FULL_BP):
        for per_s in (None, 0.5, 3000.0):
            assert shortage_at(kept, weight_bp, per_s, WHO) == shortage_at(headroom, weight_bp, per_s, WHO)


def test_one_replica_leaves_no_trace_in_the_history() -> None:
    assert Headroom(1, candidate=1, stable=1).as_json() == Headroom().as_json() == {}
