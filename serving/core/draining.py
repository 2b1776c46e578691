"""What becomes of a deployment that its node is to be rid of: pure, so that a page may say it before anybody presses a button."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """`leaving`: it is being taken out already · `stops`: now · `moves`: once it answers elsewhere · `waits`: for what uses it to end
    · `stays`: it serves users, and no other node can."""

    LEAVING = "leaving"
    STOPS = "stops"
    MOVES = "moves"
    WAITS = "waits"
    STAYS = "stays"


@dataclass(frozen=True)
class Drainable:
    """A deployment as draining looks at it. `name` is `sentiment r2 in production`.

    `is_stable`: a route names its release there. `uses`: what else needs it, as sentences without an end: rollouts, gate runs.
    `answers_on`: the nodes of the other replicas that answer and stay, once they are as many as are wanted; empty before.
    `goes_to`: the node that the one in its place would be put on, or is on already while `is_moving`; empty where none can, and
    `why_nowhere` says why.
    """

    name: str
    is_wanted: bool
    is_stable: bool
    uses: tuple[str, ...] = ()
    answers_on: str = ""
    goes_to: str = ""
    is_moving: bool = False
    why_nowhere: str = ""


def fate_of(one: Drainable) -> tuple[Fate, str]:
    """What happens to it when its node is drained now, and that as a sentence."""
    if not one.is_wanted:
        return Fate.LEAVING, f"{one.name} is being taken out already."
    if one.uses:
        return Fate.WAITS, f"{one.name} stays until this has ended: {'; '.join(one.uses)}."
    if one.answers_on:
        return Fate.STOPS, f"{one.name} answers on {one.answers_on} too: it is drained and stopped here."
    if not one.is_stable:
        return Fate.STOPS, f"{one.name} is needed by nothing: it is drained and stopped."
    if one.is_moving:
        return (
            Fate.MOVES,
            f"{one.name} serves users: it is being started on {one.goes_to}, and stops here once that answers.",
        )
    if one.goes_to:
        return Fate.MOVES, f"{one.name} serves users: it is started on {one.goes_to}, and stops here once that answers."
    return Fate.STAYS, f"{one.name} serves users and stays: {one.why_nowhere}"


def serves_users(one: Drainable) -> bool:
    """Whether draining it touches what users get: such a drain is confirmed by who has read what will happen."""
    return one.is_stable or bool(one.uses)
