"""Counters that cannot be read: the weight stays; past `blind_limit_s`, the decision of `on_blind`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from accounts.core.quantities import weight_text
from rollouts.core.decision import Action, Code, Decision, facts_of, hold, sentence
from rollouts.core.lifecycle import RolloutState
from rollouts.core.policy import OnUndecided
from rollouts.core.rules.state import RuleState, TickView
from rollouts.core.snapshot import Snapshot

#: Blindness counts on from tick to tick; while no engine ran, nobody looked, and nobody was blind.
LOOKED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Blindness(RuleState):
    """`since`: since when no tick could be judged; None: the last one could. `at`: the last tick that could not."""

    name = "blind"
    earlier = {"since": "blind_since", "at": "blind_at"}
    since: float | None = None
    at: float | None = None

    def observed(self, seen: TickView) -> tuple[Self, tuple[()]]:
        if not seen.observed.problem:
            return type(self)(), ()
        has_looked = self.at is not None and seen.now - self.at <= LOOKED_WITHIN_S
        return type(self)(self.since if has_looked and self.since is not None else seen.now, seen.now), ()


def telemetry_unavailable(s: Snapshot) -> Decision | None:
    """A hold while the counters cannot be read; past `blind_limit_s`, the decision of `on_blind`."""
    if not s.observed.problem:
        return None
    at = f"Holding at {weight_text(s.desired.weight_bp)}"
    why = s.observed.problem_sentence or "the counters cannot be read"
    if (s.since(s.of(Blindness).since) or 0.0) < s.policy.blind_limit_s:
        return hold(s, Code.PROVIDER_DOWN, f"{at}: {why}", because=s.observed.problem)
    said = f"{at}, blind for over {s.policy.blind_limit_s:.0f} s: {why}"
    facts, problem = facts_of(s), s.observed.problem
    if (
        s.policy.on_blind is OnUndecided.ROLL_BACK
        and s.identity.has_stable
        and not s.is_stable_gone
        and s.desired.state is not RolloutState.PAUSED
    ):
        ends = f"{sentence(said)} The policy then rolls back."
        return Decision(Action.ROLL_BACK, Code.BLIND, ends, facts, because=problem)
    return Decision(Action.HOLD, Code.BLIND, f"{sentence(said)} A person should look.", facts, because=problem)
