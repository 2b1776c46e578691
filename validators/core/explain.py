"""What a gate policy demands before it is run: of each threshold, how long that takes, and what a pass can certify.

Every figure is that of the planning which the gates themselves go by: `proof.sizing` and `recovery.surge` of the load,
`certify.caught` of the golden set. What nobody can tell before is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validators.core.entry import advisory_in, policy_in
from validators.core.gates import GATES
from validators.core.gates.gate import FACTS, Demand, Plan
from validators.core.policy import Policy

__all__ = ["Demand", "explain"]


def explain(policy: Policy, *, items: int, slices: Mapping[str, int]) -> list[Demand]:
    """The demands of the policy's gates in their order. `items` and `slices`: of the golden set that it names."""
    plan = Plan(policy.document, items, slices)
    found = [demand for gate in policy.gates for demand in GATES[gate].explain(policy.of(gate), plan)]
    return [*found, *_envelope(policy), *_evidence(policy.document)]


def _envelope(policy: Policy) -> Iterator[Demand]:
    own, gates = policy.of("envelope"), [gate for gate in policy.gates if GATES[gate].reads]
    if gates:
        breach = "A breach fails its gate" if own["on_breach"] == "fail" else "A breach is a warning"
        demands = f"Declared times and rates hold within {own['tolerance_frac'] * 100:g} %, and limits on memory exactly. {breach}."
        certifies = f"The values that {', '.join(gates)} measure under the declared load; the others are unknown."
        yield Demand("envelope", "envelope.on_breach", demands, certifies)


def _evidence(document: Mapping[str, Any]) -> Iterator[Demand]:
    alike = ", ".join(FACTS[name] for name in FACTS if name in document["evidence"]["same"])
    demands = f"The same {alike} where it serves." if alike else "Nothing of where it serves."
    holds = _lasting(document["evidence"]["max_age_days"])
    yield Demand("evidence", "evidence.same", demands, f"That what was measured is true there, {holds}.")
    for name in document["environments"]:
        advisory, own = sorted(advisory_in(document, name)), policy_in(document, name)
        holds = _lasting(own["evidence"]["max_age_days"])
        advised = f"{', '.join(advisory)} only advise" if advisory else "Every gate holds a release up"
        certifies = f"Nothing of {', '.join(advisory)}." if advisory else "What every gate does."
        yield Demand("evidence", f"environments.{name}", f"{advised}; evidence holds {holds}.", certifies)


def _lasting(days: float | None) -> str:
    return "for ever" if days is None else f"for {days:g} days"
