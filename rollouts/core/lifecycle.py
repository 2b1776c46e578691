"""The life of a rollout.

awaiting_approval → preparing → shadowing → shifting → baking → promoted

A rollout begins in awaiting_approval, or in preparing if it needs no approval.

preparing → shifting                        (the policy asks for no shadowing)
awaiting_approval → rejected
awaiting_approval | preparing → cancelled   (by a person, or the candidate never became ready; no traffic ever)
awaiting_approval | preparing → superseded
shadowing | shifting | baking ⇄ paused
shadowing → baking                          (a person promotes at once)
shadowing | shifting | paused | baking → second_look → shadowing | shifting | paused | rolling_back | stuck
                                            (a first crossing takes the traffic away; then it begins again)
paused → stuck                              (paused during that, while gateways do not follow)
shadowing | shifting | paused | baking → rolling_back → rolled_back | stuck
stuck → rolling_back                        (the gateways follow after all, or a person tries again)
promoted → reverted                         (a person went back to the release before while that was still warm)
"""

from __future__ import annotations

from enum import StrEnum


class RolloutState(StrEnum):
    AWAITING_APPROVAL = "awaiting_approval"
    PREPARING = "preparing"
    SHADOWING = "shadowing"
    SHIFTING = "shifting"
    PAUSED = "paused"
    BAKING = "baking"
    SECOND_LOOK = "second_look"
    PROMOTED = "promoted"
    REVERTED = "reverted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


S = RolloutState
MOVES: dict[RolloutState, frozenset[RolloutState]] = {
    S.AWAITING_APPROVAL: frozenset({S.PREPARING, S.REJECTED, S.CANCELLED, S.SUPERSEDED}),
    S.PREPARING: frozenset({S.SHADOWING, S.SHIFTING, S.CANCELLED, S.SUPERSEDED}),
    S.SHADOWING: frozenset({S.SHIFTING, S.PAUSED, S.BAKING, S.SECOND_LOOK, S.ROLLING_BACK}),
    S.SHIFTING: frozenset({S.PAUSED, S.BAKING, S.SECOND_LOOK, S.ROLLING_BACK}),
    S.PAUSED: frozenset({S.SHADOWING, S.SHIFTING, S.BAKING, S.SECOND_LOOK, S.ROLLING_BACK, S.STUCK}),
    S.BAKING: frozenset({S.PROMOTED, S.PAUSED, S.SECOND_LOOK, S.ROLLING_BACK}),
    S.SECOND_LOOK: frozenset({S.SHADOWING, S.SHIFTING, S.PAUSED, S.ROLLING_BACK, S.STUCK}),
    S.ROLLING_BACK: frozenset({S.ROLLED_BACK, S.STUCK}),
    S.STUCK: frozenset({S.ROLLING_BACK}),
    S.PROMOTED: frozenset({S.REVERTED}),
    S.REVERTED: frozenset(),
    S.ROLLED_BACK: frozenset(),
    S.REJECTED: frozenset(),
    S.CANCELLED: frozenset(),
    S.SUPERSEDED: frozenset(),
}
#: The rollout is over: the engine does nothing more for it, and another one may begin. A promoted one can still be reverted.
FINAL = frozenset({S.PROMOTED, S.REVERTED, S.ROLLED_BACK, S.REJECTED, S.CANCELLED, S.SUPERSEDED})
ACTIVE = frozenset(set(S) - FINAL)
#: Nothing has reached the candidate yet, no user's request and no copy of one: another rollout may take its place.
WITHOUT_TRAFFIC = frozenset({S.AWAITING_APPROVAL, S.PREPARING})
#: States in which the candidate may be serving users, or copies of their requests, so breach is checked in each of them.
LIVE = frozenset({S.SHADOWING, S.SHIFTING, S.PAUSED, S.BAKING, S.SECOND_LOOK})


def outcome_of(state: str, *, has_stable: bool) -> str:
    """The state for people: a first release has no rollback target, so the rollout of a rolled-back first release
    is shown as `ended` (it keeps its traffic)."""
    return "ended" if state == S.ROLLED_BACK and not has_stable else state
