"""Whether the failures for which a candidate is taken back are those of one of its replicas. It is told, and decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from rollouts.core.decision import Action, Decision
from rollouts.core.snapshot import Judged, Snapshot

#: Were all replicas alike, one would be named less often than this.
CHANCE = 1e-3
#: Smaller terms of a sum of chances, beyond the largest, change nothing.
NO_CHANCE = 1e-18
#: Fewer attempts on the others do not show that these are well.
LEAST_OTHERS = 20


class ReplicaTally(NamedTuple):
    """Bad and all attempts."""

    bad: int
    attempts: int


@dataclass(frozen=True)
class OddReplica:
    """The replica that fails, and what the others did together."""

    name: str
    own: ReplicaTally
    others: ReplicaTally
    replicas: int


def odd_one_out(tallies: Mapping[str, ReplicaTally], *, tolerated: float, phi: float = 1.0) -> OddReplica | None:
    """The one replica that fails more than the others do, beyond chance, while these fail no more than `tolerated`.

    `tolerated`: a share of attempts, in [0, 1]. `phi`: how much the counts scatter beyond chance, 1 or more; all counts are
    divided by it. Source: the hypergeometric tail (Fisher's exact test), times the number of replicas (Bonferroni), since it is
    the worst of them that is tested. Replicas need not have had the same number of attempts.
    """
    if len(tallies) < 2:
        return None
    name = max(tallies, key=lambda one: (tallies[one].bad / max(1, tallies[one].attempts), one))
    own, rest = tallies[name], [one for host, one in tallies.items() if host != name]
    others = ReplicaTally(sum(one.bad for one in rest), sum(one.attempts for one in rest))
    if (
        others.attempts < LEAST_OTHERS
        or others.bad > tolerated * others.attempts
        or own.bad <= tolerated * own.attempts
    ):
        return None
    few = ReplicaTally(int(own.bad / phi), int(own.attempts / phi))
    bad, whole = few.bad + math.ceil(others.bad / phi), few.attempts + math.ceil(others.attempts / phi)
    if len(tallies) * tail(few.bad, few.attempts, bad, whole) > CHANCE:
        return None
    return OddReplica(name, own, others, len(tallies))


def tail(least: int, drawn: int, bad: int, whole: int) -> float:
    """The chance that of `drawn` out of `whole` attempts, `bad` of which are bad, at least `least` are bad (hypergeometric)."""
    first, last = max(least, drawn + bad - whole, 0), min(drawn, bad)
    likeliest, total = (drawn + 1) * (bad + 1) / (whole + 2), 0.0
    for one in range(first, last + 1):
        chance = math.exp(_log_chance(one, drawn, bad, whole))
        total += chance
        if one > likeliest and chance < NO_CHANCE:
            break  # those that follow are smaller still: of a million attempts a rollback must not wait for all
    return min(1.0, total)


def _log_chance(exactly: int, drawn: int, bad: int, whole: int) -> float:
    return _log_choose(bad, exactly) + _log_choose(whole - bad, drawn - exactly) - _log_choose(whole, drawn)


def _log_choose(of: int, some: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)


# --- in a decision ----------------------------------------------------------------------------------------------------


def suspected(s: Snapshot, decision: Decision) -> Judged | None:
    """The guard for whose failures traffic is taken away, where replicas may differ in them: the gateways' errors."""
    if decision.action not in {Action.ROLL_BACK, Action.PAUSE} or "breach" not in decision.facts:
        return None
    if decision.facts.get("guard") != "errors":
        return None
    return next((one for one in s.evidence.judged if one.guard.indicator == "errors"), None)


def telling(s: Snapshot, decision: Decision, judged: Judged, tallies: Mapping[str, ReplicaTally]) -> Decision:
    """The same decision; it names the replica, if it is one."""
    reference = judged.rate_stable if s.identity.has_stable else judged.guard.max_frac
    tolerated = judged.guard.roll_back_over.of(reference)
    odd = odd_one_out(tallies, tolerated=tolerated, phi=judged.phi)
    if odd is None:
        return decision
    said = (
        f"{decision.reason} The failures are of one replica of {odd.replicas}: {odd.name}, {odd.own.bad} of {odd.own.attempts} "
        f"attempts; the others failed {odd.others.bad} of {odd.others.attempts}. Look at that server first."
    )
    facts = {"replica": odd.name, "own": list(odd.own), "others": list(odd.others), "replicas": odd.replicas}
    return replace(decision, reason=said, facts={**decision.facts, "odd_replica": facts})
