"""Facts about the candidate's servers: one runs other contents than were sealed, or none serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from rollouts.core.counter_deltas import ERRORS
from rollouts.core.decision import Code, Decision
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.rules.state import NewStage, RuleState, TickView
from rollouts.core.rules.verdicts import rollback_decision, shared_incident
from rollouts.core.snapshot import Observed, Snapshot


@dataclass(frozen=True)
class CandidateServers(RuleState):
    """`gone_since`: when the candidate was first found without a server; None: it has one. `has_failed`: the last reading with
    attempts of the candidate held a failed one."""

    name = "servers_gone"
    earlier = {"gone_since": "gone_since", "has_failed": "has_failed"}
    gone_since: float | None = None
    has_failed: bool = False

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        candidate = news.arms.candidate
        return replace(self, has_failed=candidate.bad.get(ERRORS, 0) > 0) if candidate.attempts else self

    def observed(self, seen: TickView) -> tuple[Self, tuple[()]]:
        servers = seen.observed.candidate_servers
        if servers is None or (servers > 0) is (self.gone_since is None):
            return self, ()
        return replace(self, gone_since=None if servers else seen.now), ()

    def entered(self, stage: NewStage) -> Self:
        return replace(self, has_failed=False) if stage.again else self

    def is_gone(self, seen: Observed) -> bool:
        """A first look without a server may be a slow probe; a later look, or failed attempts before it, is not."""
        return self.gone_since is not None and (self.has_failed or seen.now - self.gone_since > seen.gone_over_s)


def other_contents(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction of a candidate that runs other contents than were sealed."""
    if s.observed.digest_mismatch:
        yield rollback_decision(s, Code.DIGEST_MISMATCH, s.observed.digest_mismatch)


def servers_gone(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction of a candidate without a server, or the hold if stable has none either."""
    if not s.of(CandidateServers).is_gone(s.observed):
        return
    if s.identity.has_stable and s.observed.stable_servers == 0:
        yield shared_incident(s, "neither release has a serving server")
    else:
        yield rollback_decision(s, Code.SERVERS_GONE, f"{s.identity.candidate_name} has no serving server left.")
