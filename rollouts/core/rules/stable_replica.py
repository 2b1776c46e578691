"""One bad replica of stable makes a candidate look better than it is: told before anything opens, and replaced, once in a rollout.

Asked only if the rollout would open further, or if errors of the candidate are excused because stable has them too; never
where traffic is taken away. When these ticks come depends on the counts of all replicas together, as in `replica_differs`; since there are
several, each look has a smaller share of the chance to name one of replicas that are alike: all looks of a rollout together have
`CHANCE`. The counts are those since the stage began, as its evidence is. Premises: docs/decisions/0036-one-bad-replica-of-stable.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from accounts.core.quantities import weight_text
from rollouts.core.commands import Command, ForgetReplica
from rollouts.core.counter_deltas import ERRORS
from rollouts.core.deadline import STABLE_REPLICA, late, overdue
from rollouts.core.decision import Action, Code, Decision, hold
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import CHANCE, OddReplica, ReplicaTallies, odd_beside_others
from rollouts.core.rules.replica_differs import SETTLES_S
from rollouts.core.rules.state import RuleState, TickView
from rollouts.core.snapshot import Observed, Snapshot

_OPENING = frozenset({Action.ADVANCE, Action.BAKE, Action.PROMOTE})


@dataclass(frozen=True)
class StableTallies(ReplicaTallies):
    """Of stable's replicas in this stage. `deployments`: by replica, its own; not recorded."""

    name = "stable_replica"
    earlier: ClassVar[Mapping[str, str]] = {"tallies": "stable_replicas", "is_replacing": "is_stable_replacing"}
    deployments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaceStable(Command):
    """Another replica of stable takes the place of `replica`. `is_aside`: `replica` gets no more traffic until then."""

    replica: str
    is_aside: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"replace_stable": self.replica, "is_aside": self.is_aside}


@dataclass(frozen=True)
class StableReplica(RuleState):
    """The replica of stable that failed where its others did not, empty if none was found; when, and how many answered then. `is_aside`:
    it gets no more traffic; else it answers until another does. `gone_at`: since when another has; `is_renewed`: evidence has begun afresh
    since. `deployment`: its own, as another may come to the same node and port; None: not known. `looks`: how often stable's replicas were
    looked at."""

    name = "stable_replica"
    replica: str = ""
    at: float = 0.0
    servers: int = 0
    is_aside: bool = False
    gone_at: float | None = None
    is_renewed: bool = False
    deployment: str | None = None
    looks: int = 0

    def observed(self, seen: TickView) -> tuple[Self, tuple[Command, ...]]:
        """If another has answered in the odd one's place for some seconds, errors of both arms are counted from
        here on: none of before is compared with one of after. Other guards were not of that replica."""
        given = seen.observed.given(StableTallies)
        state = replace(self, looks=self.looks + 1) if given.tallies else self
        if not state.replica or state.is_renewed:
            return state, ()
        if given.is_replacing or state.gone_at is None:
            return replace(state, gone_at=None if given.is_replacing else seen.now), ()
        if seen.now - state.gone_at <= SETTLES_S:
            return state, ()
        return replace(state, is_renewed=True), (ForgetReplica((ERRORS,)),)

    def obeyed(self, command: Command, seen: Observed) -> Self:
        if not isinstance(command, ReplaceStable):
            return self
        given = seen.given(StableTallies)
        servers = seen.stable_servers or len(given.tallies)
        deployment = given.deployments.get(command.replica)
        found = type(self)(command.replica, seen.now, servers, command.is_aside, deployment=deployment)
        return replace(found, looks=self.looks)

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        return replace(cls(*stored.get("stable_odd", ())), looks=stored.get("stable_looks") or 0)


def doubted(s: Snapshot, decided: Decision) -> Judged | None:
    """Returns the guard of errors, if the decision rests on stable's failures: the rollout opens, or the candidate is excused."""
    if s.desired.state not in {RolloutState.SHIFTING, RolloutState.BAKING} or s.desired.is_promoting:
        return None
    if not s.identity.has_stable or s.of(StableReplica).replica:
        return None
    opens = decided.action in _OPENING and decided.code is Code.PROVEN
    failing = next((one for one in s.evidence.judged if one.guard.kind.is_failure), None)
    is_excused = decided.code is Code.BOTH_ARMS_BAD and failing and decided.guard == failing.guard.name
    return failing if opens or is_excused else None


def comparable(s: Snapshot, decided: Decision) -> Decision:
    """The decision; a hold in its place where stable's failures are those of one replica, with which the candidate was compared."""
    judged = doubted(s, decided) if s.observed.given(StableTallies).tallies else None
    odd = _odd(s, judged) if judged is not None else None
    if judged is None or odd is None:
        return decided
    is_aside = _others_hold_it(s, min(odd.replicas, s.observed.headroom.stable) - 1)  # some of them may be leaving
    more = "It gets no more traffic, and another" if is_aside else "Another"
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: {judged.guard.words} of {s.identity.stable_name} are of one replica of "
        f"{odd.replicas}: {odd.words}. Beside it {s.identity.candidate_name} looks better than it is. {more} is to take its place."
    )
    held = hold(s, Code.REPLICA_DIFFERS, said, judged, because=STABLE_REPLICA)
    facts = {**held.facts, "stable_replica": odd.facts}
    return late(s, replace(held, facts=facts, commands=(ReplaceStable(odd.name, is_aside),)))


def _odd(s: Snapshot, judged: Judged) -> OddReplica | None:
    """The replica of stable that would be taken back beside the others, were it a release."""
    look = max(1, s.of(StableReplica).looks)  # the shares 1/2, 1/6, 1/12 … of all looks add up to 1
    return odd_beside_others(
        s.observed.given(StableTallies).tallies,
        tolerated=judged.guard.roll_back_over.of,
        phi=judged.phi,
        chance=CHANCE / (look * (look + 1)),
    )


def _others_hold_it(s: Snapshot, left: int) -> bool:
    """Whether stable's other replicas, the way back, are proven for all traffic. False if no rate was proven."""
    most, per_s = s.observed.headroom.proven_stable, s.routed_per_s
    return most is not None and per_s is not None and per_s <= most * left


def renewing(s: Snapshot) -> Decision | None:
    """A hold until another replica of stable answers in the place of the odd one, and evidence has begun afresh.

    Deadlines go on. A stage's takes no candidate back for stable's replica alone; the whole rollout's follows `on_undecided`.
    """
    state = s.of(StableReplica)
    if not state.replica or state.is_renewed or s.desired.is_promoting:
        return None
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: waiting for a replica of {s.identity.stable_name} in the place of "
        f"{state.replica}, which failed where the others did not."
    )
    return overdue(s) or late(s, hold(s, Code.REPLICA_DIFFERS, said, because=STABLE_REPLICA))
