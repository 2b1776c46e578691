"""One bad replica of stable makes a candidate look better than it is: told before anything opens, and replaced, once in a rollout.

Asked only where the rollout would open further, or where errors of the candidate are excused because stable has them too; never
where traffic is taken away. When these ticks come depends on the counts of all replicas together, as in `replica_differs`; since there are
several, each look has a smaller share of the chance to name one of replicas that are alike: all looks of a rollout together have
`CHANCE`. The counts are those since the stage began, as its evidence is. Premises: docs/decisions/0036-one-bad-replica-of-stable.md.
"""

from __future__ import annotations

from dataclasses import replace

from accounts.core.quantities import weight_text
from rollouts.core.decision import Action, Code, Decision, hold
from rollouts.core.inconclusive import STABLE_REPLICA, late, overdue
from rollouts.core.judged import Judged
from rollouts.core.lifecycle import RolloutState
from rollouts.core.odd_replica import CHANCE, OddReplica, odd_beside_others
from rollouts.core.snapshot import Snapshot

_OPENING = frozenset({Action.ADVANCE, Action.BAKE, Action.PROMOTE})


def doubted(s: Snapshot, decided: Decision) -> Judged | None:
    """The guard of errors, where the decision rests on what stable fails: the rollout opens beside it, or the candidate is excused."""
    if s.desired.state not in {RolloutState.SHIFTING, RolloutState.BAKING} or s.desired.is_promoting:
        return None
    if not s.identity.has_stable or s.evidence.stable_odd_s is not None:
        return None
    opens = decided.action in _OPENING and decided.code is Code.PROVEN
    failing = next((one for one in s.evidence.judged if one.guard.kind.is_failure), None)
    is_excused = decided.code is Code.BOTH_ARMS_BAD and failing and decided.facts.get("guard") == failing.guard.name
    return failing if opens or is_excused else None


def comparable(s: Snapshot, decided: Decision) -> Decision:
    """The decision; a hold in its place where stable's failures are those of one replica, with which the candidate was compared."""
    judged = doubted(s, decided) if s.observed.stable_replicas else None
    odd = _odd(s, judged) if judged is not None else None
    if judged is None or odd is None:
        return decided
    is_aside = _others_hold_it(s, min(odd.replicas, s.observed.room.stable) - 1)  # some that told may be leaving
    more = "It gets no more traffic, and another" if is_aside else "Another"
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: {judged.guard.words} of {s.identity.stable_name} are of one replica of "
        f"{odd.replicas}: {odd.words}. Beside it {s.identity.candidate_name} looks better than it is. {more} is to take its place."
    )
    held = hold(s, Code.REPLICA_DIFFERS, said, judged, because=STABLE_REPLICA)
    facts = {**held.facts, "stable_replica": odd.facts, "replace_stable": odd.name, "is_aside": is_aside}
    return late(s, replace(held, facts=facts))


def _odd(s: Snapshot, judged: Judged) -> OddReplica | None:
    """The replica of stable that would be taken back beside the others, were it a release."""
    look = s.evidence.stable_looks + 1  # the shares 1/2, 1/6, 1/12 … of all looks add up to 1
    return odd_beside_others(
        s.observed.stable_replicas,
        tolerated=judged.guard.roll_back_over.of,
        phi=judged.phi,
        chance=CHANCE / (look * (look + 1)),
    )


def _others_hold_it(s: Snapshot, left: int) -> bool:
    """Whether stable's other replicas are proven for all traffic: they are the way back. Where nothing was proven, that is not known."""
    most, per_s = s.observed.room.proven_stable, s.routed_per_s
    return most is not None and per_s is not None and per_s <= most * left


def renewing(s: Snapshot) -> Decision | None:
    """A hold until another replica of stable answers in the place of the odd one, and evidence has begun afresh.

    Deadlines go on. A stage's takes no candidate back for stable's replica alone; the whole rollout's does what the policy says.
    """
    if s.evidence.stable_odd_s is None or s.evidence.is_stable_renewed or s.desired.is_promoting:
        return None
    said = (
        f"Holding at {weight_text(s.desired.weight_bp)}: waiting for a replica of {s.identity.stable_name} in the place of "
        f"{s.evidence.stable_odd}, which failed where the others did not."
    )
    return overdue(s) or late(s, hold(s, Code.REPLICA_DIFFERS, said, because=STABLE_REPLICA))
