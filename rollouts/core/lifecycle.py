"""The life of a rollout.

requested → awaiting_approval → preparing → shadowing → shifting ⇄ paused → baking → promoted
requested → preparing                       (nothing to approve)
preparing → shifting                        (the policy asks for no shadowing)
requested | awaiting_approval → rejected | cancelled
preparing → cancelled                       (the candidate never became ready; no traffic ever)
requested | awaiting_approval | preparing → superseded
shadowing | shifting | baking ⇄ paused
shifting → baking                           (after the last step, or when a person promotes at once)
preparing | shadowing | shifting | paused | baking → rolling_back → rolled_back | stuck
stuck → rolling_back                        (the gateways follow after all, or a person tries again)
"""

from __future__ import annotations

from enum import StrEnum


class RolloutState(StrEnum):
    REQUESTED = "requested"
    AWAITING_APPROVAL = "awaiting_approval"
    PREPARING = "preparing"
    SHADOWING = "shadowing"
    SHIFTING = "shifting"
    PAUSED = "paused"
    BAKING = "baking"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


S = RolloutState
MOVES: dict[RolloutState, frozenset[RolloutState]] = {
    S.REQUESTED: frozenset({S.AWAITING_APPROVAL, S.PREPARING, S.REJECTED, S.CANCELLED, S.SUPERSEDED}),
    S.AWAITING_APPROVAL: frozenset({S.PREPARING, S.REJECTED, S.CANCELLED, S.SUPERSEDED}),
    S.PREPARING: frozenset({S.SHADOWING, S.SHIFTING, S.CANCELLED, S.SUPERSEDED, S.ROLLING_BACK}),
    S.SHADOWING: frozenset({S.SHIFTING, S.PAUSED, S.BAKING, S.ROLLING_BACK}),
    S.SHIFTING: frozenset({S.PAUSED, S.BAKING, S.ROLLING_BACK}),
    S.PAUSED: frozenset({S.SHADOWING, S.SHIFTING, S.BAKING, S.ROLLING_BACK}),
    S.BAKING: frozenset({S.PROMOTED, S.PAUSED, S.ROLLING_BACK}),
    S.ROLLING_BACK: frozenset({S.ROLLED_BACK, S.STUCK}),
    S.STUCK: frozenset({S.ROLLING_BACK}),
    S.PROMOTED: frozenset(),
    S.ROLLED_BACK: frozenset(),
    S.REJECTED: frozenset(),
    S.CANCELLED: frozenset(),
    S.SUPERSEDED: frozenset(),
}
FINAL = frozenset(state for state, to in MOVES.items() if not to)
ACTIVE = frozenset(set(S) - FINAL)
#: Nothing has reached the candidate yet, no user's request and no copy of one: another rollout may take its place.
WITHOUT_TRAFFIC = frozenset({S.REQUESTED, S.AWAITING_APPROVAL, S.PREPARING})
#: States in which the candidate may be serving users, or copies of their requests, so breach is checked in each of them.
LIVE = frozenset({S.SHADOWING, S.SHIFTING, S.PAUSED, S.BAKING})
