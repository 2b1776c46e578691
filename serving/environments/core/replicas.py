"""What brings a release in an environment from the replicas that it has to those that are wanted: pure.

Each replica has an ordinal, a number from 0 on; one replica that is to stay has it. One that is leaving has given up its
ordinal to the one that takes its place, and goes once as many others answer as are wanted. So nothing is taken away before what
replaces it answers, and whoever looks next goes on from what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_UNWELL = "the replica with its ordinal is set aside: it is unwell where others are not"
#: Of one release in one environment.
MOST_REPLICAS = 100


class What(StrEnum):
    """`place` one more · `renew` one that is set aside: another takes its ordinal as soon as a node has room, and it goes when it can ·
    `remove` one too many."""

    PLACE = "place"
    RENEW = "renew"
    REMOVE = "remove"


@dataclass(frozen=True)
class ReplicaStatus:
    """A replica as this looks at it. `is_leaving`: it is drained, or being replaced."""

    key: int
    ordinal: int
    node: str
    answers: bool = False
    has_failed: bool = False
    is_leaving: bool = False
    is_silent: bool = False  # the agent of its node does not report; whether it answers is unknown
    is_set_aside: bool = False  # it is told to be unwell, and gets no traffic


@dataclass(frozen=True)
class ReplicaStep:
    """One thing to do. `key`: the replica's; 0 for one that is to be placed in `ordinal`."""

    what: What
    ordinal: int
    key: int = 0
    why: str = ""


def steps_to(wanted: int, replicas: Sequence[ReplicaStatus]) -> list[ReplicaStep]:
    """Returns the steps that are due now. None are if it is as wanted, or has to wait. `wanted` is at least 1.

    A replica whose agent is silent stays.
    """
    staying = [one for one in replicas if not one.is_leaving]
    taken = {one.ordinal for one in staying}
    free = (ordinal for ordinal in range(MOST_REPLICAS) if ordinal not in taken)
    found = [ReplicaStep(What.PLACE, next(free)) for _ in range(wanted - len(staying))]
    spare = _too_many(wanted, staying)
    going = {one.key for one in spare}
    stay = [one for one in staying if one.key not in going]
    found += [ReplicaStep(What.RENEW, one.ordinal, one.key, _UNWELL) for one in stay if one.is_set_aside]
    return found + spare


def _too_many(wanted: int, kept: Sequence[ReplicaStatus]) -> list[ReplicaStep]:
    """Replicas that do not answer go first, then the highest ordinals; never a replica whose answers the wanted number needs."""
    spare = sum(one.answers for one in kept) - wanted
    found: list[ReplicaStep] = []
    order = sorted(kept, key=lambda one: (one.answers, not one.has_failed, -one.ordinal))
    for one in order[: max(0, len(kept) - wanted)]:
        if one.answers and spare < 1:
            break
        spare -= one.answers
        found.append(
            ReplicaStep(
                What.REMOVE,
                one.ordinal,
                one.key,
                f"{wanted} {'is' if wanted == 1 else 'are'} wanted, and there are {len(kept)}",
            )
        )
    return found


def desired_replicas(scaled: int | None, declared: int | None) -> int:
    """How many are wanted: what was said for the environment, else the least that the envelope declares, and one at least."""
    return min(max(scaled if scaled is not None else declared or 1, 1), MOST_REPLICAS)


def share_of(stable: int, weight_bp: int) -> int:
    """Replicas that a candidate needs before it is sent `weight_bp` basis points of what `stable` replicas serve, rounded up.

    At the whole weight that is as many as stable has: the spare one among them (N+1) is in stable's number already.
    """
    return max(1, -(-stable * weight_bp // 10_000))
