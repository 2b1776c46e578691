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

from serving.traffic.core.routes import IN_FLIGHT_PER_INSTANCE, WELL_WITHIN_S

#: One instance computes one and has the next at hand, over each of the two protocols.
LEAST_PER_INSTANCE = 4


class Source(StrEnum):
    """What an admission limit rests on."""

    PROVEN = "proven"  # by a capacity gate
    DECLARED = "declared"  # limits.max_concurrency
    MEASURED = "measured"  # by a load gate, on a full server
    ENVELOPE = "envelope"  # the declared throughput
    DEFAULT = "default"


@dataclass(frozen=True)
class Proof:
    """Requests a second that one server was proven to answer within the objective, and the report that proves it.

    `at_once`: the load gate measured the rate of a full server with this number of requests in flight, and no capacity
    gate proved a rate; None for a proven rate.
    """

    per_s: float
    within_s: float
    report: str = ""
    at_once: int | None = None

    def in_flight(self, instances: int) -> int:
        held = self.per_s * self.within_s
        if self.at_once is not None:  # never more than it was seen to bear, nor less than without a measurement
            return max(min(math.floor(held), self.at_once), IN_FLIGHT_PER_INSTANCE * max(instances, 1))
        return max(math.floor(held + math.sqrt(held) / 2), LEAST_PER_INSTANCE * max(instances, 1))

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"per_s": self.per_s, "within_s": self.within_s, "report": self.report}
        return told if self.at_once is None else {**told, "at_once": self.at_once}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Proof | None:
        """None where nothing was proven when it was looked for, or where it cannot be read: one release's proof keeps no route back."""
        try:
            found = (
                cls(float(value["per_s"]), float(value["within_s"]), str(value.get("report", "")), value.get("at_once"))
                if value
                else None
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
        is_by_proof = self.source in (Source.PROVEN, Source.MEASURED)
        return self.proof.within_s if self.proof is not None and is_by_proof else WELL_WITHIN_S


def admission_of(
    declared: int | None, instances: int, proof: Proof | None, throughput_per_s: float | None = None
) -> AdmissionLimit:
    """The proven bound, never above the declared one; without a proof the declared one.

    Without either: the load gate's measurement, else the answers of the declared throughput (requests a second) in
    `WELL_WITHIN_S`. Neither is below the default, a constant for each model instance.
    """
    if declared is None and proof is not None and proof.at_once is not None:
        return AdmissionLimit(proof.in_flight(instances), Source.MEASURED, proof)
    measured, proof = proof, None if proof is not None and proof.at_once is not None else proof
    proven = proof.in_flight(instances) if proof is not None else None
    if proven is not None and (declared is None or proven < declared):
        return AdmissionLimit(proven, Source.PROVEN, proof)
    if declared is not None:
        return AdmissionLimit(declared, Source.DECLARED, measured)
    usual = IN_FLIGHT_PER_INSTANCE * max(instances, 1)
    held = math.floor((throughput_per_s or 0.0) * WELL_WITHIN_S)
    return AdmissionLimit(held, Source.ENVELOPE) if held > usual else AdmissionLimit(usual, Source.DEFAULT)
