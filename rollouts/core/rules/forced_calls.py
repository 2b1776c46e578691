"""Calls that force a release take evidence of time from a guard. After a few such readings the gateways refuse these calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from accounts.core.quantities import weight_text
from rollouts.core.commands import Command
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.rules.state import RuleState
from rollouts.core.snapshot import Observed, Snapshot

#: From so many readings of a stage without evidence of time, about one a second, and from more than this share of its readings,
#: the gateways refuse forced requests until the rollout ends. Source: `benchmarks.steering`: a call each 10 s, never refused, delayed
#: the detection of slow answers by 17 %.
MOST_FORCED, MOST_FORCED_FRAC = 5, 0.05


class RefuseForced(Command):
    """The gateways refuse requests that force a release, until the rollout ends."""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"refuse_forced": True}


@dataclass(frozen=True)
class ForcedCalls(RuleState):
    name = "forced_calls"
    earlier = {"are_refused": "refuses_forced"}
    are_refused: bool = False

    def obeyed(self, command: Command, seen: Observed) -> Self:
        return type(self)(True) if isinstance(command, RefuseForced) else self


def forced_calls(s: Snapshot) -> Decision | None:
    """Returns the hold that has such calls refused; None before they took too much evidence, and once they are refused."""
    for judged in () if s.of(ForcedCalls).are_refused else s.acting:
        tracker = s.evidence.tracker(judged.guard.name)
        readings = tracker.forced + tracker.evidence.ticks
        is_little = tracker.forced < MOST_FORCED or tracker.forced <= MOST_FORCED_FRAC * readings
        if is_little or judged.log_e_fine >= s.policy.bar_fine:
            continue
        said = (
            f"Holding at {weight_text(s.desired.weight_bp)}: {tracker.forced} of {readings} readings "
            f"give no evidence of {judged.guard.words}, because calls forced a release meanwhile; from now on the "
            "gateways refuse such calls"
        )
        return replace(hold(s, Code.NO_DATA, said, judged), commands=(RefuseForced(),))
    return None
