"""How many requests one server may have in flight: from the rate that was proven of it, what its team declared, or neither.

By Little's law a server that answers `per_s` requests a second has emptied `per_s × within_s` of them in the time that the objective gives
one: who is let in last is still answered in it. To this is added half of what arrivals at random exceed their mean by (its root), else
a small server would refuse much of what it was proven for; there is room for that, as the rate was proven *within* the objective and
the server can do more than it. Batches are in it as they were when it was measured.

Premises: the server computes on hardware like that which was measured, requests are like those that were measured, and callers come at
random and speak one protocol at a time (each has half of the bound). Where the first two fail the bound is too wide, where the third
does, some are refused that could be answered. `tests/core/test_admission.py` breaks each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from serving.core.routes import IN_FLIGHT_PER_INSTANCE, WELL_WITHIN_S

#: One instance computes one and has the next at hand, over each of the two protocols.
LEAST_PER_INSTANCE = 4


class Source(StrEnum):
    """What an admission limit rests on."""

    PROVEN = "proven"
    DECLARED = "declared"
    DEFAULT = "default"


@dataclass(frozen=True)
class Proof:
    """Requests a second that one server was proven to answer within the objective, and the report that says so."""

    per_s: float
    within_s: float
    report: str = ""

    def in_flight(self, instances: int) -> int:
        held = self.per_s * self.within_s
        return max(math.floor(held + math.sqrt(held) / 2), LEAST_PER_INSTANCE * max(instances, 1))

    def as_json(self) -> dict[str, Any]:
        return {"per_s": self.per_s, "within_s": self.within_s, "report": self.report}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Proof | None:
        """None where nothing was proven when it was looked for, or where it cannot be read: one release's proof keeps no route back."""
        try:
            found = (
                cls(float(value["per_s"]), float(value["within_s"]), str(value.get("report", ""))) if value else None
            )
            return found if found is not None and found.per_s > 0 and found.within_s > 0 else None
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class AdmissionLimit:
    """The bound of one server, from all gateways and over both protocols, and what it rests on."""

    in_flight: int
    source: Source
    proof: Proof | None = None

    @property
    def well_within_s(self) -> float:
        """While the server is well, what fills the bound is answered within this."""
        return self.proof.within_s if self.proof is not None and self.source is Source.PROVEN else WELL_WITHIN_S


def admission_of(declared: int | None, instances: int, proof: Proof | None) -> AdmissionLimit:
    """What was proven, never above what was declared; without a proof what was declared, else so many for each model instance."""
    proven = proof.in_flight(instances) if proof is not None else None
    if proven is not None and (declared is None or proven < declared):
        return AdmissionLimit(proven, Source.PROVEN, proof)
    if declared is not None:
        return AdmissionLimit(declared, Source.DECLARED, proof)
    return AdmissionLimit(IN_FLIGHT_PER_INSTANCE * max(instances, 1), Source.DEFAULT)
