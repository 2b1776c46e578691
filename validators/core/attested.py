"""What a report's gates measured, as it is attested: every number with its unit, threshold, n and interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.core.attestations import GateResult, Measured
from validators.core.gates import GATES


def predicate_facts(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `registry.core.attestations.gate_evidence` from a report's body, except for its own digest."""
    return {
        "results": [_result(gate, body["policy"]) for gate in body["gates"]],
        "verdict": body["verdict"],
        "reason": body["reason"],
        "manifest_digest": body["manifest_digest"],
        "policy_digest": body["policy_digest"],
        "golden_set": body.get("golden_set"),
        "runtime_image": body["runtime"]["image"],
        "hardware": body.get("hardware") or {},
        "versions": body.get("versions") or {},
        "sealed_at": body["sealed_at"],
    }


def _result(gate: Mapping[str, Any], policy: Mapping[str, Any]) -> GateResult:
    return GateResult(
        gate["gate"],
        gate["verdict"],
        gate["reason"],
        gate.get("started_at"),
        gate.get("ended_at"),
        tuple(_measured(gate["gate"], gate.get("evidence") or {}, policy)),
        gate.get("measured") or {},
        gate.get("reused_from"),
    )


def _measured(gate: str, evidence: Mapping[str, Any], policy: Mapping[str, Any]) -> Iterator[Measured]:
    known, own = GATES.get(gate), policy.get(gate) or {}
    if known is None:
        return
    demanded, confidence = known.thresholds(own), known.confidence(own)
    for metric in known.metrics(evidence):
        yield Measured(
            metric.name,
            metric.unit,
            "higher" if metric.higher_is_better else "lower",
            metric.value,
            demanded.get(metric.name),
            metric.n,
            metric.low,
            metric.high,
            None if metric.low is None else confidence,
        )
    yield from known.attests(evidence, own)
