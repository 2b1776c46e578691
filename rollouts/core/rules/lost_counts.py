"""Counts that were lost in a stage: a gateway began anew, or its counters fell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from accounts.core.quantities import weight_text
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.guard_tracker import CounterNews
from rollouts.core.rules.state import NewStage, RuleState
from rollouts.core.snapshot import Snapshot


@dataclass(frozen=True)
class LostCounts(RuleState):
    """`at`: when counts of this stage were last lost; None: they never were."""

    name = "lost_counts"
    earlier = {"at": "gap_at"}
    at: float | None = None

    def counted(self, news: CounterNews, *, has_lost: bool) -> Self:
        return type(self)(news.read_at) if has_lost else self

    def entered(self, stage: NewStage) -> Self:
        return type(self)()


def lost_counts(s: Snapshot) -> Decision | None:
    """Returns the hold after counts of this stage were lost, until some telemetry without a gap has come."""
    wanted_s = min(s.stage.min_s, s.policy.no_data_s)
    lost_s = s.since(s.of(LostCounts).at)
    if lost_s is None or lost_s >= wanted_s:
        return None
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: counts were lost {lost_s:.0f} s ago; "
        f"waiting for {wanted_s:.0f} s without a gap"
    )
    return hold(s, Code.NO_DATA, said, because="telemetry_gap")
