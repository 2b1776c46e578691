"""Whether failures are those of one replica: a test of how they lie among the replicas. What follows is `replica_differs`.

Counts by server go back to when the servers last changed; evidence begins with the stage. What a replica failed before, in an
incident that was excused or in an earlier stage, would make it odd beside others that fail as it does now: `is_of_now`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from rollouts.core.rules.given import RuleInput
from rollouts.core.two_by_two import tail

#: Were all replicas alike, one would be named less often than this.
CHANCE = 1e-3
#: The others are well up to so many standard deviations over what is tolerated: 1 % are over it by chance (normal tail).
CHANCE_SIGMAS = 2.33
#: Fewer attempts on the others do not show that these are well.
LEAST_OTHERS = 20
#: The failures are all one replica's where the others have no more than this of its excess over what is usual. It does not thin out:
#: however long all were well before, what the others fail now counts against what this one fails now.
OTHERS_SHARE = 0.1
#: So many times the failures in evidence, and so many more, may be the odd one's: gateways count on between the two looks. Where
#: replicas are alike and an earlier past hides it (`has_all`), it has at least five times those in evidence: from four on, too many.
IN_FLIGHT_RATIO, IN_FLIGHT = 2, 10


class ReplicaTally(NamedTuple):
    """Bad and all attempts; for `unreached` of the bad ones no connection to the replica could be made."""

    bad: int
    attempts: int
    unreached: int = 0

    def thinned(self, phi: float, whole: Callable[[float], int]) -> ReplicaTally:
        """Divided by `phi`, and made whole; but not what was unreached: nothing was sent, so no request or batch brought the clump.

        That so many found nobody there, while the replica's agent says that it serves, is the node's or the network's.
        """
        bad, attempts = self.bad - self.unreached, self.attempts - self.unreached
        return ReplicaTally(whole(bad / phi) + self.unreached, whole(attempts / phi) + self.unreached, self.unreached)


@dataclass(frozen=True)
class ReplicaTallies(RuleInput):
    """What each replica of an arm counted, by name, at the tick that asked for it. `is_replacing`: fewer answer than before one was taken
    out, or that one answers still."""

    tallies: Mapping[str, ReplicaTally] = field(default_factory=dict)
    is_replacing: bool = False

    def to_json(self) -> dict[str, Any]:
        tallies = {"tallies": {name: list(one) for name, one in self.tallies.items()}} if self.tallies else {}
        return tallies | ({"is_replacing": True} if self.is_replacing else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        tallies = {name: ReplicaTally(*one) for name, one in value.get("tallies", {}).items()}
        return cls(tallies, value.get("is_replacing", False))


@dataclass(frozen=True)
class OddReplica:
    """The failing replica, and the sums of the others."""

    name: str
    own: ReplicaTally
    others: ReplicaTally
    replicas: int

    @property
    def words(self) -> str:
        """Its name and its failures, and those of the others."""
        nobody = f", {self.own.unreached} of which found nobody there" if self.own.unreached else ""
        mine = f"{self.name}, {self.own.bad} of {self.own.attempts} attempts{nobody}"
        return f"{mine}; the others failed {self.others.bad} of {self.others.attempts}"

    @property
    def facts(self) -> dict[str, Any]:
        own, others = ([one.bad, one.attempts] for one in (self.own, self.others))
        return {
            "replica": self.name,
            "own": own,
            "others": others,
            "replicas": self.replicas,
            "unreached": self.own.unreached,
        }

    def has_all(self, usual: float) -> bool:
        """Whether nearly all failures beyond the usual share of attempts are its own."""
        own = self.own.bad - usual * self.own.attempts
        return own > 0 and self.others.bad - usual * self.others.attempts <= OTHERS_SHARE * own

    def is_of_now(self, bad: int) -> bool:
        """Whether its failures may all be among the `bad` attempts of the candidate in this stage's evidence, or were in flight."""
        return self.own.bad <= IN_FLIGHT_RATIO * bad + IN_FLIGHT


def worst_and_others(tallies: Mapping[str, ReplicaTally]) -> tuple[str, ReplicaTally, ReplicaTally]:
    """The replica of the largest bad share, its tally, and that of the others together. Of one replica at least."""
    name = max(tallies, key=lambda one: (tallies[one].bad / max(1, tallies[one].attempts), one))
    rest = [one for host, one in tallies.items() if host != name]
    return name, tallies[name], ReplicaTally(*map(sum, zip(ReplicaTally(0, 0), *rest, strict=True)))


def odd_one_out(
    tallies: Mapping[str, ReplicaTally], *, tolerated: float, phi: float = 1.0, chance: float = CHANCE
) -> OddReplica | None:
    """The one replica that fails more than the others do, beyond chance, while these surely fail no more than `tolerated`.

    `tolerated`: a share of attempts, in [0, 1]. `phi`: how much the counts scatter beyond chance, 1 or more; all counts but those
    of `unreached` attempts are divided by it. `chance`: of naming one where all are alike, at the most.

    Source: the hypergeometric tail (Fisher's exact test), times the number of replicas
    (Bonferroni), since it is the worst of them that is tested. Replicas need not have had the same number of attempts.
    """
    if len(tallies) < 2:
        return None
    name, own, others = worst_and_others(tallies)
    if (
        others.attempts < LEAST_OTHERS
        or others.bad > tolerated * others.attempts + CHANCE_SIGMAS * math.sqrt(tolerated * others.attempts)
        or own.bad <= tolerated * own.attempts
    ):
        return None
    few, rest_few = own.thinned(phi, int), others.thinned(phi, math.ceil)
    bad, whole = few.bad + rest_few.bad, few.attempts + rest_few.attempts
    if len(tallies) * tail(few.bad, few.attempts, bad, whole) > chance:
        return None
    return OddReplica(name, own, others, len(tallies))


def odd_beside_others(
    tallies: Mapping[str, ReplicaTally], *, tolerated: Callable[[float], float], phi: float, chance: float
) -> OddReplica | None:
    """The only replica that fails more than is `tolerated` beside its others' share, beyond chance, at any share."""
    if len(tallies) < 2:
        return None
    _, _, others = worst_and_others(tallies)
    most = tolerated(others.bad / max(1, others.attempts))
    return odd_one_out(tallies, tolerated=most, phi=phi, chance=chance)
