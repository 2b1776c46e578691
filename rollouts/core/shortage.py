"""Lack of servers for a weight: too few answer, or they are not proven for their traffic.

Premises: servers of a release are alike and share its requests evenly, as where its capacity was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accounts.core.quantities import weight_text
from rollouts.core.headroom import Headroom
from rollouts.core.policy import FULL_BP
from rollouts.core.snapshot import Identity

#: Why a weight lacks servers: too few answer, or those that answer are proven for less.
NEEDS_REPLICAS, NO_ROOM = "needs_replicas", "no_room"


@dataclass(frozen=True)
class Shortage:
    """Reason of a lack of servers. `because`: one of the causes above. `said`: the middle of a sentence,
    without a full stop. `release`: the release that lacks servers.
    """

    because: str
    said: str
    release: str
    facts: dict[str, Any] = field(default_factory=dict)


def shortage_at(headroom: Headroom, weight_bp: int, per_s: float | None, who: Identity) -> Shortage | None:
    """The obstacle of this weight for the candidate, in basis points; None without a known obstacle.

    `per_s`: requests a second of both arms together, None if not counted.
    """
    needed = headroom.needed_at(weight_bp)
    facts: dict[str, Any] = {"weight_bp": weight_bp, "needed": needed, "answering": headroom.candidate}
    if headroom.candidate < needed and needed > 1:
        few = f"{headroom.candidate or 'none'} {'answers' if headroom.candidate == 1 else 'answer'}"
        said = f"{weight_text(weight_bp)} needs {needed} servers of {who.candidate_name}, and {few}"
        return Shortage(NEEDS_REPLICAS, said, who.candidate_name, facts)
    if per_s is None:
        return None
    share = per_s * weight_bp / FULL_BP
    if headroom.proven_candidate is not None and share > (most := headroom.proven_candidate * headroom.candidate):
        gets = f"at {weight_text(weight_bp)} {who.candidate_name} would get"
        facts |= {"per_s": round(share, 2), "proven_per_s": round(most, 2)}
        return Shortage(NO_ROOM, _over(gets, share, headroom.candidate, most), who.candidate_name, facts)
    if (
        who.has_stable
        and headroom.proven_stable is not None
        and per_s > (most := headroom.proven_stable * headroom.stable)
    ):
        gets = f"{who.stable_name}, the way back, may have to take"
        facts |= {"per_s": round(per_s, 2), "proven_per_s": round(most, 2)}
        return Shortage(NO_ROOM, _over(gets, per_s, headroom.stable, most), who.stable_name, facts)
    return None


def _over(gets: str, per_s: float, servers: int, most: float) -> str:
    its = f"its {servers} servers are" if servers != 1 else "its one server is"
    return f"{gets} {_rate(per_s)} requests/s; {its} proven for {_rate(most)}"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"
