"""The budget of bad attempts: the cost of the candidate beyond the tolerance beside stable, over the whole rollout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rollouts.core.decision import Code, Decision
from rollouts.core.guard_tracker import GuardTracker
from rollouts.core.policy import Policy
from rollouts.core.rules.state import NewStage, RuleState
from rollouts.core.rules.verdicts import rollback_decision
from rollouts.core.snapshot import Snapshot

#: What is over the tolerance counts against the budget only as far as it exceeds what chance may add, in standard deviations.
BUDGET_SIGMAS = 4.0


@dataclass(frozen=True)
class SpentBudget(RuleState):
    """`harm`: by guard, before this stage, the excess over the tolerance and the variance of the excess."""

    name = "budget"
    harm: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def entered(self, stage: NewStage) -> Self:
        return type(self)(self.so_far(stage.trackers, stage.policy))

    def so_far(self, trackers: Mapping[str, GuardTracker], policy: Policy) -> dict[str, tuple[float, float]]:
        """For each guard: bad attempts of the candidate beyond the tolerance of stable's share at the same time
        (`roll_back_over`), without each stage's worst tick, and the variance of that number. No stage takes any away.
        """
        found, tolerances = dict(self.harm), {guard.name: guard.roll_back_over for guard in policy.guards}
        for name, watch in trackers.items():
            for harm in watch.harm.values() if name in tolerances else ():
                excess, variance = found.get(name, (0.0, 0.0))
                found[name] = (excess + harm.lasting(tolerances[name]), variance + harm.variance(tolerances[name]))
        return found

    def to_json(self) -> Any:
        return {name: [round(part, 4) for part in one] for name, one in self.harm.items()}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls({name: (one[0], one[1]) for name, one in value.items()})

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        return cls.from_json(stored.get("harm", {}))


def spent(s: Snapshot) -> Iterator[Decision]:
    """Yields the conviction for bad attempts beyond the tolerance beside stable, over the whole rollout."""
    if s.policy.budget_bad is None or not s.identity.has_stable:
        return
    refused = _refused(s)
    if refused >= s.policy.budget_bad:
        said = (
            f"{s.identity.candidate_name} had no room for {s.evidence.shed_candidate} of {s.evidence.routed_candidate} requests in "
            f"this step, {s.identity.stable_name} for {s.evidence.shed_stable} of {s.evidence.routed_stable}: "
            f"surely over the budget of {s.policy.budget_bad}."
        )
        yield rollback_decision(s, Code.BUDGET_SPENT, said)
        return
    harm = s.of(SpentBudget).so_far(s.evidence.trackers, s.policy)
    for judged in s.acting:
        if not judged.guard.kind.spends:
            continue
        excess, variance = harm.get(judged.guard.name, (0.0, 0.0))
        sure = excess - BUDGET_SIGMAS * math.sqrt(max(0.0, judged.phi * variance))
        if sure < s.policy.budget_bad:
            continue
        said = (
            f"{s.identity.candidate_name} has cost {excess:.0f} {judged.guard.words} more than the policy tolerates "
            f"beside {s.identity.stable_name}, surely over the budget of {s.policy.budget_bad}."
        )
        yield rollback_decision(
            s, Code.BUDGET_SPENT, said, judged
        )  # whichever release is to blame: users have paid enough
        return


def _refused(s: Snapshot) -> float:
    """Returns the refusals of this step beyond stable's share, less chance: the candidate had no room for them."""
    if not s.evidence.routed_stable or not s.evidence.shed_candidate:
        return 0.0
    usual = s.evidence.routed_candidate * s.evidence.shed_stable / s.evidence.routed_stable
    return s.evidence.shed_candidate - usual - BUDGET_SIGMAS * math.sqrt(s.evidence.shed_candidate + usual)
