"""Containment: whether a node contains the code of the releases that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Containment(StrEnum):
    """Whether a release's code reaches its own files only and opens no connection. A node's agent tries it, and reports it."""

    CONTAINED = "contained"
    NOT_CONTAINED = "not contained"
    UNKNOWN = "unknown"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Containment.CONTAINED: "This code will run contained: it reads its own release only, and opens no connection.",
    Containment.NOT_CONTAINED: "This code will run with the service's rights, keys and all: it is not contained.",
    Containment.UNKNOWN: "The node has not reported its containment. Assume that this code will run with the service's rights.",
}
#: The sentence of a node whose agent could not determine its containment.
NOT_FOUND_OUT = "The agent cannot determine this node's containment yet. It starts no server, and tries again."


def of_facts(facts: Mapping[str, Any]) -> Containment:
    """The containment that the node's agent reported."""
    reported = (facts.get("containment") or {}).get("tier")
    return Containment(reported) if reported in set(Containment) else Containment.UNKNOWN


def may_run_code(facts: Mapping[str, Any]) -> bool:
    """Whether the node takes releases that bring code: it contains them, or its owner allows code that is not contained.

    If the containment is unknown, the node's launcher decides later. The containment of a static server is never known.
    """
    reported = of_facts(facts)
    holds = reported is Containment.CONTAINED or (reported is Containment.UNKNOWN and "static" not in facts)
    return holds or bool((facts.get("containment") or {}).get("allows_uncontained_code"))


def not_contained(model: str, release: str) -> str:
    """Why a release that brings code does not run on a node."""
    return (
        f"{model} {release} brings its own code, and this node cannot contain code: it would run with the service's "
        "rights. Run it on a node that can, or let the node's owner set SLUICEGATE_ALLOW_UNCONTAINED_CODE=1 there."
    )
