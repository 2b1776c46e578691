"""The gate policy of a model: which gates run, in which order, and what each of them demands.

A policy is plain JSON. Reading fills in every default, so that its digest names what was really demanded; what the load
gate is not told, it takes from the model's objectives, and what the golden gate is not told depends on what it compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.core.canonical import digest_of
from ledger.core.errors import Invalid
from registry.core.schema import (
    INVALID,
    Flag,
    Integer,
    Json,
    ListOf,
    Number,
    Object,
    Problem,
    Record,
    SchemaType,
    TensorName,
    Text,
    digest,
    listed,
    may,
    need,
)
from serving.core.request_limits import USUAL_LIMITS, Limits
from validators.core import envelope_values, json_shape, sweep_policy, token_policy, trace_policy
from validators.core.expiry import FACTS, USUAL
from validators.core.gpu_checks import CHECKS, MEASURING
from validators.core.load_defaults import LEAST_QUANTILE, MEASURED, MOST_QUANTILE, STATED, inherited
from validators.core.request_time import contradictions as time_contradictions
from validators.core.request_time import with_request_time
from validators.core.ruler import COMPARISONS, ONLY_FOR, Kind
from validators.core.slo import DISPERSION_SAFETY

GATE_NAMES = ("contract", "cold_start", "golden", "load", "resources", "capacity", "gpu")
#: Gates that run only where a policy names them, since they take time; only such a policy has their section.
ON_DEMAND = ("resources", "capacity", "gpu")

#: By which a load may be sent: the names that `serving.ports` has for them, and those that people have.
PROTOCOLS = {"grpc": "gRPC", "http": "HTTP"}

_FRACTION = Number(0, 1)
_DISTANCE = Number(0, 1_000_000)
_SECONDS = Number(0, 86_400, above=True, unit="seconds")
_MILLISECONDS = Number(0, 86_400_000, above=True, unit="milliseconds")
_DAYS = Number(0, 3650, above=True, unit="days")
_CONFIDENCE = Number(0.5, 0.9999)
_DURATION = Number(0, 3600, above=True, unit="seconds")
#: What is asked where answers are compared that are no labels, and the policy does not say: outputs that are expected are met.
_OF_ROWS = {"min_accuracy": 0.95, "min_slice_accuracy": 0.9, "min_slice_agreement": 0.9, "max_batch_flips": 0.05}


@dataclass(frozen=True)
class _OrWord:
    """The kind, or one word."""

    word: str
    kind: SchemaType

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        return value if value == self.word else self.kind.read(value, at, problems)


@dataclass(frozen=True)
class _OrNone:
    """The kind, or null: nothing is asked, or, in the load section, nothing is stated and the model's objective holds."""

    kind: SchemaType

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        return None if value is None else self.kind.read(value, at, problems)


