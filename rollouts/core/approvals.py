"""Validity of approvals: bound to digests and to a stage, never for one's own release, not expired, by a person with the role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import Policy

S = RolloutState
START, BAKE, PROMOTE = "start", "bake", "promote"


class Void(StrEnum):
    """Reason why an approval does not count. The codes are stable; `WHY` has their sentences."""

    OTHER_DIGESTS = "other_digests"
    REPORT_SUPERSEDED = "report_superseded"
    OWN_RELEASE = "own_release"
    NO_LONGER_MAY = "no_longer_may"
    EXPIRED = "expired"
    BEFORE_CROSSING = "before_crossing"


WHY = {
    Void.OTHER_DIGESTS: "It names another manifest, report or policy than this rollout rests on.",
    Void.REPORT_SUPERSEDED: "The release has a newer report than the one that was approved.",
    Void.OWN_RELEASE: "Its giver made the release or asked for the rollout.",
    Void.NO_LONGER_MAY: "Its giver may no longer approve rollouts of this team.",
    Void.EXPIRED: "It has expired.",
    Void.BEFORE_CROSSING: "The candidate's traffic was taken away after it.",
}


@dataclass(frozen=True)
class Digests:
    """Digests at the time of the approval; `report` is empty if none was needed."""

    manifest: str
    report: str
    policy: str


@dataclass(frozen=True)
class ApprovalFacts:
    """One person's yes to one stage, given at `at`. `may_approve`: whether the person holds the role now."""

    approver: int
    stage: str
    digests: Digests
    at: datetime
    expires_at: datetime | None
    may_approve: bool


def void_because(
    approval: ApprovalFacts,
    *,
    pinned: Digests,
    newest_report: str,
    excluded: frozenset[int],
    now: datetime,
    crossed_at: datetime | None = None,
) -> Void | None:
    """The first reason why the approval does not count; None when it does.

    `newest_report` is the digest of the release's newest report under the gate policy of the pinned one, empty for none.
    `excluded` are the release's author and the requester; `crossed_at`: when traffic was last taken away.
    """
    if approval.digests != pinned:
        return Void.OTHER_DIGESTS
    if newest_report != pinned.report:
        return Void.REPORT_SUPERSEDED
    if approval.approver in excluded:
        return Void.OWN_RELEASE
    if not approval.may_approve:
        return Void.NO_LONGER_MAY
    if approval.expires_at is not None and approval.expires_at <= now:
        return Void.EXPIRED
    if crossed_at is not None and approval.stage != START and approval.at <= crossed_at:
        return Void.BEFORE_CROSSING  # of a later stage, given without knowledge of the crossing
    return None


def valid(
    approvals: Iterable[ApprovalFacts],
    *,
    pinned: Digests,
    newest_report: str,
    excluded: frozenset[int],
    now: datetime,
    crossed_at: datetime | None = None,
) -> dict[str, frozenset[int]]:
    """Distinct people with a valid approval, by stage. Several approvals by a person count once."""
    found: dict[str, set[int]] = {}
    for one in approvals:
        void = void_because(
            one, pinned=pinned, newest_report=newest_report, excluded=excluded, now=now, crossed_at=crossed_at
        )
        if void is None:
            found.setdefault(one.stage, set()).add(one.approver)
    return {stage: frozenset(people) for stage, people in found.items()}


def stages_of(plan: Policy) -> tuple[str, ...]:
    """Every stage that an approval can be asked for, in the order in which they are entered."""
    return (*(plan.stage_name(index) for index in range(len(plan.steps))), BAKE, PROMOTE)


def stages_ahead(plan: Policy, state: RolloutState, step_index: int, paused_in: RolloutState) -> tuple[str, ...]:
    """The stages that the rollout has yet to enter. `start` is entered with the first traffic of users.

    So its approvals still count while preparing and shadowing: one that becomes void meanwhile must be given again.
    """
    where = paused_in if state is S.PAUSED else state
    stages = stages_of(plan)
    if where in {S.AWAITING_APPROVAL, S.PREPARING, S.SHADOWING, S.SECOND_LOOK}:
        return stages
    if where is S.SHIFTING:
        return stages[min(max(step_index, 0), len(plan.steps) - 1) + 1 :]
    return (PROMOTE,) if where is S.BAKING else ()


def missing(wanted: Mapping[str, int], given: Mapping[str, int], stages: Iterable[str]) -> dict[str, int]:
    """How many approvals each of these stages still lacks; only those that lack any, in the order given."""
    left = {stage: wanted.get(stage, 0) - given.get(stage, 0) for stage in stages}
    return {stage: count for stage, count in left.items() if count > 0}
