"""Stable has no server: nothing is left to protect. The candidate may take all traffic, and is judged as a first release is.

Premises: docs/decisions/0040-when-stable-is-gone.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from accounts.core.quantities import weight_text
from rollouts.core.approvals import missing, stages_ahead
from rollouts.core.counter_deltas import ERRORS, SHED, Counts
from rollouts.core.decision import Action, Code, Decision, facts_of, hold, listed
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import WhenStableIsGone
from rollouts.core.rules.state import RuleState, TickView
from rollouts.core.snapshot import Observed, Snapshot


@dataclass(frozen=True)
class StableServers(RuleState):
    """`gone_since`: when stable was first found without a server; None: it has one. `unanswered`: its requests since the last reading in
    which it answered one; None: it answers."""

    name = "stable_gone"
    earlier = {"gone_since": "stable_gone_since", "unanswered": "stable_unanswered"}
    gone_since: float | None = None
    unanswered: int | None = None

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        return replace(self, unanswered=_unanswered(self.unanswered, news.arms.stable))

    def observed(self, seen: TickView) -> tuple[Self, tuple[()]]:
        servers = seen.observed.stable_servers
        if not seen.has_stable or servers is None or (servers > 0) is (self.gone_since is None):
            return self, ()
        return replace(self, gone_since=None if servers else seen.now), ()


def _unanswered(before: int | None, stable: Counts) -> int | None:
    """Stable's requests in a row without an answer; None after an answer.

    A request that was shed proves nothing: the gateway sheds too, without a server, while many requests wait to connect.
    """
    if stable.attempts > stable.bad.get(ERRORS, 0):
        return None
    return (before or 0) + max(stable.routed - stable.bad.get(SHED, 0), stable.attempts) or None


def is_absent(seen: Observed, unanswered: int, least: int) -> bool:
    """Whether stable is known to have no server that answers.

    A silent agent is no evidence. `least` requests in a row without one answer are, if no agent reports on stable's servers.
    """
    if not seen.stable_servers:
        return seen.stable_servers == 0
    return seen.stable_reported == 0 and unanswered >= least


def replacement(s: Snapshot) -> Decision | None:
    """All traffic to the candidate, if the policy asks for that and stable has been gone for long enough; else None."""
    is_asked = s.policy.when_stable_is_gone is WhenStableIsGone.REPLACE and not s.observed.is_stable_asleep
    if not is_asked or not s.is_stable_gone or not s.observed.candidate_servers or s.desired.is_promoting:
        return None
    if s.desired.state is RolloutState.PAUSED or s.observed.problem or s.observed.total_s >= s.policy.deadline_s:
        return None
    gone_s = s.since(s.of(StableServers).gone_since) or 0.0
    if gone_s < s.replaced_after_s:
        return None
    said = (
        f"{s.identity.stable_name} has had no serving server for {gone_s:.0f} s, and the policy then replaces it: "
        f"{takes_over(s.identity.candidate_name, s.identity.stable_name)}"
    )
    return Decision(Action.REPLACE, Code.STABLE_GONE, said, facts_of(s) | {"to_index": 0, "gone_s": round(gone_s, 1)})


def takes_over(candidate: str, stable: str) -> str:
    """Returns the consequences for both releases, as sentences."""
    return (
        f"{candidate} takes all traffic, as a first release does, and is held to the absolute objectives only. "
        f"There is no rollback target until {stable} answers again."
    )


def no_target(s: Snapshot) -> Decision:
    """The hold of a live rollout whose rollback target has no server."""
    candidate, stable = s.identity.candidate_name, s.identity.stable_name
    at = f"Holding at {weight_text(s.desired.weight_bp)}"
    meanwhile = ""
    if s.desired.weight_bp > 0 and s.observed.candidate_servers:  # decision 0048
        meanwhile = (
            f"Gateways give {candidate} the requests that find no server of {stable}; at weight 0 they would fail. "
        )
    said = f"{at}: {stable}, the rollback target, has no serving server. {meanwhile}{way_on(s)}"
    return hold(s, Code.STABLE_GONE, said)


def waiting(s: Snapshot) -> Decision:
    """The hold of a candidate that is ready beside a stable release without a server. Past the deadline people are warned, once."""
    gone_s, known_s = s.observed.waited_s, s.since(s.of(StableServers).gone_since)
    if known_s is not None:
        gone_s = min(gone_s, known_s)
    is_late = gone_s >= s.policy.prepare_deadline_s
    why = f" {s.observed.replica_problem}" if s.observed.replica_problem else ""
    since = f" for {gone_s:.0f} s" if is_late else ""
    has = "has had" if is_late else "has"
    way = "" if s.observed.is_stable_asleep and not is_late else way_on(s)  # a sleeping release is not gone
    said = (
        f"{s.identity.candidate_name} is ready, but {s.identity.stable_name}, the rollback target, {has} no serving server"
        f"{since}; waiting for it.{why} {way}"
    ).rstrip()
    return Decision(Action.HOLD, Code.STABLE_GONE, said, is_late=is_late)


def way_on(s: Snapshot) -> str:
    """Returns the sentence with the verb, and the policy's delay, that end the hold."""
    candidate, stable = s.identity.candidate_name, s.identity.stable_name
    by_itself = ""
    if s.policy.when_stable_is_gone is WhenStableIsGone.REPLACE and s.desired.state is not RolloutState.PAUSED:
        by_itself = f"{candidate} takes all traffic once {stable} has been gone for {s.replaced_after_s:.0f} s. "
    return f"{by_itself}{way_by_hand(s)}"


def way_by_hand(s: Snapshot) -> str:
    """Returns the sentences with a release manager's verb, and the approvals that it lacks. A freeze does not hold the verb."""
    number = f" {s.identity.rollout_id}" if s.identity.rollout_id else ""
    said = f"A release manager may give {s.identity.candidate_name} all traffic at once: `sluicegate rollout promote{number}`."
    left = lacking(s)
    return f"{said} Before that, {lacking_words(left)}." if left else said


def lacking(s: Snapshot) -> dict[str, int]:
    """Approvals that all traffic at once still lacks, by stage: it enters every stage ahead, and the promotion is one of them."""
    ahead = stages_ahead(s.policy, s.desired.state, s.desired.step_index, s.desired.paused_in)
    return missing(s.policy.approvals, s.people.approvals, ahead)


def lacking_words(left: Mapping[str, int]) -> str:
    """`start needs 2 more approvals and promote needs 1 more approval`."""
    return listed(f"{stage} needs {count} more approval{'s' * (count > 1)}" for stage, count in left.items())
