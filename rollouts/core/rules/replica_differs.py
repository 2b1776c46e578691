"""A failing replica is no failing release: the rollout holds while the replica is replaced, once.

Asked only if the candidate would be taken back for its errors, at that one tick of the rollout. When that is depends on the counts of
all replicas together, so the chance that `odd_one_out` blames a replica of a release whose replicas are alike stays what it is for one
look, however often the counts were looked at before. What else speaks against the candidate (a row of failures, its budget, another
guard) is taken as it is. So is a replica whose count by server has far more failures than this stage's evidence: they are of
earlier. Premises: docs/decisions/0032-one-bad-replica.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from accounts.core.quantities import share_text, weight_text
from rollouts.core.commands import Command, ForgetReplica
from rollouts.core.counter_deltas import ERRORS
from rollouts.core.deadline import late, overdue
from rollouts.core.decision import TAKES_BACK, Action, Code, Decision, facts_of, hold
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import OddReplica, ReplicaTallies, odd_one_out
from rollouts.core.policy import FULL_BP
from rollouts.core.rules.state import RuleState, TickView
from rollouts.core.snapshot import Observed, Snapshot

#: Evidence, that hard facts and a spent budget are not.
_EVIDENCE = frozenset({Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED, Code.MOSTLY_FAILING})
#: Until a replica that was set aside is out of every gateway, and what was in flight on it has ended, its failures are no evidence.
SETTLES_S = 5.0


class CandidateTallies(ReplicaTallies):
    """Of the candidate's replicas, if it is about to be taken back for its errors."""

    name = "replica_differs"
    earlier: ClassVar[Mapping[str, str]] = {"tallies": "replicas", "is_replacing": "is_replacing"}


@dataclass(frozen=True)
class EjectReplica(Command):
    """The candidate's replica gets no more traffic, and another takes its place. `besides`: the other guards
    with evidence of this replica."""

    replica: str
    besides: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"set_aside": self.replica, "besides": list(self.besides)}


@dataclass(frozen=True)
class ReplicaDiffers(RuleState):
    """The candidate's replica that was set aside, empty if none was; the instant; the replicas that
    answered until then; whether that number answers again;
    and the guards besides errors with evidence of it."""

    name = "replica_differs"
    replica: str = ""
    at: float = 0.0
    servers: int = 0
    is_replaced: bool = False
    besides: tuple[str, ...] = ()

    def observed(self, seen: TickView) -> tuple[Self, tuple[Command, ...]]:
        if not self.replica:
            return self, ()
        if seen.now - self.at <= SETTLES_S:  # answers of it may still come
            return self, (ForgetReplica((ERRORS, *self.besides)),)
        return self if seen.observed.given(CandidateTallies).is_replacing else replace(self, is_replaced=True), ()

    def obeyed(self, command: Command, seen: Observed) -> Self:
        if not isinstance(command, EjectReplica):
            return self
        servers = seen.candidate_servers or len(seen.given(CandidateTallies).tallies)
        return type(self)(command.replica, seen.now, servers, besides=command.besides)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return super().from_json({**value, "besides": tuple(value.get("besides", ()))})

    @classmethod
    def from_earlier(cls, stored: Mapping[str, Any]) -> Self:
        replica, at, servers, is_replaced, *besides = stored.get("aside", ("", 0.0, 0, False))
        return cls(replica, at, servers, is_replaced, tuple(besides))


def suspected(s: Snapshot, decision: Decision) -> Judged | None:
    """Returns the guard of errors, if traffic is taken away for it: replicas may differ in errors."""
    if decision.action not in TAKES_BACK | {Action.PAUSE} or decision.breach is None:
        return None
    named = (one for one in s.evidence.judged if one.guard.name == decision.guard)
    return next((one for one in named if one.guard.kind.is_failure), None)


