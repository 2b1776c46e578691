"""The table of a rollout's moves says what DESIGN says."""

from __future__ import annotations

from rollouts.core.lifecycle import ACTIVE, FINAL, LIVE, MOVES, RolloutState

S = RolloutState


def test_every_state_has_a_row_and_only_known_targets() -> None:
    assert set(MOVES) == set(S)
    assert all(to <= set(S) for to in MOVES.values())


def test_every_live_state_can_roll_back() -> None:
    assert all(S.ROLLING_BACK in MOVES[state] for state in LIVE)


def test_nothing_leaves_an_end_but_a_promotion_that_is_reverted_and_every_active_state_reaches_one() -> None:
    assert {S.PROMOTED, S.REVERTED, S.ROLLED_BACK, S.REJECTED, S.CANCELLED, S.SUPERSEDED} == FINAL
    assert {state for state in FINAL if MOVES[state]} == {S.PROMOTED} and MOVES[S.PROMOTED] == {S.REVERTED}
    for state in ACTIVE:
        seen, front = {state}, {state}
        while front:
            front = {to for one in front for to in MOVES[one]} - seen
            seen |= front
        assert seen & FINAL


def test_promotion_comes_only_after_the_bake() -> None:
    assert {state for state in S if S.PROMOTED in MOVES[state]} == {S.BAKING}


def test_nothing_moves_traffic_before_it_is_prepared() -> None:
    assert {state for state in S if S.SHIFTING in MOVES[state]} == {S.PREPARING, S.SHADOWING, S.PAUSED, S.SECOND_LOOK}
    assert {state for state in S if S.SHADOWING in MOVES[state]} == {S.PREPARING, S.PAUSED, S.SECOND_LOOK}