class _Schema:
    """A JSON Schema of the words that `validators.core.json_shape` knows."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        read = Json().read(value, at, problems)
        fault = None if read is INVALID else json_shape.fault_of_schema(read, "it")
        if fault:
            problems.append(Problem(at, f"{fault}.", "Write a JSON Schema of these words alone."))
        return INVALID if fault else read


#: "max" is the largest that the release declares.
_BATCH_SIZE = _OrWord("max", Integer(1, 65_536, unit="items"))
_CONTRACT = Record(
    {
        "batch_sizes": may(ListOf(_BATCH_SIZE, least=1, most=16), [1, 2, "max"]),
        "edges": may(Flag(), True),
        "undecided": may(Text(one_of=("allow", "block"), says="an answer to an undecided verdict")),
        "timeout_s": may(_SECONDS, 30),
    }
)
_COLD_START = Record(
    {
        "max_s": may(_SECONDS, 60),
        "inferences": may(Integer(5, 1000), 20),
        "max_first_excess_ms": may(_MILLISECONDS, 1000),
        "timeout_s": may(_SECONDS, 30),
    }
)
_GOLDEN = Record(
    {
        "set": may(
            digest("a golden set's digest"),
            None,
        ),
        "output": may(TensorName(), None),
        "compare": may(Text(one_of=tuple(COMPARISONS), says="a comparison"), "label"),
        "right_within": may(_OrNone(_DISTANCE), None),
        "same_within": may(_OrNone(_DISTANCE), None),
        "schema": may(_OrNone(_Schema()), None),
        "labels": may(ListOf(Text(200), least=1, most=10_000), None),
        "min_accuracy": may(_OrNone(_FRACTION), None),
        "min_slice_accuracy": may(_OrNone(_FRACTION), None),
        "min_agreement": may(_OrNone(_FRACTION), 0.95),
        "min_slice_agreement": may(_OrNone(_FRACTION), None),
        "max_accuracy_drop": may(_OrNone(_FRACTION), 0.02),
        "max_slice_drop": may(_OrNone(_FRACTION), 0.05),
        "min_slice_items": may(Integer(1, 1_000_000, unit="items"), 20),
        "max_batch_flips": may(_OrNone(_FRACTION), None),
        "max_length_shift": may(_OrNone(Number(0, 100)), None),
        "rule": may(Text(one_of=("measured", "certified"), says="a rule"), "measured"),
        "confidence": may(_CONFIDENCE, 0.95),
        "batch_size": may(Integer(1, 65_536, unit="items"), 16),
        "alone_items": may(Integer(0, 100_000, unit="items"), 64),
        "timeout_s": may(_SECONDS, 60),
    }
)
_LOAD = Record(
    {
        "rate_per_s": may(Number(0, 10_000, above=True, unit="requests per second"), 20),
        "rate_from": may(_OrNone(Text(one_of=(STATED, MEASURED), says="where the rate comes from")), None),
        "arrivals_cv": may(Number(0.1, 20), 1),
        "trace": may(trace_policy.TraceOrGaps(), None),
        "protocol": may(Text(one_of=tuple(PROTOCOLS), says="a protocol"), "grpc"),
        "generators": may(_OrWord("auto", Integer(1, 16, unit="processes")), "auto"),
        "duration_s": may(_OrNone(_DURATION), None),
        "max_duration_s": may(_OrNone(_DURATION), None),
        "least_dispersion": may(Number(1, 100), DISPERSION_SAFETY),
        "longest_frac": may(_FRACTION, 0.125),
        "sizes": may(Text(one_of=("seen", "examples"), says="where sizes come from"), "seen"),
        "slo_ms": may(_OrNone(_MILLISECONDS), None),
        **{name: may(_OrNone(_MILLISECONDS)) for name in token_policy.FIELDS},
        "slo_quantile": may(_OrNone(Number(LEAST_QUANTILE, MOST_QUANTILE)), None),
        "confidence": may(_CONFIDENCE, 0.95),
        "max_error_frac": may(_OrNone(_FRACTION), None),
        "max_lag_ms": may(_MILLISECONDS, None),
        "burst_factor": may(Number(1, 100), 3),
        "burst_s": may(Number(0, 600, unit="seconds"), 3),
        "recovery_s": may(_DURATION, 10),
        "undecided": may(Text(one_of=("allow", "block"), says="an answer to an undecided verdict"), "block"),
        "seed": may(Integer(0), 1),
        "timeout_s": may(_SECONDS, 10),
    }
)
_RESOURCES = Record(
    {
        "max_growth_bytes": may(Number(0, 2**40), 4096),
        "max_growth_files": may(_FRACTION, 0.02),
        "max_cpu_ms": may(_OrNone(_MILLISECONDS), None),
        "min_requests": may(Integer(0, 10_000_000, unit="requests"), 2000),
        "max_soak_s": may(Number(0, 3600, unit="seconds"), 90),
        "confidence": may(_CONFIDENCE, 0.95),
        "undecided": may(Text(one_of=("allow", "block"), says="an answer to an undecided verdict"), "block"),
    }
)
_CAPACITY = Record(
    {
        "first_per_s": may(_OrNone(Number(0.1, 10_000, unit="requests per second")), None),
        "most_per_s": may(Number(0.1, 10_000, unit="requests per second"), 1000),
        "budget_s": may(Number(20, 3600, unit="seconds"), 600),
        "confidence": may(_CONFIDENCE, 0.9),
        "undecided": may(Text(one_of=("allow", "block"), says="an answer to an undecided verdict"), "block"),
        "sweep": may(_OrNone(sweep_policy.SWEEP)),
    }
)
_GPU = Record(
    {
        "must_know": may(
            ListOf(Text(one_of=tuple(CHECKS), says="a check of a GPU"), least=1, most=len(CHECKS)), list(CHECKS)
        ),
        "alone": may(Flag(), True),
        "max_power_capped_frac": may(_OrNone(_FRACTION), None),
    }
)
_EVIDENCE = Record(
    {
        "max_age_days": may(_OrNone(_DAYS), 30),
        "same": may(ListOf(Text(one_of=tuple(FACTS), says="a fact of a node"), most=len(FACTS)), list(USUAL)),
    }
)
_SECTIONS: dict[str, SchemaType] = {
    "contract": _CONTRACT,
    "cold_start": _COLD_START,
    "golden": _GOLDEN,
    "load": _LOAD,
    "resources": _RESOURCES,
    "capacity": _CAPACITY,
    "gpu": _GPU,
    "evidence": _EVIDENCE,
    "envelope": envelope_values.POLICY,
}
#: What may be kept of mirrored requests. No gate asks it, so it is no part of what a policy's digest names.
KEPT_REQUESTS = Record(
    {
        "most": need(Integer(1, 2000, unit="requests")),
        "max_age_days": may(Number(0, 90, above=True, unit="days"), 7),
        "max_bytes": may(Integer(1, 65_536, unit="bytes"), 16_384),
    }
)
_ENVIRONMENT = Record(
    {
        "advisory": may(ListOf(Text(one_of=GATE_NAMES, says="a gate"), most=len(GATE_NAMES)), []),
        "max_age_days": may(_OrNone(_DAYS), None),
    }
)
_POLICY = Record(
    {
        "gates": may(ListOf(Text(one_of=GATE_NAMES, says="a gate"), least=1, most=len(GATE_NAMES)), None),
        "gate_timeout_s": may(Number(1, 86_400, unit="seconds"), 900),
        "stop_at_first_failure": may(Flag(), True),
        "environments": may(Object(_ENVIRONMENT, most=20), {}),
        "kept_requests": may(_OrNone(KEPT_REQUESTS), None),
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
        found: str | None = self.document["golden"]["set"]
        return found

    @property
    def trace(self) -> str | None:
        """The trace that it names; gaps that it states itself have no name."""
        return trace_policy.digest_in(self.document["load"])

    def of(self, gate: str) -> dict[str, Any]:
        """The section of one gate."""
        section: dict[str, Any] = self.document[gate]
        return section


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
    del read["kept_requests"]
    read["gates"] = _gates_of(read)
    read["golden"] = _of_its_kind(read["golden"], document.get("golden") or {})
    read["load"] = inherited(read["load"], document.get("load") or {}, objectives or {})
    read = with_request_time(read, document, objectives or {}, default)
    for gate in ON_DEMAND:
        if gate not in read["gates"]:
            del read[gate]
    if "capacity" in read:
        read["capacity"] = _searched(read["capacity"], read["load"])
    return Policy(read, digest_of(read))


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
    """Those that are named, else all but what takes time; without a golden set its gate is left out."""
    usual = [name for name in GATE_NAMES if name not in ON_DEMAND]
    every = [name for name in usual if name != "golden" or (read.get("golden") or {}).get("set")]
    return list(every if read.get("gates") is None else read["gates"])


def _of_its_kind(golden: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """The golden section with the limits of what it compares; a stated null asks for nothing."""
    if golden["compare"] == "label":
        return dict(golden)
    return {**golden, **{name: limit for name, limit in _OF_ROWS.items() if name not in stated}}


def _searched(capacity: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """The capacity section with nothing left open. Without a sweep it says nothing of one, as before there were any."""
    first = capacity["first_per_s"]
    out = {**capacity, "first_per_s": load["rate_per_s"] if first is None else first}
    if out.get("sweep") is None:
        out.pop("sweep", None)
    return out


def _contradictions(read: Mapping[str, Any]) -> list[Problem]:
    problems = []
    gates = read.get("gates") or []
    for name in sorted({name for name in gates if gates.count(name) > 1}):
        problems.append(Problem("gates", f"the gate {name} occurs twice.", "Name every gate once."))
    if "gpu" in gates and not set(MEASURING) & set(gates[: gates.index("gpu")]):
        fix = f"Name {' or '.join(MEASURING)} before it."
        problems.append(Problem("gates", "nothing is measured before gpu, which looks at the GPUs under it.", fix))
    golden = read.get("golden") or {}
    if "golden" in gates and golden.get("set", "") is None:
        problems.append(
            Problem(
                "golden.set",
                "the golden gate has no set to replay.",
                "Upload one to the model's golden-sets and write its digest here, or take golden out of gates.",
            )
        )
    capacity = read.get("capacity") or {}
    if "capacity" in gates and capacity.get("budget_s", 0) > read.get("gate_timeout_s", 0):
        fix = "Raise gate_timeout_s to more than that, or search for a shorter time."
        problems.append(Problem("capacity.budget_s", "it is longer than any gate may take, gate_timeout_s.", fix))
    problems += sweep_policy.problems_of(capacity, float(read.get("gate_timeout_s") or 0))
    for name, own in (read.get("environments") or {}).items():
        if set(_gates_of(read)) <= set(own.get("advisory") or ()):
            fix = "Leave one out, which must pass before a release enters."
            problems.append(Problem(f"environments.{name}.advisory", "no gate is left that holds a release up.", fix))
    load = read.get("load") or {}
    problems += trace_policy.problems_of(load)
    problems += token_policy.problems_of(load)
    compare = str(golden.get("compare"))
    for name, kinds in ONLY_FOR.items():
        if golden.get(name) is not None and COMPARISONS.get(compare, kinds[0]) not in kinds:
            fix = f"Leave it out, or compare {' or '.join(kinds)}: {_comparisons_of(kinds)}."
            problems.append(Problem(f"golden.{name}", f"it means nothing for golden.compare {compare}.", fix))
    return problems


def _comparisons_of(kinds: Sequence[Kind]) -> str:
    return ", ".join(name for name, kind in COMPARISONS.items() if kind in kinds)