def or_one_replica(s: Snapshot, worst: Decision, found: Iterable[Decision]) -> Decision:
    """Returns the most severe finding; a hold if one replica explains it all; the finding with the replica's name if in part."""
    tallies = s.observed.given(CandidateTallies).tallies
    judged = suspected(s, worst) if tallies else None
    if judged is None:
        return worst
    # When servers are new, stable has seen too few attempts in this stage to show the usual share. The candidate's own scatter makes one
    # event of all that fails at the beginning of a fault, and would name no replica: stable's scatter is the usual one.
    usual = max(judged.share_stable, s.evidence.usual_frac) if s.identity.has_stable else judged.guard.max_frac
    phi = 1.0 if worst.code is Code.MOSTLY_FAILING else judged.phi_stable
    odd = odd_one_out(tallies, tolerated=judged.guard.roll_back_over.of(usual), phi=phi)
    if odd is None:
        return worst
    facts, theirs = odd.facts, f"of one replica of {odd.replicas}: {odd.words}."
    besides = tuple([one.guard.name for one in s.evidence.judged if _is_its_own(one, judged)])
    own = (ERRORS, *besides)
    is_all = not any(one.action is not Action.HOLD and not _is_evidence_of(one, own) for one in found)
    if is_all and _may_hold(s, worst, judged, odd, usual):
        said = (
            f"Holding at {weight_text(s.desired.weight_bp)}: {judged.guard.words} of {s.identity.candidate_name} are at "
            f"{share_text(judged.rate_candidate)}, but they are {theirs} It gets no more traffic, and another is to take its place."
        )
        held = hold(s, Code.REPLICA_DIFFERS, said, judged)
        commands = (EjectReplica(odd.name, besides), ForgetReplica(own, has_scatter=True))
        return replace(held, facts={**held.facts, "odd_replica": facts}, commands=commands)
    said = f"{worst.reason} The failures are {theirs} Look at that server first."
    return replace(worst, reason=said, facts={**worst.facts, "odd_replica": facts})


def _is_evidence_of(found: Decision, guards: tuple[str, ...]) -> bool:
    return found.breach in _EVIDENCE and found.guard in guards


def _may_hold(s: Snapshot, worst: Decision, judged: Judged, odd: OddReplica, usual: float) -> bool:
    if worst.action not in TAKES_BACK or worst.code not in _EVIDENCE or s.desired.is_promoting:
        return False
    if s.desired.state not in {RolloutState.SHIFTING, RolloutState.BAKING} or s.of(ReplicaDiffers).replica:
        return False  # one in a rollout: what breaks its replicas one by one is the release
    if not odd.is_of_now(judged.bad_candidate):
        return False
    return odd.has_all(usual) and _others_hold_it(s, odd.replicas - 1) and not _ends_now(s)


def _is_its_own(slow: Judged, failing: Judged) -> bool:
    """Whether a guard's evidence of slowness is of the replica that failed in `failing`: at none of its points
    were more attempts slow, beyond stable's share and what chance adds to it, than failed. What is given up unanswered is both. Evidence
    that does not speak against the candidate is nobody's; what does is wiped before its bar, too: it would reach it by what that replica
    has in flight."""
    if not slow.guard.kind.has_thresholds or max(slow.log_e_worse, slow.log_e_over) <= 0:
        return False
    surely = slow.excess if slow.beyond_chance is None else slow.beyond_chance
    return slow.excess > 0 and surely <= failing.bad_candidate


def _others_hold_it(s: Snapshot, left: int) -> bool:
    """Whether the other replicas are proven for the candidate's traffic, if any rate was proven."""
    most, per_s = s.observed.headroom.proven_candidate, s.routed_per_s
    return most is None or per_s is None or per_s * s.desired.weight_bp / FULL_BP <= most * left


def _ends_now(s: Snapshot) -> bool:
    """Whether the policy ends the hold at once: past a deadline the sentence states the proof, not the lack of one."""
    return _unless_late(s, hold(s, Code.REPLICA_DIFFERS, "Holding")).action is Action.ROLL_BACK


def _unless_late(s: Snapshot, held: Decision) -> Decision:
    """The hold; past a deadline of the stage or of the whole rollout, what that comes to."""
    return overdue(s) or late(s, held)


def replacing(s: Snapshot) -> Decision | None:
    """Returns the hold until another replica answers in the place of the ejected one; past `prepare_deadline_s`, the rollback.

    The deadlines of the stage and of the rollout go on meanwhile.
    """
    state = s.of(ReplicaDiffers)
    is_waiting = (
        s.observed.given(CandidateTallies).is_replacing and not state.is_replaced and not s.desired.is_promoting
    )
    if not state.replica or not is_waiting:
        return None
    what, waited_s = (
        f"a replica in the place of {state.replica}, which failed where the others did not",
        s.since(state.at) or 0.0,
    )
    if waited_s < s.policy.prepare_deadline_s or not s.identity.has_stable:
        said = f"Holding at {weight_text(s.desired.weight_bp)}: waiting for {what}."
        return _unless_late(s, hold(s, Code.REPLICA_DIFFERS, said))
    said = f"Waited {waited_s:.0f} s for {what}, and none answers. Rolling back to {s.identity.stable_name}."
    return Decision(Action.ROLL_BACK, Code.REPLICA_DIFFERS, said, facts_of(s))
