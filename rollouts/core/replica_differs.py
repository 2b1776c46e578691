"""One replica that fails is told apart from a release that fails: the rollout holds while it is replaced, once.

Asked only where the candidate would be taken back for its errors, at that one tick of the rollout. When that is depends on the counts of
all replicas together, so the chance that `odd_one_out` blames a replica of a release whose replicas are alike stays what it is for one
look, however often the counts were looked at before. What else speaks against the candidate (a row of failures, its budget, another
guard) is taken as it is. So is a replica whose count by server has far more failures than this stage's evidence: they are of
earlier. Premises: docs/decisions/0032-one-bad-replica.md.
"""

from __future__ import annotations

from dataclasses import replace

from accounts.core.quantities import share_text, weight_text
from rollouts.core.decision import TAKES_BACK, Action, Code, Decision, facts_of, hold
from rollouts.core.inconclusive import late, overdue
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.mostly_failing import MostlyFailing
from rollouts.core.odd_replica import OddReplica, odd_one_out
from rollouts.core.policy import FULL_BP
from rollouts.core.rollback_rules import breach
from rollouts.core.snapshot import Snapshot

#: Evidence, that hard facts and a spent budget are not.
_EVIDENCE = frozenset({Code.WORSE_THAN_STABLE, Code.OBJECTIVE_BREACHED, Code.MOSTLY_FAILING})


def suspected(s: Snapshot, decision: Decision) -> Judged | None:
    """The guard for whose failures traffic is taken away, where replicas may differ in them: the gateways' errors."""
    if decision.action not in TAKES_BACK | {Action.PAUSE} or "breach" not in decision.facts:
        return None
    named = (one for one in s.evidence.judged if one.guard.name == decision.facts.get("guard"))
    return next((one for one in named if one.guard.kind.is_failure), None)


def breach_or_replica(s: Snapshot, found: Decision | None) -> Decision | None:
    """The breach that was found; a hold in its place where it is one replica's, and else with that one's name, if it is one."""
    judged = suspected(s, found) if found is not None and s.observed.replicas else None
    if found is None or judged is None:
        return found
    # When servers are new, stable has seen too few attempts in this stage to show what is usual. The candidate's own scatter makes one
    # event of all that fails at the beginning of a fault, and would name nobody: stable's scatter is what is usual.
    usual = max(judged.share_stable, s.evidence.usual_frac) if s.identity.has_stable else judged.guard.max_frac
    phi = 1.0 if found.code is Code.MOSTLY_FAILING else judged.phi_stable
    odd = odd_one_out(s.observed.replicas, tolerated=judged.guard.roll_back_over.of(usual), phi=phi)
    if odd is None:
        return found
    facts, theirs = odd.facts, f"of one replica of {odd.replicas}: {odd.words}."
    if _may_hold(s, found, judged, odd, usual):
        said = (
            f"Holding at {weight_text(s.desired.weight_bp)}: {judged.guard.words} of {s.identity.candidate_name} are at "
            f"{share_text(judged.rate_candidate)}, but they are {theirs} It gets no more traffic, and another is to take its place."
        )
        held = hold(s, Code.REPLICA_DIFFERS, said, judged)
        besides = [one.guard.name for one in s.evidence.judged if _is_its_own(one, judged)]
        return replace(held, facts={**held.facts, "odd_replica": facts, "set_aside": odd.name, "besides": besides})
    said = f"{found.reason} The failures are {theirs} Look at that server first."
    return replace(found, reason=said, facts={**found.facts, "odd_replica": facts})


def _may_hold(s: Snapshot, found: Decision, judged: Judged, odd: OddReplica, usual: float) -> bool:
    if found.action not in TAKES_BACK or found.code not in _EVIDENCE or s.desired.is_promoting:
        return False
    if s.desired.state not in {RolloutState.SHIFTING, RolloutState.BAKING} or s.evidence.aside_s is not None:
        return False  # one in a rollout: what breaks its replicas one by one is the release
    if not odd.is_of_now(judged.bad_candidate):
        return False
    if not odd.has_all(usual) or not _others_hold_it(s, odd.replicas - 1) or _ends_now(s):
        return False
    judged_else = tuple(
        replace(one, log_e_worse=0.0, log_e_over=0.0) if one is judged or _is_its_own(one, judged) else one
        for one in s.evidence.judged
    )
    besides = breach(replace(s, evidence=replace(s.evidence, judged=judged_else, mostly=MostlyFailing())))
    return besides is None or besides.action is Action.HOLD


def _is_its_own(slow: Judged, failing: Judged) -> bool:
    """Whether a guard's evidence of slowness is of the replica whose failures those in `failing` are: at none of its points
    were more attempts slow, beyond stable's share and what chance adds to it, than failed. What is given up unanswered is both. Evidence
    that does not speak against the candidate is nobody's; what does is wiped before its bar, too: it would reach it by what that replica
    has in flight."""
    if not slow.guard.kind.has_thresholds or max(slow.log_e_worse, slow.log_e_over) <= 0:
        return False
    surely = slow.excess if slow.beyond_chance is None else slow.beyond_chance
    return slow.excess > 0 and surely <= failing.bad_candidate


def _others_hold_it(s: Snapshot, left: int) -> bool:
    """Whether the replicas that are left are proven for what the candidate gets, where anything was proven."""
    most, per_s = s.observed.room.proven_candidate, s.routed_per_s
    return most is None or per_s is None or per_s * s.desired.weight_bp / FULL_BP <= most * left


def _ends_now(s: Snapshot) -> bool:
    """Whether the policy takes back at once what is held: past a deadline what is proven is told, not that it is undecided."""
    return _unless_late(s, hold(s, Code.REPLICA_DIFFERS, "Holding")).action is Action.ROLL_BACK


def _unless_late(s: Snapshot, held: Decision) -> Decision:
    """The hold; past a deadline of the stage or of the whole rollout, what that comes to."""
    return overdue(s) or late(s, held)


def replacing(s: Snapshot) -> Decision | None:
    """A hold until another answers in the place of the one that was set aside; past the time that a candidate has to come up, the end.

    The deadlines of the stage and of the rollout go on meanwhile.
    """
    is_waiting = s.observed.is_replacing and not s.evidence.is_replaced and not s.desired.is_promoting
    if s.evidence.aside_s is None or not is_waiting:
        return None
    what = f"a replica in the place of {s.evidence.aside}, which failed where the others did not"
    if s.evidence.aside_s < s.policy.prepare_deadline_s or not s.identity.has_stable:
        said = f"Holding at {weight_text(s.desired.weight_bp)}: waiting for {what}."
        return _unless_late(s, hold(s, Code.REPLICA_DIFFERS, said))
    said = f"Waited {s.evidence.aside_s:.0f} s for {what}, and none answers. Rolling back to {s.identity.stable_name}."
    return Decision(Action.ROLL_BACK, Code.REPLICA_DIFFERS, said, facts_of(s))
