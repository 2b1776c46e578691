"""Containment: how far a node shuts in the code of the releases that it runs, in words for those who let code run there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Containment(StrEnum):
    """Best first. Which one a node has is found out by its agent, by trying, and stands in the node's facts."""

    OWN_USER = "own_user"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    OTHER_USER = "other_user"
    SECCOMP = "seccomp"
    NONE = "none"

    @property
    def holds_code(self) -> bool:
        """Whether a release's own code is kept from the files and processes of the service."""
        return self not in (Containment.SECCOMP, Containment.NONE)

    @property
    def sentence(self) -> str:
        """What code of a release may do on such a node; a whole sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Containment.OWN_USER: "This code will run as a user of its own: it reads its own release alone and connects to nothing.",
    Containment.NAMESPACES: "This code will run shut in: it reads its own release alone, sees no other process and connects "
    "to nothing.",
    Containment.LANDLOCK: "This code will run shut in: it reads its own release alone and connects to nothing, but what other "
    "releases on this node are being asked is within its reach, and nothing bounds what it "
    "keeps in the node's shared memory.",
    Containment.OTHER_USER: "This code will run as a user of its own and connects to nothing, but it reads what every user of "
    "this node may read, and sees which processes there are.",
    Containment.SECCOMP: "This code will run with the service's rights, keys and all, but for connections, which it cannot open.",
    Containment.NONE: "This code will run with the service's rights, keys and all.",
}
#: What a node says whose agent could not find out its containment.
NOT_FOUND_OUT = "How this node shuts code in could not be found out yet, so it starts no server; it goes on trying."
#: What is said where a node's agent never told.
UNKNOWN = "Nothing is known of how this node shuts code in: take it to run with the service's rights."


def of_facts(facts: Mapping[str, Any]) -> Containment | None:
    """What the node's agent told; None if it told nothing that is known here."""
    told = (facts.get("containment") or {}).get("tier")
    return Containment(told) if told in set(Containment) else None


def sentence_of(facts: Mapping[str, Any]) -> str:
    """What a release's code may do on the node with these facts."""
    found = of_facts(facts)
    return found.sentence if found else UNKNOWN


def may_run_code(facts: Mapping[str, Any]) -> bool:
    """Whether the node takes releases that bring code: it shuts them in, or its owner lets them run without.

    A node whose agent told nothing is asked, and its launcher answers. Of a server that somebody else runs nothing is known.
    """
    found = of_facts(facts)
    holds = found.holds_code if found else "static" not in facts
    return holds or bool((facts.get("containment") or {}).get("allows_uncontained_code"))


def not_contained(model: str, release: str, tier: Containment) -> str:
    """Why a release that brings code does not run on a node."""
    return (
        f"{model} {release} brings its own code, and this node cannot shut code in ({tier}): it would run with the service's "
        "rights. Run it on a node that can, or let the node's owner set SLUICEGATE_ALLOW_UNCONTAINED_CODE=1 there."
    )
