"""The gate policy of a model: which gates run, in which order, and what each of them demands.

A policy is plain JSON. Reading fills in every default, so that its digest names what was really demanded; what the load
gate is not told, it takes from the model's objectives, and what the golden gate is not told depends on what it compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid
from registry.core.schema import (
    Flag,
    ListOf,
    Number,
    Object,
    Problem,
    Record,
    SchemaType,
    Text,
    listed,
    may,
)
from serving.traffic.core.request_limits import USUAL_LIMITS, Limits
from validators.core import envelope_values
from validators.core.expiry import USUAL
from validators.core.gates import GATES, REPLAYING, WATCHED
from validators.core.gates.fields import OrNone
from validators.core.gates.gate import FACTS
from validators.core.request_time import contradictions as time_contradictions
from validators.core.request_time import with_request_time

#: Gates that run only if a policy names them; only such a policy has their section.
ON_DEMAND = tuple(gate.name for gate in GATES.values() if gate.on_demand)

_GATE = Text(one_of=tuple(GATES), says="a gate")
_DAYS = Number(0, 3650, above=True, unit="days")
_EVIDENCE = Record(
    {
        "max_age_days": may(OrNone(_DAYS), 30),
        "same": may(ListOf(Text(one_of=tuple(FACTS), says="a fact of a node"), most=len(FACTS)), list(USUAL)),
    }
)
_SECTIONS: dict[str, SchemaType] = {
    **{gate.name: gate.section for gate in GATES.values()},
    "evidence": _EVIDENCE,
    "envelope": envelope_values.POLICY,
}
_ENVIRONMENT = Record(
    {
        "advisory": may(ListOf(_GATE, most=len(GATES)), []),
        "max_age_days": may(OrNone(_DAYS), None),
    }
)
_POLICY = Record(
    {
        "gates": may(ListOf(_GATE, least=1, most=len(GATES)), None),
        "gate_timeout_s": may(Number(1, 86_400, unit="seconds"), 900),
        "stop_at_first_failure": may(Flag(), True),
        "environments": may(Object(_ENVIRONMENT, most=20), {}),
        **{name: may(kind, {}) for name, kind in _SECTIONS.items()},
    }
)


@dataclass(frozen=True)
class Policy:
    """A policy with every default filled in. `document` is its canonical JSON, `digest` that JSON's name."""

    document: dict[str, Any]
    digest: str

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(self.document["gates"])

    @property
    def gate_timeout_s(self) -> float:
        return float(self.document["gate_timeout_s"])

    @property
    def golden_set(self) -> str | None:
        """The set that its sections name, also if no gate of the policy asks it."""
        return next((self.document[gate]["set"] for gate in REPLAYING), None)

    @property
    def asked_set(self) -> str | None:
        """The golden set that a gate of the policy asks."""
        return self.golden_set if any(gate in REPLAYING for gate in self.gates) else None

    @property
    def start_s(self) -> float:
        """Seconds from nothing to ready that a release may take."""
        return float(next(self.document[name]["max_s"] for name, gate in GATES.items() if gate.judges_start))

    def of(self, gate: str) -> dict[str, Any]:
        """The section of one gate."""
        section: dict[str, Any] = self.document[gate]
        return section


def asks_golden_set(stated: Mapping[str, Any]) -> bool:
    """Whether a stored policy names a golden set for its gates. Reads no more of it."""
    gates = stated.get("gates") or REPLAYING
    return any(gate in gates and (stated.get(gate) or {}).get("set") for gate in REPLAYING)


def parse_policy(
    document: Mapping[str, Any], objectives: Mapping[str, Any] | None = None, default: Limits = USUAL_LIMITS
) -> Policy:
    """The policy that a JSON object states; an empty one is the default. Without a golden set its gate is left out.

    `objectives` are the model's. `default`: the installation's time limits, for objectives without any. A policy's own
    `document` is complete.

    Raises:
        Invalid: `gate_policy_invalid`, with facts["errors"] = [{field, message, fix}] naming every mistake at once.
    """
    problems: list[Problem] = []
    read = _POLICY.read(document, "", problems)
    if isinstance(read, dict):
        for name, kind in _SECTIONS.items():
            if read.get(name) == {}:
                read[name] = kind.read({}, name, problems)
        problems += [*_contradictions(read), *_not_named(document, read)]
    if problems or not isinstance(read, dict):
        raise _invalid(problems)
    read["gates"] = _gates_of(read)
    for name, gate in GATES.items():
        read[name] = dict(gate.complete(read[name], document.get(name) or {}, read, objectives or {}))
    read = with_request_time(read, document, objectives or {}, default)
    for name in ON_DEMAND:
        if name not in read["gates"]:
            del read[name]
    return Policy(read, digest_of(read))


#: Fields that policies of gate runs may hold from before they were removed.
_REMOVED: Final = (("kept_requests",), ("capacity", "sweep"), ("load", "trace"))


def stored_policy(document: Mapping[str, Any]) -> Policy:
    """The policy of a gate run, also of one from before a field was removed. Raises Invalid, as `parse_policy`."""
    kept = deepcopy(dict(document))
    for *sections, name in _REMOVED:
        part: Any = kept
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(name, None)
    return parse_policy(kept)


def checked_policy(document: Mapping[str, Any], objectives: Mapping[str, Any]) -> Policy:
    """The policy, checked for saving: unwise values are refused too, which stored policies may hold. Raises Invalid."""
    policy = parse_policy(document, objectives)
    if problems := time_contradictions(document, objectives):
        raise _invalid(problems)
    return policy


def _invalid(problems: Sequence[Problem]) -> Invalid:
    first = problems[0]
    return Invalid(
        "gate_policy_invalid",
        f"The gate policy cannot be read: {first.field or 'policy'}: {first.message} {first.fix}",
        errors=[problem.as_json() for problem in listed(problems)],
    )


def _not_named(stated: Mapping[str, Any], read: Mapping[str, Any]) -> list[Problem]:
    """Sections of gates that would not run."""
    named = read.get("gates") or ()
    return [
        Problem(gate, "the policy does not name this gate.", f"Add {gate} to `gates`, or leave this section out.")
        for gate in ON_DEMAND
        if gate in stated and gate not in named
    ]


def _gates_of(read: Mapping[str, Any]) -> list[str]:
    """The gates that are named, else those that take no name and can run."""
    if read.get("gates") is not None:
        return list(read["gates"])
    return [
        name
        for name, gate in GATES.items()
        if not gate.on_demand and (not gate.replays_set or (read.get(name) or {}).get("set"))
    ]


def _contradictions(read: Mapping[str, Any]) -> list[Problem]:
    problems = []
    gates = read.get("gates") or []
    for name in sorted({name for name in gates if gates.count(name) > 1}):
        problems.append(Problem("gates", f"the gate {name} occurs twice.", "Name every gate once."))
    for name, gate in GATES.items():
        if gate.watches and name in gates and not set(WATCHED) & set(gates[: gates.index(name)]):
            fix = f"Name {' or '.join(WATCHED)} before it."
            says = f"nothing is measured before {name}, which looks at the GPUs under it."
            problems.append(Problem("gates", says, fix))
    for gate in GATES.values():
        problems += gate.contradictions(read)
    for name, own in (read.get("environments") or {}).items():
        if set(_gates_of(read)) <= set(own.get("advisory") or ()):
            fix = "Leave one out, which must pass before a release enters."
            problems.append(Problem(f"environments.{name}.advisory", "no gate is left that holds a release up.", fix))
    return problems
