"""Forced calls starve a guard: most readings of the stage hold no evidence of time. Not for ever: then such calls are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from accounts.core.quantities import weight_text
from rollouts.core.commands import Command
from rollouts.core.decision import Code, Decision, hold
from rollouts.core.rules.state import RuleState
from rollouts.core.snapshot import Observed, Snapshot

#: Readings without evidence of time, about one a second, after which the gateways refuse forced requests until the rollout ends.
MOST_FORCED = 300


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
    """Returns the hold of a guard that lacks evidence of time; None once such calls are refused."""
    for judged in () if s.of(ForcedCalls).are_refused else s.acting:
        tracker = s.evidence.tracker(judged.guard.name)
        left_out, used = tracker.forced, tracker.evidence.ticks
        if left_out <= used or judged.log_e_fine >= s.policy.bar_fine:
            continue
        said = (
            f"Holding at {weight_text(s.desired.weight_bp)}: {left_out} of {left_out + used} readings give no evidence of "
            f"{judged.guard.words}, because calls forced a release meanwhile"
        )
        if left_out < MOST_FORCED:
            return hold(
                s, Code.NO_DATA, f"{said}; stop such calls: after {MOST_FORCED} the gateways refuse them", judged
            )
        held = hold(s, Code.NO_DATA, f"{said}; from now on the gateways refuse such calls", judged)
        return replace(held, commands=(RefuseForced(),))
    return None
