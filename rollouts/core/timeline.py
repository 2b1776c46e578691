"""A stored rollout tick by tick, for plots: weights, attempts and evidence, recomputed from the counts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rollouts.core.counter_deltas import COMMON, ERRORS, SAVED, Arms
from rollouts.core.judged import Judged
from rollouts.core.policy import FULL_BP, Policy
from rollouts.core.replay import ReplayedRollout, Walk
from rollouts.core.tick_history import Segment, TickRecord, rows_in

#: The observed share is that of so many requests of both arms at least: of a handful it says nothing.
LEAST_ROUTED = 50


@dataclass(frozen=True)
class EvidenceAt:
    """One guard at one tick, as log E."""

    worse: float
    over: float
    fine: float
    to_go: int | None = None  # further attempts until the candidate is proven fine; None: cannot tell


@dataclass(frozen=True)
class Moment:
    """One stored row, of `ticks` ticks. `at` in seconds since the epoch (UTC), shares in [0, 1]; None where nobody knows."""

    tick: int
    at: float
    ticks: int
    state: str
    step_index: int
    weight: float
    acknowledged: float | None  # the weight that every gateway followed, as last known
    observed: float | None  # the candidate's share of the last requests
    attempts: int  # first attempts on the candidate in this row
    failed: int
    retried: int  # of these, those that were tried again on stable
    stable_attempts: int
    stable_failed: int
    is_blind: bool  # nothing could be read
    action: str  # hold, or what would be decided here; empty where that was not recomputed
    evidence: Mapping[str, EvidenceAt] = field(default_factory=dict)


NOTHING: Mapping[int, Mapping[str, EvidenceAt]] = MappingProxyType({})


class Timeline:
    """Moments of a rollout, in the order of its blocks. What was recomputed is kept, so that a growing history costs its news.

    Not `is_judged`: nothing is recomputed, and moments have the evidence that was stored with their block, if any.
    """

    def __init__(self, policy: Policy, *, has_stable: bool, is_judged: bool = True) -> None:
        self.moments: list[Moment] = []
        self.is_judged = is_judged
        self._replayed = ReplayedRollout(policy.facing(has_stable=has_stable), has_stable)
        self._acknowledged: float | None = None
        self._routed: list[tuple[int, int]] = []

    def extended(self, blocks: Iterable[Segment], stored: Mapping[int, Mapping[str, EvidenceAt]] = NOTHING) -> Timeline:
        """Itself, with these blocks behind those it has. `stored` is evidence by the tick that it was stored at."""
        for row in rows_in(blocks):
            if self.is_judged:
                self._walked(row, self._replayed.after(row))
            else:
                self._take(row, stored.get(row.tick, {}), "")
        return self

    def with_walks(self, rows: Iterable[TickRecord], walks: Iterable[Walk]) -> Timeline:
        """Itself, with the rows that a replay has walked. It cannot be `extended` after that. `walks` are those of the first
        rows, because a replay ends at a crossing. Rows behind them are left out.
        """
        for row, walk in zip(rows, walks, strict=False):
            self._walked(row, walk)
        return self

    def copied(self) -> Timeline:
        """A copy to extend without changing this timeline."""
        twin = copy.copy(self)
        twin.moments, twin._routed = list(self.moments), list(self._routed)
        twin._replayed = copy.copy(self._replayed)
        twin._replayed.external = dict(self._replayed.external)
        return twin

    def _walked(self, row: TickRecord, walk: Walk) -> None:
        found = {one.guard.name: _evidence(one) for one in walk.judged if one.candidate}
        self._take(row, found, str(walk.decision.action))

    def _take(self, row: TickRecord, evidence: Mapping[str, EvidenceAt], action: str) -> None:
        mark, candidate, stable = row.mark, row.arms.candidate, row.arms.stable
        if mark.is_acknowledged:
            self._acknowledged = mark.weight_bp / FULL_BP
        self.moments.append(
            Moment(
                tick=row.tick,
                at=row.at,
                ticks=row.ticks,
                state=mark.state,
                step_index=mark.step_index,
                weight=mark.weight_bp / FULL_BP,
                acknowledged=self._acknowledged,
                observed=self._observed(row.arms, is_known=row.read_at is not None),
                attempts=candidate.attempts,
                failed=candidate.bad.get(ERRORS, 0),
                retried=candidate.bad.get(SAVED, 0) + candidate.bad.get(COMMON, 0),
                stable_attempts=stable.attempts,
                stable_failed=stable.bad.get(ERRORS, 0),
                is_blind=row.read_at is None,
                action=action,
                evidence=evidence,
            )
        )

    def _observed(self, arms: Arms, *, is_known: bool) -> float | None:
        """Over the latest rows that together hold enough requests."""
        if not is_known:
            return None
        self._routed.append((arms.candidate.routed, arms.stable.routed))
        candidate = stable = used = 0
        for one, other in reversed(self._routed):
            candidate, stable, used = candidate + one, stable + other, used + 1
            if candidate + stable >= LEAST_ROUTED:
                break
        self._routed = self._routed[-max(used, 1) :]
        return candidate / (candidate + stable) if candidate + stable else None


def _evidence(judged: Judged) -> EvidenceAt:
    return EvidenceAt(judged.log_e_worse, judged.log_e_over, judged.log_e_fine, judged.to_go)
